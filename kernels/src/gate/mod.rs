//! A sigmoid gate.
//!
//! - Formula: `y = x s`, `s = 1 / (1 + e^-g)`; `dx = dy s`, `dg = dy x s (1 - s)`.
//! - Shapes: `x, g, y: [rows, cols]`.
//! - Bytes: 3 rows cols forward, 5 backward.
//! - FLOPs: about 10 an element, most of them in the exponential.
//! - Roofline: memory.

pub(crate) mod cpu;
