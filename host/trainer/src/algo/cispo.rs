//! CISPO (arXiv:2506.13585, eq. 4): the clipped ratio is a constant weight, so a clipped token keeps its gradient.
//!
//! ```text
//! loss = -stop_gradient(clamp(ratio, 1 - low, 1 + high)) · A · logp
//! ```
//!
//! The paper's setting leaves the lower side open (`eps_clip = 1`) and `eps_clip_high` near 4.

use super::clip::{Clip, Surrogate};

/// One token's loss.
pub fn surrogate(logp: f64, ratio: f64, advantage: f64, clip: Clip) -> Surrogate {
    let weight = ratio.clamp(1.0 - clip.low, 1.0 + clip.high);
    let dlogp = -weight * advantage;
    Surrogate {
        loss: dlogp * logp,
        dlogp,
        clipped: weight != ratio,
        dual_clipped: false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::golden;
    use super::*;

    #[test]
    fn a_clipped_token_keeps_its_gradient() {
        let mut compared = 0;
        for case in golden::cases("cispo") {
            let get = |key: &str| case.inputs[key].as_f64().unwrap();
            let clip = Clip {
                low: get("eps_clip"),
                high: get("eps_clip_high"),
                dual: None,
            };
            let got = surrogate(get("logp"), get("log_ratio").exp(), get("advantage"), clip);
            let want = [&case.expected["loss"], &case.expected["dloss_dlogp"]]
                .map(|x| x.as_f64().unwrap());
            golden::close(&[got.loss, got.dlogp], &want, 1e-12, &case.name);
            compared += 1;
        }
        assert!(compared >= 3);
    }
}
