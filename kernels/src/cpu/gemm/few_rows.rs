//! Products with few rows: each panel of B is read once, while A waits, packed, in the cache.

use std::ops::Range;
use std::sync::Arc;

use crate::cpu::buffer::Pool;
use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Disjoint};

use super::pack::{pack_panels, pack_rows, panel_width};
use super::tile;
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
            let packed = matches!(b, Right::Packed(_));
            let panel_of_b = match b {
                Right::Plain(view) => {
                    pack_panels(view, n, 0..k, panel..panel + 1, &mut scratch);
                    &scratch[..]
                }
                Right::Packed(all) => &all[panel * width * k..(panel + 1) * width * k],
            };
            let cols = panel * width..((panel + 1) * width).min(n);
            one_panel(size, packed_a, panel_of_b, packed, &c, cols, add);
        }
    });
}

/// All rows of C, `[m, n]`, in one panel's columns, which no other task may hold.
fn one_panel<T: Element>(
    size: Size,
    a: &[T],
    b: &[T],
    packed: bool,
    c: &Disjoint<'_, T>,
    cols: Range<usize>,
    add: bool,
) {
    let Size { m, n, k } = size;
    let (chain, width) = (chain_len(k), panel_width::<T>());
    assert!(
        a.len() == m * k
            && b.len() == k * width
            && cols.len() <= width
            && cols.end <= n
            && c.len() == m * n
    );
    for start in (0..k).step_by(chain) {
        let len = chain.min(k - start);
        let (a, b) = (&a[start * m..], &b[start * width..]);
        // The next panel lies behind this one.
        let ahead = if packed {
            b.as_ptr().wrapping_add(k * width)
        } else {
            std::ptr::null()
        };
        // SAFETY: A's block of k is packed from there, B's too; the columns of C are this task's alone.
        unsafe {
            let c = c.as_mut_ptr().add(cols.start);
            tile::column(
                len,
                a.as_ptr(),
                b.as_ptr(),
                ahead,
                c,
                n,
                0..m,
                cols.len(),
                add || start > 0,
            );
        }
    }
}
