//! Leave-one-out advantages (arXiv:2402.14740): a reward against the mean of the group's other rewards.
//!
//! `A_i = R_i - mean_(j ≠ i) R_j`. A rollout alone in its group has nothing to compare with and gets 0.

/// Advantages of one group's rewards.
pub fn advantages(rewards: &[f64]) -> Vec<f64> {
    let others = rewards.len() as f64 - 1.0;
    if others < 1.0 || rewards.iter().all(|r| *r == rewards[0]) {
        return vec![0.0; rewards.len()];
    }
    let sum: f64 = rewards.iter().sum();
    rewards.iter().map(|r| r - (sum - r) / others).collect()
}

#[cfg(test)]
mod tests {
    use super::super::golden;
    use super::*;

    #[test]
    fn each_reward_is_compared_with_the_others() {
        for case in golden::cases("rloo") {
            let got = advantages(&golden::floats(&case.inputs["rewards"]));
            golden::close(&got, &golden::floats(&case.expected), 1e-12, &case.name);
        }
        assert_eq!(advantages(&[0.7]), [0.0]);
        assert_eq!(advantages(&[0.1; 3]), [0.0; 3]);
    }
}
