//! Off-policy correction between the engine that sampled and the trainer: importance weights and rejection, by token or
//! by trajectory. TIS (Yao et al. 2025), IcePop (Ling team 2025) and MIS (Liu, Li et al. 2025) are settings of it.
//!
//! ```text
//! d_t = old_t - rollout_t                    ratio = exp(clamp(level(d), ±20)), a constant
//! level      token d_t  ·  sequence Σ d  ·  geometric mean d        over a trajectory's sampled tokens
//! weights    truncate: clamp(ratio, low, high)  ·  icepop: ratio inside [low, high], else 0
//!            mask: the ratio, and a token outside [low, high] is rejected
//! rejection  a token (or whole trajectory) whose ratio at its own level lies outside [low, high] is rejected
//! veto       a trajectory with one token's ratio below the threshold is rejected
//! normalise  weights ÷ their mean over the train step (over tokens, or over trajectories)
//! ```
//!
//! The surrogate is multiplied by the weight; a rejected token has no part in any term of the loss. Denominators stay
//! what they were, so rejecting never raises what is left. Normalisation runs over the train step, not over a
//! micro-batch as in slime's helper, because results must not depend on packing. slime's `clip` mode is `truncate` with
//! a lower bound. Bounds of the geometric level are close to 1 (slime's example: 0.9999 and 1.0001).

use super::ratio::ratio_of;
use serde::{Deserialize, Serialize};

/// Over what a ratio is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Each token by itself.
    #[default]
    Token,
    /// The product over a trajectory: exact, and of large variance.
    Sequence,
    /// The geometric mean over a trajectory: not exact, and blind to length.
    Geometric,
}

/// What becomes of a ratio outside the bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// It is moved to the bound.
    #[default]
    Truncate,
    /// The surrogate weighs nothing; KL and entropy stay.
    Icepop,
    /// The token is rejected.
    Mask,
}

/// A range of ratios.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Smallest.
    pub low: f64,
    /// Largest.
    pub high: f64,
}

impl Bounds {
    fn holds(self, ratio: f64) -> bool {
        (self.low..=self.high).contains(&ratio)
    }
}

/// Importance weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weighting {
    /// Over what.
    pub level: Level,
    /// What becomes of those outside.
    pub mode: Mode,
    /// Which are outside.
    pub bounds: Bounds,
}

/// What is corrected, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mismatch {
    /// Importance weights.
    pub weighting: Option<Weighting>,
    /// Rejection by a ratio of its own level.
    pub rejection: Option<(Level, Bounds)>,
    /// The smallest ratio a token may have before its trajectory is rejected.
    pub veto: Option<f64>,
    /// Divide weights by their mean.
    pub normalize: bool,
}

/// What follows for one token. Its weight is NaN where a log-prob is not known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Correction {
    /// Times the surrogate.
    pub weight: f64,
    /// The bounds acted on it.
    pub bounded: bool,
    /// It has no part in the loss.
    pub rejected: bool,
}

impl Default for Correction {
    fn default() -> Self {
        Self {
            weight: 1.0,
            bounded: false,
            rejected: false,
        }
    }
}

impl Mismatch {
    /// Every token's correction from its log-ratio, `d` of the module's formula, trajectory after trajectory.
    pub fn correct<'a>(&self, trajectories: impl Iterator<Item = &'a [f64]>) -> Vec<Correction> {
        let mut all = Vec::new();
        // Sum and number of what the mean is taken over.
        let (mut sum, mut count) = (0.0, 0.0);
        for log_ratios in trajectories {
            let own = self.trajectory(log_ratios);
            let by_token = self
                .weighting
                .is_none_or(|weighting| weighting.level == Level::Token);
            let known = own.iter().filter(|c| !c.weight.is_nan() && !c.rejected);
            let limit = if by_token { usize::MAX } else { 1 };
            for correction in known.take(limit) {
                sum += correction.weight;
                count += 1.0;
            }
            all.extend(own);
        }
        if self.normalize && sum > 0.0 {
            let mean = sum / count;
            all.iter_mut().for_each(|c| c.weight /= mean);
        }
        all
    }

    fn trajectory(&self, log_ratios: &[f64]) -> Vec<Correction> {
        let at = |level| ratios(log_ratios, level);
        let mut out = vec![Correction::default(); log_ratios.len()];
        if let Some(Weighting {
            level,
            mode,
            bounds,
        }) = self.weighting
        {
            for (slot, ratio) in out.iter_mut().zip(at(level)) {
                slot.bounded = !ratio.is_nan() && !bounds.holds(ratio);
                slot.weight = match mode {
                    Mode::Truncate => ratio.clamp(bounds.low, bounds.high),
                    Mode::Icepop if slot.bounded => 0.0,
                    _ => ratio,
                };
                slot.rejected = mode == Mode::Mask && slot.bounded;
            }
        }
        if let Some((level, bounds)) = self.rejection {
            for (slot, ratio) in out.iter_mut().zip(at(level)) {
                slot.rejected |= !bounds.holds(ratio);
            }
        }
        let vetoed = |least: f64| log_ratios.iter().any(|d| ratio_of(*d).0 < least);
        if self.veto.is_some_and(vetoed) {
            out.iter_mut().for_each(|slot| slot.rejected = true);
        }
        out
    }
}

