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

/// Which of a matrix's two products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// `x Wᵀ`, without the bias.
    Forward,
    /// `dy W`.
    Back,
}

impl Linear {
    /// Columns of a product.
    pub(super) fn width<O: Ops>(&self, way: Way, ops: &O, weights: &Weights<O>) -> usize {
        let (outputs, inputs) = ops.shape(weights.get(self.weight));
        match way {
            Way::Forward => outputs,
            Way::Back => inputs,
        }
    }

    /// A product.
    pub(super) fn product<O: Ops>(
        &self,
        way: Way,
        x: &O::Tensor,
        (ops, weights): (&O, &Weights<O>),
    ) -> Result<O::Tensor> {
        let weight = weights.get(self.weight);
        match way {
            Way::Forward => ops.matmul_nt(x, weight),
            Way::Back => ops.matmul_nn(x, weight),
        }
    }

    /// A product into the rows of `y` from `at` on.
    pub(super) fn put<O: Ops>(
        &self,
        way: Way,
        x: &O::Tensor,
        (ops, weights): (&O, &Weights<O>),
        y: &mut O::Tensor,
        at: usize,
    ) -> Result<()> {
        let weight = weights.get(self.weight);
        match way {
            Way::Forward => ops.put_nt(x, weight, y, at),
            Way::Back => ops.put_nn(x, weight, y, at),
        }
    }

    /// What [`Way::Forward`] leaves out.
    pub(super) fn biased<O: Ops>(
        &self,
        y: O::Tensor,
        ops: &O,
        weights: &Weights<O>,
    ) -> Result<O::Tensor> {
        match self.bias {
            Some(bias) => ops.add_bias(&y, weights.get(bias)),
            None => Ok(y),
        }
    }

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
        let y = self.product(Way::Forward, x, (ops, weights))?;
        self.biased(y, ops, weights)
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
        self.product(Way::Back, dy, (ops, weights))
    }
}
