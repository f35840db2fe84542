//! A group of ranks that meet somewhere: every collective, from nothing but giving and taking.
//!
//! Works over any device and any [`Meet`], and is the definition of what a collective gives: sums are added in f64, in rank
//! order. Each call carries its number, name, type and size, and all members must agree on them.

use super::meet::{Call, Gift, Given, Meet, Site};
use super::{Comm, Reduce};
use crate::{Error, Ops, Result};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// From so many numbers on, a sum that travels is divided among the members, each adding its share.
const DIVIDED: usize = 4096;

/// One rank's membership of a group that meets at an `M`.
pub struct Group<O: Ops, M: Meet> {
    ops: Arc<O>,
    place: Arc<M>,
    name: String,
    site: Site,
    calls: AtomicU64,
}

impl<O: Ops, M: Meet> Group<O, M> {
    /// Rank `rank` of the world as a member of the group `members`, which are ranks of the world.
    ///
    /// # Errors
    /// The rank is no member.
    pub fn new(
        ops: Arc<O>,
        place: Arc<M>,
        name: &str,
        members: Vec<usize>,
        rank: usize,
    ) -> Result<Self> {
        let found = members.iter().position(|&m| m == rank);
        let rank = found.ok_or_else(|| {
            Error::Comm(format!("rank {rank} is no member of {name} {members:?}"))
        })?;
        Ok(Self {
            ops,
            place,
            name: name.into(),
            site: Site {
                key: format!("{name} {members:?}").into(),
                members: members.into(),
                rank,
            },
            calls: AtomicU64::new(0),
        })
    }

    fn num_members(&self) -> usize {
        self.site.members.len()
    }

    fn meet(&self, call: Call, gift: Gift) -> Result<Vec<Given>> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        self.place.exchange(&self.site, number, call, gift)
    }

    /// The sum of everybody's numbers; `round` makes of a part what the device will hold of it.
    fn sum(
        &self,
        call: Call,
        data: Vec<f64>,
        round: impl Fn(&[f64]) -> Result<Vec<f64>>,
    ) -> Result<Vec<f64>> {
        let (members, len) = (self.num_members(), data.len());
        // Between three, dividing saves nothing: each sends its share once more.
        if !self.place.travels() || members < 4 || len < DIVIDED {
            return Ok(summed(&self.meet(call, Gift::whole(data))?));
        }
        let parts: Vec<Range<usize>> = (0..members)
            .map(|i| i * len / members..(i + 1) * len / members)
            .collect();
        let again = Call {
            op: format!("{}, the shares", call.op).into(),
            ..call.clone()
        };
        let share = summed(&self.meet(call, Gift::parts(data, parts))?);
        let shares = self.meet(again, Gift::whole(round(&share)?))?;
        Ok(joined(&shares))
    }

    /// This member's share of the sum of `n` rows or numbers.
    fn sum_share(&self, op: &str, call: Call, data: Vec<f64>, n: usize) -> Result<Vec<f64>> {
        let members = self.num_members();
        if !n.is_multiple_of(members) {
            return Err(Error::Comm(format!(
                "{op} of {}: {n} is no multiple of its {members} members",
                self.site.key
            )));
        }
        let part = data.len() / members;
        let parts = (0..members).map(|i| i * part..(i + 1) * part).collect();
        Ok(summed(&self.meet(call, Gift::parts(data, parts))?))
    }

    /// Each member's rows for this one. `call` has the shape of what this one gives.
    fn dealt_out(
        &self,
        call: Call,
        data: &[f64],
        send_rows: &[usize],
        recv_rows: &[usize],
    ) -> Result<Vec<f64>> {
        let (rows, cols) = call.shape;
        let members = self.num_members();
        if send_rows.len() != members
            || recv_rows.len() != members
            || send_rows.iter().sum::<usize>() != rows
        {
            return Err(Error::Comm(format!(
                "all_to_all of {}: {send_rows:?} and {recv_rows:?} rows for {members} members and {rows} rows",
                self.site.key
            )));
        }
        // The number of rows differs from rank to rank by design; each pair's goes before its rows and is checked below.
        let call = Call {
            shape: (0, cols),
            ..call
        };
        let (mut said, mut parts, mut at) = (Vec::with_capacity(data.len() + members), vec![], 0);
        for &n in send_rows {
            let start = said.len();
            said.push(n as f64);
            said.extend_from_slice(&data[at..at + n * cols]);
            at += n * cols;
            parts.push(start..said.len());
        }
        let gifts = self.meet(call, Gift::parts(said, parts))?;
        let mut all = Vec::new();
        for (from, gift) in gifts.iter().enumerate() {
            let (count, rows) = gift
                .split_first()
                .map_or((0, &[][..]), |(n, rows)| (*n as usize, rows));
            if count != recv_rows[from] {
                let reason = format!(
                    "all_to_all of {}: rank {} sends {count} rows to rank {}, which awaits {}",
                    self.site.key,
                    self.site.members[from],
                    self.site.me(),
                    recv_rows[from]
                );
                self.place.end(reason.clone());
                return Err(Error::Comm(reason));
            }
            all.extend_from_slice(rows);
        }
        Ok(all)
    }

    fn tensor_call(&self, op: &'static str, x: &O::Tensor) -> Result<(Call, Vec<f64>)> {
        let call = Call::new(op, "tensors", self.ops.shape(x));
        Ok((call, self.ops.read_f64(x)?))
    }

    fn float_call(&self, op: &'static str, x: &O::Float) -> Result<(Call, Vec<f64>)> {
        let call = Call::new(op, "accumulators", self.ops.float_shape(x));
        Ok((call, self.ops.read_float_f64(x)?))
    }
}

