//! What a step in progress tells whoever watches. Called from the sampler's tasks: be quick.

use slime_core::{Outcome, Step};

/// Watches a step being sampled.
pub trait Progress: Send + Sync {
    /// Groups of `num_samples` rollouts each were asked for, and will be reported one by one.
    fn begin(&self, step: Step, num_groups: usize, num_samples: u32) {
        let _ = (step, num_groups, num_samples);
    }
    /// A rollout ended after `num_tokens` sampled tokens.
    fn rollout(&self, step: Step, outcome: &Outcome, num_tokens: usize) {
        let _ = (step, outcome, num_tokens);
    }
    /// A group is complete; `dropped` says why a filter refused it.
    fn group(&self, step: Step, dropped: Option<&str>) {
        let _ = (step, dropped);
    }
    /// The step has all its groups.
    fn end(&self, step: Step) {
        let _ = step;
    }
}

/// Nobody watches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {}
