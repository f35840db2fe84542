//! SwiGLU.
//!
//! - Formula: `a = silu(g) u`, `silu(g) = g s`, `s = 1 / (1 + e^-g)`; `dg = da u s (1 + g (1 - s))`, `du = da g s`.
//! - Shapes: `[g | u]: [tokens, 2 f]`, `a, da: [tokens, f]`.
//! - Bytes: `3 tokens f` forward, `5 tokens f` backward.
//! - FLOPs: about 20 an element, most of them in the exponential.
//! - Roofline: memory.

pub(crate) mod cpu;