/// Added in the members' order.
fn summed(gifts: &[Given]) -> Vec<f64> {
    let mut sum = gifts[0].to_vec();
    for gift in &gifts[1..] {
        for (sum, x) in sum.iter_mut().zip(&gift[..]) {
            *sum += x;
        }
    }
    sum
}

fn joined(gifts: &[Given]) -> Vec<f64> {
    gifts.iter().flat_map(|gift| gift.iter().copied()).collect()
}

impl<O: Ops, M: Meet> Comm<O> for Group<O, M> {
    fn name(&self) -> &str {
        &self.name
    }

    fn rank(&self) -> usize {
        self.site.rank
    }

    fn size(&self) -> usize {
        self.num_members()
    }

    fn all_reduce(&self, x: &O::Tensor) -> Result<O::Tensor> {
        let (call, data) = self.tensor_call("all_reduce", x)?;
        let (rows, cols) = call.shape;
        let round = |part: &[f64]| {
            let held = self.ops.tensor_f64(1, part.len(), part)?;
            self.ops.read_f64(&held)
        };
        let sum = self.sum(call, data, round)?;
        self.ops.tensor_f64(rows, cols, &sum)
    }

    fn all_gather(&self, x: &O::Tensor) -> Result<O::Tensor> {
        let (call, data) = self.tensor_call("all_gather", x)?;
        let (rows, cols) = call.shape;
        let gifts = self.meet(call, Gift::whole(data))?;
        self.ops
            .tensor_f64(rows * gifts.len(), cols, &joined(&gifts))
    }

    fn reduce_scatter(&self, x: &O::Tensor) -> Result<O::Tensor> {
        let (call, data) = self.tensor_call("reduce_scatter", x)?;
        let (rows, cols) = call.shape;
        let share = self.sum_share("reduce_scatter", call, data, rows)?;
        self.ops.tensor_f64(rows / self.num_members(), cols, &share)
    }

    fn all_to_all(
        &self,
        x: &O::Tensor,
        send_rows: &[usize],
        recv_rows: &[usize],
    ) -> Result<O::Tensor> {
        let (call, data) = self.tensor_call("all_to_all", x)?;
        let cols = call.shape.1;
        let all = self.dealt_out(call, &data, send_rows, recv_rows)?;
        self.ops.tensor_f64(recv_rows.iter().sum(), cols, &all)
    }

