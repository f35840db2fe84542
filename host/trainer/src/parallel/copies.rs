//! Gradients that each rank has only a part of, summed over the ranks that hold copies of the parameter: per-head norms and
//! (with sequence parallelism) every norm over tp, replicated key heads over their holders, a tied embedding over the first
//! and the last stage.
//!
//! Read [`super::buckets`] for the sum over ranks that train on other sequences.

use super::mesh::Mesh;
use super::shard::Shard;
use super::stage::Stage;
use crate::Result;
use slime_kernels::{Comm, Ops};
use slime_model::layers::Gradients;
use std::collections::BTreeSet;
use std::ops::Range;

/// Sum them.
///
/// # Errors
/// A rank or the device failed.
pub(super) fn sum_copies<O: Ops>(
    ops: &O,
    stage: &Stage<O>,
    mesh: &Mesh<O>,
    grads: &mut Gradients<O>,
) -> Result<()> {
    let shards = stage.shards.clone();
    sum_ranges(ops, &shards, &over_tp(&shards), &*mesh.tp, grads)?;
    if let Some(group) = &mesh.key_replicas {
        sum_ranges(ops, &shards, &over_key_replicas(&shards), &**group, grads)?;
    }
    if let Some((group, head)) = tied(stage, mesh) {
        group.all_reduce_float(&mut grads.0[head])?;
    }
    Ok(())
}

/// Parameters with such gradients.
pub(super) fn params<O: Ops>(stage: &Stage<O>, mesh: &Mesh<O>) -> BTreeSet<usize> {
    let replicas = match &mesh.key_replicas {
        Some(_) => over_key_replicas(&stage.shards),
        None => Vec::new(),
    };
    let parts = over_tp(&stage.shards).into_iter().chain(replicas);
    let tied = tied(stage, mesh).map(|(_, head)| head);
    parts.map(|(param, _)| param).chain(tied).collect()
}

fn over_tp(shards: &[Shard]) -> Vec<(usize, Range<usize>)> {
    let parts = shards.iter().enumerate().filter(|(_, s)| s.sum_over_tp);
    parts.map(|(i, s)| (i, 0..s.len())).collect()
}

fn over_key_replicas(shards: &[Shard]) -> Vec<(usize, Range<usize>)> {
    let all = shards.iter().enumerate();
    let parts = all.filter(|(_, s)| !s.key_replicas.is_empty());
    parts.map(|(i, s)| (i, s.key_replicas.clone())).collect()
}

/// The parameter that the first and the last stage both hold, and their group.
fn tied<'a, O: Ops>(stage: &Stage<O>, mesh: &'a Mesh<O>) -> Option<(&'a dyn Comm<O>, usize)> {
    let group = mesh.embedding.as_ref().filter(|_| stage.spec.tied)?;
    Some((&**group, stage.head().0))
}

fn sum_ranges<O: Ops>(
    ops: &O,
    shards: &[Shard],
    ranges: &[(usize, Range<usize>)],
    group: &dyn Comm<O>,
    grads: &mut Gradients<O>,
) -> Result<()> {
    if ranges.is_empty() {
        return Ok(());
    }
    let len = ranges.iter().map(|(_, range)| range.len()).sum();
    let parts: Vec<_> = ranges
        .iter()
        .map(|(i, range)| (&grads.0[*i], range.clone()))
        .collect();
    let mut all = ops.join_float(&parts, len)?;
    group.all_reduce_float(&mut all)?;
    let mut at = 0;
    for (i, range) in ranges {
        let (shard, grad) = (&shards[*i], &grads.0[*i]);
        let summed = (&all, at..at + range.len());
        at += range.len();
        let parts = [
            (grad, 0..range.start),
            summed,
            (grad, range.end..shard.len()),
        ];
        let whole = ops.join_float(&parts, shard.len())?;
        grads.0[*i] = ops.cut_float(&whole, 0..shard.len(), shard.rows, shard.cols)?;
    }
    Ok(())
}
