//! One token's part of the objective: surrogate, KL and entropy, with the slopes the head needs.
//!
//! ```text
//! loss = weight · surrogate - entropy_coef · H + kl_loss_coef · KL        weight between trainer and engine, or 1
//! ```
//!
//! Old, reference and engine log-probs, advantages and weights are plain numbers here: no gradient can reach them.
//! A token whose log-ratio is NaN is masked and counted, never trained as if its ratio were 1.

use super::cispo;
use super::clip::{self, Clip, Surrogate};
use super::importance::Truncation;
use super::kl::KlKind;
use super::mismatch::Correction;
use super::opsm;
use super::ratio::ratio_of;

/// Which surrogate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyLoss {
    /// PPO's, at each token's ratio.
    Clipped,
    /// PPO's, at the trajectory's ratio.
    Sequence,
    /// CISPO's.
    Cispo,
    /// Likelihood of the tokens: supervised fine-tuning.
    Likelihood,
}

/// KL to the reference, in the loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KlTerm {
    /// Estimator.
    pub kind: KlKind,
    /// Times this in the loss; 0 only measures.
    pub coef: f64,
    /// Times the ratio, differentiated as a product.
    pub unbiased: bool,
}

/// What is minimised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Objective {
    /// The surrogate.
    pub loss: PolicyLoss,
    /// Its bounds.
    pub clip: Clip,
    /// KL to the reference.
    pub kl: Option<KlTerm>,
    /// Entropy bonus.
    pub entropy_coef: f64,
    /// Reweighting between trainer and engine, token by token. Corrections that look at more than one token come with
    /// the token.
    pub tis: Option<Truncation>,
    /// Leave bad trajectories that drifted further than this out of the surrogate.
    pub opsm_delta: Option<f64>,
}

/// What is known of one sampled token. Absent log-probs are NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Token {
    /// Log-prob now.
    pub logp: f64,
    /// Entropy now.
    pub entropy: f64,
    /// `logp - old` of the token, or its trajectory's mean of that.
    pub log_ratio: f64,
    /// Log-prob of the policy the ratio is against.
    pub old: f64,
    /// Log-prob of the reference.
    pub reference: f64,
    /// Log-prob the engine reported.
    pub rollout: f64,
    /// Advantage.
    pub advantage: f64,
    /// Weight in the objective.
    pub weight: f64,
    /// Correction between trainer and engine, where it was computed before the step.
    pub correction: Option<Correction>,
    /// Mean of `old - logp` over its trajectory; read with [`Objective::opsm_delta`] only.
    pub drift: f64,
}

/// One token's losses, unweighted, and its weighted slopes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TokenLoss {
    /// Of the whole objective by `logp`, weight included.
    pub dlogp: f64,
    /// Of the whole objective by the entropy, weight included.
    pub dentropy: f64,
    /// All terms together.
    pub loss: f64,
    /// The surrogate.
    pub pg: f64,
    /// KL to the reference.
    pub kl: f64,
    /// The surrogate's bound acted.
    pub clipped: bool,
    /// The dual bound acted.
    pub dual_clipped: bool,
    /// The ratio was clamped to stay finite.
    pub ratio_clamped: bool,
    /// Weight between trainer and engine; 1 without.
    pub tis: f64,
    /// Its bounds acted.
    pub tis_clipped: bool,
    /// Something was NaN: the token does not train.
    pub masked: bool,
    /// The correction between trainer and engine left it out.
    pub rejected: bool,
    /// Its trajectory had drifted too far.
    pub opsm_masked: bool,
}

impl Objective {
    /// Supervised fine-tuning.
    pub fn sft() -> Self {
        let clip = Clip {
            low: 0.0,
            high: 0.0,
            dual: None,
        };
        Self {
            loss: PolicyLoss::Likelihood,
            clip,
            kl: None,
            entropy_coef: 0.0,
            tis: None,
            opsm_delta: None,
        }
    }

    /// The ratio or the drift is one of the whole trajectory, so all of a trajectory's log-probs come before any slope.
    pub fn needs_trajectory(&self) -> bool {
        self.loss == PolicyLoss::Sequence || self.opsm_delta.is_some()
    }

