//! Everything a user may say about training, under slime's and Megatron's names, and what contradicts itself.
//!
//! Plain data: defaults are slime's where it has one. Read [`check`] for the rules.

pub mod check;

pub use check::Problem;

use crate::algo::Estimator;
use crate::algo::kl::KlKind;
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
    /// Whiten advantages over the rollout step's tokens. The REINFORCE++ estimators require it.
    pub normalize_advantages: bool,
    /// Discount of REINFORCE++'s returns.
    pub gamma: f64,
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
    /// Reweigh tokens by the truncated ratio between trainer and engine.
    pub use_tis: bool,
    /// Its largest weight.
    pub tis_clip: f64,
    /// Its smallest weight.
    pub tis_clip_low: f64,
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
    /// Only the first layers, this many, recompute; the rest keep everything.
    pub recompute_num_layers: Option<usize>,
    /// Rows whose logits exist at once; chosen by the vocabulary's size when not given.
    pub log_probs_chunk_size: Option<usize>,

    /// Learning rate.
    pub lr: f64,
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
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            advantage_estimator: Estimator::Grpo,
            disable_grpo_std_normalization: false,
            normalize_advantages: false,
            gamma: 1.0,
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
            tis_clip: 2.0,
            tis_clip_low: 0.0,
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

    /// The option that makes a reference model necessary, if one does.
    pub fn needs_reference(&self) -> Option<&'static str> {
        match (self.use_kl_loss, self.kl_coef != 0.0) {
            (true, _) => Some("use_kl_loss"),
            (_, true) => Some("kl_coef"),
            _ => None,
        }
    }
}
