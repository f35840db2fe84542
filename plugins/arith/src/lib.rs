//! The demo's task: small sums and products, made up and checked by one component.
//!
//! `task` is all there is to tune; `source` draws from it, `verifier` scores any answer whose label is an integer.
#![forbid(unsafe_code)]

mod integer;
mod source;
mod task;
mod verifier;

pub use source::ArithSource;
pub use verifier::ArithVerifier;
