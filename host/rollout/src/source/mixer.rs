//! Several sources as one: which source serves draw `i` is a function of (seed, i), and each source
//! sees its own draws 0, 1, 2, … with none left out.

use crate::seed::{SplitMix64, hash64};
use crate::{RolloutError, lock};
use slime_core::Prompt;
use slime_core::ports::{BoxFuture, Source, SourceError};
use std::sync::{Arc, Mutex};

/// Draws in which the weights come out exactly, rounded to this resolution.
const BLOCK: u64 = 1000;

/// Sources drawn from in proportion to their weights.
///
/// Draws are cut into blocks of 1000. In each, source `s` serves `round(1000 × weight_s / Σ weights)`
/// draws (largest remainders make the sum exact, and no source gets none), at places shuffled by
/// `hash64("mix", [seed, block])`.
pub struct Mixer {
    sources: Vec<Arc<dyn Source>>,
    /// Draws of each source in a block. Sums to [`BLOCK`].
    shares: Vec<u64>,
    last: Mutex<Option<Plan>>,
}

/// The source of each draw of a block.
struct Plan {
    block: u64,
    seed: u64,
    sources: Arc<Vec<u32>>,
}

impl Mixer {
    /// Mix `sources` by `weights`.
    ///
    /// # Errors
    /// No source, two of one name, or a weight that is not a positive finite number.
    pub fn new(weighted: Vec<(Arc<dyn Source>, f64)>) -> Result<Self, RolloutError> {
        let config = |what: &str, reason: String| RolloutError::Config {
            what: what.to_owned(),
            reason,
        };
        if weighted.is_empty() || weighted.len() as u64 > BLOCK {
            return Err(config(
                "sources",
                format!("there are {}; give 1 to {BLOCK}", weighted.len()),
            ));
        }
        for (i, (source, weight)) in weighted.iter().enumerate() {
            if !(weight.is_finite() && *weight > 0.0) {
                return Err(config(
                    source.name(),
                    format!("its weight {weight} is not a positive number"),
                ));
            }
            if weighted[..i]
                .iter()
                .any(|(other, _)| other.name() == source.name())
            {
                return Err(config(
                    source.name(),
                    "two sources have this name; prompts are told apart by it".into(),
                ));
            }
        }
        let shares = shares(
            &weighted
                .iter()
                .map(|(_, weight)| *weight)
                .collect::<Vec<_>>(),
        );
        Ok(Self {
            sources: weighted.into_iter().map(|(source, _)| source).collect(),
            shares,
            last: Mutex::default(),
        })
    }

    /// Which source serves draw `index`, and the number of that draw among the source's own.
    pub fn place(&self, index: u64, seed: u64) -> (usize, u64) {
        if self.sources.len() == 1 {
            return (0, index);
        }
        let block = index / BLOCK;
        let plan = self.plan(block, seed);
        let place = (index % BLOCK) as usize;
        let source = plan[place];
        let before = plan[..place].iter().filter(|&&s| s == source).count() as u64;
        (
            source as usize,
            block * self.shares[source as usize] + before,
        )
    }

    fn plan(&self, block: u64, seed: u64) -> Arc<Vec<u32>> {
        let mut last = lock(&self.last);
        if let Some(plan) = last.as_ref()
            && (plan.block, plan.seed) == (block, seed)
        {
            return Arc::clone(&plan.sources);
        }
        let mut plan: Vec<u32> = (0u32..)
            .zip(&self.shares)
            .flat_map(|(source, &share)| std::iter::repeat_n(source, share as usize))
            .collect();
        SplitMix64::new(hash64("mix", &[&seed.to_le_bytes(), &block.to_le_bytes()]))
            .shuffle(&mut plan);
        let sources = Arc::new(plan);
        *last = Some(Plan {
            block,
            seed,
            sources: Arc::clone(&sources),
        });
        sources
    }
}

