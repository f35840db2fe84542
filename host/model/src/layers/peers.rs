//! The ranks that compute one pass together, and what a layer sends them.
//!
//! A block's first matrix is split by its outputs, its second by its inputs, so that activations between the two need no
//! word between ranks (Megatron's column and row linears). Around such a pair:
//!
//! ```text
//!                    forward                 backward
//! enter              as it is                all-reduce          rows replicated
//! leave              all-reduce              as it is
//! enter, sequence    all-gather rows         reduce-scatter      rows of the stream split over tp
//! leave, sequence    reduce-scatter          all-gather rows
//! ```
//!
//! Where rows are split, exchanges run beside products: a rank multiplies its own rows while the others' come
//! ([`Peers::entered`]), and makes what it owes the others before its own part of a sum ([`Peers::left`]). In the backward the
//! first matrix's rows come while the rest of the block is gone through, and its sum over ranks while its own gradient is made.
//!
//! A mixture of experts sits between no such pair: its rows stay split, and go to their experts and back
//! ([`super::dispatch`]). Context parallelism splits every sequence over ranks, two chunks each, and keys and values go round a ring
//! ([`Peers::attention`]). A rank alone sends nothing. It knows no schedule and no optimizer; those are the trainer's.

use super::linear::{Linear, Way};
use super::{Gradients, Weights};
use slime_kernels::comm::Begun;
use slime_kernels::{Comm, Error, Heads, KeySpan, Ops, Result, Sequences};
use std::sync::Arc;

/// Who computes a pass together with this rank.
pub struct Peers<O: Ops> {
    /// Ranks that hold the other parts of each matrix.
    pub tp: Option<Arc<dyn Comm<O>>>,
    /// The stream's rows are split over `tp` where no matrix needs them all.
    pub sequence_parallel: bool,
    /// Ranks that hold the other parts of each sequence.
    pub cp: Option<Arc<dyn Comm<O>>>,
    /// Ranks that hold the other experts.
    pub experts: Option<Experts<O>>,
}

/// Ranks that hold the experts together.
pub struct Experts<O: Ops> {
    /// All of them; consecutive ones hold the parts of the same experts.
    pub group: Arc<dyn Comm<O>>,
    /// Parts that each expert's columns are split into.
    pub parts: usize,
}

/// A sum over ranks that may still be under way.
enum Sum<O: Ops> {
    /// It comes as it is.
    Whole(Begun<O::Tensor>),
    /// What this rank made of its rows, and what the others did, in their order.
    Parts {
        own: O::Tensor,
        rank: usize,
        theirs: Begun<O::Tensor>,
    },
}

impl<O: Ops> Sum<O> {
    fn wait(self, ops: &O) -> Result<O::Tensor> {
        let (own, rank, theirs) = match self {
            Self::Whole(sum) => return sum.wait(),
            Self::Parts { own, rank, theirs } => (own, rank, theirs.wait()?),
        };
        let (rows, others) = (ops.shape(&own).0, ops.shape(&theirs).0);
        let mut parts = (0..others)
            .step_by(rows.max(1))
            .map(|at| ops.rows(&theirs, at..at + rows))
            .collect::<Result<Vec<_>>>()?;
        // In the ranks' order, so that each rank's sum has the same bits.
        parts.insert(rank.min(parts.len()), own);
        ops.sum(&parts.iter().collect::<Vec<_>>())
    }
}

impl<O: Ops> Peers<O> {
    /// Nobody else.
    pub fn alone() -> Self {
        Self {
            tp: None,
            sequence_parallel: false,
            cp: None,
            experts: None,
        }
    }

    /// Rows on their way into a matrix split by outputs.
    ///
    /// # Errors
    /// A peer failed.
    pub fn enter(&self, x: &O::Tensor) -> Result<O::Tensor> {
        match &self.tp {
            Some(tp) if self.sequence_parallel => tp.all_gather(x),
            _ => Ok(x.clone()),
        }
    }

    /// The gradient of what [`Self::enter`] took; `dx` is this rank's part of the sum.
    ///
    /// # Errors
    /// A peer failed.
    pub fn enter_backward(&self, dx: O::Tensor) -> Result<O::Tensor> {
        match &self.tp {
            Some(tp) if self.sequence_parallel => tp.reduce_scatter(&dx),
            Some(tp) => tp.all_reduce(&dx),
            None => Ok(dx),
        }
    }

    /// Begin [`Self::enter`], beside what this rank computes until it needs the rows.
    ///
    /// # Errors
    /// A peer failed.
    pub fn begin_enter(&self, x: O::Tensor) -> Result<Begun<O::Tensor>> {
        match &self.tp {
            Some(tp) if self.sequence_parallel => tp.begin_all_gather(x),
            _ => Ok(Begun::done(x)),
        }
    }

