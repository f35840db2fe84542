//! Search as a tool (Search-R1, arXiv:2503.09516): a turn that ends in `<search>…</search>` is answered with passages
//! between `<information>` marks; `<answer>…</answer>` ends the rollout and is what the verifier reads.
//!
//! One component with both halves: `rollout` drives, `verifier` scores. Needs the grant `http` for the retrieval
//! server and `env = { SEARCH_URL = … }` for its address.
#![forbid(unsafe_code)]

mod rollout;
mod verifier;

pub use rollout::Search;
pub use verifier::Answers;
