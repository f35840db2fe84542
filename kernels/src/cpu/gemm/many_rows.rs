//! Products with many rows: a block of B is packed once for all, then tasks take blocks of rows, pack those into
//! their own cache and go through B panel by panel.

use std::ops::Range;
use std::sync::Arc;

use crate::cpu::buffer::Pool;
use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Disjoint};

use super::pack::{pack_panels, pack_rows, panel_width};
use super::tile;
use super::{Right, Size, TILE_ROWS, View, chain_len};

/// Rows of A in a core's cache: 144 × 384 f32 are 216 KiB.
const BLOCK_ROWS: usize = 144;
/// Columns of B packed at a time: 2048 × 384 f32 are 3 MiB, shared.
const BLOCK_COLS: usize = 2048;

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
    let threads = rayon::current_num_threads();
    // As many blocks of rows as make an even load.
    let blocks = m.div_ceil(BLOCK_ROWS * threads) * threads;
    let block_rows = m.div_ceil(blocks).next_multiple_of(TILE_ROWS);
    let blocks = m.div_ceil(block_rows);
    let c = Disjoint::new(c);
    let mut packed_b = match b {
        Right::Plain(_) => pool.take::<T>(n.min(BLOCK_COLS).next_multiple_of(width) * chain.min(k)),
        Right::Packed(_) => pool.take::<T>(0),
    };
    for col in (0..n).step_by(BLOCK_COLS) {
        let panels = col / width..(col + BLOCK_COLS).min(n).div_ceil(width);
        for start in (0..k).step_by(chain) {
            let ks = start..(start + chain).min(k);
            // Numbers from one panel to the next, and the first panel.
            let (b_stride, b) = match b {
                Right::Packed(all) => (
                    width * k,
                    &all[panels.start * width * k + ks.start * width..],
                ),
                Right::Plain(view) => {
                    let stride = width * ks.len();
                    let out = Disjoint::new(&mut packed_b[..panels.len() * stride]);
                    parallel::ranges(panels.len(), parallel::grain_rows(stride), |r| {
                        // SAFETY: ranges of panels are disjoint.
                        let out = unsafe { out.slice(r.start * stride..r.end * stride) };
                        pack_panels(
                            view,
                            n,
                            ks.clone(),
                            panels.start + r.start..panels.start + r.end,
                            out,
                        );
                    });
                    (stride, &packed_b[..])
                }
            };
            parallel::each(blocks, |block| {
                let rows = block * block_rows..((block + 1) * block_rows).min(m);
                let mut packed_a = pool.take::<T>(rows.len() * ks.len());
                pack_rows(a, rows.clone(), ks.clone(), &mut packed_a);
                let to = Tiles {
                    n,
                    rows,
                    panels: panels.clone(),
                    add: add || start > 0,
                };
                block_times_panels(ks.len(), &packed_a, b, b_stride, &c, &to);
            });
        }
    }
}

/// The part of C that a task writes: nobody else may hold it.
struct Tiles {
    /// Columns of C.
    n: usize,
    rows: Range<usize>,
    panels: Range<usize>,
    add: bool,
}

fn block_times_panels<T: Element>(
    k: usize,
    a: &[T],
    b: &[T],
    b_stride: usize,
    c: &Disjoint<'_, T>,
    to: &Tiles,
) {
    let width = panel_width::<T>();
    assert!(a.len() == to.rows.len() * k && to.rows.end * to.n <= c.len());
    for (i, panel) in to.panels.clone().enumerate() {
        let b = &b[i * b_stride..i * b_stride + k * width];
        let col = panel * width;
        let cols = width.min(to.n - col);
        // SAFETY: A is packed, the panel's B is `[k][width]`, and the part of C is inside it and this task's alone.
        unsafe {
            let c = c.as_mut_ptr().add(col);
            tile::column(
                k,
                a.as_ptr(),
                b.as_ptr(),
                std::ptr::null(),
                c,
                to.n,
                to.rows.clone(),
                cols,
                to.add,
            );
        }
    }
}
