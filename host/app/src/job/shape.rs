//! From a step's groups to what the trainer sees: rewards shaped, tokens masked.
//!
//! What was sampled and scored stays in the buffer as it was; metrics and filters see rewards as the verifier gave them.

use crate::telemetry::Row;
use slime_core::{FinishReason, Group, Rollout, RolloutRecord, Trajectory, WeightVersion};

/// Soft overlong punishment (DAPO, arXiv:2503.14476, eq. 13), with L a rollout's sampled tokens and c the buffer.
///
/// ```text
/// L ≤ limit - c              0
/// limit - c < L ≤ limit      factor · ((limit - c) - L) / c
/// L > limit                  -factor
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overlong {
    /// Tokens a response may have.
    pub limit: u32,
    /// The last of them, which cost.
    pub buffer: u32,
    /// The largest penalty.
    pub factor: f64,
}

impl Overlong {
    /// What is added to the reward of a rollout of so many tokens.
    pub fn penalty(self, num_tokens: usize) -> f64 {
        let free = f64::from(self.limit) - f64::from(self.buffer);
        let over = num_tokens as f64 - free;
        if over <= 0.0 {
            0.0
        } else {
            -self.factor * (over / f64::from(self.buffer)).min(1.0)
        }
    }
}

/// What is done to records on their way to the trainer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shaping {
    /// Penalise long responses.
    pub overlong: Option<Overlong>,
    /// Tokens older than the newest of their trajectory do not train.
    pub mask_offpolicy: bool,
    /// Rollouts that ran out of tokens do not train, and still vote.
    pub mask_truncated: bool,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shaped {
    penalty: f64,
    num_scored: usize,
    offpolicy_tokens: u64,
    truncated_rollouts: u64,
}

impl Shaping {
    /// The records of `groups`, shaped.
    pub fn records(&self, groups: &[Group]) -> (Vec<RolloutRecord>, Shaped) {
        let mut shaped = Shaped::default();
        let mut records = Vec::new();
        for group in groups {
            for rollout in &group.rollouts {
                let own = rollout.trajectories.iter();
                let mut own: Vec<_> = own.map(|t| RolloutRecord::new(group, rollout, t)).collect();
                self.rollout(rollout, &mut own, &mut shaped);
                records.append(&mut own);
            }
        }
        (records, shaped)
    }

    fn rollout(&self, rollout: &Rollout, records: &mut [RolloutRecord], shaped: &mut Shaped) {
        if let (Some(overlong), Some(reward)) = (self.overlong, rollout.training_reward()) {
            // As the limit counts them: what tools answered, too.
            let lengths = rollout.trajectories.iter().map(Trajectory::response_len);
            let penalty = overlong.penalty(lengths.sum());
            for record in records.iter_mut() {
                record.reward = Some(reward + penalty);
            }
            shaped.penalty += penalty;
            shaped.num_scored += 1;
        }
        let last = rollout.trajectories.last();
        if self.mask_truncated && last.and_then(|t| t.finish) == Some(FinishReason::Length) {
            records.iter_mut().for_each(|record| mask(record, |_| true));
            shaped.truncated_rollouts += 1;
        }
        if self.mask_offpolicy {
            for record in records {
                shaped.offpolicy_tokens += mask_offpolicy(record);
            }
        }
    }
}

impl Shaped {
    /// Tell it in a step's row; what was not asked for is absent.
    pub fn tell(&self, shaping: &Shaping, row: &mut Row) {
        if shaping.overlong.is_some() && self.num_scored > 0 {
            row.set(
                "rollout/overlong_penalty",
                self.penalty / self.num_scored as f64,
            );
        }
        if shaping.mask_offpolicy {
            row.set_count("rollout/offpolicy_masked_tokens", self.offpolicy_tokens);
        }
        if shaping.mask_truncated {
            row.set_count("rollout/truncated_masked", self.truncated_rollouts);
        }
    }
}

/// Tokens at these offsets do not train.
fn mask(record: &mut RolloutRecord, at: impl Fn(usize) -> bool) {
    for offset in (0..record.response_length).filter(|offset| at(*offset)) {
        record.loss_mask[offset] = 0;
        if let Some(logprob) = record.rollout_log_probs.get_mut(offset) {
            *logprob = 0.0;
        }
    }
}

