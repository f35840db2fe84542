//! GSPO (arXiv:2507.18071, eq. 7): one ratio for a whole trajectory, the geometric mean of its tokens' ratios.
//!
//! ```text
//! s = exp(mean_t (logp_t - old_t))      loss_t = max(-s A, -clamp(s) A)      dloss_t/dlogp_u = -s A / n
//! ```
//!
//! Every token of a trajectory has the same weight, so the n losses that depend on `logp_u` sum to what one
//! token's loss at ratio `s` gives: the surrogate of [`super::clip`] with the trajectory's log-ratio in place of
//! the token's. Only sampled tokens enter the mean.

/// The trajectory's log-ratio from those of its sampled tokens.
pub fn log_ratio(tokens: &[f64]) -> f64 {
    if tokens.is_empty() {
        0.0
    } else {
        tokens.iter().sum::<f64>() / tokens.len() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::super::clip::{Clip, surrogate};
    use super::super::golden;
    use super::*;

    #[test]
    fn masked_tokens_stay_out_of_the_ratio() {
        let mut compared = 0;
        for case in golden::cases("gspo") {
            let get = |key: &str| case.inputs[key].as_f64().unwrap();
            let mask = golden::floats(&case.inputs["mask"]);
            let all = golden::floats(&case.inputs["log_ratio"]);
            let kept: Vec<f64> = std::iter::zip(all, &mask)
                .filter(|(_, m)| **m > 0.0)
                .map(|(x, _)| x)
                .collect();
            let clip = Clip {
                low: get("eps_clip"),
                high: get("eps_clip_high"),
                dual: None,
            };
            let ratio = log_ratio(&kept).exp();
            let got = surrogate(ratio, get("advantage"), clip);
            // The data weighs each token by one over their number.
            let slopes: Vec<f64> = mask
                .iter()
                .map(|m| got.dlogp * m / kept.len() as f64)
                .collect();
            golden::close(
                &[ratio],
                &[case.expected["ratio"].as_f64().unwrap()],
                1e-12,
                &case.name,
            );
            golden::close(
                &[got.loss],
                &[case.expected["loss_per_token"].as_f64().unwrap()],
                1e-12,
                &case.name,
            );
            golden::close(
                &slopes,
                &golden::floats(&case.expected["dloss_dlogp"]),
                1e-12,
                &case.name,
            );
            compared += 1;
        }
        assert!(compared >= 2);
    }
}
