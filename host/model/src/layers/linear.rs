//! `y = x Wᵀ (+ b)`.

use super::{Gradients, ParamId, Weights};
use slime_kernels::{Ops, Result};

/// A matrix `W: [out, in]` and maybe a bias `[1, out]`.
#[derive(Clone, Debug)]
pub struct Linear {
    /// `[out, in]`.
    pub weight: ParamId,
    /// `[1, out]`.
    pub bias: Option<ParamId>,
}

impl Linear {
    /// `x: [rows, in]` → `[rows, out]`.
    ///
    /// # Errors
    /// The device failed.
    pub fn forward<O: Ops>(
        &self,
        x: &O::Tensor,
        ops: &O,
        weights: &Weights<O>,
    ) -> Result<O::Tensor> {
        let y = ops.matmul_nt(x, weights.get(self.weight))?;
        match self.bias {
            Some(bias) => ops.add_bias(&y, weights.get(bias)),
            None => Ok(y),
        }
    }

    /// `dy: [rows, out]` → `dx: [rows, in]`; adds `dW` and `db`. `x` is what forward took.
    ///
    /// # Errors
    /// The device failed.
    pub fn backward<O: Ops>(
        &self,
        dy: &O::Tensor,
        x: &O::Tensor,
        ops: &O,
        weights: &Weights<O>,
        grads: &mut Gradients<O>,
    ) -> Result<O::Tensor> {
        self.accumulate(dy, x, ops, grads)?;
        self.input_gradient(dy, ops, weights)
    }

    /// The half of [`Self::backward`] that needs `x`: adds `dW` and `db`.
    ///
    /// # Errors
    /// The device failed.
    pub fn accumulate<O: Ops>(
        &self,
        dy: &O::Tensor,
        x: &O::Tensor,
        ops: &O,
        grads: &mut Gradients<O>,
    ) -> Result<()> {
        ops.accumulate_tn(dy, x, grads.get(self.weight))?;
        match self.bias {
            Some(bias) => ops.accumulate_bias(dy, grads.get(bias)),
            None => Ok(()),
        }
    }

    /// The other half: `dx`.
    ///
    /// # Errors
    /// The device failed.
    pub fn input_gradient<O: Ops>(
        &self,
        dy: &O::Tensor,
        ops: &O,
        weights: &Weights<O>,
    ) -> Result<O::Tensor> {
        ops.matmul_nn(dy, weights.get(self.weight))
    }
}
