//! Moving and adding rows.
//!
//! - Formula: `gather: y[i] = x[rows[i]]`; `scatter: y[rows[i]] = x[i]`, 0 elsewhere; `x + y`; `Σ_i x_i`; `x + b`; `db += Σ_rows dy`.
//! - Shapes: `[rows, cols]`, `b, db: [1, cols]`; `db` in the accumulator's dtype.
//! - Bytes: operands and result once.
//! - FLOPs: at most one an element.
//! - Roofline: memory.

pub(crate) mod cpu;
