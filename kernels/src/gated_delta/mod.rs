//! The gated delta rule (arXiv:2412.06464): attention whose memory is one matrix a head, which forgets and corrects
//! itself token by token.
//!
//! - Formula, for each value head, with `q̂ = q / |q| / √key_dim`, `k̂ = k / |k|`, `β = sigmoid(b)`,
//!   `α = exp(-e^a_log softplus(a + dt_bias))`: `S ← α S`, `S ← S + k̂ (β (v - Sᵀ k̂))ᵀ`, `o = Sᵀ q̂`.
//!   On the CPU token after token, the backward in reverse with states made again from one kept every [`cpu::CHUNK`] tokens. On
//!   CUDA in chunks of 64 (arXiv:2406.06484): within one, what tokens write is the solution of a triangular system, so that all
//!   the rest is products of matrices; only a state is handed from chunk to chunk. `chunks.cu` says it in full.
//! - Shapes: rows `[keys × key_dim queries | the same of keys | values × value_dim]`, gates `[b | a]: [tokens, 2 values]`,
//!   `a_log, dt_bias: [1, values]`, `o: [tokens, values × value_dim]`; value heads share key heads in groups.
//! - Bytes: every row once, and on CUDA, while it runs, 340 of a token and value head, backward `4 key_dim value_dim / 64 +
//!   2 value_dim` more (at most 2.25 GiB: heads take turns). In the cache a state a block.
//! - FLOPs: `8 key_dim value_dim` a token and value head as written, about three times as many backward. In chunks
//!   `6 key_dim value_dim + 256 (key_dim + value_dim)`, products of tensor cores, and about three times as many backward.
//! - Roofline: the bytes; parallel over heads, sequences, columns of a state and, but for the states, over chunks.
//!
//! Serving keeps, for each block of the paged cache, the state after the last token of it that was computed. So a
//! sequence goes on from any block that it shares with another, as with keys and values.

pub(crate) mod cpu;
pub(crate) mod cpu_backward;
