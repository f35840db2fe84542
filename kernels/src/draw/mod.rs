//! The next token of each row of logits, drawn where the logits are.
//!
//! - Formula: `w = exp((z - max z) / temperature)`; the token is the first whose cumulative sum of `w`, in order of id,
//!   exceeds `uniform · Σ w`; its log-prob is `(z - max z) / temperature - log Σ w`. Greedy: the likeliest, the first among equals.
//! - Shapes: logits `[rows, padded vocab]` fp32; columns from `vocab` on are no tokens. Two numbers a row come back.
//! - Bytes: the logits twice, and 4,096 of each row once more.
//! - FLOPs: about 8 a logit.
//! - Roofline: memory.
//!
//! A backend without a kernel for it leaves the drawing to whoever asked ([`Ops::draw`](crate::Ops::draw)).
