//! The distributed optimizer (ZeRO-1): gradients summed into slices, one slice a rank, weights gathered again.
//!
//! ```text
//! gradients ─► buckets, beside the backward ─► reduce-scatter ─► own slices
//! own slices ─► norm over all ranks ─► clip ─► AdamW on own master, m, v ─► all-gather ─► weights
//! ```
//!
//! A slice knows nothing of parameters' borders; it is a list of segments, each a piece of one parameter. Padding is never
//! updated, saved or counted in the norm. Every sum is a plain sum: the loss's weights hold all averages. With a group of
//! one nothing is copied or sent. Read [`super::buckets`] for what travels when, [`crate::optim`] for the formulas.

use super::buckets::{Bucket, Sending, buckets};
use super::mesh::Mesh;
use super::shard::Shard;
use super::stage::Stage;
use crate::Result;
use crate::checkpoint::tensors::Data;
use crate::config::TrainConfig;
use crate::optim::precision::Precision;
use crate::optim::schedule::Schedule;
use crate::optim::{Progress, State, StepReport, adamw_of, clip_scale, put, schedule_of};
use slime_kernels::comm::Begun;
use slime_kernels::{AdamW, Ops, Reduce, Update};
use slime_model::ParamSpec;
use slime_model::layers::Gradients;
use std::collections::VecDeque;
use std::ops::Range;

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
    /// The weight's piece, where a compact master is what this tensor lacks.
    piece: Option<O::Tensor>,
}

impl<O: Ops> Segment<O> {
    fn update<'a>(
        &'a mut self,
        param: &ParamSpec,
        step: AdamW,
        grad: &'a O::Float,
        weight: &'a mut O::Tensor,
    ) -> Update<'a, O> {
        Update {
            weight_decay: match param.decay {
                true => step.weight_decay,
                false => 0.0,
            },
            grad,
            m: &mut self.m,
            v: &mut self.v,
            master: self.master.as_mut(),
            weight,
        }
    }

    /// Put states in place, kept as they are kept; `weight` is the parameter's present tensor.
    ///
    /// # Errors
    /// The device has no room, or what `read` returns.
    pub(super) fn restore(
        &mut self,
        ops: &O,
        weight: &O::Tensor,
        compact: bool,
        mut read: impl FnMut(State) -> Result<Data>,
    ) -> Result<()> {
        put(ops, &mut self.m, read(State::First)?)?;
        put(ops, &mut self.v, read(State::Second)?)?;
        if let Some(master) = &mut self.master {
            // A compact master belongs to a tensor that has been replaced.
            if compact {
                if let Some(piece) = &mut self.piece {
                    *piece = ops.cut(weight, self.range.clone(), 1, self.range.len())?;
                }
                *master = ops.compact_master(self.piece.as_ref().unwrap_or(weight))?;
            }
            put(ops, master, read(State::Master)?)?;
        }
        Ok(())
    }
}

/// One rank's share of the optimizer.
pub struct Zero<O: Ops> {
    config: AdamW,
    clip_grad: f64,
    schedule: Schedule,
    samples_per_step: u64,
    /// States are kept in 16 bits.
    pub(super) compact: bool,
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
        let buckets = buckets(stage, mesh, bucket_size);
        let rounded = Precision::of_weights(ops)? == Precision::Rounded;
        // Where weights are whole, so is everything.
        let compact = rounded && config.use_precision_aware_optimizer;
        let mut segments = Vec::new();
        for bucket in &buckets {
            let ranks = mesh.replicas(bucket.is_expert).size();
            for (param, range) in bucket.own_pieces(mesh) {
                let weight = &stage.weights.0[param];
                let (rows, cols) = match ranks {
                    1 => ops.shape(weight),
                    _ => (1, range.len()),
                };
                let start = range.start;
                let moment = || match compact {
                    true => ops.compact_piece(rows, cols, param, start),
                    false => ops.float_zeros(rows, cols),
                };
                let cut = || ops.cut(weight, range.clone(), rows, cols);
                let (master, piece) = match (rounded, compact, ranks) {
                    (false, ..) => (None, None),
                    (true, false, _) => (Some(ops.widened(&cut()?)?), None),
                    (true, true, 1) => (Some(ops.compact_master(weight)?), None),
                    (true, true, _) => {
                        let piece = cut()?;
                        (Some(ops.compact_master(&piece)?), Some(piece))
                    }
                };
                let (m, v) = (moment()?, moment()?);
                segments.push(Segment {
                    param,
                    counted: counted(&stage.shards[param], &range),
                    range,
                    m,
                    v,
                    master,
                    piece,
                });
            }
        }
        let samples_per_step = config.global_batch_size.unwrap_or(1) as u64;
        Ok(Self {
            config: adamw_of(config),
            clip_grad: config.clip_grad,
            schedule: schedule_of(config, samples_per_step),
            samples_per_step,
            compact,
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

    /// Gradients that leave as a backward finishes with them; what arrives is for [`Self::step`].
    pub(super) fn sending<'a>(
        &'a self,
        ops: &'a O,
        mesh: &'a Mesh<O>,
        is_awaited: bool,
    ) -> Sending<'a, O> {
        Sending::new(ops, mesh, &self.buckets, is_awaited)
    }

