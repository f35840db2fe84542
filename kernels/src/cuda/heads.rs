//! A product of its own for each head, all in one launch: what latent attention serves with.

use super::gemm::{self, Shape};
use super::ops::{expect, whole_vectors};
use super::{Cuda, Tensor};
use crate::{HeadParts, Result};

impl Cuda {
    /// `transposed`: `x_h W_hᵀ`, else `x_h W_h`.
    pub(super) fn head_products(
        &self,
        op: &'static str,
        x: &Tensor,
        w: &Tensor,
        parts: HeadParts,
        transposed: bool,
    ) -> Result<Tensor> {
        let HeadParts {
            heads,
            x_start,
            w_start,
            len,
        } = parts;
        let (k, n) = if transposed {
            (w.cols, len)
        } else {
            (len, w.cols)
        };
        expect(op, parts.fits(x.cols, w.rows, k), || {
            let (x, w) = ([x.rows, x.cols], [w.rows, w.cols]);
            format!("{parts:?} of {x:?} and {w:?}")
        })?;
        for whole in [x.cols / heads, x_start, w.cols, len] {
            whole_vectors(op, whole)?;
        }
        let y = self.new_tensor(x.rows, heads * n, "heads' products")?;
        let shape = Shape {
            m: n,
            n: x.rows,
            k,
            transpose_a: transposed,
            transpose_b: false,
            float_out: false,
            accumulate: false,
        };
        let side_by_side = gemm::Heads {
            count: heads,
            leading: [w.cols, x.cols, y.cols],
            step: [w.rows / heads * w.cols, x.cols / heads, n],
        };
        let matrices = w.block.ptr + (w_start * w.cols * 2) as u64;
        let inputs = (matrices, x.block.ptr + (x_start * 2) as u64);
        let heads = Some(side_by_side);
        self.gemm
            .run_heads(&self.device, shape, heads, inputs, y.block.ptr, false)?;
        Ok(y)
    }
}
