//! Gradients on their way to the ranks that hold the same parameters, in buckets, beside the backward that makes the next.
//!
//! ```text
//! backward   │ head │ layer 27 │ layer 26 │ … │ layer 0 │ embedding │ sums over copies │
//! sent            └ bucket 0 ─┐ └ bucket 1 ─┐ …                     └ last ─┐ └ copies ─┐
//! ```
//!
//! A bucket leaves when the last micro-batch's backward has finished with all its members. Buckets leave in one order on
//! every rank, that of a backward; those whose gradients are summed over copies first ([`super::copies`]) come last. Where the
//! links are slower than the backward it waits for them, unless another stage waits for the backward: what is more than two
//! buckets then leaves after it, while that stage computes. What a rank makes of its slices is [`super::zero`]'s.

use super::copies;
use super::mesh::Mesh;
use super::shard::Shard;
use super::stage::Stage;
use crate::Result;
use slime_kernels::Ops;
use slime_kernels::comm::Begun;
use slime_model::layers::Gradients;
use std::collections::VecDeque;
use std::ops::Range;

/// Elements of a bucket when nothing is said, Megatron's number.
const ELEMENTS: usize = 40_000_000;
/// Buckets under way at once: each keeps a copy of its gradients.
const UNDER_WAY: usize = 2;

/// Parameters whose gradients travel together.
pub(super) struct Bucket {
    /// Each parameter and where it lies in the bucket.
    pub(super) members: Vec<(usize, Range<usize>)>,
    /// Elements, padding included: a multiple of the group's size.
    pub(super) len: usize,
    /// Of experts, whose gradients another group sums.
    pub(super) is_expert: bool,
    /// Its gradients are summed over copies before they leave.
    waits_for_copies: bool,
}

impl Bucket {
    fn new(
        members: Vec<(usize, Range<usize>)>,
        ranks: usize,
        is_expert: bool,
        waits: bool,
    ) -> Self {
        let end = members.last().map_or(0, |(_, at)| at.end);
        Self {
            members,
            len: end.next_multiple_of(ranks),
            is_expert,
            waits_for_copies: waits,
        }
    }

    /// Which of its elements are this rank's.
    pub(super) fn own<O: Ops>(&self, mesh: &Mesh<O>) -> Range<usize> {
        let group = mesh.replicas(self.is_expert);
        let part = self.len / group.size();
        group.rank() * part..(group.rank() + 1) * part
    }

    /// What this rank has of each member, counted from the member's start.
    pub(super) fn own_pieces<O: Ops>(&self, mesh: &Mesh<O>) -> Vec<(usize, Range<usize>)> {
        let own = self.own(mesh);
        let piece = |(param, at): &(usize, Range<usize>)| {
            let both = at.start.max(own.start)..at.end.min(own.end);
            (!both.is_empty()).then(|| (*param, both.start - at.start..both.end - at.start))
        };
        self.members.iter().filter_map(piece).collect()
    }
}

/// Buckets of all parameters held here, in the order in which they leave.
pub(super) fn buckets<O: Ops>(
    stage: &Stage<O>,
    mesh: &Mesh<O>,
    elements: Option<usize>,
) -> Vec<Bucket> {
    let waits = copies::params(stage, mesh);
    let mut all = Vec::new();
    for waits_for_copies in [false, true] {
        let mut of_a_kind = Vec::new();
        for is_expert in [false, true] {
            let ranks = mesh.replicas(is_expert).size();
            let largest = elements.unwrap_or(ELEMENTS.max(1_000_000 * ranks));
            let is_meant = |(param, shard): &(usize, &Shard)| {
                !shard.is_empty()
                    && shard.is_expert == is_expert
                    && waits.contains(param) == waits_for_copies
            };
            let held = stage.shards.iter().enumerate().rev().filter(is_meant);
            let mut open: Vec<(usize, Range<usize>)> = Vec::new();
            for (param, shard) in held {
                let start = open.last().map_or(0, |(_, at)| at.end);
                open.push((param, start..start + shard.len()));
                if start + shard.len() >= largest {
                    let members = std::mem::take(&mut open);
                    of_a_kind.push(Bucket::new(members, ranks, is_expert, waits_for_copies));
                }
            }
            if !open.is_empty() {
                of_a_kind.push(Bucket::new(open, ranks, is_expert, waits_for_copies));
            }
        }
        // A bucket is full when the backward has come to its first parameter.
        of_a_kind.sort_by_key(|bucket| std::cmp::Reverse(bucket.members.last().map(|m| m.0)));
        all.append(&mut of_a_kind);
    }
    all
}

