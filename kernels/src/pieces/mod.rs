//! Pieces of tensors: cut out, laid end to end, columns taken and added.
//!
//! On the CPU, and what every backend checks. What a piece means (a bucket, a shard) is the trainer's. Read [`crate::ops`] for the
//! contract.

use crate::{Patch, Result, check};
use std::ops::Range;

/// Do the patches, whose tensors have `held` elements each, fill `[rows, cols]`?
pub(crate) fn check_patches<T>(
    patches: &[Patch<'_, T>],
    held: impl Fn(&T) -> usize,
    len: usize,
) -> Result<()> {
    let op = "lay_out";
    let mut filled = 0;
    for patch in patches {
        let (n, width) = (patch.elements.len(), patch.width);
        inside(op, &patch.elements, held(patch.from))?;
        let lines = n.checked_div(width).unwrap_or(0);
        let last = patch.to + lines.saturating_sub(1) * patch.stride + width;
        let fits = lines * width == n && (lines < 2 || width <= patch.stride) && last <= len;
        check::that(n == 0 || fits, op, || {
            format!(
                "{n} elements in lines of {width}, {} apart, from {} of {len}",
                patch.stride, patch.to
            )
        })?;
        filled += n;
    }
    check::that(filled == len, op, || format!("{filled} elements for {len}"))
}

/// Write the elements of a patch, which `from` holds, to their places.
pub(crate) fn lay<T: Copy, U>(patch: &Patch<'_, U>, from: &[T], to: &mut [T]) {
    let lines = from[patch.elements.clone()].chunks_exact(patch.width.max(1));
    for (number, line) in lines.enumerate() {
        let at = patch.to + number * patch.stride;
        to[at..at + patch.width].copy_from_slice(line);
    }
}

pub(crate) fn inside(op: &'static str, range: &Range<usize>, len: usize) -> Result<()> {
    check::that(range.start <= range.end && range.end <= len, op, || {
        format!("elements {range:?} of {len}")
    })
}

/// The elements of each part, end to end, then zeros.
pub(crate) fn join<'a, T: Copy + Default + 'a>(
    op: &'static str,
    parts: impl Iterator<Item = (&'a [T], &'a Range<usize>)>,
    to: &mut [T],
) -> Result<()> {
    let (mut at, len) = (0, to.len());
    for (data, range) in parts {
        inside(op, range, data.len())?;
        let end = at + range.len();
        check::that(end <= len, op, || format!("{end} elements for {len}"))?;
        to[at..end].copy_from_slice(&data[range.clone()]);
        at = end;
    }
    to[at..].fill(T::default());
    Ok(())
}

pub(crate) fn cut<T: Copy>(
    op: &'static str,
    data: &[T],
    range: Range<usize>,
    to: &mut [T],
) -> Result<()> {
    inside(op, &range, data.len())?;
    let (taken, len) = (range.len(), to.len());
    check::that(taken == len, op, || format!("{taken} elements for {len}"))?;
    to.copy_from_slice(&data[range]);
    Ok(())
}

/// Columns of rows of `cols`.
pub(crate) fn columns<T: Copy>(
    data: &[T],
    cols: usize,
    wanted: Range<usize>,
    to: &mut [T],
) -> Result<()> {
    inside("columns", &wanted, cols)?;
    let rows = data.chunks_exact(cols.max(1));
    for (to, row) in to.chunks_exact_mut(wanted.len().max(1)).zip(rows) {
        to.copy_from_slice(&row[wanted.clone()]);
    }
    Ok(())
}

/// Do columns of `[rows, cols]` from `at` on take `[added rows, added cols]`?
pub(crate) fn check_added(
    (rows, cols): (usize, usize),
    (added_rows, added_cols): (usize, usize),
    at: usize,
) -> Result<()> {
    let fits = rows == added_rows && at + added_cols <= cols;
    check::that(fits, "add_columns", || {
        format!("[{added_rows}, {added_cols}] into columns from {at} of [{rows}, {cols}]")
    })
}
