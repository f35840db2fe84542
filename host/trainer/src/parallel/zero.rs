//! The distributed optimizer (ZeRO-1): gradients summed into slices, one slice a rank, weights gathered again.
//!
//! ```text
//! gradients ─► buckets, last parameter first, padded to the group's size ─► reduce-scatter ─► own slice
//! own slices ─► norm over all ranks ─► clip ─► AdamW on own master, m, v ─► all-gather ─► weights
//! ```
//!
//! A slice knows nothing of parameters' borders; it is a list of segments, each a piece of one parameter. Padding is never
//! updated, saved or counted in the norm. Every sum is a plain sum: the loss's weights hold all averages. With a group of
//! one nothing is copied or sent. Read [`crate::optim`] for the formulas.

use super::mesh::Mesh;
use super::shard::Shard;
use super::stage::Stage;
use crate::config::{Problem, TrainConfig};
use crate::optim::precision::Precision;
use crate::optim::schedule::Schedule;
use crate::optim::{Progress, StepReport, adamw_of, clip_scale, schedule_of};
use crate::{Error, Result};
use slime_kernels::{AdamW, Ops, Reduce};
use slime_model::layers::Gradients;
use std::ops::Range;

/// Parameters whose gradients travel together.
struct Bucket {
    /// Each parameter and where it lies in the bucket.
    members: Vec<(usize, Range<usize>)>,
    /// Elements, padding included: a multiple of the group's size.
    len: usize,
    /// Of experts, whose gradients another group sums.
    is_expert: bool,
}

/// A piece of one parameter, updated by this rank.
pub struct Segment<O: Ops> {
    /// Which parameter.
    pub param: usize,
    /// Which of its elements.
    pub range: Range<usize>,
    /// Of these, counted from the segment's start: those that no other rank counts.
    counted: Vec<Range<usize>>,
    /// First moments.
    pub m: O::Float,
    /// Second moments.
    pub v: O::Float,
    /// Full-precision weights, where the device's are rounded.
    pub master: Option<O::Float>,
}

/// One rank's share of the optimizer.
pub struct Zero<O: Ops> {
    config: AdamW,
    clip_grad: f64,
    schedule: Schedule,
    samples_per_step: u64,
    buckets: Vec<Bucket>,
    /// In the order of the buckets.
    pub segments: Vec<Segment<O>>,
    /// Where the optimizer stands.
    pub progress: Progress,
}

/// Elements of `range` that lie in blocks this rank counts, from the range's start.
fn counted(shard: &Shard, range: &Range<usize>) -> Vec<Range<usize>> {
    let own = shard.ranges().filter(|(block, _)| !block.is_copy);
    own.map(|(_, at)| at.start.max(range.start)..at.end.min(range.end))
        .filter(|at| !at.is_empty())
        .map(|at| at.start - range.start..at.end - range.start)
        .collect()
}

/// Buckets of the parameters that are experts', or of the others.
fn buckets(shards: &[Shard], is_expert: bool, ranks: usize, largest: usize) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    let mut open: Vec<(usize, Range<usize>)> = Vec::new();
    let mut len = 0;
    let held = shards.iter().enumerate().rev();
    for (param, shard) in held.filter(|(_, s)| !s.is_empty() && s.is_expert == is_expert) {
        open.push((param, len..len + shard.len()));
        len += shard.len();
        if len >= largest {
            let members = std::mem::take(&mut open);
            buckets.push(Bucket {
                members,
                len: len.next_multiple_of(ranks),
                is_expert,
            });
            len = 0;
        }
    }
    if !open.is_empty() {
        buckets.push(Bucket {
            members: open,
            len: len.next_multiple_of(ranks),
            is_expert,
        });
    }
    buckets
}

impl<O: Ops> Zero<O> {
    /// Fresh moments of this rank's slices of `stage`'s weights.
    ///
    /// # Errors
    /// The device has no room.
    pub fn new(
        ops: &O,
        stage: &Stage<O>,
        mesh: &Mesh<O>,
        config: &TrainConfig,
        bucket_size: Option<usize>,
    ) -> Result<Self> {
        if config.use_precision_aware_optimizer {
            return Err(Error::Config(vec![Problem {
                key: "use_precision_aware_optimizer",
                detail: "works where one rank trains; leave it out, or train on one".into(),
            }]));
        }
        let largest = bucket_size.unwrap_or(usize::MAX);
        let of = |is_expert| {
            let ranks = mesh.replicas(is_expert).size();
            buckets(&stage.shards, is_expert, ranks, largest)
        };
        let buckets: Vec<Bucket> = of(false).into_iter().chain(of(true)).collect();
        let rounded = Precision::of_weights(ops)? == Precision::Rounded;
        let mut segments = Vec::new();
        for bucket in &buckets {
            let group = mesh.replicas(bucket.is_expert);
            let (ranks, rank) = (group.size(), group.rank());
            let part = bucket.len / ranks;
            let own = rank * part..(rank + 1) * part;
            for (param, at) in &bucket.members {
                let both = at.start.max(own.start)..at.end.min(own.end);
                if both.is_empty() {
                    continue;
                }
                let range = both.start - at.start..both.end - at.start;
                let weight = &stage.weights.0[*param];
                let (rows, cols) = match ranks {
                    1 => ops.shape(weight),
                    _ => (1, range.len()),
                };
                let master = match rounded {
                    true => Some(ops.widened(&ops.cut(weight, range.clone(), rows, cols)?)?),
                    false => None,
                };
                segments.push(Segment {
                    param: *param,
                    counted: counted(&stage.shards[*param], &range),
                    range,
                    m: ops.float_zeros(rows, cols)?,
                    v: ops.float_zeros(rows, cols)?,
                    master,
                });
            }
        }
        let samples_per_step = config.global_batch_size.unwrap_or(1) as u64;
        Ok(Self {
            config: adamw_of(config),
            clip_grad: config.clip_grad,
            schedule: schedule_of(config, samples_per_step),
            samples_per_step,
            buckets,
            segments,
            progress: Progress::default(),
        })
    }

