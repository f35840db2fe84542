//! A second verifier beside the first: its disagreement is reported, and the training never sees it.
//!
//! The verdict is the first one's. What the second made of the same rollout becomes two metrics of the verdict, so it is
//! stored, averaged and shown with the others.

use slime_core::Outcome;
use slime_core::ports::{BoxFuture, ScoreRequest, Scored, Verifier};
use std::sync::Arc;

/// One verifier watched by another.
pub struct Shadowed {
    first: Arc<dyn Verifier>,
    second: Arc<dyn Verifier>,
    differs: String,
    reward: String,
}

impl Shadowed {
    /// Let `second` score whatever `first` scores.
    #[must_use]
    pub fn new(first: Arc<dyn Verifier>, second: Arc<dyn Verifier>) -> Self {
        let name = second.name();
        Self {
            differs: format!("shadow/{name}/differs"),
            reward: format!("shadow/{name}/reward"),
            first,
            second,
        }
    }
}

impl Verifier for Shadowed {
    fn name(&self) -> &str {
        self.first.name()
    }

    fn score(&self, item: ScoreRequest) -> BoxFuture<'_, Scored> {
        Box::pin(async move {
            let (mut scored, shadow) =
                futures::join!(self.first.score(item.clone()), self.second.score(item));
            let shadow = shadow.outcome;
            let differs = differs(&scored.outcome, &shadow);
            if differs {
                tracing::debug!(
                    first = %scored.outcome, second = %shadow, "{} and {} differ", self.first.name(), self.second.name()
                );
            }
            if let Outcome::Scored(verdict) = &mut scored.outcome {
                verdict
                    .metrics
                    .push((self.differs.clone(), f64::from(differs)));
                if let Some(reward) = shadow.reward() {
                    verdict.metrics.push((self.reward.clone(), reward));
                }
            }
            scored
        })
    }
}

/// A failure differs from every reward, and from a failure of another kind.
fn differs(first: &Outcome, second: &Outcome) -> bool {
    match (first.reward(), second.reward()) {
        (Some(first), Some(second)) => first != second,
        _ => first.kind() != second.kind(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memo::tests::Says;
    use futures::executor::block_on;

    fn shadowed(first: Outcome, second: Outcome) -> Outcome {
        let both = Shadowed::new(Says::new("a", first), Says::new("b", second));
        assert_eq!(both.name(), "a");
        block_on(both.score(ScoreRequest::default())).outcome
    }

    #[test]
    fn the_first_decides_and_the_second_is_reported() {
        let scored = |reward| {
            Outcome::Scored(slime_core::Verdict {
                reward,
                metrics: vec![("x".into(), 3.0)],
            })
        };
        let outcome = shadowed(scored(1.0), scored(0.0));
        assert_eq!(outcome.reward(), Some(1.0));
        let metrics = &outcome.verdict().unwrap().metrics;
        assert_eq!(metrics[0], ("x".into(), 3.0));
        assert_eq!(metrics[1], ("shadow/b/differs".into(), 1.0));
        assert_eq!(metrics[2], ("shadow/b/reward".into(), 0.0));
        let same = shadowed(scored(0.0), scored(0.0));
        assert_eq!(same.verdict().unwrap().metrics[1].1, 0.0);
    }

    #[test]
    fn a_second_that_fails_differs_and_changes_nothing_else() {
        let scored = Outcome::Scored(slime_core::Verdict {
            reward: 0.0,
            metrics: Vec::new(),
        });
        let outcome = shadowed(scored, Outcome::Timeout("slow".into()));
        assert_eq!(outcome.reward(), Some(0.0));
        assert_eq!(
            outcome.verdict().unwrap().metrics,
            [("shadow/b/differs".into(), 1.0)]
        );
        let failed = shadowed(Outcome::Error("no".into()), Outcome::Error("why".into()));
        assert_eq!(failed, Outcome::Error("no".into()));
    }
}
