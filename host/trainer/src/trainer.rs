//! The trainer's public face: rollout records in, new weights and metrics out.
//!
//! ```text
//! records ─► batches ─► [reference, old log-probs] ─► advantages ─► per batch: forward, backward, clip, AdamW
//! ```
//!
//! It knows no loop, no engine and no file of rollouts; those are the program's. Read [`crate::step`] for one step
//! and [`crate::data`] for what a batch is.

use crate::algo::objective::Objective;
use crate::config::{Problem, TrainConfig};
use crate::critic::{self, Critic};
use crate::data::rollouts::{Limits, check_tokens, rollouts};
use crate::data::{Batch, MicroBatch, routes, split_steps};
use crate::metrics::TrainMetrics;
use crate::optim::{self, Optimizer};
use crate::passes::{check_rollout_logprobs, head};
use crate::step::{Evaluation, Scores, metrics, micro_step};
use crate::{Error, Result, advantages};
use slime_core::RolloutRecord;
use slime_kernels::Ops;
use slime_model::layers::{Gradients, Recompute};
use slime_model::{Ffn, ModelSpec, Network, ParamSpec};
use std::sync::Arc;
use tracing::{debug_span, info_span};

/// Where a call stands, for whoever shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being computed.
    pub phase: Phase,
    /// Which train step of how many.
    pub step: (usize, usize),
    /// Tokens done of tokens to do, in this phase of this step.
    pub tokens: (usize, usize),
}

/// A part of a train call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Log-probs of the reference model.
    Reference,
    /// Log-probs of the teacher.
    Teacher,
    /// Log-probs of the policy before it changes.
    OldLogProbs,
    /// The critic's values, and its training.
    Critic,
    /// Forward and backward.
    Train,
    /// The optimizer.
    Update,
}

/// Called as work proceeds.
pub type OnProgress = Box<dyn Fn(Progress) + Send + Sync>;

/// Log-probs and entropies of one sequence's tokens but the first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenScores {
    /// `[tokens - 1]`: entry `t` is of token `t + 1`.
    pub logprobs: Vec<f64>,
    /// `[tokens - 1]`: entropy of the distribution that token was drawn from.
    pub entropy: Vec<f64>,
}

/// A sequence to fine-tune on.
#[derive(Clone, Copy, Debug)]
pub struct SftSequence<'a> {
    /// The tokens.
    pub tokens: &'a [u32],
    /// `[tokens]`: 1 trains. The first token never does, because nothing predicts it.
    pub loss_mask: &'a [u8],
}

impl SftSequence<'_> {
    /// Tokens and mask, to be sent to ranks.
    pub(crate) fn owned(&self) -> OwnSequence {
        (self.tokens.to_vec(), self.loss_mask.to_vec())
    }

    /// What [`Self::owned`] gave.
    pub(crate) fn of((tokens, loss_mask): &OwnSequence) -> SftSequence<'_> {
        SftSequence { tokens, loss_mask }
    }
}

/// Tokens and mask of an [`SftSequence`].
pub(crate) type OwnSequence = (Vec<u32>, Vec<u8>);

/// A model being trained on one device.
pub struct Trainer<O: Ops> {
    pub(crate) ops: Arc<O>,
    pub(crate) config: TrainConfig,
    pub(crate) network: Network<O>,
    pub(crate) optimizer: Optimizer<O>,
    pub(crate) reference: Option<Network<O>>,
    pub(crate) teacher: Option<Network<O>>,
    pub(crate) critic: Option<Critic<O>>,
    grads: Gradients<O>,
    recompute: Vec<Recompute>,
    pub(crate) vocab: usize,
    on_progress: Option<OnProgress>,
}

impl<O: Ops> Trainer<O> {
    /// A trainer of `weights`, which are in the order of `spec`'s parameters.
    ///
    /// # Errors
    /// Every problem of the configuration; weights that do not fit; a device without room.
    pub fn new(
        ops: Arc<O>,
        spec: Arc<ModelSpec>,
        weights: Vec<O::Tensor>,
        config: TrainConfig,
    ) -> Result<Self> {
        config.validate().map_err(Error::Config)?;
        refuse_replay_without_experts(&config, &spec)?;
        let network = Network::new(ops.clone(), spec, weights)?;
        let optimizer = Optimizer::new(&*ops, network.weights(), &config)?;
        let grads = Gradients::zeros(&*ops, network.weights())?;
        let spec = network.spec();
        let recompute = recompute_of(&config, spec.layers.len());
        let vocab = spec.vocab;
        let critic = match config.has_critic() {
            true => Some(Critic::new(&network, &config)?),
            false => None,
        };
        Ok(Self {
            ops,
            config,
            network,
            optimizer,
            reference: None,
            teacher: None,
            critic,
            grads,
            recompute,
            vocab,
            on_progress: None,
        })
    }

