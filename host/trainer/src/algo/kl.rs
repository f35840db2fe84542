//! Estimators of KL(policy ‖ reference) from one token's log-probs (Schulman, "Approximating KL divergence").
//!
//! ```text
//! d = logp - ref       k1 = d       k2 = d² / 2       k3 = e^(-d) - 1 + d
//! ```
//!
//! `low_var_kl` is k3 clamped to [-10, 10], with no gradient where the clamp acts. In the loss the default is k3;
//! k1 is refused there unless it is weighted by the ratio (`use_unbiased_kl`), because alone its gradient is 0 in expectation
//! (config). In the reward k1 is the default.

use serde::{Deserialize, Serialize};

/// Which estimator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KlKind {
    /// The log-ratio itself: unbiased, large variance.
    K1,
    /// Half its square: biased, small variance, exact gradient.
    K2,
    /// Never negative, unbiased.
    K3,
    /// k3, clamped.
    LowVarKl,
}

/// Beyond this `low_var_kl` is clamped.
const CLAMP: f64 = 10.0;

impl KlKind {
    /// The estimate, and its derivative by `logp`.
    pub fn estimate(self, logp: f64, reference: f64) -> (f64, f64) {
        let d = logp - reference;
        match self {
            Self::K1 => (d, 1.0),
            Self::K2 => (d * d / 2.0, d),
            Self::K3 | Self::LowVarKl => {
                let value = (-d).exp_m1() + d;
                if self == Self::LowVarKl && !(-CLAMP..=CLAMP).contains(&value) {
                    return (value.clamp(-CLAMP, CLAMP), 0.0);
                }
                (value, -(-d).exp_m1())
            }
        }
    }

    /// The estimate under the sampling policy, `ratio · k`, and its derivative, which is that of the product.
    pub fn unbiased(self, logp: f64, reference: f64, ratio: f64) -> (f64, f64) {
        let (value, slope) = self.estimate(logp, reference);
        (ratio * value, ratio * (value + slope))
    }
}

#[cfg(test)]
mod tests {
    use super::super::golden;
    use super::*;

    #[test]
    fn estimates_and_slopes_equal_the_closed_forms() {
        let mut compared = 0;
        for case in golden::cases("kl") {
            let kind: KlKind = serde_json::from_value(case.inputs["kind"].clone()).unwrap();
            let get = |key: &str| case.inputs[key].as_f64().unwrap();
            let (logp, reference) = (get("logp"), get("ref_logp"));
            let (value, slope) = if case.inputs["unbiased"] == true {
                kind.unbiased(logp, reference, (logp - get("old_logp")).exp())
            } else {
                kind.estimate(logp, reference)
            };
            let want = [&case.expected["value"], &case.expected["dvalue_dlogp"]]
                .map(|x| x.as_f64().unwrap());
            golden::close(&[value, slope], &want, 1e-12, &case.name);
            compared += 1;
        }
        assert!(compared >= 22, "{compared} cases");
    }

    #[test]
    fn k3_is_never_negative() {
        for i in -40..40 {
            let (value, _) = KlKind::K3.estimate(-3.0, -3.0 + f64::from(i) * 0.1);
            assert!(value >= 0.0);
        }
    }
}