    /// The rate of the next step.
    pub fn lr(&self) -> f64 {
        self.schedule.lr(self.progress.num_samples)
    }

    /// Count a step in which nothing was to be trained.
    pub fn skip(&mut self) {
        self.progress.num_skipped += 1;
    }

    /// Sum the gradients over the ranks that hold the same parameters, clip, update, and give everybody the new weights.
    ///
    /// # Errors
    /// A rank or the device failed.
    pub fn step(
        &mut self,
        ops: &O,
        stage: &mut Stage<O>,
        mesh: &Mesh<O>,
        grads: &Gradients<O>,
    ) -> Result<StepReport> {
        let slices = self.slices(ops, mesh, grads)?;
        let mut squares = [self.squares(ops, grads, &slices)?];
        mesh.world.all_reduce_host(&mut squares, Reduce::Sum)?;
        let (grad_norm, lr) = (squares[0].sqrt(), self.lr());
        if !grad_norm.is_finite() {
            self.skip();
            return Ok(StepReport {
                grad_norm,
                lr,
                skipped: true,
            });
        }
        self.progress.num_updates += 1;
        let step = AdamW {
            lr,
            step: self.progress.num_updates,
            grad_scale: clip_scale(grad_norm, self.clip_grad),
            ..self.config
        };
        self.update(ops, stage, mesh, grads, &slices, step)?;
        self.progress.num_samples += self.samples_per_step;
        Ok(StepReport {
            grad_norm,
            lr,
            skipped: false,
        })
    }

    /// Each segment's summed gradient; none in a group of one, whose gradients are whole already.
    fn slices(
        &self,
        ops: &O,
        mesh: &Mesh<O>,
        grads: &Gradients<O>,
    ) -> Result<Vec<Option<O::Float>>> {
        let mut slices = Vec::with_capacity(self.segments.len());
        let mut segments = self.segments.iter();
        for bucket in &self.buckets {
            let group = mesh.replicas(bucket.is_expert);
            let count = self.segments_of(bucket, mesh);
            if group.size() == 1 {
                slices.extend(segments.by_ref().take(count).map(|_| None));
                continue;
            }
            let parts: Vec<_> = bucket
                .members
                .iter()
                .map(|(param, at)| (&grads.0[*param], 0..at.len()))
                .collect();
            let own = group.reduce_scatter_float(&ops.join_float(&parts, bucket.len)?)?;
            let mut at = 0;
            for segment in segments.by_ref().take(count) {
                let len = segment.range.len();
                slices.push(Some(ops.cut_float(&own, at..at + len, 1, len)?));
                at += len;
            }
        }
        Ok(slices)
    }

    /// One of the states (0: m, 1: v, 2: master) of each parameter held here, laid together from everybody's slices.
    ///
    /// # Errors
    /// A rank or the device failed, or what `take` returns.
    pub(super) fn each_whole(
        &self,
        ops: &O,
        stage: &Stage<O>,
        mesh: &Mesh<O>,
        which: usize,
        mut take: impl FnMut(usize, &O::Float) -> Result<()>,
    ) -> Result<()> {
        let state = |segment| -> &O::Float {
            let Segment { m, v, master, .. }: &Segment<O> = segment;
            match (which, master) {
                (0, _) => m,
                (2, Some(master)) => master,
                _ => v,
            }
        };
        let mut segments = self.segments.iter();
        for bucket in &self.buckets {
            let group = mesh.replicas(bucket.is_expert);
            let mut own = segments.by_ref().take(self.segments_of(bucket, mesh));
            if group.size() == 1 {
                own.try_for_each(|segment| take(segment.param, state(segment)))?;
                continue;
            }
            let parts: Vec<_> = own.map(|s| (state(s), 0..s.range.len())).collect();
            let own = ops.join_float(&parts, bucket.len / group.size())?;
            let all = group.all_gather_float(&own)?;
            for (param, at) in &bucket.members {
                let shard = &stage.shards[*param];
                let whole = ops.cut_float(&all, at.clone(), shard.rows, shard.cols)?;
                take(*param, &whole)?;
            }
        }
        Ok(())
    }

