//! Verdicts kept for rollouts that say the same: a verifier is a function of what it reads, so it need not run twice.
//!
//! Only what was scored is kept; a failure is tried again. The seed is not part of what is compared: an operator who
//! asks for this says that the verifier draws no random numbers.

use sha2::{Digest, Sha256};
use slime_core::ports::{BoxFuture, ScoreRequest, Scored, Verifier};
use slime_core::{Accounting, FinishReason, Outcome, Verdict};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// Verdicts of one half; two halves are kept, the older is forgotten when the younger is full.
const HALF: usize = 32_768;

type Key = [u8; 32];

/// A verifier whose verdicts are kept.
pub struct Memoised {
    inner: Arc<dyn Verifier>,
    kept: Mutex<Halves>,
    saved: AtomicU64,
}

#[derive(Default)]
struct Halves {
    young: HashMap<Key, Verdict>,
    old: HashMap<Key, Verdict>,
}

impl Memoised {
    /// Keep what `inner` says.
    #[must_use]
    pub fn new(inner: Arc<dyn Verifier>) -> Self {
        Self {
            inner,
            kept: Mutex::default(),
            saved: AtomicU64::new(0),
        }
    }

    /// Calls that were not made.
    pub fn saved(&self) -> u64 {
        self.saved.load(Relaxed)
    }
}

impl Halves {
    fn get(&mut self, key: &Key) -> Option<Verdict> {
        if let Some(verdict) = self.young.get(key) {
            return Some(verdict.clone());
        }
        let verdict = self.old.remove(key)?;
        self.put(*key, verdict.clone());
        Some(verdict)
    }

    fn put(&mut self, key: Key, verdict: Verdict) {
        if self.young.len() >= HALF {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, verdict);
    }
}

impl Verifier for Memoised {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn score(&self, item: ScoreRequest) -> BoxFuture<'_, Scored> {
        Box::pin(async move {
            let key = key(&item);
            let halves = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            let known = halves().get(&key);
            if let Some(verdict) = known {
                self.saved.fetch_add(1, Relaxed);
                return Scored {
                    outcome: Outcome::Scored(verdict),
                    cost: Accounting::default(),
                };
            }
            let scored = self.inner.score(item).await;
            if let Outcome::Scored(verdict) = &scored.outcome {
                halves().put(key, verdict.clone());
            }
            scored
        })
    }
}

/// What a verifier can read, each part with its length before it, so that no two rollouts share a key by shifting text
/// from one part to the next.
fn key(item: &ScoreRequest) -> Key {
    let metadata = serde_json::to_string(&item.metadata).unwrap_or_default();
    let finish = match item.finish {
        None => "",
        Some(FinishReason::Stop) => "stop",
        Some(FinishReason::Length) => "length",
        Some(FinishReason::Abort) => "abort",
    };
    let mut hash = Sha256::new();
    for part in [
        Some(item.prompt.as_str()),
        Some(&item.response),
        item.label.as_deref(),
        Some(&metadata),
        Some(finish),
    ] {
        // No label is not an empty one.
        hash.update(
            part.map_or(u64::MAX, |text| text.len() as u64)
                .to_le_bytes(),
        );
        hash.update(part.unwrap_or_default());
    }
    hash.finalize().into()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use futures::executor::block_on;

    /// Says the same of everything, and counts how often it was asked.
    pub(crate) struct Says {
        name: &'static str,
        outcome: Outcome,
        asked: AtomicU64,
    }

    impl Says {
        pub(crate) fn new(name: &'static str, outcome: Outcome) -> Arc<Self> {
            Arc::new(Self {
                name,
                outcome,
                asked: AtomicU64::new(0),
            })
        }
    }

    impl Verifier for Says {
        fn name(&self) -> &str {
            self.name
        }

        fn score(&self, _: ScoreRequest) -> BoxFuture<'_, Scored> {
            self.asked.fetch_add(1, Relaxed);
            Box::pin(std::future::ready(Scored {
                outcome: self.outcome.clone(),
                cost: Accounting::default(),
            }))
        }
    }

    fn item(prompt: &str, response: &str, label: Option<&str>) -> ScoreRequest {
        ScoreRequest {
            prompt: prompt.into(),
            response: response.into(),
            label: label.map(Into::into),
            ..ScoreRequest::default()
        }
    }

    #[test]
    fn the_same_rollout_is_scored_once_whatever_its_seed_and_another_one_again() {
        let verdict = Verdict {
            reward: 0.5,
            metrics: vec![("m".into(), 2.0)],
        };
        let says = Says::new("v", Outcome::Scored(verdict.clone()));
        let memo = Memoised::new(says.clone());
        let score = |item| block_on(memo.score(item)).outcome;
        for seed in 0..3 {
            let item = ScoreRequest {
                seed,
                ..item("p", "r", Some("l"))
            };
            assert_eq!(score(item), Outcome::Scored(verdict.clone()));
        }
        assert_eq!((says.asked.load(Relaxed), memo.saved()), (1, 2));
        let mut others = vec![
            item("pr", "", Some("l")),
            item("p", "rl", Some("")),
            item("p", "r", None),
            item("p", "r", Some("")),
        ];
        let mut cut = item("p", "r", Some("l"));
        cut.finish = Some(FinishReason::Length);
        let mut told = item("p", "r", Some("l"));
        told.metadata.insert("k".into(), 1.into());
        others.extend([cut, told]);
        let count = others.len() as u64;
        others.into_iter().for_each(|item| drop(score(item)));
        assert_eq!(
            says.asked.load(Relaxed),
            1 + count,
            "each is another rollout"
        );
    }

    #[test]
    fn a_failure_is_tried_again() {
        let says = Says::new("v", Outcome::Timeout("slow".into()));
        let memo = Memoised::new(says.clone());
        for _ in 0..2 {
            assert_eq!(
                block_on(memo.score(item("", "", None))).outcome.kind(),
                "timeout"
            );
        }
        assert_eq!(says.asked.load(Relaxed), 2);
    }

    #[test]
    fn memory_is_bounded_and_what_is_asked_for_often_stays() {
        let mut halves = Halves::default();
        let verdict = |reward| Verdict {
            reward,
            metrics: Vec::new(),
        };
        let key = |n: usize| {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&n.to_le_bytes());
            key
        };
        halves.put(key(0), verdict(7.0));
        for n in 1..4 * HALF {
            halves.put(key(n), verdict(1.0));
            assert_eq!(halves.get(&key(0)), Some(verdict(7.0)));
        }
        assert!(halves.young.len() + halves.old.len() <= 2 * HALF);
        assert_eq!(halves.get(&key(1)), None);
    }
}
