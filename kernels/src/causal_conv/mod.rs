//! A short causal convolution over each column of a sequence, then SiLU.
//!
//! - Formula: `z_t = Σ_j w_j x_(t - K + 1 + j)` with zeros before the sequence, `y = z / (1 + e^-z)`.
//!   Backward: `dz = dy s (1 + z (1 - s))`, `dx_t = Σ_j w_j dz_(t + K - 1 - j)`, `dw_j += Σ_t dz_t x_(t - K + 1 + j)`.
//! - Shapes: `x, y: [tokens, cols]`, `w: [cols, K]`.
//! - Bytes: 2 tokens cols forward, 3 backward.
//! - FLOPs: `2 K` an element forward, `4 K` backward, and the exponential's.
//! - Roofline: memory.

pub(crate) mod cpu;
