//! The sampler: prompts in, complete scored groups out.
//!
//! It refuses to decide what is trained (the buffer) and what weights serve (publish). Read `sampler.rs`
//! for a step, `driver.rs` for a rollout, `live.rs` for the token sequence that a generator grows.

mod continuous;
mod driver;
mod eval;
mod filter;
mod ledger;
mod live;
mod metrics;
mod plugins;
mod progress;
mod render;
mod replay;
mod sampler;
mod scoring;
mod single_turn;
#[cfg(test)]
mod tests;
mod transcript;
mod turns;

pub use continuous::Continuous;
pub use driver::{Driver, Limits, SamplerConfig};
pub use eval::{EvalReport, evaluate};
pub use filter::{GroupFilter, Judgement, ZeroStd};
pub use ledger::{Claim, Ledger, MemoryLedger};
pub use metrics::{Metrics, lag, lag_histogram, pass_at_k};
pub use plugins::PluginFilter;
pub use progress::{Progress, Silent};
pub use sampler::{Collected, Sampler};
pub use scoring::Scoring;
pub use single_turn::SingleTurn;
pub use turns::TurnRecord;
