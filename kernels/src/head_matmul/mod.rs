//! Products of each head's columns with that head's part of a matrix: what moves multi-head latent attention between
//! its heads and the compressed row that its cache holds.
//!
//! - Formula: `y_h = x_h W_h` or `x_h W_hᵀ`; which columns and rows is [`HeadParts`](crate::HeadParts).
//! - Shapes: `x: [rows, heads × a]`, `W: [heads × b, r]`, `y: [rows, heads × r]` or `[rows, heads × len]`.
//! - Bytes: x, the used rows of W and y once.
//! - FLOPs: `2 rows heads len r`.
//! - Roofline: memory when it serves.

pub(crate) mod cpu;
