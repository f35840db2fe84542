//! How token losses become one number: a weight per token, fixed before the step, so that
//! `objective = Σ weight · loss` and gradients only ever add, whatever the packing or the number of ranks.
//!
//! ```text
//! rollout-mean      1 / (tokens of the rollout · scored rollouts)     slime's default
//! token-mean        1 / (tokens of the step)                          DAPO
//! sequence-mean     1 / (tokens of the trajectory · trajectories)     PPO as usually written
//! constant-length   1 / (a constant · scored rollouts)                Dr. GRPO
//! ```
//!
//! Tokens are the sampled tokens of scored rollouts. The trajectories of a rollout that fans out share its
//! denominator. A scored rollout without a sampled token counts in the mean and adds nothing; a rollout that was
//! not scored does not count.

use serde::{Deserialize, Serialize};

/// How losses are averaged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Aggregation {
    /// Token mean of each rollout, then the mean over rollouts.
    #[default]
    RolloutMean,
    /// Mean over all tokens of the step.
    TokenMean,
    /// Token mean of each trajectory, then the mean over trajectories.
    SequenceMean,
    /// Sum over a rollout's tokens by a constant, then the mean over rollouts.
    ConstantLength,
}

/// One trajectory of a scored rollout.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// Which rollout of the step it belongs to, from 0.
    pub rollout: usize,
    /// Its sampled tokens.
    pub num_tokens: usize,
}

/// The weight that each sampled token of each trajectory has. `num_rollouts` are the scored ones;
/// `constant_length` is read by [`Aggregation::ConstantLength`] only.
pub fn weights(
    trajectories: &[Counted],
    num_rollouts: usize,
    how: Aggregation,
    constant_length: usize,
) -> Vec<f64> {
    let inverse = |count: usize, of: usize| 1.0 / (count.max(1) as f64 * of.max(1) as f64);
    match how {
        Aggregation::RolloutMean => {
            let slots = trajectories
                .iter()
                .map(|t| t.rollout + 1)
                .max()
                .unwrap_or(0);
            let mut tokens = vec![0; slots];
            trajectories
                .iter()
                .for_each(|t| tokens[t.rollout] += t.num_tokens);
            trajectories
                .iter()
                .map(|t| inverse(tokens[t.rollout], num_rollouts))
                .collect()
        }
        Aggregation::TokenMean => {
            let total = trajectories.iter().map(|t| t.num_tokens).sum();
            vec![inverse(total, 1); trajectories.len()]
        }
        Aggregation::SequenceMean => trajectories
            .iter()
            .map(|t| inverse(t.num_tokens, trajectories.len()))
            .collect(),
        Aggregation::ConstantLength => {
            vec![inverse(constant_length, num_rollouts); trajectories.len()]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::golden;
    use super::*;

    #[test]
    fn weights_equal_the_closed_forms() {
        let mut compared = 0;
        for case in golden::cases("aggregate") {
            let masks: Vec<Vec<f64>> = case.inputs["loss_mask"]
                .as_array()
                .unwrap()
                .iter()
                .map(golden::floats)
                .collect();
            let of = |i: usize| {
                case.inputs["rollout_ids"][i]
                    .as_u64()
                    .map_or(i, |id| id as usize)
            };
            let counted: Vec<Counted> = masks
                .iter()
                .enumerate()
                .map(|(i, mask)| Counted {
                    rollout: of(i),
                    num_tokens: mask.iter().sum::<f64>() as usize,
                })
                .collect();
            let num_rollouts = counted.iter().map(|c| c.rollout + 1).max().unwrap();
            let how: Aggregation = serde_json::from_value(case.inputs["how"].clone()).unwrap();
            let length = case.inputs["length"].as_u64().unwrap_or(0) as usize;
            let got = weights(&counted, num_rollouts, how, length);
            let mut loss = 0.0;
            for (i, mask) in masks.iter().enumerate() {
                let spread: Vec<f64> = mask.iter().map(|m| m * got[i]).collect();
                golden::close(
                    &spread,
                    &golden::floats(&case.expected["weights"][i]),
                    1e-12,
                    &case.name,
                );
                let losses = golden::floats(&case.inputs["per_token_loss"][i]);
                loss += std::iter::zip(&spread, &losses)
                    .map(|(w, l)| w * l)
                    .sum::<f64>();
            }
            golden::close(
                &[loss],
                &[case.expected["loss"].as_f64().unwrap()],
                1e-12,
                &case.name,
            );
            compared += 1;
        }
        assert!(compared >= 10, "{compared} cases");
    }

    #[test]
    fn sequence_mean_gives_every_trajectory_the_same_say() {
        let counted = [(0, 1), (0, 4), (1, 2)].map(|(rollout, num_tokens)| Counted {
            rollout,
            num_tokens,
        });
        let got = weights(&counted, 2, Aggregation::SequenceMean, 0);
        for (w, c) in std::iter::zip(got, counted) {
            assert!((w * c.num_tokens as f64 - 1.0 / 3.0).abs() < 1e-15);
        }
    }
}
