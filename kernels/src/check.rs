//! Shape checks, the same for every backend.

use crate::{Error, Heads, Result, Sequences};
use std::ops::Range;

/// `detail` as an error, unless `fits`.
pub(crate) fn that(fits: bool, op: &'static str, detail: impl FnOnce() -> String) -> Result<()> {
    if fits {
        Ok(())
    } else {
        Err(Error::Shape {
            op,
            detail: detail(),
        })
    }
}

/// The one shape of several.
pub(crate) fn alike(
    op: &'static str,
    mut shapes: impl Iterator<Item = (usize, usize)>,
) -> Result<(usize, usize)> {
    let first = shapes.next().ok_or_else(|| Error::Shape {
        op,
        detail: "of nothing".into(),
    })?;
    shapes.try_for_each(|shape| same(op, first, shape))?;
    Ok(first)
}

/// Rows that there are.
pub(crate) fn within(op: &'static str, rows: &Range<usize>, has: usize) -> Result<()> {
    that(rows.start <= rows.end && rows.end <= has, op, || {
        format!("rows {rows:?} of {has}")
    })
}

/// Both shapes equal?
pub(crate) fn same(op: &'static str, a: (usize, usize), b: (usize, usize)) -> Result<()> {
    that(a == b, op, || format!("{a:?} and {b:?} should be equal"))
}

/// A matrix of this shape?
pub(crate) fn shape(
    op: &'static str,
    what: &str,
    is: (usize, usize),
    should: (usize, usize),
) -> Result<()> {
    that(is == should, op, || {
        format!("{what} is {is:?}, should be {should:?}")
    })
}

/// As many ids as rows?
pub(crate) fn ids(op: &'static str, what: &str, is: usize, rows: usize) -> Result<()> {
    that(is == rows, op, || format!("{is} {what} for {rows} rows"))
}

/// Packed rows `[tokens, qkv_cols]` of well-formed heads?
pub(crate) fn qkv(op: &'static str, cols: usize, heads: Heads) -> Result<()> {
    let divides = heads.kv > 0 && heads.dim > 0 && heads.query.is_multiple_of(heads.kv);
    that(divides, op, || {
        format!("{heads:?}: key heads must divide query heads, and none may be 0")
    })?;
    that(cols == heads.qkv_cols(), op, || {
        format!(
            "rows of {cols} columns, but {heads:?} need {}",
            heads.qkv_cols()
        )
    })
}

/// Offsets that start at 0, never decrease and end at the number of tokens?
pub(crate) fn sequences(op: &'static str, sequences: &Sequences, tokens: usize) -> Result<()> {
    let o = &sequences.offsets;
    let ordered = o.first().is_none_or(|first| *first == 0) && o.is_sorted();
    that(ordered && sequences.num_tokens() == tokens, op, || {
        format!(
            "sequence offsets must run from 0 to the {tokens} tokens without decreasing, got {o:?}"
        )
    })
}
