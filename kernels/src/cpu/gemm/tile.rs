//! The innermost loop: a tile of C, at most six rows by two vectors, as chains of fused multiply-adds in registers.
//!
//! Two functions use it: [`column`] for packed operands, [`small`] for small products in place. Neither is generic
//! over what it is used for: every use would compile all tile sizes again.

use std::ops::Range;

use crate::cpu::element::Element;
use crate::cpu::simd::{Simd, simd};

use super::TILE_ROWS;
use super::pack::groups;

/// Where a chain starts and what becomes of its end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chain {
    /// From 0; `C = chain`.
    Set,
    /// From 0; `C = C + chain`.
    Add,
    /// From C; `C = chain`.
    Continue,
}

/// Operands of a tile: element `(r, p)` of A at `a + r × a_row + p × a_k`, row p of B at `b + p × b_k`.
#[derive(Clone, Copy)]
pub(crate) struct Operands<T> {
    pub(crate) a: *const T,
    pub(crate) a_row: usize,
    pub(crate) a_k: usize,
    pub(crate) b: *const T,
    pub(crate) b_k: usize,
}

/// What to fetch meanwhile: from `start` on, `step` further at each k; nothing if that is 0.
#[derive(Clone, Copy)]
struct Ahead<T> {
    start: *const T,
    step: usize,
}

impl<T> Ahead<T> {
    const NOTHING: Self = Self {
        start: std::ptr::null(),
        step: 0,
    };
}

/// `R` rows by `W` vectors.
///
/// # Safety
/// A, B must be readable and C (rows `ldc` apart) writable for `R` rows, `k` steps and `W` vectors; C's rows too for
/// `Chain::Add` and `Chain::Continue`, and then initialised.
#[inline(always)]
unsafe fn tile<T: Element, V: Simd<T>, const R: usize, const W: usize>(
    k: usize,
    o: Operands<T>,
    ahead: Ahead<T>,
    c: *mut T,
    ldc: usize,
    chain: Chain,
) {
    let mut acc = [[V::splat(T::ZERO); W]; R];
    let (mut a, mut b, mut fetch) = (o.a, o.b, ahead.start);
    // SAFETY: the caller's.
    unsafe {
        if chain == Chain::Continue {
            for r in 0..R {
                for w in 0..W {
                    acc[r][w] = V::load_ptr(c.add(r * ldc + w * V::LANES));
                }
            }
        }
        for _ in 0..k {
            let row: [V; W] = std::array::from_fn(|w| V::load_ptr(b.add(w * V::LANES)));
            for r in 0..R {
                let x = V::splat(*a.add(r * o.a_row));
                for w in 0..W {
                    acc[r][w] = x.fma(row[w], acc[r][w]);
                }
            }
            a = a.add(o.a_k);
            b = b.add(o.b_k);
            if ahead.step > 0 {
                V::prefetch(fetch);
                fetch = fetch.wrapping_add(ahead.step);
            }
        }
        for r in 0..R {
            for w in 0..W {
                let to = c.add(r * ldc + w * V::LANES);
                let sum = if chain == Chain::Add {
                    V::load_ptr(to).add(acc[r][w])
                } else {
                    acc[r][w]
                };
                sum.store_ptr(to);
            }
        }
    }
}

/// One panel of B times all rows of A, both packed.
struct Column<T> {
    k: usize,
    a: *const T,
    b: *const T,
    ahead: *const T,
    c: *mut T,
    ldc: usize,
    rows: Range<usize>,
    cols: usize,
    add: bool,
}

/// `C = A B` or `C += A B` for `rows` of C, of which the panel covers `cols` columns. While at work, fetches `k` rows of
/// a panel from `ahead` on (which need not be valid), unless that is null.
///
/// # Safety
/// `a` must be packed in [`groups`] of `rows` over `k`, `b` `[k, width]`; C, whose row 0 starts at `c`, writable in the
/// rows and columns, initialised if `add`.
#[allow(clippy::too_many_arguments, reason = "a product's operands")]
pub(super) unsafe fn column<T: Element>(
    k: usize,
    a: *const T,
    b: *const T,
    ahead: *const T,
    c: *mut T,
    ldc: usize,
    rows: Range<usize>,
    cols: usize,
    add: bool,
) {
    run_column(&Column {
        k,
        a,
        b,
        ahead,
        c,
        ldc,
        rows,
        cols,
        add,
    });
}