    /// One token's part.
    pub fn token(&self, token: &Token) -> TokenLoss {
        if token.log_ratio.is_nan() || token.logp.is_nan() {
            return TokenLoss {
                masked: true,
                tis: 1.0,
                ..TokenLoss::default()
            };
        }
        if token.correction.is_some_and(|c| c.rejected) {
            return TokenLoss {
                rejected: true,
                tis: 1.0,
                ..TokenLoss::default()
            };
        }
        let (ratio, ratio_clamped) = ratio_of(token.log_ratio);
        let advantage = token.advantage;
        let mut policy = match self.loss {
            PolicyLoss::Clipped | PolicyLoss::Sequence => {
                clip::surrogate(ratio, advantage, self.clip)
            }
            PolicyLoss::Cispo => cispo::surrogate(token.logp, ratio, advantage, self.clip),
            PolicyLoss::Likelihood => Surrogate {
                loss: -token.logp,
                dlogp: -1.0,
                ..Surrogate::default()
            },
        };
        let opsm_masked = self
            .opsm_delta
            .is_some_and(|delta| opsm::masks(token.drift, advantage, delta));
        if opsm_masked {
            policy = Surrogate::default();
        }
        let (tis, tis_clipped) = match (token.correction, self.tis) {
            (Some(correction), _) => (correction.weight, correction.bounded),
            (None, Some(bounds)) => bounds.weight(token.old - token.rollout),
            (None, None) => (1.0, false),
        };
        let (mut kl, mut dkl, mut coef) = (0.0, 0.0, 0.0);
        if let Some(term) = self.kl {
            (kl, dkl) = match term.unbiased {
                true => {
                    // The token's own, where `log_ratio` is its trajectory's.
                    let (own, _) = ratio_of(token.logp - token.old);
                    term.kind.unbiased(token.logp, token.reference, own)
                }
                false => term.kind.estimate(token.logp, token.reference),
            };
            coef = term.coef;
        }
        let pg = tis * policy.loss;
        if tis.is_nan() || kl.is_nan() {
            return TokenLoss {
                masked: true,
                tis: 1.0,
                ..TokenLoss::default()
            };
        }
        TokenLoss {
            dlogp: token.weight * (tis * policy.dlogp + coef * dkl),
            dentropy: -token.weight * self.entropy_coef,
            loss: pg - self.entropy_coef * token.entropy + coef * kl,
            pg,
            kl,
            clipped: policy.clipped,
            dual_clipped: policy.dual_clipped,
            ratio_clamped,
            tis,
            tis_clipped,
            masked: false,
            rejected: false,
            opsm_masked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objective() -> Objective {
        Objective {
            loss: PolicyLoss::Clipped,
            clip: Clip {
                low: 0.2,
                high: 0.28,
                dual: Some(3.0),
            },
            kl: Some(KlTerm {
                kind: KlKind::K3,
                coef: 0.05,
                unbiased: false,
            }),
            entropy_coef: 0.01,
            tis: Some(Truncation {
                low: 0.0,
                high: 2.0,
            }),
            opsm_delta: None,
        }
    }

    fn token(logp: f64) -> Token {
        Token {
            logp,
            entropy: 1.5,
            log_ratio: logp + 1.1,
            old: -1.1,
            reference: -1.3,
            rollout: -1.25,
            advantage: 0.7,
            weight: 0.25,
            correction: None,
            drift: 0.3,
        }
    }

    #[test]
    fn slopes_are_those_of_the_loss_and_importance_weights_are_constants() {
        for loss in [PolicyLoss::Clipped, PolicyLoss::Likelihood] {
            for unbiased in [false, true] {
                let mut objective = Objective {
                    loss,
                    ..objective()
                };
                objective.kl = objective.kl.map(|kl| KlTerm { unbiased, ..kl });
                let at = |logp| objective.token(&token(logp)).loss * 0.25;
                let slope = (at(-1.0 + 1e-6) - at(-1.0 - 1e-6)) / 2e-6;
                let got = objective.token(&token(-1.0));
                assert!(
                    (slope - got.dlogp).abs() < 1e-8,
                    "{loss:?} {slope} {}",
                    got.dlogp
                );
                assert_eq!(got.dentropy, -0.0025);
            }
        }
    }

    #[test]
    fn a_nan_ratio_masks_the_token_and_an_infinite_one_stays_finite() {
        let nan = objective().token(&Token {
            log_ratio: f64::NAN,
            ..token(-1.0)
        });
        assert!(nan.masked && nan.dlogp == 0.0 && nan.loss == 0.0);
        let far = objective().token(&Token {
            log_ratio: 200.0,
            advantage: 0.0,
            ..token(-1.0)
        });
        assert!(far.ratio_clamped && far.loss.is_finite() && far.dlogp.is_finite());
        let lost = objective().token(&Token {
            reference: f64::NAN,
            ..token(-1.0)
        });
        assert!(lost.masked);
    }

    #[test]
    fn every_coefficient_changes_the_loss_or_its_slope() {
        let base = objective();
        let token = Token {
            log_ratio: 0.5,
            ..token(-1.0)
        };
        let negative = Token {
            advantage: -1.0,
            log_ratio: 2.0,
            ..token
        };
        let both = |o: Objective| (o.token(&token), o.token(&negative));
        let kl = base.kl.unwrap();
        let changed = [
            Objective {
                clip: Clip {
                    low: 0.9,
                    high: 0.9,
                    dual: Some(3.0),
                },
                ..base
            },
            Objective {
                clip: Clip {
                    dual: None,
                    ..base.clip
                },
                ..base
            },
            Objective {
                kl: Some(KlTerm { coef: 0.1, ..kl }),
                ..base
            },
            Objective {
                kl: Some(KlTerm {
                    kind: KlKind::K2,
                    ..kl
                }),
                ..base
            },
            Objective {
                kl: Some(KlTerm {
                    unbiased: true,
                    ..kl
                }),
                ..base
            },
            Objective {
                entropy_coef: 0.0,
                ..base
            },
            Objective { tis: None, ..base },
            Objective {
                opsm_delta: Some(0.1),
                ..base
            },
            Objective {
                loss: PolicyLoss::Cispo,
                ..base
            },
        ];
        for other in changed {
            assert_ne!(both(other), both(base), "{other:?}");
        }
    }

    #[test]
    fn a_rejected_token_has_no_part_in_any_term_and_a_weighted_one_is_scaled() {
        let with = |correction| Token {
            correction: Some(correction),
            ..token(-1.0)
        };
        let rejected = objective().token(&with(Correction {
            rejected: true,
            ..Correction::default()
        }));
        assert!(rejected.rejected && rejected.loss == 0.0);
        assert_eq!((rejected.dlogp, rejected.dentropy), (0.0, 0.0));
        let pg = |weight| {
            let correction = Correction {
                weight,
                ..Correction::default()
            };
            objective().token(&with(correction)).pg
        };
        assert_eq!(pg(0.5), 0.5 * pg(1.0));
    }
}
