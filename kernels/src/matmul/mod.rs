//! The three products of a linear layer.
//!
//! - Formula: `y = x Wᵀ`, `dx = dy W`, `dW += dyᵀ x`.
//! - Shapes: `x: [rows, in]`, `W: [out, in]`, `y: [rows, out]` in the model's dtype; `dW: [out, in]` in the accumulator's.
//! - Bytes: each operand once, if the caches do their work; for few rows, `W`.
//! - FLOPs: `2 rows in out` each.
//! - Roofline: many rows are bound by arithmetic, few rows by reading `W`.

pub(crate) mod cpu;
