//! What single heads' products, convolutions and delta rules cost.

use super::{ShapeFloat, ShapeTensor, Shapes};
use crate::ops::{DeltaHeads, HeadParts};
use crate::{Result, check};

/// A delta rule's backward keeps no more than this while it runs, 2.25 GiB; heads take turns in it.
const MOST_KEPT: usize = 9 << 28;
/// Tokens between two states that it keeps.
const CHUNK: usize = 32;

impl Shapes {
    pub(super) fn heads(
        &self,
        op: &'static str,
        x: &ShapeTensor,
        w: &ShapeTensor,
        parts: HeadParts,
        transposed: bool,
    ) -> Result<ShapeTensor> {
        let (k, n) = if transposed {
            (w.cols, parts.len)
        } else {
            (parts.len, w.cols)
        };
        check::that(parts.fits(x.cols, w.rows, k), op, || {
            let (x, w) = ([x.rows, x.cols], [w.rows, w.cols]);
            format!("{parts:?} of {x:?} and {w:?}")
        })?;
        let y = self.tensor_of(x.rows, parts.heads * n);
        self.gemm(x.rows * parts.heads, n, k);
        Ok(y)
    }

    /// `times` the forward's work.
    pub(super) fn delta_work(&self, rows: usize, h: DeltaHeads, times: usize) {
        self.gemm(times * rows * h.values, h.value_dim, 4 * h.key_dim);
    }

    pub(super) fn delta_gradient(
        &self,
        qkv: &ShapeTensor,
        gates: &ShapeTensor,
        h: DeltaHeads,
    ) -> (ShapeTensor, ShapeTensor) {
        let like = |x: &ShapeTensor| self.tensor_of(x.rows, x.cols);
        let gradients = (like(qkv), like(gates));
        self.delta_work(qkv.rows, h, 3);
        let states = qkv.rows.div_ceil(CHUNK) * h.key_dim * h.value_dim;
        let kept = 4 * h.values * (states + qkv.rows * (2 * h.key_dim + 2));
        drop(self.meter.hold(kept.min(MOST_KEPT)));
        gradients
    }

    pub(super) fn convolved(&self, x: &ShapeTensor, w: &ShapeTensor) -> Result<ShapeTensor> {
        check::that(w.rows == x.cols, "causal_conv", || {
            format!("[{}, {}] for rows of {}", w.rows, w.cols, x.cols)
        })?;
        self.moved(2 * x.rows * x.cols);
        Ok(self.tensor_of(x.rows, x.cols))
    }

    pub(super) fn convolved_gradient(&self, x: &ShapeTensor, dw: &ShapeFloat) -> ShapeTensor {
        self.moved(3 * x.rows * x.cols + dw.rows * dw.cols);
        self.tensor_of(x.rows, x.cols)
    }
}
