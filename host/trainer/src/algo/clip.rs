//! PPO's clipped surrogate (arXiv:1707.06347, eq. 7), with DAPO's higher upper bound (arXiv:2503.14476, §3.1)
//! and the dual clip (arXiv:1912.09729, eq. 5).
//!
//! ```text
//! ratio = exp(logp - old)
//! loss  = max(-ratio · A, -clamp(ratio, 1 - low, 1 + high) · A)        where A < 0: at most -dual · A
//! dloss/dlogp = -ratio · A   where the unclipped term is the larger loss, else 0
//! ```
//!
//! Values are of one token; weighting and averaging belong to [`super::weights`].

/// How far the ratio may move before its gradient stops.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clip {
    /// Below 1.
    pub low: f64,
    /// Above 1.
    pub high: f64,
    /// The largest loss of a token with negative advantage, in units of its advantage.
    pub dual: Option<f64>,
}

/// One token's surrogate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Surrogate {
    /// The loss.
    pub loss: f64,
    /// Its derivative by `logp`.
    pub dlogp: f64,
    /// The clipped term is the larger loss.
    pub clipped: bool,
    /// The dual bound acts.
    pub dual_clipped: bool,
}

/// The surrogate at a ratio.
pub fn surrogate(ratio: f64, advantage: f64, clip: Clip) -> Surrogate {
    let free = -ratio * advantage;
    let held = -ratio.clamp(1.0 - clip.low, 1.0 + clip.high) * advantage;
    let (loss, dlogp) = if free >= held {
        (free, free)
    } else {
        (held, 0.0)
    };
    let clipped = held > free;
    if let Some(dual) = clip.dual
        && advantage < 0.0
        && loss > -dual * advantage
    {
        return Surrogate {
            loss: -dual * advantage,
            dlogp: 0.0,
            clipped,
            dual_clipped: true,
        };
    }
    Surrogate {
        loss,
        dlogp,
        clipped,
        dual_clipped: false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::golden;
    use super::super::ratio::ratio_of;
    use super::*;

    #[test]
    fn signs_bounds_and_slopes_equal_the_closed_forms() {
        let mut compared = 0;
        for case in golden::cases("clip") {
            let get = |key: &str| case.inputs[key].as_f64();
            let clip = Clip {
                low: get("eps_clip").unwrap(),
                high: get("eps_clip_high").unwrap(),
                dual: get("eps_clip_c"),
            };
            let (ratio, clamped) = ratio_of(get("log_ratio").unwrap());
            let got = surrogate(ratio, get("advantage").unwrap(), clip);
            let want = |key: &str| case.expected[key].as_f64().unwrap();
            golden::close(
                &[got.loss, got.dlogp],
                &[want("loss"), want("dloss_dlogp")],
                1e-12,
                &case.name,
            );
            assert_eq!(got.clipped, case.expected["clipped"], "{}", case.name);
            assert_eq!(
                clamped,
                case.expected["num_ratio_clamped"] == 1,
                "{}",
                case.name
            );
            compared += 1;
        }
        assert!(compared >= 19, "{compared} cases");
    }

    #[test]
    fn the_slope_is_that_of_the_loss() {
        for advantage in [-1.5, -0.2, 0.7] {
            for log_ratio in [-0.6, -0.1, 0.05, 0.2, 0.9, 2.0] {
                let clip = Clip {
                    low: 0.2,
                    high: 0.28,
                    dual: Some(3.0),
                };
                let at = |x: f64| surrogate(x.exp(), advantage, clip);
                let slope = (at(log_ratio + 1e-6).loss - at(log_ratio - 1e-6).loss) / 2e-6;
                assert!(
                    (slope - at(log_ratio).dlogp).abs() < 1e-6,
                    "{advantage} {log_ratio}"
                );
            }
        }
    }
}
