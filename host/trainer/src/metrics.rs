//! What a train step reports. Names are slime's; a number that was not measured is `null`, never 0.

use serde::{Deserialize, Serialize};

/// One train step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainMetrics {
    /// The whole objective, weighted as it was minimised. NaN, written as `null`, while only the critic trains.
    #[serde(rename = "train/loss")]
    pub loss: f64,
    /// The surrogate. `null` for supervised fine-tuning.
    #[serde(rename = "train/pg_loss")]
    pub pg_loss: Option<f64>,
    /// Weighted mean of `old - logp`.
    #[serde(rename = "train/ppo_kl")]
    pub ppo_kl: Option<f64>,
    /// KL to the reference.
    #[serde(rename = "train/kl_loss")]
    pub kl_loss: Option<f64>,
    /// Entropy of the tempered policy, in nats. NaN, written as `null`, while only the critic trains.
    #[serde(rename = "train/entropy")]
    pub entropy: f64,
    /// Share of tokens whose clipped term is the larger loss.
    #[serde(rename = "train/clipfrac")]
    pub clipfrac: Option<f64>,
    /// The same, under slime's name.
    #[serde(rename = "train/pg_clipfrac")]
    pub pg_clipfrac: Option<f64>,
    /// Share of tokens held by the dual clip; `null` without one.
    #[serde(rename = "train/dual_clipfrac")]
    pub dual_clipfrac: Option<f64>,
    /// Mean weight between trainer and engine; `null` without `use_tis`.
    #[serde(rename = "train/tis")]
    pub tis: Option<f64>,
    /// Share of tokens whose weight was truncated.
    #[serde(rename = "train/tis_clipfrac")]
    pub tis_clipfrac: Option<f64>,
    /// Share of tokens that the correction between trainer and engine left out; `null` where none can be.
    #[serde(rename = "train/rejected")]
    pub rejected: Option<f64>,
    /// Share of tokens left out because their trajectory drifted; `null` without `use_opsm`.
    #[serde(rename = "train/opsm_clipfrac")]
    pub opsm_clipfrac: Option<f64>,
    /// KL(engine ‖ trainer), mean of `rollout - old`; `null` where the engine recorded nothing.
    #[serde(rename = "train/mismatch_kl")]
    pub mismatch_kl: Option<f64>,
    /// The same by the k3 estimator, which is never negative.
    #[serde(rename = "train/mismatch_k3")]
    pub mismatch_k3: Option<f64>,
    /// KL(student ‖ teacher), mean of `old - teacher`; `null` without a teacher.
    #[serde(rename = "train/opd_reverse_kl")]
    pub opd_reverse_kl: Option<f64>,
    /// The critic's loss; `null` without a critic.
    #[serde(rename = "train/value_loss")]
    pub value_loss: Option<f64>,
    /// Share of tokens whose value moved beyond the clip.
    #[serde(rename = "train/value_clipfrac")]
    pub value_clipfrac: Option<f64>,
    /// 1 - Var(returns - values) / Var(returns), of the values before this rollout step; 1 is a perfect critic, 0 a useless one.
    #[serde(rename = "train/value_explained")]
    pub value_explained: Option<f64>,
    /// L2 norm of the critic's gradient before clipping.
    #[serde(rename = "train/critic_grad_norm")]
    pub critic_grad_norm: Option<f64>,
    /// The critic's learning rate.
    #[serde(rename = "train/critic_lr")]
    pub critic_lr: Option<f64>,
    /// L2 norm of the gradient before clipping.
    #[serde(rename = "train/grad_norm")]
    pub grad_norm: Option<f64>,
    /// Learning rate of this step.
    #[serde(rename = "train/lr")]
    pub lr: f64,
    /// Mean difference of the trainer's and the engine's log-prob; `null` where none was recorded.
    #[serde(rename = "train/train_rollout_logprob_abs_diff")]
    pub train_rollout_logprob_abs_diff: Option<f64>,
    /// The largest one.
    #[serde(rename = "train/train_rollout_logprob_abs_diff_max")]
    pub train_rollout_logprob_abs_diff_max: Option<f64>,
    /// Mean advantage magnitude over tokens; 0 means that nothing was to be learned. `null` for fine-tuning.
    #[serde(rename = "train/advantage_abs")]
    pub advantage_abs: Option<f64>,
    /// Tokens of the sequences that went through the model.
    #[serde(rename = "train/tokens")]
    pub tokens: usize,
    /// Tokens that trained.
    #[serde(rename = "train/trained_tokens")]
    pub trained_tokens: usize,
    /// Tokens left out because a log-prob was NaN.
    #[serde(rename = "train/masked_tokens")]
    pub masked_tokens: usize,
    /// Tokens whose ratio was clamped to stay finite.
    #[serde(rename = "train/ratio_clamped")]
    pub ratio_clamped: usize,
    /// Rollouts of the step.
    #[serde(rename = "train/rollouts")]
    pub rollouts: usize,
    /// Rollouts left out because they were not scored.
    #[serde(rename = "train/masked_rollouts")]
    pub masked_rollouts: usize,
    /// Micro-batches.
    #[serde(rename = "train/micro_batches")]
    pub micro_batches: usize,
    /// 1 if the weights were left alone: nothing trained, or the gradient was not finite.
    #[serde(rename = "train/skipped")]
    pub skipped: u64,
    /// Updates made since the run began.
    #[serde(rename = "train/num_updates")]
    pub num_updates: u64,
}