    /// Clip the gradients, update, and give everybody the new weights. `slices` are this rank's, summed over the ranks that
    /// hold the same parameters, a bucket each; `grads` are read where there are none.
    ///
    /// # Errors
    /// A rank or the device failed.
    pub(super) fn step(
        &mut self,
        ops: &O,
        stage: &mut Stage<O>,
        mesh: &Mesh<O>,
        grads: &Gradients<O>,
        slices: Vec<Option<O::Float>>,
    ) -> Result<StepReport> {
        self.step_beside(ops, stage, mesh, grads, slices, 0.0)
    }

    /// The same beside parameters that every rank has and updates itself: `beside` is their gradient's sum of squares, a part
    /// of the norm.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub(super) fn step_beside(
        &mut self,
        ops: &O,
        stage: &mut Stage<O>,
        mesh: &Mesh<O>,
        grads: &Gradients<O>,
        slices: Vec<Option<O::Float>>,
        beside: f64,
    ) -> Result<StepReport> {
        let slices = self.cut(ops, mesh, slices)?;
        let mut squares = [self.squares(ops, grads, &slices)?];
        mesh.world.all_reduce_host(&mut squares, Reduce::Sum)?;
        let (grad_norm, lr) = ((squares[0] + beside).sqrt(), self.lr());
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

    /// Each segment's summed gradient, cut from its bucket's; none in a group of one, whose gradients are whole already.
    fn cut(
        &self,
        ops: &O,
        mesh: &Mesh<O>,
        slices: Vec<Option<O::Float>>,
    ) -> Result<Vec<Option<O::Float>>> {
        let mut cut = Vec::with_capacity(self.segments.len());
        for (bucket, slice) in self.buckets.iter().zip(slices) {
            let mut at = 0;
            for (_, range) in bucket.own_pieces(mesh) {
                let piece = |slice| ops.cut_float(slice, at..at + range.len(), 1, range.len());
                cut.push(slice.as_ref().map(piece).transpose()?);
                at += range.len();
            }
        }
        Ok(cut)
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
            let mut own = segments.by_ref().take(bucket.own_pieces(mesh).len());
            if group.size() == 1 {
                own.try_for_each(|segment| take(segment.param, state(segment)))?;
                continue;
            }
            let own: Vec<_> = own.map(|s| (state(s), s.range.len())).collect();
            // What is kept in 16 bits is for the optimizer only, and leaves in full.
            let full = own.iter().filter(|_| self.compact).map(|(state, len)| {
                let data = ops.read_float(state)?;
                Ok(ops.float(1, *len, &data)?)
            });
            let full = full.collect::<Result<Vec<O::Float>>>()?;
            let mut parts = Vec::with_capacity(own.len());
            for (i, (state, len)) in own.into_iter().enumerate() {
                parts.push((full.get(i).unwrap_or(state), 0..len));
            }
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

    fn squares(&self, ops: &O, grads: &Gradients<O>, slices: &[Option<O::Float>]) -> Result<f64> {
        let (mut whole, mut pieces) = (Vec::new(), Vec::new());
        for (segment, slice) in self.segments.iter().zip(slices) {
            let grad = slice.as_ref().unwrap_or(&grads.0[segment.param]);
            if matches!(&segment.counted[..], [all] if *all == (0..segment.range.len())) {
                whole.push(grad);
                continue;
            }
            for range in &segment.counted {
                pieces.push(ops.cut_float(grad, range.clone(), 1, range.len())?);
            }
        }
        whole.extend(&pieces);
        Ok(ops.sum_squares_of_all(&whole)?)
    }

    /// Bucket after bucket; while one's new weights are on their way, the next is updated.
    fn update(
        &mut self,
        ops: &O,
        stage: &mut Stage<O>,
        mesh: &Mesh<O>,
        grads: &Gradients<O>,
        slices: &[Option<O::Float>],
        step: AdamW,
    ) -> Result<()> {
        let mut under_way: VecDeque<(&Bucket, Begun<O::Tensor>)> = VecDeque::new();
        let (mut segments, mut slices) = (self.segments.iter_mut(), slices.iter());
        for bucket in &self.buckets {
            let group = mesh.replicas(bucket.is_expert);
            let count = bucket.own_pieces(mesh).len();
            let mut own: Vec<_> = segments.by_ref().take(count).zip(&mut slices).collect();
            if group.size() == 1 {
                let params = stage.params.clone();
                let mut weights: Vec<_> = stage.weights.0.iter_mut().map(Some).collect();
                let updates = own.into_iter().filter_map(|(segment, _)| {
                    let param = segment.param;
                    let weight = weights[param].take()?;
                    Some(segment.update(&params[param], step, &grads.0[param], weight))
                });
                ops.adamw_all(&step, updates.collect())?;
                continue;
            }
            let mut pieces = Vec::with_capacity(count);
            for (segment, _) in &mut own {
                let (range, weight) = (segment.range.clone(), &stage.weights.0[segment.param]);
                let len = range.len();
                pieces.push(match segment.piece.take() {
                    Some(piece) => piece,
                    None => ops.cut(weight, range, 1, len)?,
                });
            }
            let updates = own.iter_mut().zip(&mut pieces);
            let updates = updates.map(|((segment, slice), weight)| {
                let param = segment.param;
                let grad = slice.as_ref().unwrap_or(&grads.0[param]);
                segment.update(&stage.params[param], step, grad, weight)
            });
            ops.adamw_all(&step, updates.collect())?;
            let parts: Vec<_> = pieces
                .iter()
                .map(|piece| (piece, 0..ops.shape(piece).1))
                .collect();
            let joined = ops.join(&parts, bucket.len / group.size())?;
            if self.compact {
                for ((segment, _), piece) in own.into_iter().zip(pieces) {
                    segment.piece = Some(piece);
                }
            }
            under_way.push_back((bucket, group.begin_all_gather(joined)?));
            if under_way.len() > 1
                && let Some((bucket, begun)) = under_way.pop_front()
            {
                take_in(ops, stage, bucket, &begun.wait()?)?;
            }
        }
        for (bucket, begun) in under_way {
            take_in(ops, stage, bucket, &begun.wait()?)?;
        }
        // A bucket's memory is not kept until the next update.
        for is_expert in [false, true] {
            if self.buckets.iter().any(|b| b.is_expert == is_expert) {
                mesh.replicas(is_expert).settle()?;
            }
        }
        Ok(())
    }
}

impl<O: Ops> Zero<O> {
    /// Give everybody the pieces that compact masters have set.
    ///
    /// # Errors
    /// A rank or the device failed.
    pub(super) fn share(&self, ops: &O, stage: &mut Stage<O>, mesh: &Mesh<O>) -> Result<()> {
        let mut segments = self.segments.iter();
        for bucket in &self.buckets {
            let group = mesh.replicas(bucket.is_expert);
            let own = segments.by_ref().take(bucket.own_pieces(mesh).len());
            let own: Vec<_> = own.collect();
            if !self.compact || group.size() == 1 {
                continue;
            }
            let pieces = own.iter().filter_map(|s| Some((s.piece.as_ref()?, s)));
            let parts: Vec<_> = pieces.map(|(p, s)| (p, 0..s.range.len())).collect();
            let joined = ops.join(&parts, bucket.len / group.size())?;
            take_in(ops, stage, bucket, &group.all_gather(&joined)?)?;
        }
        Ok(())
    }
}

/// A bucket's new weights in the place of the old.
fn take_in<O: Ops>(ops: &O, stage: &mut Stage<O>, bucket: &Bucket, all: &O::Tensor) -> Result<()> {
    for (param, at) in &bucket.members {
        let shard = &stage.shards[*param];
        stage.weights.0[*param] = ops.cut(all, at.clone(), shard.rows, shard.cols)?;
    }
    Ok(())
}
