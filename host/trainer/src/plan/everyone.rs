//! Every rank of a layout through one train step, and their clocks together.
//!
//! Where [`super::search`] takes one rank a stage for all of them, nothing is taken for granted here: each rank's own calls
//! are noted, and the replay says whether they come to an end.

use super::cores::on_all_cores;
use super::machine::Machine;
use super::record::{Groups, Memory, Recorded, Workload, record};
use super::replay::{Outcome, replay};
use crate::Result;
use crate::config::TrainConfig;
use crate::parallel::ParallelConfig;
use slime_kernels::shapes::Widths;
use slime_model::ModelSpec;
use std::sync::Arc;

/// What all ranks of a step do.
#[derive(Clone, Debug)]
pub struct Everyone {
    /// Pieces of work and calls, of all ranks.
    pub events: usize,
    /// Groups that made calls.
    pub groups: usize,
    /// Of the rank that needs most.
    pub memory: Memory,
    /// The clock.
    pub outcome: Outcome,
}

/// Run them one after the other, on all cores of this machine.
///
/// # Errors
/// The layout or the configuration does not fit the model.
pub fn everyone(
    spec: &Arc<ModelSpec>,
    config: &TrainConfig,
    parallel: &ParallelConfig,
    workload: Workload,
    machine: &Machine,
) -> Result<Everyone> {
    let (groups, records) = (Arc::new(Groups::default()), workload.records());
    let all: Vec<Recorded> = on_all_cores(parallel.world(), |rank| {
        let both = (config, parallel);
        record(spec, both, &records, machine, &groups, Widths::GPU, rank)
    })
    .into_iter()
    .collect::<Result<_>>()?;
    let heaviest = all.iter().map(|r| r.memory).max_by_key(Memory::peak);
    let groups = groups.list();
    Ok(Everyone {
        events: all.iter().map(|r| r.events.len()).sum(),
        memory: heaviest.unwrap_or_default(),
        outcome: replay(&all, &groups),
        groups: groups.len(),
    })
}
