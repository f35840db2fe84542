//! RMSNorm, alone and fused with the residual's addition.
//!
//! - Formula: `r = (mean_j x_j² + eps)^(-1/2)`, `y = x r w`. With `g = dy w`, `x̂ = x r`:
//!   `dx = r (g - x̂ mean_j(g_j x̂_j)) (+ residual)`, `dw += Σ_rows dy x̂`.
//! - Shapes: `x, y, dy, dx: [rows, cols]`, `w: [1, cols]` in the model's dtype; `r: [rows, 1]`, `dw: [1, cols]` in the
//!   accumulator's.
//! - Bytes: 2 rows cols forward (4 fused), 3 (4) rows cols backward.
//! - FLOPs: about 4 an element forward, 8 backward.
//! - Roofline: memory.
//!
//! Squares are summed in a type wide enough that `x = 1e20` in f32 does not overflow.

pub(crate) mod cpu;
