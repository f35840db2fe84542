//! Attention of a sequence's newest tokens through a cache of keys and values, for serving.
//!
//! - Formula: [`attention`](crate::attention)'s, row by row and bit by bit.
//! - Shapes: rows `[query heads | key heads | value heads] × dim`, of which only queries are read here; the cache is
//!   `[layer][block][kv head]` of keys `[dim][block tokens]` and values `[block tokens][dim]`.
//! - Bytes: keys and values of the context once for each kv head.
//! - FLOPs: `4 dim context` for each row and head.
//! - Roofline: memory.

pub(crate) mod cpu;
