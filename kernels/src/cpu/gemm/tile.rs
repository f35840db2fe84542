//! The innermost loop: a tile of C, at most six rows by two vectors, as chains of fused multiply-adds in registers.

use crate::cpu::element::Element;
use crate::cpu::simd::Simd;

use super::TILE_ROWS;

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

/// `R` rows by `W` vectors.
///
/// # Safety
/// A, B must be readable and C (rows `ldc` apart) writable for `R` rows, `k` steps and `W` vectors; C's rows too for
/// `Chain::Add` and `Chain::Continue`, and then initialised.
#[inline(always)]
pub(crate) unsafe fn full<T: Element, V: Simd<T>, const R: usize, const W: usize>(
    k: usize,
    o: Operands<T>,
    c: *mut T,
    ldc: usize,
    chain: Chain,
) {
    let mut acc = [[V::splat(T::ZERO); W]; R];
    // SAFETY: the caller's.
    unsafe {
        if chain == Chain::Continue {
            for r in 0..R {
                for w in 0..W {
                    acc[r][w] = V::load_ptr(c.add(r * ldc + w * V::LANES));
                }
            }
        }
        run::<T, V, R, W>(k, o, &mut acc);
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

#[inline(always)]
unsafe fn run<T: Element, V: Simd<T>, const R: usize, const W: usize>(
    k: usize,
    o: Operands<T>,
    acc: &mut [[V; W]; R],
) {
    let Operands {
        mut a,
        a_row,
        a_k,
        mut b,
        b_k,
    } = o;
    for _ in 0..k {
        // SAFETY: the caller's.
        unsafe {
            let row: [V; W] = std::array::from_fn(|w| V::load_ptr(b.add(w * V::LANES)));
            for r in 0..R {
                let x = V::splat(*a.add(r * a_row));
                for w in 0..W {
                    acc[r][w] = x.fma(row[w], acc[r][w]);
                }
            }
            a = a.add(a_k);
            b = b.add(b_k);
        }
    }
}

/// Two vectors wide in B, of which C has only `cols` columns.
///
/// # Safety
/// As [`full`] with `W = 2`, but C needs only `cols` columns.
#[inline(always)]
pub(crate) unsafe fn narrow<T: Element, V: Simd<T>, const R: usize>(
    k: usize,
    o: Operands<T>,
    c: *mut T,
    ldc: usize,
    cols: usize,
    chain: Chain,
) {
    let mut tile = [[T::ZERO; 16]; R];
    // SAFETY: two vectors fit 16 numbers; the rest is the caller's.
    unsafe {
        if chain != Chain::Set {
            for r in 0..R {
                for j in 0..cols {
                    tile[r][j] = *c.add(r * ldc + j);
                }
            }
        }
        full::<T, V, R, 2>(k, o, tile.as_mut_ptr().cast(), 16, chain);
        for r in 0..R {
            for j in 0..cols {
                *c.add(r * ldc + j) = tile[r][j];
            }
        }
    }
}

/// [`full`] or [`narrow`] for `rows` of 1 to 6.
///
/// # Safety
/// As those.
#[inline(always)]
pub(crate) unsafe fn rows<T: Element, V: Simd<T>>(
    rows: usize,
    k: usize,
    o: Operands<T>,
    c: *mut T,
    ldc: usize,
    cols: usize,
    chain: Chain,
) {
    macro_rules! pick {
        ($($r:literal)*) => {
            match rows {
                // SAFETY: the caller's.
                $($r => unsafe {
                    if cols == 2 * V::LANES {
                        full::<T, V, $r, 2>(k, o, c, ldc, chain)
                    } else {
                        narrow::<T, V, $r>(k, o, c, ldc, cols, chain)
                    }
                },)*
                _ => unreachable!("a tile has 1 to 6 rows"),
            }
        };
    }
    pick!(1 2 3 4 5 6);
}

/// A small product in place, nothing packed: `C (+)= A B`, one chain over all of `k` for each element.
/// B's and C's rows are `b_k` and `ldc` apart; A's strides are free.
///
/// # Safety
/// A must be readable for `m` rows and `k` steps, B for `k` rows of `n`, C writable for `m` rows of `n`, and C must
/// overlap neither.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "a product's operands")]
pub(crate) unsafe fn small<T: Element, V: Simd<T>>(
    m: usize,
    n: usize,
    k: usize,
    o: Operands<T>,
    c: *mut T,
    ldc: usize,
    chain: Chain,
) {
    let mut r = 0;
    while r < m {
        let rows = (m - r).min(TILE_ROWS);
        // SAFETY: rows `r..r + rows` are inside; the rest is the caller's.
        unsafe {
            let o = Operands {
                a: o.a.add(r * o.a_row),
                ..o
            };
            let c = c.add(r * ldc);
            match rows {
                1 => stripe::<T, V, 1>(n, k, o, c, ldc, chain),
                2 => stripe::<T, V, 2>(n, k, o, c, ldc, chain),
                3 => stripe::<T, V, 3>(n, k, o, c, ldc, chain),
                4 => stripe::<T, V, 4>(n, k, o, c, ldc, chain),
                5 => stripe::<T, V, 5>(n, k, o, c, ldc, chain),
                _ => stripe::<T, V, 6>(n, k, o, c, ldc, chain),
            }
        }
        r += rows;
    }
}

#[inline(always)]
unsafe fn stripe<T: Element, V: Simd<T>, const R: usize>(
    n: usize,
    k: usize,
    o: Operands<T>,
    c: *mut T,
    ldc: usize,
    chain: Chain,
) {
    let mut j = 0;
    // SAFETY: columns from `j` on are inside as long as `j` + the width is at most `n`; the rest is the caller's.
    unsafe {
        while j + 2 * V::LANES <= n {
            full::<T, V, R, 2>(k, Operands { b: o.b.add(j), ..o }, c.add(j), ldc, chain);
            j += 2 * V::LANES;
        }
        if j + V::LANES <= n {
            full::<T, V, R, 1>(k, Operands { b: o.b.add(j), ..o }, c.add(j), ldc, chain);
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
                    sum = (*o.a.add(r * o.a_row + p * o.a_k)).fma(*o.b.add(p * o.b_k + j), sum);
                }
                *to = if chain == Chain::Add { *to + sum } else { sum };
            }
        }
    }
}
