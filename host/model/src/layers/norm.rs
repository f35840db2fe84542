//! RMSNorm over the residual stream, fused with the addition that precedes it.

use super::{Gradients, ParamId, Pass, Weights};
use slime_kernels::{Ops, Result};

/// The residual stream between two layers: what the stream was, and what the last layer adds to it.
/// The sum is formed by the norm that reads it.
pub struct Stream<O: Ops> {
    /// `[rows, hidden]`.
    pub base: O::Tensor,
    /// `[rows, hidden]`.
    pub delta: Option<O::Tensor>,
}

/// What a norm gives.
pub struct Normed<O: Ops> {
    /// The stream, summed: `[rows, hidden]`.
    pub sum: O::Tensor,
    /// The normed rows: `[rows, hidden]`.
    pub out: O::Tensor,
    /// `1 / rms` of each row.
    pub stat: O::Float,
}

/// `y = x r w`, `r = 1 / √(mean x² + eps)`; or with `1 + w`.
#[derive(Clone, Debug)]
pub struct Norm {
    /// `[1, hidden]`.
    pub weight: ParamId,
    /// Added to the mean square.
    pub eps: f64,
    /// Rows are multiplied by one plus the weight.
    pub plus_one: bool,
}

/// A norm's weight as rows are multiplied by it: itself, or one more.
///
/// # Errors
/// The device failed.
pub(super) fn factor<O: Ops>(
    weight: ParamId,
    plus_one: bool,
    ops: &O,
    weights: &Weights<O>,
) -> Result<O::Tensor> {
    let weight = weights.get(weight);
    if !plus_one {
        return Ok(weight.clone());
    }
    let (rows, cols) = ops.shape(weight);
    ops.add(weight, &ops.tensor(rows, cols, &vec![1.0; rows * cols])?)
}

impl Norm {
    /// What rows are multiplied by: `[1, hidden]`.
    ///
    /// # Errors
    /// The device failed.
    pub fn factor<O: Ops>(&self, ops: &O, weights: &Weights<O>) -> Result<O::Tensor> {
        factor(self.weight, self.plus_one, ops, weights)
    }

    /// Sum the stream and norm it.
    ///
    /// # Errors
    /// The device failed.
    pub fn forward<O: Ops>(
        &self,
        stream: Stream<O>,
        ops: &O,
        weights: &Weights<O>,
    ) -> Result<Normed<O>> {
        let weight = &self.factor(ops, weights)?;
        match stream.delta {
            Some(delta) => {
                let (sum, out, stat) = ops.add_rmsnorm(&stream.base, &delta, weight, self.eps)?;
                Ok(Normed { sum, out, stat })
            }
            None => {
                let (out, stat) = ops.rmsnorm(&stream.base, weight, self.eps)?;
                Ok(Normed {
                    sum: stream.base,
                    out,
                    stat,
                })
            }
        }
    }

    /// The normed rows once more, from the summed stream: the bits that forward gave.
    ///
    /// # Errors
    /// The device failed.
    pub fn again<O: Ops>(
        &self,
        sum: &O::Tensor,
        ops: &O,
        weights: &Weights<O>,
    ) -> Result<O::Tensor> {
        Ok(ops.rmsnorm(sum, &self.factor(ops, weights)?, self.eps)?.0)
    }

    /// Gradient of the summed stream, which is that of base and of delta alike; adds `dw`. `past` is the
    /// gradient that reaches the stream past this norm.
    ///
    /// # Errors
    /// The device failed.
    #[allow(clippy::too_many_arguments, reason = "the operands of one backward")]
    pub fn backward<O: Ops>(
        &self,
        dy: &O::Tensor,
        sum: &O::Tensor,
        stat: &O::Float,
        past: Option<&O::Tensor>,
        ops: &O,
        weights: &Weights<O>,
        grads: &mut Gradients<O>,
    ) -> Result<O::Tensor> {
        let weight = self.factor(ops, weights)?;
        ops.rmsnorm_backward(dy, sum, stat, &weight, past, grads.get(self.weight))
    }

    /// [`Self::backward`], and the normed rows once more: the bits that forward gave.
    ///
    /// # Errors
    /// The device failed.
    #[allow(clippy::too_many_arguments, reason = "the operands of one backward")]
    pub fn backward_again<O: Ops>(
        &self,
        dy: &O::Tensor,
        sum: &O::Tensor,
        stat: &O::Float,
        past: Option<&O::Tensor>,
        ops: &O,
        weights: &Weights<O>,
        grads: &mut Gradients<O>,
    ) -> Result<(O::Tensor, O::Tensor)> {
        let (weight, dw) = (self.factor(ops, weights)?, grads.get(self.weight));
        ops.rmsnorm_backward_again(dy, sum, stat, &weight, self.eps, past, dw)
    }
}

/// A norm of what a layer adds to the stream (GLM-4's "sandwich").
#[derive(Clone, Debug)]
pub struct PostNorm(pub Norm);

/// What it keeps: the rows before it and their `1 / rms`.
pub struct SavedPost<O: Ops> {
    raw: O::Tensor,
    stat: O::Float,
}

impl PostNorm {
    /// Norm `delta`, where there is a norm.
    ///
    /// # Errors
    /// The device failed.
    pub fn apply<O: Ops>(
        norm: Option<&Self>,
        delta: O::Tensor,
        pass: Pass<'_, O>,
    ) -> Result<(O::Tensor, Option<SavedPost<O>>)> {
        let Some(Self(norm)) = norm else {
            return Ok((delta, None));
        };
        let stream = Stream {
            base: delta,
            delta: None,
        };
        let Normed { sum, out, stat } = norm.forward(stream, pass.ops, pass.weights)?;
        Ok((out, Some(SavedPost { raw: sum, stat })))
    }

    /// Gradient of `delta` before the norm, from that of the stream it was added to.
    ///
    /// # Errors
    /// The device failed.
    pub fn backward<O: Ops>(
        norm: Option<&Self>,
        dstream: &O::Tensor,
        saved: Option<SavedPost<O>>,
        pass: Pass<'_, O>,
        grads: &mut Gradients<O>,
    ) -> Result<O::Tensor> {
        let (Some(Self(norm)), Some(SavedPost { raw, stat })) = (norm, saved) else {
            return Ok(dstream.clone());
        };
        let (ops, weights) = (pass.ops, pass.weights);
        norm.backward(dstream, &raw, &stat, None, ops, weights, grads)
    }
}
