//! The embedding table.
//!
//! - Formula: `y[t] = E[ids[t]]`; `dE[ids[t]] += dx[t]`.
//! - Shapes: `E: [vocab, hidden]`, `y, dx: [tokens, hidden]`; `dE` in the accumulator's dtype.
//! - Bytes: `2 tokens hidden` forward, `3 tokens hidden` backward.
//! - FLOPs: `tokens hidden` backward.
//! - Roofline: memory.

pub(crate) mod cpu;
