//! The critic's loss (arXiv:1707.06347, eq. 9, clipped as in its reference implementation).
//!
//! ```text
//! loss = max((V - R)², (clamp(V, V_old - clip, V_old + clip) - R)²)
//! ```
//!
//! There is no ½, as in slime. `value_clip` (0.2) is in units of the reward.

/// One token's value loss.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ValueLoss {
    /// The loss.
    pub loss: f64,
    /// Its derivative by the value.
    pub dvalue: f64,
    /// The value has moved further than the clip from where it was.
    pub clipped: bool,
}

/// The loss of `value` against `target`, with `old` what the critic said before this rollout step's updates.
pub fn loss(value: f64, old: f64, target: f64, clip: f64) -> ValueLoss {
    let held = value.clamp(old - clip, old + clip);
    let (free_error, held_error) = (value - target, held - target);
    let clipped = held != value;
    let (error, slope) = if clipped && held_error.powi(2) > free_error.powi(2) {
        (held_error, 0.0)
    } else {
        (free_error, 2.0 * free_error)
    };
    ValueLoss {
        loss: error * error,
        dvalue: slope,
        clipped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inside_the_clip_it_is_the_squared_error() {
        assert_eq!(
            loss(1.0, 1.125, 3.0, 0.25),
            ValueLoss {
                loss: 4.0,
                dvalue: -4.0,
                clipped: false
            }
        );
    }

    #[test]
    fn beyond_the_clip_only_a_value_that_went_away_from_the_target_is_pulled_back() {
        // It moved towards the target: the clipped error is the larger one, and has no slope.
        let towards = loss(2.0, 1.0, 3.0, 0.25);
        assert_eq!((towards.loss, towards.dvalue), (1.75 * 1.75, 0.0));
        let away = loss(0.0, 1.0, 3.0, 0.25);
        assert_eq!((away.loss, away.dvalue), (9.0, -6.0));
        assert!(towards.clipped && away.clipped);
    }

    #[test]
    fn the_slope_is_that_of_the_loss() {
        for (old, target) in [(0.3, 1.0), (-0.2, -0.4), (2.0, 0.1)] {
            for value in [-1.0, 0.05, 0.31, 1.7] {
                let at = |v| loss(v, old, target, 0.2).loss;
                let slope = (at(value + 1e-6) - at(value - 1e-6)) / 2e-6;
                assert!((slope - loss(value, old, target, 0.2).dvalue).abs() < 1e-6);
            }
        }
    }
}
