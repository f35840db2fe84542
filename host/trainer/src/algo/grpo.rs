//! Group-relative advantages: a rollout against the other rollouts of its prompt.
//!
//! ```text
//! A_i = (R_i - mean R) / (std R + 1e-6)        std with n - 1, or with n (`grpo_std`)
//! ```
//!
//! GRPO (arXiv:2402.03300, §4.1.2). Without the division it is Dr. GRPO (arXiv:2503.20783), which removes the
//! bias towards prompts of nearly equal rewards. Rewards are those of rollouts, not of trajectories: a rollout
//! that fans out votes once. A group whose rewards are all equal, or of one rollout, says nothing and gets
//! exactly 0; that is decided by comparing rewards, because the std of equal numbers is rarely exactly 0.

use serde::{Deserialize, Serialize};
use slime_core::GroupId;
use std::collections::BTreeMap;

/// What centred rewards are divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Std {
    /// The deviation with `n - 1`, slime's.
    #[default]
    Sample,
    /// The deviation with `n`.
    Population,
    /// Nothing: Dr. GRPO.
    None,
}

/// Added to the std.
pub const STD_EPS: f64 = 1e-6;

/// Advantages of one group's rewards.
pub fn advantages(rewards: &[f64], std: Std) -> Vec<f64> {
    let (low, high) = rewards
        .iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), &r| {
            (low.min(r), high.max(r))
        });
    if rewards.len() < 2 || low == high {
        return vec![0.0; rewards.len()];
    }
    let count = rewards.len() as f64;
    let mean = rewards.iter().sum::<f64>() / count;
    let squares: f64 = rewards.iter().map(|r| (r - mean).powi(2)).sum();
    let scale = match std {
        Std::Sample => 1.0 / ((squares / (count - 1.0)).sqrt() + STD_EPS),
        Std::Population => 1.0 / ((squares / count).sqrt() + STD_EPS),
        Std::None => 1.0,
    };
    rewards.iter().map(|r| (r - mean) * scale).collect()
}

/// Apply `within` to the scored rewards of each group, by group id wherever its rollouts stand. A rollout without
/// a reward neither votes nor gets an advantage.
pub fn by_group(
    rollouts: &[(GroupId, Option<f64>)],
    within: impl Fn(&[f64]) -> Vec<f64>,
) -> Vec<Option<f64>> {
    let mut groups: BTreeMap<GroupId, Vec<usize>> = BTreeMap::new();
    for (index, (group, reward)) in rollouts.iter().enumerate() {
        if reward.is_some() {
            groups.entry(*group).or_default().push(index);
        }
    }
    let mut out = vec![None; rollouts.len()];
    for members in groups.values() {
        let rewards: Vec<f64> = members.iter().filter_map(|&i| rollouts[i].1).collect();
        for (&index, advantage) in members.iter().zip(within(&rewards)) {
            out[index] = Some(advantage);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::golden;
    use super::*;

    #[test]
    fn advantages_equal_the_closed_forms() {
        let mut compared = 0;
        for case in golden::cases("grpo") {
            let std = serde_json::from_value(case.inputs["std"].clone()).unwrap();
            let got = advantages(&golden::floats(&case.inputs["rewards"]), std);
            golden::close(&got, &golden::floats(&case.expected), 1e-10, &case.name);
            compared += 1;
        }
        assert!(compared >= 30, "{compared} cases");
    }

    #[test]
    fn groups_go_by_id_and_an_unscored_rollout_does_not_vote() {
        let mut compared = 0;
        for case in golden::cases("grouped") {
            let std = case.inputs["std"].as_str().unwrap();
            let ids = case.inputs["group_ids"].as_array().unwrap();
            let rewards = case.inputs["rewards"].as_array().unwrap();
            let rollouts: Vec<_> = std::iter::zip(ids, rewards)
                .map(|(id, r)| {
                    (
                        GroupId(u64::from(id.as_str().unwrap().as_bytes()[0])),
                        r.as_f64(),
                    )
                })
                .collect();
            // The data's population std has no eps: two rewards are then exactly one std away.
            let got = match std {
                "population" => by_group(&rollouts, |r| {
                    advantages(r, Std::None)
                        .iter()
                        .map(|a| a.signum() * f64::from(*a != 0.0))
                        .collect()
                }),
                other => by_group(&rollouts, |r| {
                    advantages(
                        r,
                        if other == "sample" {
                            Std::Sample
                        } else {
                            Std::None
                        },
                    )
                }),
            };
            for (got, want) in std::iter::zip(got, case.expected.as_array().unwrap()) {
                assert_eq!(got.is_some(), want.is_number(), "{}", case.name);
                if let (Some(got), Some(want)) = (got, want.as_f64()) {
                    golden::close(&[got], &[want], 1e-10, &case.name);
                }
            }
            compared += 1;
        }
        assert!(compared >= 4);
    }

    #[test]
    fn advantages_of_a_group_sum_to_zero() {
        let rewards = [0.3, -1.0, 7.25, 0.3, 0.1];
        for std in [Std::Sample, Std::Population, Std::None] {
            assert!(advantages(&rewards, std).iter().sum::<f64>().abs() < 1e-12);
        }
    }
}