simd! {
    fn run_column<T, V>(o: &Column<T>) {
        let width = 2 * V::LANES;
        let chain = if o.add { Chain::Add } else { Chain::Set };
        // Each group of rows fetches its share.
        let step = if o.ahead.is_null() { 0 } else { width * TILE_ROWS.min(o.rows.len()) / o.rows.len() };
        let (mut a, mut start) = (o.a, o.ahead);
        let mut edge = [T::ZERO; TILE_ROWS * 16];
        for group in groups(o.rows.clone()) {
            let rows = group.len();
            // SAFETY: `column`'s contract; a narrow panel goes through `edge`.
            unsafe {
                let c = o.c.add(group.start * o.ldc);
                let operands = Operands { a, a_row: 1, a_k: rows, b: o.b, b_k: width };
                let ahead = Ahead { start, step };
                let narrow = o.cols < width;
                let (to, ldc) = if narrow { (edge.as_mut_ptr(), 16) } else { (c, o.ldc) };
                if narrow && o.add {
                    for r in 0..rows {
                        to.add(r * 16).copy_from_nonoverlapping(c.add(r * o.ldc), o.cols);
                    }
                }
                match rows {
                    1 => tile::<T, V, 1, 2>(o.k, operands, ahead, to, ldc, chain),
                    2 => tile::<T, V, 2, 2>(o.k, operands, ahead, to, ldc, chain),
                    3 => tile::<T, V, 3, 2>(o.k, operands, ahead, to, ldc, chain),
                    4 => tile::<T, V, 4, 2>(o.k, operands, ahead, to, ldc, chain),
                    5 => tile::<T, V, 5, 2>(o.k, operands, ahead, to, ldc, chain),
                    _ => tile::<T, V, 6, 2>(o.k, operands, ahead, to, ldc, chain),
                }
                if narrow {
                    for r in 0..rows {
                        c.add(r * o.ldc).copy_from_nonoverlapping(to.add(r * 16), o.cols);
                    }
                }
                a = a.add(rows * o.k);
            }
            start = start.wrapping_add(step * o.k);
        }
    }
}

/// A small product.
struct Small<T> {
    m: usize,
    n: usize,
    k: usize,
    operands: Operands<T>,
    c: *mut T,
    ldc: usize,
    chain: Chain,
}

/// A small product in place, nothing packed: `C (+)= A B`, one chain over all of `k` for each element.
/// B's and C's rows are `b_k` and `ldc` apart; A's strides are free.
///
/// # Safety
/// A must be readable for `m` rows and `k` steps, B for `k` rows of `n`, C writable for `m` rows of `n` and initialised
/// unless it is only set, and C must overlap neither.
pub(crate) unsafe fn small<T: Element>(
    m: usize,
    n: usize,
    k: usize,
    operands: Operands<T>,
    c: *mut T,
    ldc: usize,
    chain: Chain,
) {
    run_small(&Small {
        m,
        n,
        k,
        operands,
        c,
        ldc,
        chain,
    });
}

simd! {
    fn run_small<T, V>(o: &Small<T>) {
        let mut r = 0;
        while r < o.m {
            // SAFETY: `small`'s contract; rows `r..r + rows` are inside.
            unsafe {
                match o.m - r {
                    1 => stripe::<T, V, 1>(o, r),
                    2 => stripe::<T, V, 2>(o, r),
                    3 => stripe::<T, V, 3>(o, r),
                    4 => stripe::<T, V, 4>(o, r),
                    5 => stripe::<T, V, 5>(o, r),
                    _ => stripe::<T, V, 6>(o, r),
                }
            }
            r += TILE_ROWS;
        }
    }
}

/// `R` rows of a small product, from row `r` on.
#[inline(always)]
unsafe fn stripe<T: Element, V: Simd<T>, const R: usize>(o: &Small<T>, r: usize) {
    let Small {
        n,
        k,
        ldc,
        chain,
        operands,
        ..
    } = *o;
    let mut j = 0;
    // SAFETY: columns from `j` on are inside as long as `j` + the width is at most `n`; the rest is the caller's.
    unsafe {
        let c = o.c.add(r * ldc);
        let operands = Operands {
            a: operands.a.add(r * operands.a_row),
            ..operands
        };
        while j + 2 * V::LANES <= n {
            tile::<T, V, R, 2>(
                k,
                Operands {
                    b: operands.b.add(j),
                    ..operands
                },
                Ahead::NOTHING,
                c.add(j),
                ldc,
                chain,
            );
            j += 2 * V::LANES;
        }
        if j + V::LANES <= n {
            tile::<T, V, R, 1>(
                k,
                Operands {
                    b: operands.b.add(j),
                    ..operands
                },
                Ahead::NOTHING,
                c.add(j),
                ldc,
                chain,
            );
            j += V::LANES;
        }
        for j in j..n {
            for r in 0..R {
                let to = c.add(r * ldc + j);
                let mut sum = if chain == Chain::Continue {
                    *to
                } else {
                    T::ZERO
                };
                for p in 0..k {
                    let a = *operands.a.add(r * operands.a_row + p * operands.a_k);
                    sum = a.fma(*operands.b.add(p * operands.b_k + j), sum);
                }
                *to = if chain == Chain::Add { *to + sum } else { sum };
            }
        }
    }
}
