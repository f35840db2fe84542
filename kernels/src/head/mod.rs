//! What follows the logits: log-prob of the target, entropy, and their gradient.
//!
//! - Formula: `u = z / temperature`, `lse = log Σ e^u`, `E₁ = Σ p u`; `logprob = u_y - lse`, `entropy = lse - E₁`;
//!   `dz_v = (a (1[v=y] - p_v) + b p_v (E₁ - u_v)) / temperature`.
//! - Shapes: logits `[rows, padded vocab]` in the accumulator's dtype, statistics `[rows]` in f64, `dz` in the model's dtype.
//!   Columns from `vocab` on count as −inf and get 0.
//! - Bytes: logits twice forward; read once and written once backward.
//! - FLOPs: about 25 a logit, most of them in the exponential.
//! - Roofline: memory.
//!
//! The product `h Wᵀ` is [`matmul`](crate::matmul)'s.

pub(crate) mod cpu;

/// Bytes of logits that a CPU makes at once.
pub(crate) const CPU_CHUNK_BYTES: usize = 64 << 20;
/// Bytes of logits that a GPU makes at once: 4,096 rows of the largest vocabularies, so that products have their full speed.
pub(crate) const GPU_CHUNK_BYTES: usize = 5 << 29;