    /// Give it the reference model's weights, which KL is measured against.
    ///
    /// # Errors
    /// They do not fit the model.
    pub fn with_reference(mut self, weights: Vec<O::Tensor>) -> Result<Self> {
        self.reference = Some(Network::new(
            self.ops.clone(),
            self.network.spec().clone(),
            weights,
        )?);
        Ok(self)
    }

    /// Give it the weights of a teacher to distil from: any model over the same tokens.
    ///
    /// # Errors
    /// They do not fit `spec`, or its tokens are others.
    pub fn with_teacher(mut self, spec: Arc<ModelSpec>, weights: Vec<O::Tensor>) -> Result<Self> {
        check_teacher(&spec, self.vocab)?;
        self.teacher = Some(Network::new(self.ops.clone(), spec, weights)?);
        Ok(self)
    }

    /// The critic, for an estimator that has one.
    pub fn critic(&mut self) -> Option<&mut Critic<O>> {
        self.critic.as_mut()
    }

    /// Ids from `vocab` on are no tokens of the tokenizer: they are −inf in every softmax.
    #[must_use]
    pub fn with_vocab(mut self, vocab: usize) -> Self {
        self.vocab = vocab.min(self.network.spec().vocab);
        self
    }

    /// Be told how far a call is.
    #[must_use]
    pub fn with_progress(mut self, on_progress: OnProgress) -> Self {
        self.on_progress = Some(on_progress);
        self
    }

    /// The configuration.
    pub fn config(&self) -> &TrainConfig {
        &self.config
    }

    /// The network, with its present weights.
    pub fn network(&self) -> &Network<O> {
        &self.network
    }

    /// Updates made since the run began.
    pub fn num_updates(&self) -> u64 {
        self.optimizer.progress.num_updates
    }

    /// Learning rate of the next step.
    pub fn lr(&self) -> f64 {
        self.optimizer.lr()
    }

    /// The last step's gradients before clipping, in the order of the network's parameters.
    pub fn gradients(&self) -> &Gradients<O> {
        &self.grads
    }

    /// One parameter's present values, `[rows × cols]`: what `slime_model::hf::save_dir` reads.
    ///
    /// # Errors
    /// The device failed, or the parameter is of another model.
    pub fn read_param(&self, param: &ParamSpec) -> Result<Vec<f32>> {
        let at = self
            .network
            .params()
            .iter()
            .position(|p| p.name == param.name);
        match at {
            Some(at) => Ok(self.ops.read(&self.network.weights().0[at])?),
            None => Err(slime_model::Error::Input(format!(
                "{} is no parameter of this model",
                param.name
            ))
            .into()),
        }
    }

    /// Train on the records of one rollout step: one or several train steps, in order.
    ///
    /// # Errors
    /// A record that cannot be trained on (nothing is trained then), or the device failed.
    pub fn train(&mut self, records: &[RolloutRecord]) -> Result<Vec<TrainMetrics>> {
        let rollouts = rollouts(records, self.limits())?;
        if rollouts.is_empty() {
            return Err(Error::Empty);
        }
        let ranges = split_steps(rollouts.len(), &self.config);
        let length = self.config.loss_constant_length.unwrap_or(0);
        let mut batches: Vec<Batch<'_>> = ranges
            .into_iter()
            .map(|range| Batch::new(&rollouts, range, self.config.loss_aggregation, length))
            .collect();
        let mut packed: Vec<Vec<MicroBatch>> = batches
            .iter()
            .map(|batch| MicroBatch::pack(batch, self.config.max_tokens_per_gpu))
            .collect();
        check_rollout_logprobs(&self.config, records)?;
        self.fill_reference(&mut batches, &packed)?;
        self.fill_teacher(&mut batches, &packed)?;
        if self.config.use_rollout_routing_replay {
            for (batch, packed) in batches.iter().zip(&mut packed) {
                routes::of_rollouts(self.network.spec(), batch, packed)?;
            }
        }
        self.fill_old(&mut batches, &mut packed)?;
        let warms_up = self.fill_values(&mut batches, &packed)?;
        advantages::fill(&self.config, &rollouts, &mut batches);
        self.fill_corrections(&mut batches);
        let objective = self.config.objective();
        let num_steps = batches.len();
        let steps = batches.iter().zip(&packed).enumerate();
        steps
            .map(|(step, (batch, packed))| {
                let at = (step, num_steps);
                let criticised = self.critic_step(batch, packed, at)?;
                let evaluation = Evaluation {
                    objective,
                    batch,
                    old_is_engine: self.config.use_rollout_logprobs,
                };
                let mut metrics = if warms_up {
                    without_policy(batch, self.optimizer.lr(), &self.optimizer.progress)
                } else {
                    self.step(evaluation, packed, at)?
                };
                if let Some(report) = criticised {
                    critic::tell(&mut metrics, &report, batch);
                }
                Ok(metrics)
            })
            .collect()
    }