    /// [`Self::enter`], then a matrix split by outputs.
    ///
    /// # Errors
    /// A peer or the device failed.
    pub fn entered(
        &self,
        linear: &Linear,
        x: &O::Tensor,
        on: (&O, &Weights<O>),
    ) -> Result<O::Tensor> {
        let (y, _) = self.gathered(linear, Way::Forward, x, on)?;
        linear.biased(y, on.0, on.1)
    }

    /// The backward of [`Self::entered`]: `dy` → `dx`, summed over ranks while the matrix's own gradient is made from the rows
    /// that were entered.
    ///
    /// # Errors
    /// A peer or the device failed.
    pub fn entered_backward(
        &self,
        linear: &Linear,
        dy: &O::Tensor,
        entered: Begun<O::Tensor>,
        on: (&O, &Weights<O>),
        grads: &mut Gradients<O>,
    ) -> Result<O::Tensor> {
        let dx = self.begin_sum(linear, Way::Back, dy, on)?;
        linear.accumulate(dy, &entered.wait()?, on.0, grads)?;
        dx.wait(on.0)
    }

    /// A matrix split by inputs, then [`Self::leave`].
    ///
    /// # Errors
    /// A peer or the device failed.
    pub fn left(&self, linear: &Linear, x: &O::Tensor, on: (&O, &Weights<O>)) -> Result<O::Tensor> {
        let y = match self.sequence_parallel {
            true => self.begin_sum(linear, Way::Forward, x, on)?.wait(on.0)?,
            false => self.leave(linear.product(Way::Forward, x, on)?)?,
        };
        linear.biased(y, on.0, on.1)
    }

    /// The gradient of what a matrix split by inputs took, and `dy` of all rows, which the matrix's own gradient is made from.
    ///
    /// # Errors
    /// A peer or the device failed.
    pub fn left_backward(
        &self,
        linear: &Linear,
        dy: &O::Tensor,
        on: (&O, &Weights<O>),
    ) -> Result<(O::Tensor, O::Tensor)> {
        self.gathered(linear, Way::Back, dy, on)
    }

    /// A product of all ranks' rows, and these: this rank's own are multiplied while the others' come.
    fn gathered(
        &self,
        linear: &Linear,
        way: Way,
        x: &O::Tensor,
        on: (&O, &Weights<O>),
    ) -> Result<(O::Tensor, O::Tensor)> {
        let Some(tp) = self.tp.as_ref().filter(|_| self.sequence_parallel) else {
            return Ok((linear.product(way, x, on)?, x.clone()));
        };
        let (ops, (rows, _)) = (on.0, on.0.shape(x));
        let own = tp.rank() * rows..(tp.rank() + 1) * rows;
        let all = tp.begin_all_gather(x.clone())?;
        let mut y = ops.room(rows * tp.size(), linear.width(way, ops, on.1))?;
        linear.put(way, x, on, &mut y, own.start)?;
        let all = all.wait()?;
        for others in [0..own.start, own.end..rows * tp.size()] {
            if !others.is_empty() {
                let at = others.start;
                linear.put(way, &ops.rows(&all, others)?, on, &mut y, at)?;
            }
        }
        Ok((y, all))
    }

    /// Begin the sum over ranks of a product, of which this rank gets its rows: it makes the others' first, and its own while
    /// these are under way.
    fn begin_sum(
        &self,
        linear: &Linear,
        way: Way,
        x: &O::Tensor,
        on: (&O, &Weights<O>),
    ) -> Result<Sum<O>> {
        let Some(tp) = &self.tp else {
            return Ok(Sum::Whole(Begun::done(linear.product(way, x, on)?)));
        };
        if !self.sequence_parallel {
            let y = linear.product(way, x, on)?;
            return Ok(Sum::Whole(tp.begin_all_reduce(y)?));
        }
        let (ops, (all, _), members) = (on.0, on.0.shape(x), tp.size());
        if !all.is_multiple_of(members) {
            let why = format!("{all} rows of {} for its {members} members", tp.name());
            return Err(Error::Comm(why));
        }
        let rows = all / members;
        let own = tp.rank() * rows..(tp.rank() + 1) * rows;
        let mut given = ops.room(all - rows, linear.width(way, ops, on.1))?;
        for (others, at) in [(0..own.start, 0), (own.end..all, own.start)] {
            if !others.is_empty() {
                linear.put(way, &ops.rows(x, others)?, on, &mut given, at)?;
            }
        }
        let theirs = tp.begin_swap(given, rows)?;
        let own = linear.product(way, &ops.rows(x, own)?, on)?;
        let rank = tp.rank();
        Ok(Sum::Parts { own, rank, theirs })
    }

