//! The contract suite's guest in Rust: every world, each doing what `tests/contract/README.md` says.
//!
//! Its siblings in the other languages do the same; the suite expects equal answers.

mod group;
mod judge;
mod rollout;
mod source;
mod tool;
mod verifier;
