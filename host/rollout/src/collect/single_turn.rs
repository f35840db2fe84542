//! The built-in generator: the policy answers once.

use slime_core::Outcome;
use slime_core::ports::{BoxFuture, Generated, Generator, LiveError, LiveTrajectory};
use std::sync::Arc;

/// One prompt, one turn.
#[derive(Clone, Copy, Debug, Default)]
pub struct SingleTurn;

impl Generator for SingleTurn {
    fn name(&self) -> &str {
        "single-turn"
    }

    fn generate(&self, start: Arc<dyn LiveTrajectory>, _seed: u64) -> BoxFuture<'_, Generated> {
        Box::pin(async move {
            let failure = start.sample(0, Vec::new()).await.err().map(outcome);
            Generated {
                trajectories: start.finish(),
                failure,
                cost: Default::default(),
            }
        })
    }
}

/// What a failed operation makes of a rollout that does not handle it.
fn outcome(error: LiveError) -> Outcome {
    match error {
        LiveError::InvalidInput(reason) => Outcome::Error(reason),
        LiveError::LimitExceeded(reason) => Outcome::LimitExceeded(reason),
        LiveError::Cancelled => Outcome::Cancelled("the host gave up on this rollout".into()),
        LiveError::Unavailable(reason) => Outcome::InfraFailed(reason),
    }
}
