//! Everything a user may say about training, under slime's and Megatron's names, and what contradicts itself.
//!
//! Plain data: defaults are slime's where it has one. Read [`check`] for the rules.

pub mod check;
mod check_correction;

pub use check::Problem;

use crate::algo::Estimator;
use crate::algo::clip::Clip;
use crate::algo::grpo::Std;
use crate::algo::importance::Truncation;
use crate::algo::kl::KlKind;
use crate::algo::mismatch::{Bounds, Level, Mismatch, Mode, Weighting};
use crate::algo::objective::{KlTerm, Objective, PolicyLoss};
use crate::algo::weights::Aggregation;
use crate::optim::schedule::{DecayStyle, WsdStyle};
use serde::{Deserialize, Serialize};
use slime_model::layers::Recompute;

/// Options of the trainer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainConfig {
    /// How rewards become advantages.
    pub advantage_estimator: Estimator,
    /// Dr. GRPO: centre rewards, but do not divide by the group's std.
    pub disable_grpo_std_normalization: bool,
    /// What GRPO divides centred rewards by; `sample` when not given.
    pub grpo_std: Option<Std>,
    /// Take rewards themselves as advantages: no baseline, no std.
    pub disable_rewards_normalization: bool,
    /// Whiten advantages over the rollout step's tokens. The REINFORCE++ estimators require it.
    pub normalize_advantages: bool,
    /// Discount of REINFORCE++'s and PPO's returns.
    pub gamma: f64,
    /// GAE's discount of later errors of the critic.
    pub lambd: f64,
    /// How far a value may move from where it was before its loss stops falling.
    pub value_clip: f64,
    /// Rollout steps at the beginning in which only the critic trains.
    pub num_critic_only_steps: u64,
    /// Take a teacher's penalty off every token's advantage: on-policy distillation.
    pub use_opd: bool,
    /// Its coefficient.
    pub opd_kl_coef: f64,
    /// How far below 1 a ratio may go before its gradient stops.
    pub eps_clip: f64,
    /// How far above 1; `eps_clip` when not given.
    pub eps_clip_high: Option<f64>,
    /// Dual clip: the largest loss of a token with negative advantage, in units of its advantage.
    pub eps_clip_c: Option<f64>,
    /// KL penalty inside the reward.
    pub kl_coef: f64,
    /// KL term inside the loss. With a coefficient of 0 the KL is only measured.
    pub use_kl_loss: bool,
    /// Its coefficient.
    pub kl_loss_coef: f64,
    /// Estimator of the KL; `k3` in the loss and `k1` in the reward when not given.
    pub kl_loss_type: Option<KlKind>,
    /// Weigh the KL in the loss by the ratio.
    pub use_unbiased_kl: bool,
    /// Entropy bonus.
    pub entropy_coef: f64,
    /// Take the engine's log-probs as the old policy's instead of computing them.
    pub use_rollout_logprobs: bool,
    /// Reweigh tokens by the ratio between trainer and engine.
    pub use_tis: bool,
    /// Over what that ratio is taken.
    pub tis_level: Level,
    /// What becomes of a ratio outside the bounds.
    pub tis_mode: Mode,
    /// Its largest weight.
    pub tis_clip: f64,
    /// Its smallest weight.
    pub tis_clip_low: f64,
    /// Divide weights by their mean over the train step.
    pub tis_batch_normalize: bool,
    /// Reject tokens by the ratio between trainer and engine.
    pub use_rs: bool,
    /// Over what that ratio is taken.
    pub rs_level: Level,
    /// The largest ratio that is kept.
    pub rs_clip: f64,
    /// The smallest; one over the largest when not given.
    pub rs_clip_low: Option<f64>,
    /// Reject a trajectory with a token whose ratio is below this.
    pub rs_veto_threshold: Option<f64>,
    /// Leave bad trajectories that the policy drifted away from out of the surrogate.
    pub use_opsm: bool,
    /// How far that is.
    pub opsm_delta: f64,
    /// Of a mixture of experts: train with the experts that the pass for the old log-probs chose.
    pub use_routing_replay: bool,
    /// Of a mixture of experts: train with the experts that the engine chose, which came with the rollouts.
    pub use_rollout_routing_replay: bool,
    /// How token losses are averaged.
    pub loss_aggregation: Aggregation,
    /// The divisor of `constant-length`.
    pub loss_constant_length: Option<usize>,
    /// Temperature the rollouts were sampled at; logits are divided by it.
    pub rollout_temperature: f64,

    /// Rollouts of one train step.
    pub global_batch_size: Option<usize>,
    /// Train steps made of the rollouts of one rollout step, if `global_batch_size` is not given.
    pub num_steps_per_rollout: Option<usize>,
    /// Tokens of one micro-batch. A longer trajectory makes one of its own.
    pub max_tokens_per_gpu: usize,
    /// What is computed again in the backward pass.
    pub recompute_granularity: Recompute,
    /// Only the first layers, this many, recompute so; of `full` and `mlp` the rest recompute selectively, of `selective` nothing.
    pub recompute_num_layers: Option<usize>,
    /// Rows whose logits exist at once; chosen by the vocabulary's size when not given.
    pub log_probs_chunk_size: Option<usize>,

    /// Learning rate.
    pub lr: f64,
    /// The critic's; `lr` when not given.
    pub critic_lr: Option<f64>,
    /// The critic's train steps of linear warm-up; `lr_warmup_iters` when not given.
    pub critic_lr_warmup_iters: Option<u64>,
    /// Where a decay ends.
    pub min_lr: f64,
    /// Shape of the decay.
    pub lr_decay_style: DecayStyle,
    /// Train steps after which the decay has ended.
    pub lr_decay_iters: Option<u64>,
    /// Train steps of linear warm-up.
    pub lr_warmup_iters: u64,
    /// Where warm-up starts.
    pub lr_warmup_init: f64,
    /// Train steps of WSD's last phase.
    pub lr_wsd_decay_iters: Option<u64>,
    /// Shape of WSD's last phase.
    pub lr_wsd_decay_style: WsdStyle,
    /// Decoupled weight decay of matrices. Norms and biases never decay.
    pub weight_decay: f64,
    /// Adam's first decay rate.
    pub adam_beta1: f64,
    /// Adam's second decay rate.
    pub adam_beta2: f64,
    /// Added outside Adam's root.
    pub adam_eps: f64,
    /// Largest gradient norm; 0 does not clip.
    pub clip_grad: f64,
    /// Keep moments in bf16 and of each master only what its weight lacks, on devices whose weights are bf16: 12 bytes a
    /// parameter in place of 18.
    pub use_precision_aware_optimizer: bool,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            advantage_estimator: Estimator::Grpo,
            disable_grpo_std_normalization: false,
            grpo_std: None,
            disable_rewards_normalization: false,
            normalize_advantages: false,
            gamma: 1.0,
            lambd: 1.0,
            value_clip: 0.2,
            num_critic_only_steps: 0,
            use_opd: false,
            opd_kl_coef: 1.0,
            eps_clip: 0.2,
            eps_clip_high: None,
            eps_clip_c: None,
            kl_coef: 0.0,
            use_kl_loss: false,
            kl_loss_coef: 0.0,
            kl_loss_type: None,
            use_unbiased_kl: false,
            entropy_coef: 0.0,
            use_rollout_logprobs: false,
            use_tis: false,
            tis_level: Level::Token,
            tis_mode: Mode::Truncate,
            tis_clip: 2.0,
            tis_clip_low: 0.0,
            tis_batch_normalize: false,
            use_rs: false,
            rs_level: Level::Token,
            rs_clip: 2.0,
            rs_clip_low: None,
            rs_veto_threshold: None,
            use_opsm: false,
            opsm_delta: 1e-4,
            use_routing_replay: false,
            use_rollout_routing_replay: false,
            loss_aggregation: Aggregation::RolloutMean,
            loss_constant_length: None,
            rollout_temperature: 1.0,
            global_batch_size: None,
            num_steps_per_rollout: None,
            max_tokens_per_gpu: 4096,
            recompute_granularity: Recompute::Selective,
            recompute_num_layers: None,
            log_probs_chunk_size: None,
            lr: 1e-6,
            critic_lr: None,
            critic_lr_warmup_iters: None,
            min_lr: 0.0,
            lr_decay_style: DecayStyle::Constant,
            lr_decay_iters: None,
            lr_warmup_iters: 0,
            lr_warmup_init: 0.0,
            lr_wsd_decay_iters: None,
            lr_wsd_decay_style: WsdStyle::default(),
            weight_decay: 0.1,
            adam_beta1: 0.9,
            adam_beta2: 0.98,
            adam_eps: 1e-8,
            clip_grad: 1.0,
            use_precision_aware_optimizer: false,
        }
    }
}

