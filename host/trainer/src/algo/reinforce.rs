//! REINFORCE++ (arXiv:2501.03262): a KL penalty at every token and the reward at the last, summed backwards.
//!
//! ```text
//! r_t = -kl_coef · kl_t   (+ R at the last token)        G_t = r_t + gamma · G_(t+1)
//! ```
//!
//! The scan runs over the tokens the policy wrote; tokens of the environment are not in these lists, so neither
//! their KL nor a step of discounting through them exists. The baseline variant takes a group-centred reward and
//! subtracts each token's own penalty.

/// Returns of one trajectory's sampled tokens; `kl` has one value each.
pub fn returns(kl: &[f64], kl_coef: f64, gamma: f64, reward: f64) -> Vec<f64> {
    let mut out = vec![0.0; kl.len()];
    let mut after = 0.0;
    for (t, slot) in out.iter_mut().enumerate().rev() {
        let last = if t + 1 == kl.len() { reward } else { 0.0 };
        after = last - kl_coef * kl[t] + gamma * after;
        *slot = after;
    }
    out
}

/// The baseline variant: the centred reward less each token's penalty.
pub fn with_baseline(kl: &[f64], kl_coef: f64, centred: f64) -> Vec<f64> {
    kl.iter().map(|kl| centred - kl_coef * kl).collect()
}

#[cfg(test)]
mod tests {
    use super::super::golden;
    use super::*;

    #[test]
    fn returns_skip_what_the_environment_wrote() {
        let mut compared = 0;
        for case in golden::cases("reinforce-plus-plus") {
            let gamma = case.inputs["gamma"].as_f64().unwrap();
            let mask = golden::floats(&case.inputs["mask"]);
            let keep = |x: Vec<f64>| -> Vec<f64> {
                std::iter::zip(x, &mask)
                    .filter(|(_, m)| **m > 0.0)
                    .map(|(x, _)| x)
                    .collect()
            };
            let kl = keep(golden::floats(&case.inputs["kl"]));
            let (coef, reward) = (&case.inputs["kl_coef"], &case.inputs["reward"]);
            let got = returns(&kl, coef.as_f64().unwrap(), gamma, reward.as_f64().unwrap());
            let want = keep(golden::floats(&case.expected));
            if gamma == 1.0 {
                golden::close(&got, &want, 1e-12, &case.name);
                compared += 1;
            }
        }
        assert!(compared >= 2);
    }

    #[test]
    fn discounting_counts_sampled_tokens_only() {
        assert_eq!(returns(&[0.0; 3], 0.1, 0.5, 1.0), [0.25, 0.5, 1.0]);
        assert!(returns(&[], 0.1, 0.5, 1.0).is_empty());
        assert_eq!(with_baseline(&[1.0, 2.0], 0.5, 1.0), [0.5, 0.0]);
    }
}
