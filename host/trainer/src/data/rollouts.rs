//! Records gathered into rollouts, and rollouts cut into train steps.

use crate::config::TrainConfig;
use crate::{Error, Result};
use slime_core::{GroupId, RolloutId, RolloutRecord};
use std::collections::BTreeMap;
use std::ops::Range;

/// One rollout's records.
#[derive(Clone, Debug)]
pub struct Rollout<'a> {
    /// Unique within the run.
    pub id: RolloutId,
    /// Its group.
    pub group: GroupId,
    /// The verdict's reward; `None` where it was not scored, which takes it out of baselines and loss.
    pub reward: Option<f64>,
    /// Its trajectories.
    pub records: Vec<&'a RolloutRecord>,
}

/// What a model can take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Token ids are below this.
    pub vocab: usize,
    /// Tokens of the longest trajectory.
    pub max_positions: usize,
}

/// Gather records by rollout id, in order of first occurrence.
///
/// # Errors
/// The first record that cannot be trained on, by its place.
pub fn rollouts<'a>(records: &'a [RolloutRecord], limits: Limits) -> Result<Vec<Rollout<'a>>> {
    let mut at: BTreeMap<RolloutId, usize> = BTreeMap::new();
    let mut out: Vec<Rollout<'a>> = Vec::new();
    for (index, record) in records.iter().enumerate() {
        let refuse = |detail: String| Error::Record {
            index,
            group: record.group_id.0,
            rollout: record.rollout_id.0,
            detail,
        };
        record.validate().map_err(refuse)?;
        check_tokens(&record.tokens, limits).map_err(refuse)?;
        let reward = if record.is_scored() {
            record.reward
        } else {
            None
        };
        match at.get(&record.rollout_id) {
            None => {
                at.insert(record.rollout_id, out.len());
                let (id, group) = (record.rollout_id, record.group_id);
                out.push(Rollout {
                    id,
                    group,
                    reward,
                    records: vec![record],
                });
            }
            Some(&slot) => {
                let rollout = &mut out[slot];
                if (rollout.group, rollout.reward) != (record.group_id, reward) {
                    return Err(refuse(
                        "its group or reward differs from an earlier trajectory of the same rollout".into(),
                    ));
                }
                rollout.records.push(record);
            }
        }
    }
    Ok(out)
}

/// Whether a model can take these tokens; the refusal in words.
///
/// # Errors
/// An id beyond the vocabulary, or too many tokens.
pub fn check_tokens(tokens: &[u32], limits: Limits) -> Result<(), String> {
    if let Some(id) = tokens.iter().find(|&&id| id as usize >= limits.vocab) {
        return Err(format!(
            "token id {id} lies beyond the model's vocabulary of {}",
            limits.vocab
        ));
    }
    if tokens.len() > limits.max_positions {
        let (have, limit) = (tokens.len(), limits.max_positions);
        return Err(format!("it has {have} tokens, the model takes {limit}"));
    }
    Ok(())
}

/// Which rollouts make which train step. `global_batch_size` rollouts each, the last step taking what is left;
/// or `num_steps_per_rollout` steps of nearly equal size; or one step.
pub fn split_steps(num_rollouts: usize, config: &TrainConfig) -> Vec<Range<usize>> {
    if let Some(size) = config.global_batch_size {
        return (0..num_rollouts)
            .step_by(size)
            .map(|start| start..(start + size).min(num_rollouts))
            .collect();
    }
    let steps = config.num_steps_per_rollout.unwrap_or(1).min(num_rollouts);
    (0..steps)
        .map(|i| num_rollouts * i / steps..num_rollouts * (i + 1) / steps)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(rollout: u64, reward: Option<f64>) -> RolloutRecord {
        RolloutRecord {
            group_id: GroupId(1),
            rollout_id: RolloutId(rollout),
            tokens: vec![1, 2, 3],
            response_length: 2,
            loss_mask: vec![1, 1],
            reward,
            outcome: if reward.is_some() {
                "scored"
            } else {
                "timeout"
            }
            .into(),
            ..RolloutRecord::default()
        }
    }

    const LIMITS: Limits = Limits {
        vocab: 10,
        max_positions: 8,
    };

    #[test]
    fn trajectories_of_one_rollout_are_gathered_wherever_they_stand() {
        let records = [record(7, Some(1.0)), record(3, None), record(7, Some(1.0))];
        let rollouts = rollouts(&records, LIMITS).unwrap();
        let shape: Vec<_> = rollouts
            .iter()
            .map(|r| (r.id.0, r.records.len(), r.reward))
            .collect();
        assert_eq!(shape, [(7, 2, Some(1.0)), (3, 1, None)]);
    }

    #[test]
    fn a_bad_record_is_named_by_its_place() {
        let mut bad = record(3, Some(0.0));
        bad.tokens[1] = 10;
        let error = rollouts(&[record(1, Some(1.0)), bad], LIMITS)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("record 1") && error.contains("token id 10"),
            "{error}"
        );
        let error = rollouts(&[record(1, Some(1.0)), record(1, Some(0.5))], LIMITS).unwrap_err();
        assert!(error.to_string().contains("differs"), "{error}");
        let mut long = record(3, Some(0.0));
        long.tokens = vec![1; 9];
        assert!(
            rollouts(&[long], LIMITS)
                .unwrap_err()
                .to_string()
                .contains("takes 8")
        );
    }

    #[test]
    fn no_rollout_is_dropped_by_the_split() {
        for num in 1..20 {
            for (global_batch_size, num_steps_per_rollout) in [
                (Some(4), None),
                (None, Some(3)),
                (None, None),
                (Some(100), None),
                (None, Some(50)),
            ] {
                let config = TrainConfig {
                    global_batch_size,
                    num_steps_per_rollout,
                    ..TrainConfig::default()
                };
                let steps = split_steps(num, &config);
                let all: Vec<usize> = steps.iter().cloned().flatten().collect();
                assert_eq!(all, (0..num).collect::<Vec<_>>());
                assert!(steps.iter().all(|s| !s.is_empty()));
            }
        }
    }
}
