//! The optimizer's step and the gradient's norm.
//!
//! - Formula: [`AdamW`](crate::AdamW); `Σ x²`.
//! - Shapes: all `[rows, cols]`; gradient, moments and master in the accumulator's dtype, the weight in the model's.
//! - Bytes: 7 numbers an element (read g, m, v, p; write m, v, p); 1 for the norm.
//! - FLOPs: about 15 an element.
//! - Roofline: memory.

pub(crate) mod cpu;
