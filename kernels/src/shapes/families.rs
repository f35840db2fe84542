//! What single heads' products, convolutions and delta rules cost.

use super::{ShapeFloat, ShapeTensor, Shapes};
use crate::ops::{DeltaHeads, HeadParts, Sequences};
use crate::{Result, check};

/// A delta rule holds no more than this while it runs, 2.25 GiB; heads take turns in it.
const MOST_KEPT: usize = 9 << 28;
/// Tokens of its chunks, and bytes that each value head of one holds: two triangles in blocks of 16 x 16 and two terms of bf16, and
/// five factors of a token in f32.
const CHUNK: usize = 64;
const INSIDE: usize = 2 * 10 * 256 * 4 + 20 * CHUNK;

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

    /// Holds `bytes` a chunk and value head for a moment.
    fn hold_chunks(&self, sequences: &Sequences, h: DeltaHeads, bytes: usize) {
        let chunks: usize = sequences.ranges().map(|r| r.len().div_ceil(CHUNK)).sum();
        drop(self.meter.hold((chunks * h.values * bytes).min(MOST_KEPT)));
    }

    pub(super) fn delta(
        &self,
        qkv: &ShapeTensor,
        h: DeltaHeads,
        sequences: &Sequences,
    ) -> ShapeTensor {
        let o = self.tensor_of(qkv.rows, h.values * h.value_dim);
        self.delta_work(qkv.rows, h, 1);
        self.hold_chunks(sequences, h, INSIDE);
        o
    }

    pub(super) fn delta_gradient(
        &self,
        qkv: &ShapeTensor,
        gates: &ShapeTensor,
        h: DeltaHeads,
        sequences: &Sequences,
    ) -> (ShapeTensor, ShapeTensor) {
        let like = |x: &ShapeTensor| self.tensor_of(x.rows, x.cols);
        let gradients = (like(qkv), like(gates));
        self.delta_work(qkv.rows, h, 3);
        // A state, its gradient and what tokens wrote, in bf16.
        let kept = INSIDE + 2 * (2 * h.key_dim + CHUNK) * h.value_dim;
        self.hold_chunks(sequences, h, kept);
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
