//! Who keeps account of what is being sampled: which draw is next, and what became of it.
//!
//! The Data Buffer is the ledger of a run. [`MemoryLedger`] is for the verbs that only sample.

use super::turns::TurnRecord;
use crate::{RolloutError, lock};
use slime_core::{Group, GroupId, Prompt, Rollout, Step, WeightVersion};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A draw that the sampler is to turn into a group.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// Index of the draw in the run's source.
    pub draw: u64,
    /// The group's id.
    pub group: GroupId,
    /// How often this draw was sampled before, and dropped.
    pub attempt: u32,
    /// Rollouts that an interrupted run has finished.
    pub done: Vec<Rollout>,
    /// Turns of its unfinished rollouts, by the rollout's index.
    pub begun: Vec<(u32, TurnRecord)>,
}

/// Keeps account. Calls are made as things happen; each is durable when it returns.
pub trait Ledger: Send + Sync {
    /// Claim `n` draws: those given back first, then new ones, in order.
    ///
    /// # Errors
    /// The ledger cannot be written.
    fn claim(&self, step: Step, n: usize) -> Result<Vec<Claim>, RolloutError>;
    /// Sampling of a claim begins: its prompt, and a seed for every rollout. False where an interrupted run had begun it
    /// with another prompt: what the claim holds is then forgotten, and must not be used.
    ///
    /// # Errors
    /// The ledger cannot be written.
    fn begin(&self, claim: &Claim, prompt: &Prompt, seeds: &[u64]) -> Result<bool, RolloutError>;
    /// Tokens of an unfinished rollout of the claim. Later records of a turn replace earlier ones.
    ///
    /// # Errors
    /// The ledger cannot be written.
    fn turn(&self, claim: &Claim, index: u32, record: &TurnRecord) -> Result<(), RolloutError> {
        let _ = (claim, index, record);
        Ok(())
    }
    /// One rollout of the claim ended.
    ///
    /// # Errors
    /// The ledger cannot be written.
    fn rollout(&self, claim: &Claim, rollout: &Rollout) -> Result<(), RolloutError>;
    /// The group is complete and may be trained on.
    ///
    /// # Errors
    /// The ledger cannot be written.
    fn keep(&self, claim: &Claim, group: &Group) -> Result<(), RolloutError>;
    /// The group is complete and a filter refused it; the draw is used up.
    ///
    /// # Errors
    /// The ledger cannot be written.
    fn discard(&self, claim: &Claim, group: &Group, reason: &str) -> Result<(), RolloutError>;
    /// How many groups must still be kept before a step can take `n` at version `served`.
    ///
    /// # Errors
    /// The ledger cannot be written.
    fn missing(&self, step: Step, n: usize, served: WeightVersion) -> Result<usize, RolloutError>;
    /// Groups that were kept and that no step has taken.
    ///
    /// # Errors
    /// The ledger cannot be read.
    fn queued(&self) -> Result<usize, RolloutError>;
    /// The claim was given up before it was complete; its draw comes again.
    fn release(&self, claim: &Claim);
}

/// Counts draws and remembers nothing else.
#[derive(Debug, Default)]
pub struct MemoryLedger {
    state: Mutex<(u64, BTreeSet<u64>)>,
    kept: AtomicUsize,
}

#[cfg(test)]
impl MemoryLedger {
    /// A step has taken `n` groups.
    pub(crate) fn take(&self, n: usize) {
        self.kept.fetch_sub(n, Ordering::Relaxed);
    }
}

impl Ledger for MemoryLedger {
    fn claim(&self, _step: Step, n: usize) -> Result<Vec<Claim>, RolloutError> {
        let mut state = lock(&self.state);
        let draws = (0..n).map(|_| {
            state.1.pop_first().unwrap_or_else(|| {
                state.0 += 1;
                state.0 - 1
            })
        });
        Ok(draws
            .map(|draw| Claim {
                draw,
                group: GroupId(draw),
                attempt: 0,
                done: Vec::new(),
                begun: Vec::new(),
            })
            .collect())
    }

    fn begin(
        &self,
        _claim: &Claim,
        _prompt: &Prompt,
        _seeds: &[u64],
    ) -> Result<bool, RolloutError> {
        Ok(true)
    }

    fn rollout(&self, _claim: &Claim, _rollout: &Rollout) -> Result<(), RolloutError> {
        Ok(())
    }

    fn keep(&self, _claim: &Claim, _group: &Group) -> Result<(), RolloutError> {
        self.kept.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn discard(&self, _claim: &Claim, _group: &Group, _reason: &str) -> Result<(), RolloutError> {
        Ok(())
    }

    fn missing(
        &self,
        _step: Step,
        n: usize,
        _served: WeightVersion,
    ) -> Result<usize, RolloutError> {
        Ok(n.saturating_sub(self.queued()?))
    }

    fn queued(&self) -> Result<usize, RolloutError> {
        Ok(self.kept.load(Ordering::Relaxed))
    }

    fn release(&self, claim: &Claim) {
        lock(&self.state).1.insert(claim.draw);
    }
}
