//! A batch: the sequences of one train step, and what is known of each token that trains.
//!
//! Tokens that train (sampled tokens of scored rollouts) are numbered through the batch, sequence after sequence.
//! Every per-token list is in that numbering, so nothing depends on how sequences are packed.

use super::Rollout;
use crate::algo::mismatch::Correction;
use crate::algo::weights::{self, Aggregation, Counted};
use slime_core::RolloutRecord;
use std::ops::Range;

/// One trajectory, as tokens to train on.
#[derive(Clone, Debug)]
pub struct Sequence<'a> {
    /// Prompt and response.
    pub tokens: &'a [u32],
    /// Positions whose next token trains; never empty.
    pub rows: Vec<u32>,
    /// Its tokens' numbers in the batch, `[rows]`.
    pub trained: Range<usize>,
    /// Which of the rollouts it belongs to.
    pub rollout: usize,
    /// The record it comes from, if it comes from one.
    pub record: Option<&'a RolloutRecord>,
}

impl Sequence<'_> {
    /// The tokens a forward pass must see: all before the last that trains. What follows cannot matter.
    pub fn inputs(&self) -> &[u32] {
        let last = self.rows.last().map_or(0, |&row| row as usize + 1);
        &self.tokens[..last]
    }

    /// The tokens that train, one a row.
    pub fn targets(&self) -> impl Iterator<Item = u32> + '_ {
        self.rows.iter().map(|&row| self.tokens[row as usize + 1])
    }
}

/// What is known of each token that trains, `[trained tokens]` each. NaN stands for a log-prob that nobody gave.
#[derive(Clone, Debug, Default)]
pub struct Columns {
    /// Weight in the objective.
    pub weight: Vec<f64>,
    /// Advantage.
    pub advantage: Vec<f64>,
    /// Log-prob of the policy the ratio is against; NaN where this step's own forward gives it.
    pub old: Vec<f64>,
    /// Log-prob of the reference.
    pub reference: Vec<f64>,
    /// Log-prob the engine reported.
    pub rollout: Vec<f64>,
    /// Log-prob of the teacher.
    pub teacher: Vec<f64>,
    /// The critic's value of the state the token was chosen in, before this rollout step's updates.
    pub value: Vec<f64>,
    /// What the critic should have said.
    pub returns: Vec<f64>,
    /// Corrections between trainer and engine; empty where none is computed before the step.
    pub correction: Vec<Correction>,
}

/// What one optimizer step trains on.
#[derive(Clone, Debug, Default)]
pub struct Batch<'a> {
    /// Sequences with a token that trains.
    pub sequences: Vec<Sequence<'a>>,
    /// Per-token lists.
    pub columns: Columns,
    /// Rollouts, scored or not.
    pub num_rollouts: usize,
    /// Rollouts that were not scored.
    pub num_masked_rollouts: usize,
}