impl TrainConfig {
    /// Upper bound of the ratio, above 1.
    pub fn clip_high(&self) -> f64 {
        self.eps_clip_high.unwrap_or(self.eps_clip)
    }

    /// Estimator of the KL where this configuration uses one.
    pub fn kl_kind(&self) -> KlKind {
        self.kl_loss_type.unwrap_or(if self.use_kl_loss {
            KlKind::K3
        } else {
            KlKind::K1
        })
    }

    /// What GRPO divides by.
    pub fn std(&self) -> Std {
        if self.disable_grpo_std_normalization {
            Std::None
        } else {
            self.grpo_std.unwrap_or_default()
        }
    }

    /// Corrections between trainer and engine that are made before a train step, where there are any. Plain truncation
    /// token by token needs nothing but the token itself and is part of the objective.
    pub fn mismatch(&self) -> Option<Mismatch> {
        let plain = self.tis_level == Level::Token
            && self.tis_mode == Mode::Truncate
            && !self.tis_batch_normalize;
        let rejects = self.use_rs || self.rs_veto_threshold.is_some();
        if !rejects && (!self.use_tis || plain) {
            return None;
        }
        Some(Mismatch {
            weighting: self.use_tis.then_some(Weighting {
                level: self.tis_level,
                mode: self.tis_mode,
                bounds: Bounds {
                    low: self.tis_clip_low,
                    high: self.tis_clip,
                },
            }),
            rejection: self.use_rs.then_some((
                self.rs_level,
                Bounds {
                    low: self.rs_clip_low.unwrap_or(1.0 / self.rs_clip),
                    high: self.rs_clip,
                },
            )),
            veto: self.rs_veto_threshold,
            normalize: self.tis_batch_normalize,
        })
    }

