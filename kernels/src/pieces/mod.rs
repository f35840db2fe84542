//! Pieces of tensors: cut out, laid end to end, columns taken and added.
//!
//! On the host, for every backend that has no copy of its own: correct everywhere, fast nowhere. What a piece means (a
//! bucket, a shard) is the trainer's. Read [`crate::ops`] for the contract.

use crate::{Ops, Patch, Result, check};
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

pub(crate) fn lay_out<O: Ops + ?Sized>(
    ops: &O,
    patches: &[Patch<'_, O::Tensor>],
    rows: usize,
    cols: usize,
) -> Result<O::Tensor> {
    let held = |x: &O::Tensor| {
        let (rows, cols) = ops.shape(x);
        rows * cols
    };
    check_patches(patches, held, rows * cols)?;
    let mut to = vec![0.0; rows * cols];
    // Patches of one tensor come one after the other.
    let mut last: Option<(&O::Tensor, Vec<f64>)> = None;
    for patch in patches {
        let data = match last.take().filter(|(x, _)| std::ptr::eq(*x, patch.from)) {
            Some((_, data)) => data,
            None => ops.read_f64(patch.from)?,
        };
        lay(patch, &data, &mut to);
        last = Some((patch.from, data));
    }
    ops.tensor_f64(rows, cols, &to)
}

fn inside(op: &'static str, range: &Range<usize>, len: usize) -> Result<()> {
    check::that(range.start <= range.end && range.end <= len, op, || {
        format!("elements {range:?} of {len}")
    })
}

fn laid_out(
    op: &'static str,
    parts: impl Iterator<Item = Result<(Vec<f64>, Range<usize>)>>,
    len: usize,
) -> Result<Vec<f64>> {
    let mut all = Vec::with_capacity(len);
    for part in parts {
        let (data, range) = part?;
        inside(op, &range, data.len())?;
        all.extend_from_slice(&data[range]);
    }
    check::that(all.len() <= len, op, || {
        format!("{} elements for {len}", all.len())
    })?;
    all.resize(len, 0.0);
    Ok(all)
}

pub(crate) fn join<O: Ops + ?Sized>(
    ops: &O,
    parts: &[(&O::Tensor, Range<usize>)],
    len: usize,
) -> Result<O::Tensor> {
    let read = parts
        .iter()
        .map(|(x, range)| Ok((ops.read_f64(x)?, range.clone())));
    ops.tensor_f64(1, len, &laid_out("join", read, len)?)
}

pub(crate) fn join_float<O: Ops + ?Sized>(
    ops: &O,
    parts: &[(&O::Float, Range<usize>)],
    len: usize,
) -> Result<O::Float> {
    let read = parts
        .iter()
        .map(|(x, range)| Ok((ops.read_float_f64(x)?, range.clone())));
    ops.float_f64(1, len, &laid_out("join_float", read, len)?)
}

pub(crate) fn cut<O: Ops + ?Sized>(
    ops: &O,
    x: &O::Tensor,
    range: Range<usize>,
    rows: usize,
    cols: usize,
) -> Result<O::Tensor> {
    let data = ops.read_f64(x)?;
    inside("cut", &range, data.len())?;
    ops.tensor_f64(rows, cols, &data[range])
}

pub(crate) fn cut_float<O: Ops + ?Sized>(
    ops: &O,
    x: &O::Float,
    range: Range<usize>,
    rows: usize,
    cols: usize,
) -> Result<O::Float> {
    let data = ops.read_float_f64(x)?;
    inside("cut_float", &range, data.len())?;
    ops.float_f64(rows, cols, &data[range])
}

pub(crate) fn columns<O: Ops + ?Sized>(
    ops: &O,
    x: &O::Tensor,
    wanted: Range<usize>,
) -> Result<O::Tensor> {
    let (rows, cols) = ops.shape(x);
    inside("columns", &wanted, cols)?;
    let data = ops.read_f64(x)?;
    let taken: Vec<f64> = data
        .chunks_exact(cols.max(1))
        .flat_map(|row| &row[wanted.clone()])
        .copied()
        .collect();
    ops.tensor_f64(rows, wanted.len(), &taken)
}

pub(crate) fn add_columns<O: Ops + ?Sized>(
    ops: &O,
    x: &O::Tensor,
    y: &O::Tensor,
    at: usize,
) -> Result<O::Tensor> {
    let ((rows, cols), (y_rows, y_cols)) = (ops.shape(x), ops.shape(y));
    check::that(rows == y_rows && at + y_cols <= cols, "add_columns", || {
        format!("[{y_rows}, {y_cols}] into columns from {at} of [{rows}, {cols}]")
    })?;
    let (mut data, added) = (ops.read_f64(x)?, ops.read_f64(y)?);
    for row in 0..rows {
        let into = &mut data[row * cols + at..][..y_cols];
        for (into, add) in into.iter_mut().zip(&added[row * y_cols..][..y_cols]) {
            *into += add;
        }
    }
    ops.tensor_f64(rows, cols, &data)
}
