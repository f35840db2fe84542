//! Experts that the passes of several ranks replay: those the engine chose, or those of the pass for the old log-probs.
//!
//! ```text
//! a record's experts ─► rows of its micro-batch ─► this rank's two chunks, its layers ─► rows that a layer sees here
//! ```
//!
//! A rank keeps what its own rows and layers need and nothing travels: what a pass here recorded is replayed here. Records
//! are read by the ranks that train on them; if one refuses, all do, for the same reason. Read [`super::stage`] for which
//! rows a layer sees.

use super::mesh::Mesh;
use super::slice::LocalMicro;
use super::stage::Stage;
use crate::data::Batch;
use crate::data::routes::{of_members, top_k};
use crate::{Error, Result};
use slime_kernels::{Ops, Reduce};
use slime_model::layers::Routes;
use std::cell::RefCell;

/// Give every micro-batch the experts that its records bring.
///
/// # Errors
/// A record brings none, or they do not fit the model; or a rank failed.
pub(super) fn of_rollouts<O: Ops>(
    stage: &Stage<O>,
    mesh: &Mesh<O>,
    batches: &[Batch<'_>],
    micros: &mut [Vec<LocalMicro>],
) -> Result<()> {
    let of = batches.iter().map(|batch| batch.sequences.len());
    let total: usize = of.clone().sum();
    let mut first = total;
    // Sequences are counted from the last, so that the greatest number is that of the first and 0 of none.
    let mut refused = 0;
    for ((batch, micros), len) in batches.iter().zip(micros).zip(of) {
        for micro in micros {
            match own(stage, batch, micro) {
                Ok(routes) => micro.routes = Some(routes),
                Err(Error::Record { index, .. }) => refused = refused.max(first - index),
                Err(error) => return Err(error),
            }
        }
        first -= len;
    }
    let mut greatest = [refused as f64];
    mesh.world.all_reduce_host(&mut greatest, Reduce::Max)?;
    let mut at = total - greatest[0] as usize;
    for batch in batches {
        if at < batch.sequences.len() {
            of_members(&stage.spec, batch, &[at])?;
            break;
        }
        at -= batch.sequences.len();
    }
    Ok(())
}

/// What the rows and layers here need of a micro-batch's records.
fn own<O: Ops>(stage: &Stage<O>, batch: &Batch<'_>, micro: &LocalMicro) -> Result<Routes> {
    let whole = of_members(&stage.spec, batch, &micro.members)?;
    let layers = stage.spec.layers.iter().zip(&whole.layers).enumerate();
    let layers = layers.map(|(at, (layer, experts))| match stage.holds(at) {
        true => micro.experts_of(experts, top_k(layer)),
        false => Vec::new(),
    });
    Ok(Routes {
        layers: layers.collect(),
    })
}

/// Room for what a pass records of each micro-batch.
pub(super) fn room(micros: &[LocalMicro]) -> Vec<RefCell<Routes>> {
    micros.iter().map(|_| RefCell::default()).collect()
}

/// Have the passes to come take what one has recorded.
pub(super) fn keep<O: Ops>(
    stage: &Stage<O>,
    recorded: Vec<RefCell<Routes>>,
    micros: &mut [LocalMicro],
) {
    for (micro, seen) in micros.iter_mut().zip(recorded) {
        let mut seen = seen.into_inner();
        seen.layers.resize(stage.spec.layers.len(), Vec::new());
        micro.routes = Some(stage.recorded(seen, micro));
    }
}
