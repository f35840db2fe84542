//! RMSNorm over the residual stream, fused with the addition that precedes it.

use super::{Gradients, ParamId, Weights};
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

/// `y = x r w`, `r = 1 / √(mean x² + eps)`.
#[derive(Clone, Debug)]
pub struct Norm {
    /// `[1, hidden]`.
    pub weight: ParamId,
    /// Added to the mean square.
    pub eps: f64,
}

impl Norm {
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
        let weight = weights.get(self.weight);
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
        Ok(ops.rmsnorm(sum, weights.get(self.weight), self.eps)?.0)
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
        let weight = weights.get(self.weight);
        ops.rmsnorm_backward(dy, sum, stat, weight, past, grads.get(self.weight))
    }
}