    /// One step of supervised fine-tuning: minus the log-likelihood of the masked tokens.
    ///
    /// # Errors
    /// A sequence that cannot be trained on, or the device failed.
    pub fn sft_step(&mut self, sequences: &[SftSequence<'_>]) -> Result<TrainMetrics> {
        let pairs = checked(sequences, self.limits())?;
        let length = self.config.loss_constant_length.unwrap_or(0);
        let batch = Batch::from_masked(&pairs, self.config.loss_aggregation, length);
        let packed = MicroBatch::pack(&batch, self.config.max_tokens_per_gpu);
        self.step(
            Evaluation {
                objective: Objective::sft(),
                batch: &batch,
                old_is_engine: false,
            },
            &packed,
            (0, 1),
        )
    }

    /// Log-probs and entropies of every token but the first, at the configured temperature.
    ///
    /// # Errors
    /// A sequence the model cannot take, or the device failed.
    pub fn log_probs(&self, sequences: &[&[u32]]) -> Result<Vec<TokenScores>> {
        for (index, tokens) in sequences.iter().enumerate() {
            check_tokens(tokens, self.limits())
                .map_err(|detail| Error::Sequence { index, detail })?;
        }
        let masks: Vec<Vec<u8>> = sequences
            .iter()
            .map(|tokens| vec![1; tokens.len()])
            .collect();
        let pairs: Vec<(&[u32], &[u8])> = sequences
            .iter()
            .zip(&masks)
            .map(|(tokens, mask)| (*tokens, &mask[..]))
            .collect();
        let batch = Batch::from_masked(&pairs, self.config.loss_aggregation, 0);
        let packed = MicroBatch::pack(&batch, self.config.max_tokens_per_gpu);
        let scores = self.scores(&self.network, &batch, &packed, Phase::OldLogProbs, (0, 1))?;
        let mut out = vec![TokenScores::default(); sequences.len()];
        for sequence in &batch.sequences {
            out[sequence.rollout] = TokenScores {
                logprobs: scores.logp[sequence.trained.clone()].to_vec(),
                entropy: scores.entropy[sequence.trained.clone()].to_vec(),
            };
        }
        Ok(out)
    }

    /// The critic's values before this rollout step, and whether only it trains in this one.
    fn fill_values(
        &mut self,
        batches: &mut [Batch<'_>],
        packed: &[Vec<MicroBatch>],
    ) -> Result<bool> {
        let num_steps = batches.len();
        for (step, (batch, packed)) in batches.iter_mut().zip(packed).enumerate() {
            let Some(critic) = &self.critic else {
                return Ok(false);
            };
            let total = packed.iter().map(|m| m.ids.len()).sum();
            self.report(Phase::Critic, (step, num_steps), (0, total));
            batch.columns.value = critic.values(batch, packed)?;
        }
        let warm_up = self.config.num_critic_only_steps;
        Ok(self.critic.as_mut().is_some_and(|critic| {
            critic.num_rollouts += 1;
            critic.num_rollouts <= warm_up
        }))
    }

    fn critic_step(
        &mut self,
        batch: &Batch<'_>,
        packed: &[MicroBatch],
        step: (usize, usize),
    ) -> Result<Option<critic::CriticReport>> {
        let total = packed.iter().map(|m| m.ids.len()).sum();
        if self.critic.is_some() {
            self.report(Phase::Critic, step, (0, total));
        }
        let (clip, recompute) = (self.config.value_clip, &self.recompute);
        self.critic
            .as_mut()
            .map(|critic| critic.step(batch, packed, recompute, clip))
            .transpose()
    }

    fn step(
        &mut self,
        evaluation: Evaluation<'_>,
        packed: &[MicroBatch],
        step: (usize, usize),
    ) -> Result<TrainMetrics> {
        let num_tokens = evaluation.batch.num_tokens();
        let _train = info_span!("train", step = step.0, num_tokens).entered();
        self.grads.zero(&*self.ops)?;
        let mut scores = Scores::unknown(evaluation.batch.num_trained());
        let total = packed.iter().map(|m| m.ids.len()).sum();
        let mut done = 0;
        for micro in packed {
            self.report(Phase::Train, step, (done, total));
            let head = head(&*self.ops, &self.network, &self.config, self.vocab);
            let (network, recompute) = (&self.network, &self.recompute);
            micro_step(
                network,
                &head,
                &evaluation,
                micro,
                recompute,
                &mut self.grads,
                &mut scores,
            )?;
            done += micro.ids.len();
        }
        self.report(Phase::Update, step, (total, total));
        let mut metrics = metrics(&evaluation, &scores);
        metrics.micro_batches = packed.len();
        metrics.lr = self.optimizer.lr();
        if evaluation.batch.num_trained() == metrics.masked_tokens {
            self.optimizer.skip();
            metrics.skipped = 1;
        } else {
            let _update = debug_span!("update").entered();
            let params = self.network.params().clone();
            let report = self.optimizer.step(
                &*self.ops,
                &params,
                self.network.weights_mut(),
                &self.grads,
            )?;
            metrics.grad_norm = Some(report.grad_norm);
            metrics.skipped = u64::from(report.skipped);
        }
        metrics.num_updates = self.optimizer.progress.num_updates;
        Ok(metrics)
    }

    fn limits(&self) -> Limits {
        let spec = self.network.spec();
        Limits {
            vocab: self.vocab,
            max_positions: spec.max_positions,
        }
    }

    pub(crate) fn report(&self, phase: Phase, step: (usize, usize), tokens: (usize, usize)) {
        if let Some(on_progress) = &self.on_progress {
            on_progress(Progress {
                phase,
                step,
                tokens,
            });
        }
    }
}

/// Sequences to fine-tune on as pairs of tokens and mask.
///
/// # Errors
/// The first one that cannot be trained on.
pub(crate) fn checked<'a>(
    sequences: &[SftSequence<'a>],
    limits: Limits,
) -> Result<Vec<(&'a [u32], &'a [u8])>> {
    for (index, sequence) in sequences.iter().enumerate() {
        let refuse = |detail: String| Error::Sequence { index, detail };
        let (tokens, mask) = (sequence.tokens.len(), sequence.loss_mask.len());
        if tokens != mask {
            return Err(refuse(format!(
                "loss_mask has {mask} values for {tokens} tokens"
            )));
        }
        if sequence.loss_mask.iter().any(|&m| m > 1) {
            return Err(refuse("loss_mask holds a value other than 0 and 1".into()));
        }
        check_tokens(sequence.tokens, limits).map_err(refuse)?;
    }
    Ok(sequences.iter().map(|s| (s.tokens, s.loss_mask)).collect())
}

/// The metrics of a step in which the policy stays as it is.
pub(crate) fn without_policy(
    batch: &Batch<'_>,
    lr: f64,
    progress: &optim::Progress,
) -> TrainMetrics {
    TrainMetrics {
        loss: f64::NAN,
        entropy: f64::NAN,
        lr,
        tokens: batch.num_tokens(),
        trained_tokens: batch.num_trained(),
        rollouts: batch.num_rollouts,
        masked_rollouts: batch.num_masked_rollouts,
        num_updates: progress.num_updates,
        ..TrainMetrics::default()
    }
}

/// Does it know the student's tokens?
pub(crate) fn check_teacher(spec: &ModelSpec, vocab: usize) -> Result<()> {
    if spec.vocab >= vocab {
        return Ok(());
    }
    Err(slime_model::Error::Input(format!(
        "the teacher knows {} tokens, the student {vocab}: distillation compares log-probs of the same tokens",
        spec.vocab
    ))
    .into())
}

/// Routes are a mixture of experts'.
pub(crate) fn refuse_replay_without_experts(config: &TrainConfig, spec: &ModelSpec) -> Result<()> {
    let replays = [
        ("use_routing_replay", config.use_routing_replay),
        (
            "use_rollout_routing_replay",
            config.use_rollout_routing_replay,
        ),
    ];
    let has_experts = spec.layers.iter().any(|l| matches!(l.ffn, Ffn::Moe(_)));
    match replays.iter().find(|(_, on)| *on) {
        Some((key, _)) if !has_experts => {
            let detail = format!("has no effect: {} has no experts", spec.family.model_type);
            Err(Error::Config(vec![Problem { key, detail }]))
        }
        _ => Ok(()),
    }
}

/// What each layer computes again: the first ones what the configuration says, the rest one degree less.
pub(crate) fn recompute_of(config: &TrainConfig, layers: usize) -> Vec<Recompute> {
    let deep = config.recompute_num_layers.unwrap_or(layers);
    let rest = match config.recompute_granularity {
        Recompute::Full | Recompute::Mlp => Recompute::Selective,
        Recompute::Selective | Recompute::None => Recompute::None,
    };
    (0..layers)
        .map(|layer| match layer < deep {
            true => config.recompute_granularity,
            false => rest,
        })
        .collect()
}