/// One ratio a token. A token whose log-ratio is NaN stays NaN and out of its trajectory's.
fn ratios(log_ratios: &[f64], level: Level) -> Vec<f64> {
    let known = || log_ratios.iter().filter(|d| !d.is_nan());
    let count = known().count().max(1) as f64;
    let whole = match level {
        Level::Token => 0.0,
        Level::Sequence => known().sum(),
        Level::Geometric => known().sum::<f64>() / count,
    };
    log_ratios
        .iter()
        .map(|d| match level {
            _ if d.is_nan() => f64::NAN,
            Level::Token => ratio_of(*d).0,
            _ => ratio_of(whole).0,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        low: 0.5,
        high: 2.0,
    };

    fn weighting(level: Level, mode: Mode) -> Mismatch {
        Mismatch {
            weighting: Some(Weighting {
                level,
                mode,
                bounds: BOUNDS,
            }),
            ..Mismatch::default()
        }
    }

    fn weights(mismatch: &Mismatch, trajectories: &[&[f64]]) -> Vec<f64> {
        let all = mismatch.correct(trajectories.iter().copied());
        all.iter().map(|c| c.weight).collect()
    }

    #[test]
    fn identical_log_probs_weigh_one_at_every_level() {
        for level in [Level::Token, Level::Sequence, Level::Geometric] {
            for mode in [Mode::Truncate, Mode::Icepop, Mode::Mask] {
                let mismatch = Mismatch {
                    rejection: Some((level, BOUNDS)),
                    veto: Some(1e-4),
                    normalize: true,
                    ..weighting(level, mode)
                };
                let got = mismatch.correct([&[0.0; 3][..], &[], &[0.0]].into_iter());
                assert_eq!(got, [Correction::default(); 4]);
            }
        }
    }

    #[test]
    fn icepop_weighs_what_is_outside_nothing_and_masking_rejects_it() {
        let logs = [0.0, 1.0, -1.0, 0.5];
        let ice = weighting(Level::Token, Mode::Icepop).correct([&logs[..]].into_iter());
        assert_eq!(ice[1].weight, 0.0);
        assert!(ice.iter().all(|c| !c.rejected));
        let mask = weighting(Level::Token, Mode::Mask).correct([&logs[..]].into_iter());
        assert_eq!(mask[1].weight, 1f64.exp());
        assert_eq!(
            mask.iter().map(|c| c.rejected).collect::<Vec<_>>(),
            [false, true, true, false]
        );
    }

    #[test]
    fn one_hopeless_token_vetoes_its_trajectory_and_no_other() {
        let mismatch = Mismatch {
            veto: Some(1e-4),
            ..Mismatch::default()
        };
        let got = mismatch.correct([&[0.0, -9.9][..], &[0.0, -9.0]].into_iter());
        assert_eq!(
            got.iter().map(|c| c.rejected).collect::<Vec<_>>(),
            [true, true, false, false]
        );
    }

    #[test]
    fn normalised_weights_have_mean_one_over_tokens_or_over_trajectories() {
        let all: [&[f64]; 3] = [&[0.1, -0.2, 0.3], &[], &[-0.4]];
        for level in [Level::Token, Level::Sequence] {
            let mismatch = Mismatch {
                normalize: true,
                ..weighting(level, Mode::Truncate)
            };
            let got = weights(&mismatch, &all);
            let mean = match level {
                Level::Token => got.iter().sum::<f64>() / 4.0,
                _ => (got[0] + got[3]) / 2.0,
            };
            assert!((mean - 1.0).abs() < 1e-15, "{level:?} {got:?}");
        }
    }

    #[test]
    fn a_token_nobody_knows_stays_out_of_its_trajectory() {
        let got = weights(
            &weighting(Level::Geometric, Mode::Truncate),
            &[&[0.2, f64::NAN, 0.4]],
        );
        assert!(got[1].is_nan());
        assert!((got[0] - 0.3f64.exp()).abs() < 1e-15);
    }
}