    fn rotate(&self, x: &O::Tensor) -> Result<O::Tensor> {
        let (call, data) = self.tensor_call("rotate", x)?;
        let ((rows, cols), members) = (call.shape, self.num_members());
        let next = (self.site.rank + 1) % members;
        let before = (self.site.rank + members - 1) % members;
        // Only the next member is given anything.
        let len = data.len();
        let part = |to: usize| if to == next { 0..len } else { 0..0 };
        let parts = (0..members).map(part).collect();
        let gifts = self.meet(call, Gift::parts(data, parts))?;
        self.ops.tensor_f64(rows, cols, &gifts[before])
    }

    fn send(&self, to: usize, tag: u64, x: &O::Tensor) -> Result<()> {
        let (call, data) = self.tensor_call("send", x)?;
        let to = self.site.members[to];
        self.place.post(&self.site, to, tag, call, data)
    }

    fn recv(&self, from: usize, tag: u64, rows: usize, cols: usize) -> Result<O::Tensor> {
        let (me, from) = (self.site.me(), self.site.members[from]);
        let what = format!("recv of [{rows}, {cols}] from rank {from}, tag {tag}");
        let (call, data) = self.place.fetch(&self.site, from, tag, &what)?;
        if call.shape != (rows, cols) {
            let reason = format!(
                "ranks disagree in {}: rank {from} calls {call}, rank {me} calls {what}",
                self.site.key
            );
            self.place.end(reason.clone());
            return Err(Error::Comm(reason));
        }
        self.ops.tensor_f64(rows, cols, &data)
    }

    fn all_reduce_float(&self, x: &mut O::Float) -> Result<()> {
        let (call, data) = self.float_call("all_reduce", x)?;
        let (rows, cols) = call.shape;
        let round = |part: &[f64]| {
            let held = self.ops.float_f64(1, part.len(), part)?;
            self.ops.read_float_f64(&held)
        };
        let sum = self.sum(call, data, round)?;
        *x = self.ops.float_f64(rows, cols, &sum)?;
        Ok(())
    }

    fn reduce_scatter_float(&self, x: &O::Float) -> Result<O::Float> {
        let (call, data) = self.float_call("reduce_scatter", x)?;
        let n = data.len();
        let share = self.sum_share("reduce_scatter", call, data, n)?;
        self.ops.float_f64(1, share.len(), &share)
    }

    fn all_gather_float(&self, x: &O::Float) -> Result<O::Float> {
        let (call, data) = self.float_call("all_gather", x)?;
        let all = joined(&self.meet(call, Gift::whole(data))?);
        self.ops.float_f64(1, all.len(), &all)
    }

    fn all_reduce_host(&self, x: &mut [f64], how: Reduce) -> Result<()> {
        let shape = (1, x.len());
        match how {
            Reduce::Sum => {
                let call = Call::new("all_reduce", "host numbers", shape);
                let sum = self.sum(call, x.to_vec(), |part| Ok(part.to_vec()))?;
                x.copy_from_slice(&sum);
            }
            Reduce::Max => {
                let call = Call::new("all_reduce of the largest", "host numbers", shape);
                let gifts = self.meet(call, Gift::whole(x.to_vec()))?;
                for (i, x) in x.iter_mut().enumerate() {
                    *x = gifts.iter().map(|gift| gift[i]).fold(*x, f64::max);
                }
            }
        }
        Ok(())
    }

    fn all_to_all_host(&self, x: &[f64], send: &[usize], recv: &[usize]) -> Result<Vec<f64>> {
        let call = Call::new("all_to_all", "host numbers", (x.len(), 1));
        self.dealt_out(call, x, send, recv)
    }

    fn all_gather_host(&self, x: &[f64]) -> Result<Vec<f64>> {
        let call = Call::new("all_gather", "host numbers", (1, x.len()));
        Ok(joined(&self.meet(call, Gift::whole(x.to_vec()))?))
    }
}
