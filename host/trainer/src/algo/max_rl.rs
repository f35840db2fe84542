//! MaxRL (arXiv:2602.02710): a group's rewards against their mean, in units of that mean.
//!
//! ```text
//! A_i = (R_i - mean R) / mean R
//! ```
//!
//! With rewards 0 and 1 the gradient of a prompt is that of the log of its pass rate, cut off at the order of the
//! group's size, so rare successes weigh as much as in maximum likelihood. It is made for rewards of at least 0: a
//! group whose mean is not above 0 says nothing here and gets exactly 0, as does one whose rewards are all equal.

/// Advantages of one group's rewards.
pub fn advantages(rewards: &[f64]) -> Vec<f64> {
    let mean = rewards.iter().sum::<f64>() / rewards.len().max(1) as f64;
    // A sum of equal numbers is not always their multiple, so equality is asked of the rewards themselves.
    if mean <= 0.0 || rewards.iter().all(|r| *r == rewards[0]) {
        return vec![0.0; rewards.len()];
    }
    rewards.iter().map(|r| (r - mean) / mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_success_of_eight_weighs_seven_failures() {
        let mut rewards = [0.0; 8];
        rewards[3] = 1.0;
        let got = advantages(&rewards);
        assert_eq!(got[3], 7.0);
        assert!(got.iter().enumerate().all(|(i, a)| i == 3 || *a == -1.0));
    }

    #[test]
    fn a_group_without_a_success_or_without_a_difference_gets_zero() {
        assert_eq!(advantages(&[0.0, 0.0]), [0.0; 2]);
        assert_eq!(advantages(&[0.1; 3]), [0.0; 3]);
        assert_eq!(advantages(&[-1.0, 0.5]), [0.0; 2]);
        assert!(advantages(&[]).is_empty());
    }
}
