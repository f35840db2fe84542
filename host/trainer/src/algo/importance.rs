//! Truncated importance sampling between trainer and engine (`--use-tis`): the engine's and the trainer's
//! log-prob of one token differ, and the loss is reweighted by their clamped ratio.
//!
//! ```text
//! w_t = clamp(exp(old_t - rollout_t), low, high)        loss_t ← w_t · loss_t,   w_t a constant
//! ```

use super::ratio::ratio_of;
use serde::{Deserialize, Serialize};

/// Bounds of the weight.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Truncation {
    /// Smallest weight.
    pub low: f64,
    /// Largest weight.
    pub high: f64,
}

impl Truncation {
    /// The weight at a log-ratio, and whether a bound acted.
    pub fn weight(self, log_ratio: f64) -> (f64, bool) {
        let (ratio, _) = ratio_of(log_ratio);
        let weight = ratio.clamp(self.low, self.high);
        (weight, weight != ratio)
    }
}

#[cfg(test)]
mod tests {
    use super::super::golden;
    use super::*;

    #[test]
    fn weights_are_truncated_on_both_sides() {
        let mut compared = 0;
        for case in golden::cases("tis") {
            let (Some(low), Some(high)) =
                (case.inputs["low"].as_f64(), case.inputs["high"].as_f64())
            else {
                continue;
            };
            let bounds = Truncation { low, high };
            let all: Vec<_> = golden::floats(&case.inputs["log_ratio"])
                .into_iter()
                .map(|x| bounds.weight(x))
                .collect();
            let weights: Vec<f64> = all.iter().map(|w| w.0).collect();
            golden::close(
                &weights,
                &golden::floats(&case.expected["weights"]),
                1e-12,
                &case.name,
            );
            let clipped = all.iter().filter(|w| w.1).count() as f64 / all.len() as f64;
            golden::close(
                &[clipped],
                &[case.expected["clipfrac"].as_f64().unwrap()],
                1e-12,
                &case.name,
            );
            compared += 1;
        }
        assert!(compared >= 2);
    }
}