/// Whole numbers that sum to [`BLOCK`], proportional to the weights, none of them 0.
fn shares(weights: &[f64]) -> Vec<u64> {
    let total: f64 = weights.iter().sum();
    let exact: Vec<f64> = weights.iter().map(|w| w / total * BLOCK as f64).collect();
    let mut shares: Vec<u64> = exact.iter().map(|e| (*e as u64).max(1)).collect();
    // The source that is furthest below its exact share gains, the one furthest above it loses; ties go
    // to the first.
    loop {
        let sum: u64 = shares.iter().sum();
        let gap = |s: usize| exact[s] - shares[s] as f64;
        let by_gap = |a: &usize, b: &usize| gap(*a).total_cmp(&gap(*b));
        match sum.cmp(&BLOCK) {
            std::cmp::Ordering::Equal => return shares,
            std::cmp::Ordering::Less => {
                let s = (0..shares.len())
                    .rev()
                    .max_by(by_gap)
                    .expect("there is a source");
                shares[s] += 1;
            }
            std::cmp::Ordering::Greater => {
                let s = (0..shares.len())
                    .filter(|&s| shares[s] > 1)
                    .min_by(by_gap)
                    .expect("1000 sources of 1 sum to 1000");
                shares[s] -= 1;
            }
        }
    }
}

impl Source for Mixer {
    fn name(&self) -> &str {
        "mix"
    }

    /// The sources' rows together; an epoch of one may end before another's.
    fn len(&self) -> Option<u64> {
        self.sources.iter().map(|s| s.len()).sum()
    }

    fn draw(&self, index: u64, seed: u64) -> BoxFuture<'_, Result<Prompt, SourceError>> {
        let (source, own) = self.place(index, seed);
        self.sources[source].draw(own, seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use slime_core::{PromptBody, PromptId};

    struct Counting(&'static str);

    impl Source for Counting {
        fn name(&self) -> &str {
            self.0
        }
        fn len(&self) -> Option<u64> {
            None
        }
        fn draw(&self, index: u64, _seed: u64) -> BoxFuture<'_, Result<Prompt, SourceError>> {
            let id = PromptId {
                source: self.0.into(),
                row: index,
            };
            let prompt = Prompt {
                id,
                body: PromptBody::Text(String::new()),
                label: None,
                tools: vec![],
                metadata: Default::default(),
            };
            Box::pin(std::future::ready(Ok(prompt)))
        }
    }

    fn mixer(weights: &[(&'static str, f64)]) -> Result<Mixer, RolloutError> {
        Mixer::new(
            weights
                .iter()
                .map(|&(name, w)| (Arc::new(Counting(name)) as Arc<dyn Source>, w))
                .collect(),
        )
    }

    #[test]
    fn every_source_sees_all_its_own_draws_in_order() {
        let mixer = mixer(&[("a", 3.0), ("b", 1.0), ("c", 0.001)]).unwrap();
        let mut next = [0u64; 3];
        for index in 0..5000 {
            let (source, own) = mixer.place(index, 42);
            assert_eq!(own, next[source], "draw {index}");
            next[source] += 1;
        }
        assert_eq!(next, [3745, 1250, 5]);
        let (source, own) = mixer.place(4321, 42);
        let prompt = futures::executor::block_on(mixer.draw(4321, 42)).unwrap();
        assert_eq!(
            (prompt.id.source.as_str(), prompt.id.row),
            (["a", "b", "c"][source], own)
        );
    }

    proptest! {
        #[test]
        fn shares_are_whole_positive_and_near_the_weights(weights in prop::collection::vec(0.01f64..10.0, 1..20)) {
            let got = shares(&weights);
            prop_assert_eq!(got.iter().sum::<u64>(), BLOCK);
            let total: f64 = weights.iter().sum();
            for (share, weight) in got.iter().zip(&weights) {
                prop_assert!(*share >= 1);
                prop_assert!((*share as f64 - weight / total * BLOCK as f64).abs() < 2.0);
            }
        }
    }

    #[test]
    fn wrong_weights_and_equal_names_are_refused() {
        for weight in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(
                mixer(&[("a", 1.0), ("b", weight)])
                    .err()
                    .unwrap()
                    .to_string()
                    .contains("not a positive number")
            );
        }
        assert!(
            mixer(&[("a", 1.0), ("a", 1.0)])
                .err()
                .unwrap()
                .to_string()
                .contains("two sources have this name")
        );
        assert!(mixer(&[]).is_err());
    }
}
