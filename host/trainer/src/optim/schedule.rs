//! The learning rate as Megatron computes it: a function of how many samples (rollouts) were trained before.
//!
//! Warm-up is linear from `init_lr`; the first step of a warm-up from 0 therefore moves nothing. After `decay`
//! samples every style but `constant` stays at `min_lr`.

use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// Shape of the decay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DecayStyle {
    /// No decay.
    #[default]
    #[serde(rename = "constant")]
    Constant,
    /// Straight down to `min_lr`.
    #[serde(rename = "linear")]
    Linear,
    /// Half a cosine down to `min_lr`.
    #[serde(rename = "cosine")]
    Cosine,
    /// `√(warmup / samples)`.
    #[serde(rename = "inverse-square-root")]
    InverseSquareRoot,
    /// Warm-up, stable, decay.
    #[serde(rename = "WSD")]
    Wsd,
}

/// Shape of the last phase of [`DecayStyle::Wsd`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WsdStyle {
    /// Straight.
    Linear,
    /// Half a cosine.
    Cosine,
    /// `2 · ½^x - 1`.
    #[default]
    Exponential,
    /// `1 - √x`.
    MinusSqrt,
}

/// A schedule; lengths are in samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// After warm-up.
    pub max_lr: f64,
    /// At the end.
    pub min_lr: f64,
    /// Where warm-up starts.
    pub init_lr: f64,
    /// Length of the warm-up.
    pub warmup: u64,
    /// Where the decay ends.
    pub decay: u64,
    /// Its shape.
    pub style: DecayStyle,
    /// Length of WSD's last phase.
    pub wsd_decay: u64,
    /// Its shape.
    pub wsd_style: WsdStyle,
}

impl Schedule {
    /// The rate of the step that follows `num_samples` trained samples.
    pub fn lr(&self, num_samples: u64) -> f64 {
        let at = num_samples as f64;
        let (warmup, decay) = (self.warmup as f64, self.decay as f64);
        if self.warmup > 0 && num_samples <= self.warmup {
            return self.init_lr + (self.max_lr - self.init_lr) * at / warmup;
        }
        if self.style == DecayStyle::Constant {
            return self.max_lr;
        }
        if num_samples > self.decay {
            return self.min_lr;
        }
        if self.style == DecayStyle::InverseSquareRoot {
            return (self.max_lr * warmup.max(1.0).sqrt() / at.max(1.0).sqrt()).max(self.min_lr);
        }
        let progress = if decay > warmup {
            (at - warmup) / (decay - warmup)
        } else {
            1.0
        };
        let keep = match self.style {
            DecayStyle::Linear => 1.0 - progress,
            DecayStyle::Cosine => half_cosine(progress),
            DecayStyle::Wsd => self.wsd(at - (decay - self.wsd_decay as f64)),
            DecayStyle::Constant | DecayStyle::InverseSquareRoot => 1.0,
        };
        self.min_lr + keep * (self.max_lr - self.min_lr)
    }

    /// What is kept `into` samples after the last phase began.
    fn wsd(&self, into: f64) -> f64 {
        if into <= 0.0 {
            return 1.0;
        }
        let x = into / self.wsd_decay as f64;
        match self.wsd_style {
            WsdStyle::Linear => 1.0 - x,
            WsdStyle::Cosine => half_cosine(x),
            WsdStyle::Exponential => 2.0 * 0.5f64.powf(x) - 1.0,
            WsdStyle::MinusSqrt => 1.0 - x.sqrt(),
        }
    }
}

fn half_cosine(x: f64) -> f64 {
    0.5 * ((PI * x).cos() + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algo::golden;

    #[test]
    fn pitfall_28_every_style_equals_megatrons_table() {
        let mut compared = 0;
        for case in golden::cases("lr") {
            let count = |key: &str| case.inputs[key].as_u64().unwrap_or(0);
            let rate = |key: &str| case.inputs[key].as_f64().unwrap();
            let wsd = case.inputs.get("wsd_style").cloned();
            let schedule = Schedule {
                max_lr: rate("max_lr"),
                min_lr: rate("min_lr"),
                init_lr: rate("init_lr"),
                warmup: count("warmup"),
                decay: count("decay"),
                style: serde_json::from_value(case.inputs["style"].clone()).unwrap(),
                wsd_decay: count("wsd_decay"),
                wsd_style: wsd
                    .map(|w| serde_json::from_value(w).unwrap())
                    .unwrap_or_default(),
            };
            let points = golden::floats(&case.inputs["num_samples"]);
            for (at, want) in std::iter::zip(points, golden::floats(&case.expected)) {
                let got = schedule.lr(at as u64);
                assert!(
                    (got - want).abs() <= 1e-12 * 1e-5,
                    "{} at {at}: {got} is not {want}",
                    case.name
                );
            }
            compared += 1;
        }
        assert!(compared >= 13, "{compared} tables");
    }
}
