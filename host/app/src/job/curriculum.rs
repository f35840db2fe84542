//! How hard a source plugin's prompts are, following from what the policy made of earlier ones.
//!
//! ```text
//! d ← clamp(d + rate · (mean reward of a step − target), 0, 1)
//! ```
//! Rewards are those that verifiers gave, a source at a time. A step's difficulty follows from all steps but the one just
//! before it, in every mode: that one may still train while the step is sampled, and so a resumed run stands where an
//! uninterrupted one would. It refuses to know what a difficulty means: that is the plugin's.

use crate::telemetry::Row;
use slime_core::Step;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Curriculum {
    /// The mean reward that is aimed at.
    pub target: f64,
    /// How far a reward that is off by 1 moves the difficulty.
    pub rate: f64,
}

impl Curriculum {
    fn next(self, difficulty: f64, reward: f64) -> f64 {
        (difficulty + self.rate * (reward - self.target)).clamp(0.0, 1.0)
    }
}

/// A difficulty that changes while a run goes on.
#[derive(Clone, Debug)]
pub struct Dial(Arc<AtomicU64>);

impl Dial {
    /// One that stands at `difficulty`.
    pub fn at(difficulty: f64) -> Self {
        Self(Arc::new(AtomicU64::new(difficulty.to_bits())))
    }

    /// Where it stands.
    pub fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }

    fn set(&self, difficulty: f64) {
        self.0.store(difficulty.to_bits(), Ordering::Relaxed);
    }
}

/// The dials of a run, by source.
#[derive(Clone, Debug)]
pub struct Dials {
    /// How they move.
    pub rule: Curriculum,
    /// Each source's.
    pub sources: BTreeMap<String, Dial>,
}

impl Dials {
    /// Take in what steps were rewarded with, in order.
    pub fn follow(&self, rewards: &[(Step, String, f64)]) {
        for (_, source, reward) in rewards {
            if let Some(dial) = self.sources.get(source) {
                dial.set(self.rule.next(dial.get(), *reward));
            }
        }
    }

    /// Tell where they stand in a step's row.
    pub fn tell(&self, row: &mut Row) {
        for (source, dial) in &self.sources {
            row.set(format!("rollout/difficulty/{source}"), dial.get());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewards_above_the_target_make_prompts_harder_and_below_it_easier_up_to_the_ends() {
        let rule = Curriculum {
            target: 0.5,
            rate: 0.5,
        };
        let dial = Dial::at(0.25);
        let dials = Dials {
            rule,
            sources: BTreeMap::from([("sums".to_owned(), dial.clone())]),
        };
        let step = |n: u64, reward: f64| (Step(n), "sums".to_owned(), reward);
        dials.follow(&[step(0, 1.0)]);
        assert_eq!(dial.get(), 0.5);
        dials.follow(&[step(1, 0.0), (Step(1), "others".into(), 1.0)]);
        assert_eq!(dial.get(), 0.25);
        dials.follow(&[step(2, 0.0), step(3, 0.0)]);
        assert_eq!(dial.get(), 0.0);
        dials.follow(&(0..9).map(|n| step(n, 1.0)).collect::<Vec<_>>());
        assert_eq!(dial.get(), 1.0);
    }
}
