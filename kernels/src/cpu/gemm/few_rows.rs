//! Products with few rows: each panel of B is read once, while A waits, packed, in the cache.

use std::ops::Range;
use std::sync::Arc;

use crate::cpu::buffer::Pool;
use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Disjoint};
use crate::cpu::simd::simd;

use super::pack::{groups, pack_panels, pack_rows, panel_width};
use super::tile::{self, Chain, Operands};
use super::{Right, Size, View, chain_len};

/// Panels per task, at least.
const PANELS: usize = 4;

pub(super) fn run<T: Element>(
    pool: &Arc<Pool>,
    size: Size,
    a: View<'_, T>,
    b: Right<'_, T>,
    c: &mut [T],
    add: bool,
) {
    let Size { m, n, k } = size;
    let (chain, width) = (chain_len(k), panel_width::<T>());
    // [block of k][group][k][rows]
    let mut packed_a = pool.take::<T>(m * k);
    for start in (0..k).step_by(chain) {
        let ks = start..(start + chain).min(k);
        let out = &mut packed_a[start * m..ks.end * m];
        pack_rows(a, 0..m, ks, out);
    }
    let packed_a = &packed_a[..];
    let c = Disjoint::new(c);
    let panels = n.div_ceil(width);
    let grain = parallel::grain_rows(width * k * (1 + m / 8)).max(PANELS);
    parallel::ranges(panels, grain, |panels| {
        let mut scratch = match b {
            Right::Plain(_) => pool.take::<T>(width * k),
            Right::Packed(_) => pool.take::<T>(0),
        };
        for panel in panels {
            let b = match b {
                Right::Plain(view) => {
                    pack_panels(view, n, 0..k, panel..panel + 1, &mut scratch);
                    &scratch[..]
                }
                Right::Packed(all) => &all[panel * width * k..(panel + 1) * width * k],
            };
            let cols = panel * width..((panel + 1) * width).min(n);
            one_panel(Size { m, n, k }, packed_a, b, &c, cols, add);
        }
    });
}

simd! {
    /// All rows of C, `[m, n]`, in one panel's columns, which no other task may hold.
    fn one_panel<T, V>(size: Size, a: &[T], b: &[T], c: &Disjoint<'_, T>, cols: Range<usize>, add: bool) {
        let Size { m, n, k } = size;
        let width = 2 * V::LANES;
        assert!(a.len() == m * k && b.len() == k * width && cols.len() <= width && cols.end <= n && c.len() == m * n);
        let chain = chain_len(k);
        let mut start = 0;
        while start < k {
            let len = chain.min(k - start);
            let mode = if add || start > 0 { Chain::Add } else { Chain::Set };
            let mut offset = start * m;
            for group in groups(0..m) {
                let rows = group.len();
                // SAFETY: the group's A is `[len][rows]` from `offset`, the panel's B `[len][width]` from `start`;
                // the tile of C is inside it and this task's alone.
                unsafe {
                    let o = Operands { a: a.as_ptr().add(offset), a_row: 1, a_k: rows, b: b.as_ptr().add(start * width), b_k: width };
                    tile::rows::<T, V>(rows, len, o, c.as_mut_ptr().add(group.start * n + cols.start), n, cols.len(), mode);
                }
                offset += rows * len;
            }
            start += len;
        }
    }
}