/// Mask what older weights sampled than the newest of the trajectory; returns how many tokens that were.
fn mask_offpolicy(record: &mut RolloutRecord) -> u64 {
    let sampled = record.weight_versions.iter().zip(&record.loss_mask);
    let newest: Option<WeightVersion> = sampled.filter(|(_, m)| **m == 1).map(|(v, _)| *v).max();
    let trains = |record: &RolloutRecord| record.loss_mask.iter().filter(|m| **m == 1).count();
    let before = trains(record);
    if let Some(newest) = newest {
        let versions = record.weight_versions.clone();
        mask(record, |offset| versions[offset] < newest);
    }
    (before - trains(record)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use slime_core::{
        GroupId, Origin, Outcome, Prompt, PromptBody, PromptId, RolloutId, Segment, Step, Verdict,
    };

    fn group(parts: &[(usize, u64)], finish: FinishReason) -> Group {
        let mut trajectory = Trajectory::from_prompt(vec![1, 2]);
        for (len, version) in parts {
            let origin = Origin::Policy {
                logprobs: vec![-0.5; *len],
                version: WeightVersion(*version),
            };
            let tokens = vec![3; *len];
            trajectory.push(Segment { origin, tokens }).unwrap();
        }
        trajectory.finish = Some(finish);
        Group {
            id: GroupId(0),
            step: Step(0),
            prompt: Prompt {
                id: PromptId {
                    source: "s".into(),
                    row: 0,
                },
                body: PromptBody::Text("p".into()),
                label: None,
                tools: vec![],
                metadata: Default::default(),
            },
            rollouts: vec![Rollout {
                id: RolloutId(0),
                index: 0,
                seed: 0,
                trajectories: vec![trajectory],
                outcome: Outcome::Scored(Verdict {
                    reward: 1.0,
                    metrics: vec![],
                }),
                scoring: Default::default(),
                shaped: None,
            }],
        }
    }

    #[test]
    fn b27_the_overlong_penalty_begins_a_buffer_before_the_limit_and_stops_at_it() {
        let overlong = Overlong {
            limit: 100,
            buffer: 20,
            factor: 1.0,
        };
        let penalties = [1, 79, 80, 90, 100, 101, 500].map(|len| overlong.penalty(len));
        assert_eq!(penalties, [0.0, 0.0, 0.0, -0.5, -1.0, -1.0, -1.0]);
        let shaping = Shaping {
            overlong: Some(overlong),
            ..Shaping::default()
        };
        let (records, _) = shaping.records(&[group(&[(90, 1)], FinishReason::Stop)]);
        assert_eq!(records[0].reward, Some(0.5));
        assert_eq!(
            Shaping::default()
                .records(&[group(&[(90, 1)], FinishReason::Stop)])
                .0[0]
                .reward,
            Some(1.0)
        );
    }

    #[test]
    fn f07_tokens_of_older_weights_are_masked_only_where_that_is_asked_for() {
        let groups = [group(&[(3, 1), (2, 2)], FinishReason::Stop)];
        let shaping = Shaping {
            mask_offpolicy: true,
            ..Shaping::default()
        };
        let (records, shaped) = shaping.records(&groups);
        assert_eq!(records[0].loss_mask, [0, 0, 0, 1, 1]);
        assert_eq!(records[0].rollout_log_probs, [0.0, 0.0, 0.0, -0.5, -0.5]);
        let versions: Vec<u64> = records[0].weight_versions.iter().map(|v| v.0).collect();
        assert_eq!(versions, [1, 1, 1, 2, 2]);
        assert_eq!(shaped.offpolicy_tokens, 3);
        assert_eq!(Shaping::default().records(&groups).0[0].loss_mask, [1; 5]);
    }

    #[test]
    fn a_truncated_rollout_that_is_masked_keeps_its_reward() {
        let shaping = Shaping {
            mask_truncated: true,
            ..Shaping::default()
        };
        let (records, _) = shaping.records(&[group(&[(4, 1)], FinishReason::Length)]);
        assert_eq!(
            (records[0].loss_mask.clone(), records[0].reward),
            (vec![0; 4], Some(1.0))
        );
        let (records, _) = shaping.records(&[group(&[(4, 1)], FinishReason::Stop)]);
        assert_eq!(records[0].loss_mask, [1; 4]);
    }
}