/// One step's gradients on their way.
pub(super) struct Sending<'a, O: Ops> {
    ops: &'a O,
    mesh: &'a Mesh<O>,
    buckets: &'a [Bucket],
    /// Another stage waits for what the backward gives, so that it waits for no bucket.
    is_awaited: bool,
    /// Of each bucket: members whose gradients may still grow.
    growing: Vec<usize>,
    /// Buckets that have left, in order; `None` where nobody else holds the parameters.
    under_way: VecDeque<Option<Begun<O::Float>>>,
    /// What has arrived of the buckets before them.
    slices: Vec<Option<O::Float>>,
    next: usize,
}

impl<'a, O: Ops> Sending<'a, O> {
    pub(super) fn new(
        ops: &'a O,
        mesh: &'a Mesh<O>,
        buckets: &'a [Bucket],
        is_awaited: bool,
    ) -> Self {
        Self {
            ops,
            mesh,
            is_awaited,
            growing: buckets.iter().map(|b| b.members.len()).collect(),
            buckets,
            under_way: VecDeque::new(),
            slices: Vec::new(),
            next: 0,
        }
    }

    /// The gradients of `params` will not change any more, but for sums over copies.
    ///
    /// # Errors
    /// A rank or the device failed.
    pub(super) fn finished(&mut self, params: &[usize], grads: &Gradients<O>) -> Result<()> {
        for (bucket, growing) in self.buckets.iter().zip(&mut self.growing) {
            let done = bucket.members.iter().filter(|(p, _)| params.contains(p));
            *growing -= done.count();
        }
        while let Some(bucket) = self.buckets.get(self.next) {
            let waits = self.is_awaited && self.under_way.iter().flatten().count() == UNDER_WAY;
            if bucket.waits_for_copies || self.growing[self.next] > 0 || waits {
                break;
            }
            self.begin(bucket, grads)?;
        }
        Ok(())
    }

    fn begin(&mut self, bucket: &Bucket, grads: &Gradients<O>) -> Result<()> {
        self.next += 1;
        let group = self.mesh.replicas(bucket.is_expert);
        if group.size() == 1 {
            self.under_way.push_back(None);
            return Ok(());
        }
        self.arrive(UNDER_WAY - 1)?;
        let parts: Vec<_> = bucket
            .members
            .iter()
            .map(|(param, at)| (&grads.0[*param], 0..at.len()))
            .collect();
        let joined = self.ops.join_float(&parts, bucket.len)?;
        let begun = group.begin_reduce_scatter_float(joined)?;
        self.under_way.push_back(Some(begun));
        Ok(())
    }

    /// Wait until no more than `left` are under way.
    fn arrive(&mut self, left: usize) -> Result<()> {
        while self.under_way.iter().flatten().count() > left
            && let Some(begun) = self.under_way.pop_front()
        {
            self.slices.push(begun.map(Begun::wait).transpose()?);
        }
        Ok(())
    }

    /// Send what has not left yet, and wait for everything: each bucket's summed slice of this rank.
    ///
    /// # Errors
    /// A rank or the device failed.
    pub(super) fn all(mut self, grads: &Gradients<O>) -> Result<Vec<Option<O::Float>>> {
        while let Some(bucket) = self.buckets.get(self.next) {
            self.begin(bucket, grads)?;
        }
        self.arrive(0)?;
        self.slices.extend(self.under_way.iter().map(|_| None));
        Ok(self.slices)
    }
}
