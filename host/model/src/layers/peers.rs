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
//! In the backward the exchanges around a block's first matrix run beside it: its rows come while the rest of the block is
//! gone through, the sum over ranks while its own gradient is made. Those around the second matrix are waited for.
//!
//! A mixture of experts sits between no such pair: its rows stay split, and go to their experts and back
//! ([`super::dispatch`]). Context parallelism splits every sequence over ranks, two chunks each, and keys and values go round a ring
//! ([`Peers::attention`]). A rank alone sends nothing. It knows no schedule and no optimizer; those are the trainer's.

use super::linear::Linear;
use super::{Gradients, Weights};
use slime_kernels::comm::Begun;
use slime_kernels::{Comm, Heads, KeySpan, Ops, Result, Sequences};
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

    /// The backward of a matrix split by outputs: `dy` → `dx`, summed over ranks while the matrix's own gradient is made
    /// from the rows that were entered.
    ///
    /// # Errors
    /// A peer or the device failed.
    pub fn backward_of_entered(
        &self,
        linear: &Linear,
        dy: &O::Tensor,
        entered: Begun<O::Tensor>,
        (ops, weights): (&O, &Weights<O>),
        grads: &mut Gradients<O>,
    ) -> Result<O::Tensor> {
        let dx = linear.input_gradient(dy, ops, weights)?;
        let dx = match &self.tp {
            Some(tp) if self.sequence_parallel => tp.begin_reduce_scatter(dx)?,
            Some(tp) => tp.begin_all_reduce(dx)?,
            None => Begun::done(dx),
        };
        linear.accumulate(dy, &entered.wait()?, ops, grads)?;
        dx.wait()
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
        let (mut out, mut lse) = ops.attention(qkv, heads, sequences, scale)?;
        let Some(cp) = &self.cp else {
            return Ok((out, lse));
        };
        let mut kv = keys_and_values(ops, qkv, heads)?;
        for hop in 1..cp.size() {
            kv = cp.rotate(&kv)?;
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
        let mut dqkv = ops.attention_backward(dout, qkv, out, lse, heads, sequences, scale)?;
        let Some(cp) = &self.cp else {
            return Ok(dqkv);
        };
        let mut kv = keys_and_values(ops, qkv, heads)?;
        let mut dkv: Option<O::Tensor> = None;
        for hop in 1..cp.size() {
            kv = cp.rotate(&kv)?;
            let spans = spans(&**cp, hop, sequences);
            let (dq, more) =
                ops.attend_keys_backward(dout, qkv, &kv, heads, &spans, scale, out, lse)?;
            dqkv = ops.add(&dqkv, &dq)?;
            dkv = Some(match dkv {
                Some(dkv) => ops.add(&cp.rotate(&dkv)?, &more)?,
                None => more,
            });
        }
        match dkv {
            Some(dkv) => ops.add_columns(&dqkv, &cp.rotate(&dkv)?, heads.out_cols()),
            None => Ok(dqkv),
        }
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