impl<'a> Batch<'a> {
    /// The batch of `rollouts[range]`, weights filled in, the other columns empty or NaN.
    pub fn new(
        rollouts: &[Rollout<'a>],
        range: Range<usize>,
        how: Aggregation,
        constant_length: usize,
    ) -> Self {
        let mut batch = Self {
            num_rollouts: range.len(),
            ..Self::default()
        };
        let (mut counted, mut slots) = (Vec::new(), Vec::new());
        for index in range.clone() {
            let rollout = &rollouts[index];
            if rollout.reward.is_none() {
                batch.num_masked_rollouts += 1;
                continue;
            }
            for record in &rollout.records {
                let first = record.tokens.len() - record.response_length;
                let (mut rows, start) = (Vec::new(), batch.columns.rollout.len());
                for (offset, _) in record
                    .loss_mask
                    .iter()
                    .enumerate()
                    .filter(|(_, m)| **m == 1)
                {
                    rows.push((first + offset - 1) as u32);
                    let logp = record.rollout_log_probs.get(offset);
                    batch
                        .columns
                        .rollout
                        .push(logp.map_or(f64::NAN, |&p| f64::from(p)));
                    let teacher = record.teacher_log_probs.get(offset);
                    batch
                        .columns
                        .teacher
                        .push(teacher.map_or(f64::NAN, |&p| f64::from(p)));
                }
                counted.push(Counted {
                    rollout: index - range.start,
                    num_tokens: rows.len(),
                });
                if rows.is_empty() {
                    continue;
                }
                slots.push(counted.len() - 1);
                let trained = start..start + rows.len();
                batch.sequences.push(Sequence {
                    tokens: &record.tokens,
                    rows,
                    trained,
                    rollout: index,
                    record: Some(record),
                });
            }
        }
        let scored = batch.num_rollouts - batch.num_masked_rollouts;
        let weights = weights::weights(&counted, scored, how, constant_length);
        batch.fill(slots.iter().map(|&slot| weights[slot]));
        batch
    }

    /// The batch of plain sequences with a mask as long as their tokens, each a rollout of its own.
    pub fn from_masked(
        sequences: &[(&'a [u32], &[u8])],
        how: Aggregation,
        constant_length: usize,
    ) -> Self {
        let mut batch = Self {
            num_rollouts: sequences.len(),
            ..Self::default()
        };
        let (mut counted, mut slots) = (Vec::new(), Vec::new());
        for (rollout, &(tokens, mask)) in sequences.iter().enumerate() {
            // Nothing predicts the first token.
            let rows: Vec<u32> = (1..tokens.len())
                .filter(|&t| mask[t] == 1)
                .map(|t| t as u32 - 1)
                .collect();
            counted.push(Counted {
                rollout,
                num_tokens: rows.len(),
            });
            if rows.is_empty() {
                continue;
            }
            slots.push(rollout);
            let start = batch.columns.rollout.len();
            batch.columns.rollout.resize(start + rows.len(), f64::NAN);
            let trained = start..start + rows.len();
            batch.sequences.push(Sequence {
                tokens,
                rows,
                trained,
                rollout,
                record: None,
            });
        }
        let weights = weights::weights(&counted, sequences.len(), how, constant_length);
        batch.fill(slots.iter().map(|&slot| weights[slot]));
        batch
    }

    /// Spread one weight a sequence over its tokens, and size the other columns.
    fn fill(&mut self, weights: impl Iterator<Item = f64>) {
        let num = self.columns.rollout.len();
        self.columns.weight = vec![0.0; num];
        for (sequence, weight) in self.sequences.iter().zip(weights) {
            self.columns.weight[sequence.trained.clone()].fill(weight);
        }
        self.columns.advantage = vec![0.0; num];
        self.columns.old = vec![f64::NAN; num];
        self.columns.reference = vec![f64::NAN; num];
        self.columns.teacher.resize(num, f64::NAN);
        self.columns.value = vec![f64::NAN; num];
        self.columns.returns = vec![f64::NAN; num];
    }

    /// Number of tokens that train.
    pub fn num_trained(&self) -> usize {
        self.columns.weight.len()
    }

    /// Number of tokens of all its sequences.
    pub fn num_tokens(&self) -> usize {
        self.sequences.iter().map(|s| s.tokens.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slime_core::{GroupId, RolloutId};

    #[test]
    fn rows_are_one_before_the_tokens_they_predict_and_unscored_rollouts_stay_out() {
        let record = RolloutRecord {
            tokens: vec![5, 6, 7, 8, 9, 4],
            response_length: 4,
            loss_mask: vec![1, 0, 1, 0],
            rollout_log_probs: vec![-0.5, 0.0, -0.25, 0.0],
            ..RolloutRecord::default()
        };
        let rollout = |id, reward| Rollout {
            id: RolloutId(id),
            group: GroupId(0),
            reward,
            records: vec![&record],
        };
        let rollouts = [
            rollout(0, None),
            rollout(1, Some(0.0)),
            rollout(2, Some(1.0)),
        ];
        let batch = Batch::new(&rollouts, 0..3, Aggregation::RolloutMean, 0);
        assert_eq!(
            (
                batch.num_rollouts,
                batch.num_masked_rollouts,
                batch.sequences.len()
            ),
            (3, 1, 2)
        );
        let second = &batch.sequences[1];
        assert_eq!(second.rows, [1, 3]);
        assert_eq!(second.targets().collect::<Vec<_>>(), [7, 9]);
        assert_eq!(second.inputs(), [5, 6, 7, 8]);
        assert_eq!((second.trained.clone(), second.rollout), (2..4, 2));
        assert_eq!(batch.columns.weight, [0.25; 4]);
        assert_eq!(batch.columns.rollout, [-0.5, -0.25, -0.5, -0.25]);
    }

    #[test]
    fn the_first_token_of_a_plain_sequence_never_trains() {
        let batch = Batch::from_masked(
            &[(&[1, 2, 3], &[1, 1, 1]), (&[4], &[1])],
            Aggregation::TokenMean,
            0,
        );
        assert_eq!(batch.num_trained(), 2);
        assert_eq!(batch.sequences[0].rows, [0, 1]);
        assert_eq!(batch.columns.weight, [0.5, 0.5]);
    }
}
