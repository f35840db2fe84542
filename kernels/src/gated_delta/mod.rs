//! The gated delta rule (arXiv:2412.06464): attention whose memory is one matrix a head, which forgets and corrects
//! itself token by token.
//!
//! - Formula, for each value head, with `q̂ = q / |q| / √key_dim`, `k̂ = k / |k|`, `β = sigmoid(b)`,
//!   `α = exp(-e^a_log softplus(a + dt_bias))`: `S ← α S`, `S ← S + k̂ (β (v - Sᵀ k̂))ᵀ`, `o = Sᵀ q̂`.
//!   The backward walks the tokens in reverse and makes the states again from one kept every [`cpu::CHUNK`] tokens.
//! - Shapes: rows `[keys × key_dim queries | the same of keys | values × value_dim]`, gates `[b | a]: [tokens, 2 values]`,
//!   `a_log, dt_bias: [1, values]`, `o: [tokens, values × value_dim]`; value heads share key heads in groups.
//! - Bytes: every row once; the states live in the cache.
//! - FLOPs: `8 key_dim value_dim` a token and value head forward, about three times as many backward.
//! - Roofline: arithmetic; a scan over tokens, parallel over heads and sequences only.
//!
//! Serving keeps, for each block of the paged cache, the state after the last token of it that was computed. So a
//! sequence goes on from any block that it shares with another, as with keys and values.

pub(crate) mod cpu;
pub(crate) mod cpu_backward;