    fn segments_of(&self, bucket: &Bucket, mesh: &Mesh<O>) -> usize {
        let group = mesh.replicas(bucket.is_expert);
        let part = bucket.len / group.size();
        let own = group.rank() * part..(group.rank() + 1) * part;
        let meets = |at: &Range<usize>| at.start.max(own.start) < at.end.min(own.end);
        bucket.members.iter().filter(|(_, at)| meets(at)).count()
    }

    fn squares(&self, ops: &O, grads: &Gradients<O>, slices: &[Option<O::Float>]) -> Result<f64> {
        let mut sum = 0.0;
        for (i, segment) in self.segments.iter().enumerate() {
            let grad = slices[i].as_ref().unwrap_or(&grads.0[segment.param]);
            if segment.counted == [0..segment.range.len()] {
                sum += ops.sum_squares(grad)?;
                continue;
            }
            for range in &segment.counted {
                let piece = ops.cut_float(grad, range.clone(), 1, range.len())?;
                sum += ops.sum_squares(&piece)?;
            }
        }
        Ok(sum)
    }

    fn update(
        &mut self,
        ops: &O,
        stage: &mut Stage<O>,
        mesh: &Mesh<O>,
        grads: &Gradients<O>,
        slices: &[Option<O::Float>],
        step: AdamW,
    ) -> Result<()> {
        let params = stage.params.clone();
        let decayed = |param: usize| AdamW {
            weight_decay: match params[param].decay {
                true => step.weight_decay,
                false => 0.0,
            },
            ..step
        };
        let mut done = 0;
        for bucket in &self.buckets {
            let group = mesh.replicas(bucket.is_expert);
            let count = self.segments_of(bucket, mesh);
            let mut pieces = Vec::with_capacity(count);
            for i in done..done + count {
                let segment = &mut self.segments[i];
                let (range, len) = (segment.range.clone(), segment.range.len());
                let (param, step) = (segment.param, decayed(segment.param));
                let Segment { m, v, master, .. } = segment;
                let Some(slice) = &slices[i] else {
                    let (grad, weight) = (&grads.0[param], &mut stage.weights.0[param]);
                    ops.adamw(&step, grad, m, v, master.as_mut(), weight)?;
                    continue;
                };
                let mut weight = ops.cut(&stage.weights.0[param], range, 1, len)?;
                ops.adamw(&step, slice, m, v, master.as_mut(), &mut weight)?;
                pieces.push(weight);
            }
            done += count;
            if group.size() == 1 {
                continue;
            }
            let parts: Vec<_> = pieces
                .iter()
                .map(|piece| (piece, 0..ops.shape(piece).1))
                .collect();
            let own = ops.join(&parts, bucket.len / group.size())?;
            let all = group.all_gather(&own)?;
            for (param, at) in &bucket.members {
                let shard = &stage.shards[*param];
                stage.weights.0[*param] = ops.cut(&all, at.clone(), shard.rows, shard.cols)?;
            }
        }
        Ok(())
    }
}

/// Sum, over the ranks that hold copies of them, the gradients that each rank has only a part of: per-head norms and (with
/// sequence parallelism) every norm over tp, replicated key heads over their holders, a tied embedding over the first and
/// the last stage.
///
/// # Errors
/// A rank or the device failed.
pub fn sum_copies<O: Ops>(
    ops: &O,
    stage: &Stage<O>,
    mesh: &Mesh<O>,
    grads: &mut Gradients<O>,
) -> Result<()> {
    let shards = stage.shards.clone();
    let over_tp: Vec<(usize, Range<usize>)> = shards
        .iter()
        .enumerate()
        .filter(|(_, s)| s.sum_over_tp)
        .map(|(i, s)| (i, 0..s.len()))
        .collect();
    sum_ranges(ops, &shards, &over_tp, &*mesh.tp, grads)?;
    if let Some(group) = &mesh.key_replicas {
        let ranges: Vec<(usize, Range<usize>)> = shards
            .iter()
            .enumerate()
            .filter(|(_, s)| !s.key_replicas.is_empty())
            .map(|(i, s)| (i, s.key_replicas.clone()))
            .collect();
        sum_ranges(ops, &shards, &ranges, &**group, grads)?;
    }
    if let Some(group) = mesh.embedding.as_ref().filter(|_| stage.spec.tied) {
        let head = stage.head().0;
        group.all_reduce_float(&mut grads.0[head])?;
    }
    Ok(())
}

fn sum_ranges<O: Ops>(
    ops: &O,
    shards: &[Shard],
    ranges: &[(usize, Range<usize>)],
    group: &dyn slime_kernels::Comm<O>,
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
