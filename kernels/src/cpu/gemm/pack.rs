//! Laying operands out in the order in which tiles read them.
//!
//! B becomes panels of two vectors' width, `[panel][k][width]`, the last padded with zeros; A becomes groups of at
//! most six rows, `[group][k][rows]`. Only moves numbers.

use std::ops::Range;

use crate::cpu::element::Element;
use crate::cpu::element::private::Number;
use crate::cpu::parallel::{self, Disjoint};
use crate::cpu::simd::{Simd, simd};

use super::{TILE_ROWS, View};

/// Width of a panel of B.
pub(crate) fn panel_width<T: Element>() -> usize {
    2 * <<T as Number>::Portable as Simd<T>>::LANES
}

/// Numbers in a packed `[k, n]`.
pub(crate) fn packed_len<T: Element>(n: usize, k: usize) -> usize {
    n.next_multiple_of(panel_width::<T>()) * k
}

/// Packs all of B, `[k, n]`.
pub(crate) fn pack_all<T: Element>(b: View<'_, T>, n: usize, k: usize, out: &mut [T]) {
    let width = panel_width::<T>();
    assert_eq!(out.len(), packed_len::<T>(n, k));
    if k == 0 {
        return;
    }
    let out = Disjoint::new(out);
    parallel::ranges(
        n.div_ceil(width),
        parallel::grain_rows(width * k),
        |panels| {
            // SAFETY: ranges of panels are disjoint.
            let out = unsafe { out.slice(panels.start * width * k..panels.end * width * k) };
            pack_panels(b, n, 0..k, panels, out);
        },
    );
}

/// Packs rows `ks` of the panels `panels` of B: `[panel][ks.len()][width]`.
pub(super) fn pack_panels<T: Element>(
    b: View<'_, T>,
    n: usize,
    ks: Range<usize>,
    panels: Range<usize>,
    out: &mut [T],
) {
    let width = panel_width::<T>();
    for (panel, out) in panels.zip(out.chunks_exact_mut(ks.len() * width)) {
        let cols = panel * width..((panel + 1) * width).min(n);
        if b.col_stride == 1 {
            for (k, out) in ks.clone().zip(out.chunks_exact_mut(width)) {
                let from = k * b.row_stride;
                out[..cols.len()].copy_from_slice(&b.data[from + cols.start..from + cols.end]);
                out[cols.len()..].fill(T::ZERO);
            }
        } else {
            transpose(
                &b.data[cols.start * b.col_stride..],
                b.col_stride,
                cols.len(),
                ks.clone(),
                width,
                out,
            );
        }
    }
}

/// Packs the rows `rows` of A, in groups given by [`groups`], over `ks`.
pub(super) fn pack_rows<T: Element>(
    a: View<'_, T>,
    rows: Range<usize>,
    ks: Range<usize>,
    out: &mut [T],
) {
    let mut offset = 0;
    for group in groups(rows) {
        let out = &mut out[offset..offset + group.len() * ks.len()];
        offset += out.len();
        if a.col_stride == 1 {
            transpose(
                &a.data[group.start * a.row_stride..],
                a.row_stride,
                group.len(),
                ks.clone(),
                group.len(),
                out,
            );
        } else {
            for (k, out) in ks.clone().zip(out.chunks_exact_mut(group.len())) {
                let from = k * a.col_stride;
                out.copy_from_slice(&a.data[from + group.start..from + group.end]);
            }
        }
    }
}

/// `rows` in groups of at most [`TILE_ROWS`], as even as can be: 7 rows are 4 + 3, not 6 + 1.
pub(super) fn groups(rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let count = rows.len().div_ceil(TILE_ROWS).max(1);
    let (size, larger) = (rows.len() / count, rows.len() % count);
    (0..count).map(move |i| {
        let start = rows.start + i * size + i.min(larger);
        start..start + size + usize::from(i < larger)
    })
}

simd! {
    /// `out[k - ks.start][i] = from[i × stride + k]` for `i < rows`, 0 for `rows ≤ i < width`.
    pub(crate) fn transpose<T, V>(from: &[T], stride: usize, rows: usize, ks: Range<usize>, width: usize, out: &mut [T]) {
        assert!(rows == 0 || from.len() >= (rows - 1) * stride + ks.end);
        assert!(rows <= width && out.len() == ks.len() * width);
        if rows < width {
            out.fill(T::ZERO);
        }
        let mut k = 0;
        // Whole vectors may write beyond a row of `out`, into the next one, which is written after it.
        let last = (V::LANES - 1) * width + width.saturating_sub(1) / V::LANES * V::LANES + V::LANES;
        while rows == width && k + V::LANES <= ks.len() && k * width + last <= out.len() {
            let mut i = 0;
            while i < rows {
                let part = V::LANES.min(rows - i);
                // SAFETY: `from` has `part` rows with LANES numbers from column k on, `out` room up to `last`.
                unsafe {
                    let from = from.as_ptr().add(i * stride + ks.start + k);
                    V::transpose(from, stride, part, out.as_mut_ptr().add(k * width + i), width);
                }
                i += V::LANES;
            }
            k += V::LANES;
        }
        for (k, out) in ks.clone().zip(out.chunks_exact_mut(width)).skip(k) {
            for (i, out) in out[..rows].iter_mut().enumerate() {
                *out = from[i * stride + k];
            }
        }
    }
}
