//! Matrix products: `C = A B` or `C += A B`, for operands in any of the layouts that `x Wᵀ`, `dy W` and `dyᵀ x` need.
//!
//! Each element of C is a chain of fused multiply-adds over k inside blocks of k whose length depends on K alone;
//! the blocks' results are added in order. Neither the number of rows, nor a tail, nor a thread changes that
//! order, so neither changes a bit. Blocks also bound the error: a single chain of 49 152 would lose digits.
//!
//! Two drivers share one tile kernel ([`tile`]): [`many_rows`] for training, [`few_rows`] for decoding, where
//! reading the weight once is all that counts. Read [`pack`] for the order in which numbers are laid out.

mod few_rows;
mod many_rows;
pub(crate) mod pack;
pub(crate) mod tile;

use super::buffer::{Buffer, Pool};
use super::element::Element;
use std::sync::Arc;

pub(crate) use pack::{pack_all, packed_len};

/// Rows of a tile: 6 × 2 accumulators, two vectors of B and one of A fill the 16 registers of AVX2.
pub(crate) const TILE_ROWS: usize = 6;
/// Up to so many rows, `few_rows`.
pub(crate) const FEW_ROWS: usize = 96;
/// Longest chain: 384 rows of a panel of f32 are 24 KiB, which leaves the first cache room for A.
const MAX_CHAIN: usize = 384;

/// A matrix in memory: element `(i, j)` at `i × row_stride + j × col_stride`; one of the strides is 1.
#[derive(Clone, Copy)]
pub(crate) struct View<'a, T> {
    pub(crate) data: &'a [T],
    pub(crate) row_stride: usize,
    pub(crate) col_stride: usize,
}

impl<'a, T> View<'a, T> {
    /// Row-major with rows of `cols`.
    pub(crate) fn new(data: &'a [T], cols: usize) -> Self {
        Self {
            data,
            row_stride: cols,
            col_stride: 1,
        }
    }

    /// The transpose of a row-major matrix with rows of `cols`.
    pub(crate) fn transposed(data: &'a [T], cols: usize) -> Self {
        Self {
            data,
            row_stride: 1,
            col_stride: cols,
        }
    }
}

/// The right operand.
#[derive(Clone, Copy)]
pub(crate) enum Right<'a, T> {
    /// `[k, n]`.
    Plain(View<'a, T>),
    /// As [`pack_all`] lays it out.
    Packed(&'a [T]),
}

/// Length of the blocks into which the chain over `k` is cut: equal, at most [`MAX_CHAIN`].
pub(crate) fn chain_len(k: usize) -> usize {
    let blocks = k.div_ceil(MAX_CHAIN).max(1);
    k.div_ceil(blocks).next_multiple_of(8).max(8)
}

/// Sizes of a product: A is `[m, k]`, B is `[k, n]`, C is `[m, n]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

/// `C = A B`, or `C += A B`.
pub(crate) fn gemm<T: Element>(
    pool: &Arc<Pool>,
    size: Size,
    a: View<'_, T>,
    b: Right<'_, T>,
    c: &mut [T],
    add: bool,
) {
    let Size { m, n, k } = size;
    assert_eq!(c.len(), m * n);
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        if !add {
            c.fill(T::ZERO);
        }
        return;
    }
    if m <= FEW_ROWS {
        few_rows::run(pool, size, a, b, c, add);
    } else {
        many_rows::run(pool, size, a, b, c, add);
    }
}

/// A weight `[n, k]` laid out for [`Right::Packed`].
pub(crate) fn pack_weight<T: Element>(pool: &Arc<Pool>, w: &[T], n: usize, k: usize) -> Buffer<T> {
    let mut out = pool.take(packed_len::<T>(n, k));
    pack_all(View::transposed(w, k), n, k, &mut out);
    out
}
