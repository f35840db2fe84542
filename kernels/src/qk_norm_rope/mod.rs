//! Per-head RMSNorm (where the family has it) and rotary embedding of queries and keys, in one pass.
//!
//! - Formula: `n = x r w` over each head ([`rmsnorm`](crate::rmsnorm)); then pairs `(a, b)` of the first `dims`
//!   dimensions become `(a cos - b sin, b cos + a sin)`. Backward: the same with `-sin`, then the norm's.
//! - Shapes: rows `[query heads | key heads | value heads] × dim`; `cos, sin: [positions, dims / 2]`; `r: [tokens,
//!   query + kv heads]` in the accumulator's dtype. Values pass.
//! - Bytes: 2 rows forward, 2 (3 with norms) backward.
//! - FLOPs: about 3 an element, 8 with norms.
//! - Roofline: memory.

pub(crate) mod cpu;

use crate::{Heads, Result, RopeStyle, check};

/// Operands' shapes, the same for every backend: the table serves every position, the dimensions fit the head.
pub(crate) fn check_rope(
    op: &'static str,
    heads: Heads,
    dims: usize,
    cos: (usize, usize),
    sin: (usize, usize),
    positions: &[u32],
) -> Result<()> {
    check::that(dims <= heads.dim && dims.is_multiple_of(2), op, || {
        format!("{dims} rotating dimensions of a head of {}", heads.dim)
    })?;
    check::shape(op, "the table of sines", sin, cos)?;
    check::that(cos.1 == dims / 2, op, || {
        format!("a table of {} columns for {dims} dimensions", cos.1)
    })?;
    match positions.iter().find(|p| **p as usize >= cos.0) {
        Some(p) => check::that(false, op, || {
            format!(
                "position {p} is beyond the table's {}; raise its max_positions",
                cos.0
            )
        }),
        None => Ok(()),
    }
}

/// The places of pair `i` of `dims / 2` in its head.
pub(crate) fn pair(style: RopeStyle, dims: usize, i: usize) -> (usize, usize) {
    match style {
        RopeStyle::Half => (i, i + dims / 2),
        RopeStyle::Interleaved => (2 * i, 2 * i + 1),
    }
}
