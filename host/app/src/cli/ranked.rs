//! A verb whose ranks may be processes: rank 0 does it, the others follow.

use super::{Context, Outcome, block_on};
use crate::error::{Failure, Result};
use crate::job::stop::Stop;
use crate::job::team;
use crate::launch::Env;
use crate::launch::contract::rendezvous;
use slime_kernels::comm::Processes;
use std::sync::Arc;

/// Do `lead` alone, or be the rank that the environment says.
///
/// # Errors
/// The ranks do not meet, this one cannot follow, or what `lead` failed with; then the others end too.
pub(super) fn ranked(
    context: &Context,
    lead: impl FnOnce(Option<Arc<Processes>>) -> Result<Outcome>,
) -> Result<Outcome> {
    let Some((at, timing)) = rendezvous(&Env::own())? else {
        return lead(None);
    };
    let (rank, size) = (at.rank, at.size);
    let processes = Processes::join(&at, timing);
    let processes = processes.map_err(|e| Failure::elsewhere(e.to_string()))?;
    if rank > 0 {
        context.console.line(&format!(
            " rank {rank} of {size}, led by rank 0 at {}:{}",
            at.host, at.port
        ));
        return block_on(following(processes))?;
    }
    let result = lead(Some(processes.clone()));
    if let Err(failure) = &result {
        team::give_up(&processes, failure);
    }
    result
}

/// A rank other than 0. What asks it to stop asks rank 0 too, which decides when there is nothing more to do.
async fn following(processes: Arc<Processes>) -> Result<Outcome> {
    let _patient = Stop::ignore();
    tokio::task::block_in_place(|| team::follow(&processes))?;
    Ok(Outcome::Done)
}