    /// What the configuration minimises.
    pub fn objective(&self) -> Objective {
        Objective {
            loss: match self.advantage_estimator {
                Estimator::Gspo => PolicyLoss::Sequence,
                Estimator::Cispo => PolicyLoss::Cispo,
                _ => PolicyLoss::Clipped,
            },
            clip: Clip {
                low: self.eps_clip,
                high: self.clip_high(),
                dual: self.eps_clip_c,
            },
            kl: self.use_kl_loss.then(|| KlTerm {
                kind: self.kl_kind(),
                coef: self.kl_loss_coef,
                unbiased: self.use_unbiased_kl,
            }),
            entropy_coef: self.entropy_coef,
            tis: (self.use_tis && self.mismatch().is_none()).then_some(Truncation {
                low: self.tis_clip_low,
                high: self.tis_clip,
            }),
            opsm_delta: self.use_opsm.then_some(self.opsm_delta),
        }
    }

    /// Whether the old policy's log-probs are wanted before the first train step.
    pub fn needs_old(&self) -> bool {
        self.kl_coef != 0.0 || self.use_opd || self.mismatch().is_some()
    }

    /// The option that makes the engine's log-probs necessary, if one does.
    pub fn needs_rollout_log_probs(&self) -> Option<&'static str> {
        [
            (self.use_rollout_logprobs, "use_rollout_logprobs"),
            (self.use_tis, "use_tis"),
            (self.use_rs, "use_rs"),
            (self.rs_veto_threshold.is_some(), "rs_veto_threshold"),
        ]
        .into_iter()
        .find_map(|(asks, name)| asks.then_some(name))
    }

    /// Whether there is a critic.
    pub fn has_critic(&self) -> bool {
        self.advantage_estimator == Estimator::Ppo
    }

    /// The option that makes a reference model necessary, if one does.
    pub fn needs_reference(&self) -> Option<&'static str> {
        match (self.use_kl_loss, self.kl_coef != 0.0) {
            (true, _) => Some("use_kl_loss"),
            (_, true) => Some("kl_coef"),
            _ => None,
        }
    }
}
