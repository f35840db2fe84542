//! Causal attention inside each packed sequence, grouped queries.
//!
//! - Formula: `S_ij = scale q_i·k_j` for `j ≤ i`, `lse_i = log Σ_j e^S_ij`, `P = e^(S - lse)`, `o_i = Σ_j P_ij v_j`.
//!   Backward, with `D_i = do_i·o_i`: `dv_j = Σ_i P_ij do_i`, `dS = P (do·v - D)`, `dq_i = scale Σ_j dS_ij k_j`,
//!   `dk_j = scale Σ_i dS_ij q_i`; keys and values sum over their group of query heads.
//! - Shapes: rows `[query heads | key heads | value heads] × dim`; `o: [tokens, query heads × dim]` in the model's dtype;
//!   `lse: [query heads, tokens]` in the accumulator's.
//! - Bytes: qkv, o and lse once; tiles of S live in the cache, never `[tokens, tokens]`.
//! - FLOPs: for each visible pair and head `4 dim` forward, `10 dim` backward.
//! - Roofline: arithmetic.
//!
//! The running softmax goes over keys in tiles of 64 that begin at position 0 of the sequence, so a token's result
//! is the same bits whatever rows accompany it: that is what lets
//! [`paged_attention`](crate::paged_attention) equal it bit by bit.

pub(crate) mod cpu;
pub(crate) mod cpu_backward;
