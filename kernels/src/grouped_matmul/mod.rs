//! Products of rows sorted by expert with that expert's matrix.
//!
//! - Formula: for the rows `r` of expert `e`, `y_r = x_r W_eᵀ`; backward `dx_r = dy_r W_e`, `dW_e += dy_eᵀ x_e`.
//! - Shapes: `x: [rows, in]`, `y: [rows, out]`, `W: [experts × out, in]`, `offsets: [experts + 1]`.
//! - Bytes: every row once, the matrices of experts that have rows once.
//! - FLOPs: `2 rows in out`.
//! - Roofline: arithmetic with many rows an expert, memory with few.
//!
//! A row's sum runs as [`matmul`](crate::matmul)'s, so its result depends neither on the other rows nor on how many
//! its expert has. An expert without rows is not touched: its gradient keeps its bits.

pub(crate) mod cpu;