    /// Rows from a matrix split by inputs: `y` is this rank's part of the sum.
    ///
    /// # Errors
    /// A peer failed.
    pub fn leave(&self, y: O::Tensor) -> Result<O::Tensor> {
        self.enter_backward(y)
    }

    /// The gradient of what [`Self::leave`] took.
    ///
    /// # Errors
    /// A peer failed.
    pub fn leave_backward(&self, dy: &O::Tensor) -> Result<O::Tensor> {
        self.enter(dy)
    }

    /// Attention of rotated rows over all keys of their sequences, wherever these lie → output and lse.
    ///
    /// With context parallelism each sequence here is this rank's two chunks, `r` and `2 cp - 1 - r` of `2 cp`, equally
    /// long on all ranks. Its own keys are a causal pass; those of an earlier rank's first chunk are seen by all rows, both
    /// chunks of a later rank's by the second chunk's rows only.
    ///
    /// # Errors
    /// A peer or the device failed.
    pub fn attention(
        &self,
        ops: &O,
        qkv: &O::Tensor,
        heads: Heads,
        sequences: &Sequences,
        scale: f64,
    ) -> Result<(O::Tensor, O::Float)> {
        let Some(cp) = &self.cp else {
            return ops.attention(qkv, heads, sequences, scale);
        };
        let mut coming = cp.begin_rotate(keys_and_values(ops, qkv, heads)?)?;
        let (mut out, mut lse) = ops.attention(qkv, heads, sequences, scale)?;
        for hop in 1..cp.size() {
            let kv = coming.wait()?;
            coming = pass_on(&**cp, hop, &kv)?;
            let spans = spans(&**cp, hop, sequences);
            (out, lse) = ops.attend_keys(qkv, &kv, heads, &spans, scale, &out, &lse)?;
        }
        Ok((out, lse))
    }

    /// Gradient of the rotated rows. The gradient of keys and values travels with them and is home after `cp` hops.
    ///
    /// # Errors
    /// A peer or the device failed.
    #[allow(
        clippy::too_many_arguments,
        reason = "the operands of one fused backward"
    )]
    pub fn attention_backward(
        &self,
        ops: &O,
        dout: &O::Tensor,
        qkv: &O::Tensor,
        out: &O::Tensor,
        lse: &O::Float,
        heads: Heads,
        sequences: &Sequences,
        scale: f64,
    ) -> Result<O::Tensor> {
        let own = || ops.attention_backward(dout, qkv, out, lse, heads, sequences, scale);
        let Some(cp) = &self.cp else {
            return own();
        };
        let mut coming = cp.begin_rotate(keys_and_values(ops, qkv, heads)?)?;
        let mut dqkv = own()?;
        let mut dkv: Option<Begun<O::Tensor>> = None;
        for hop in 1..cp.size() {
            let kv = coming.wait()?;
            coming = pass_on(&**cp, hop, &kv)?;
            let spans = spans(&**cp, hop, sequences);
            let (dq, more) =
                ops.attend_keys_backward(dout, qkv, &kv, heads, &spans, scale, out, lse)?;
            dqkv = ops.add(&dqkv, &dq)?;
            let sum = match dkv {
                Some(dkv) => ops.add(&dkv.wait()?, &more)?,
                None => more,
            };
            dkv = Some(cp.begin_rotate(sum)?);
        }
        match dkv {
            Some(dkv) => ops.add_columns(&dqkv, &dkv.wait()?, heads.out_cols()),
            None => Ok(dqkv),
        }
    }
}

/// Keys and values that came in `hop` hops, on to the next rank; after the last hop they stay.
fn pass_on<O: Ops>(cp: &dyn Comm<O>, hop: usize, kv: &O::Tensor) -> Result<Begun<O::Tensor>> {
    match hop + 1 < cp.size() {
        true => cp.begin_rotate(kv.clone()),
        false => Ok(Begun::done(kv.clone())),
    }
}

fn keys_and_values<O: Ops>(ops: &O, qkv: &O::Tensor, heads: Heads) -> Result<O::Tensor> {
    ops.columns(qkv, heads.out_cols()..heads.qkv_cols())
}

/// Which rows see which of the keys that came here in `hop` hops.
fn spans<O: Ops>(cp: &dyn Comm<O>, hop: usize, sequences: &Sequences) -> Vec<KeySpan> {
    let earlier = hop <= cp.rank();
    let span = |rows: std::ops::Range<usize>| {
        let middle = rows.start + rows.len() / 2;
        if earlier {
            KeySpan {
                queries: rows.clone(),
                keys: rows.start..middle,
            }
        } else {
            KeySpan {
                queries: middle..rows.end,
                keys: rows,
            }
        }
    };
    sequences.ranges().map(span).collect()
}
