//! One rank of a trainer: its part of the model, its part of the batch, and the steps all ranks make together.
//!
//! Every rank is given the same records and computes the same plan, advantages and metrics; only tensors are divided. It
//! is [`crate::Trainer`] written for many: the same batches, objective and metrics, other passes. Read [`super::trainer`]
//! for who starts and ends ranks.

use super::copies::sum_copies;
use super::critic::RankCritic;
use super::head::SplitHead;
use super::layout::ParallelConfig;
use super::mesh::Mesh;
use super::pipeline::Pipeline;
use super::place::Axis;
use super::replay;
use super::share::{Cost, micro_batches};
use super::slice::{LocalMicro, Slicing};
use super::stage::{Make, Stage};
use super::zero::Zero;
use crate::algo::objective::{Objective, Token};
use crate::config::TrainConfig;
use crate::critic::{self, CriticReport};
use crate::data::rollouts::{Limits, check_tokens, rollouts};
use crate::data::{Batch, split_steps};
use crate::metrics::TrainMetrics;
use crate::passes::{check_rollout_logprobs, check_taught, correct};
use crate::step::{Evaluation, Scores, metrics};
use crate::trainer::{
    OwnSequence, SftSequence, TokenScores, check_teacher, checked, recompute_of,
    refuse_replay_without_experts, without_policy,
};
use crate::{Error, Result, advantages};
use slime_core::RolloutRecord;
use slime_kernels::{Ops, Reduce, TokenStats};
use slime_model::layers::{Gradients, Recompute, Routes};
use slime_model::{Ffn, ModelSpec};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use tracing::{debug_span, info_span};

/// One rank of a trainer.
pub struct Rank<O: Ops> {
    pub(crate) ops: Arc<O>,
    config: TrainConfig,
    parallel: ParallelConfig,
    /// Its groups.
    pub mesh: Mesh<O>,
    /// Its part of the model.
    pub stage: Stage<O>,
    reference: Option<Stage<O>>,
    teacher: Option<Stage<O>>,
    /// Its part of the critic, for an estimator that has one.
    pub(super) critic: Option<RankCritic<O>>,
    /// Its part of the gradients, summed over the ranks that hold copies but not over data-parallel ranks.
    pub grads: Gradients<O>,
    /// Its part of the optimizer.
    pub optimizer: Zero<O>,
    recompute: Vec<Recompute>,
    vocab: usize,
}

impl<O: Ops> Rank<O> {
    /// This rank's part of a trainer. Ids from `vocab` on are no tokens.
    ///
    /// # Errors
    /// Every problem of the configuration; parameters that cannot be made; a device without room.
    pub fn new(
        ops: Arc<O>,
        spec: Arc<ModelSpec>,
        mesh: Mesh<O>,
        (config, parallel): (TrainConfig, ParallelConfig),
        vocab: usize,
        make: &Make<'_, O>,
    ) -> Result<Self> {
        config.validate().map_err(Error::Config)?;
        refuse_replay_without_experts(&config, &spec)?;
        let vocab = vocab.min(spec.vocab);
        let critic = match config.has_critic() {
            true => {
                let how = (&config, &parallel);
                Some(RankCritic::new(ops.clone(), &spec, &mesh, how, make)?)
            }
            false => None,
        };
        let stage = Stage::new(ops.clone(), spec, &mesh, &parallel, make)?;
        let optimizer = Zero::new(&*ops, &stage, &mesh, &config, parallel.ddp_bucket_size)?;
        let recompute = recompute_of(&config, stage.spec.layers.len());
        Ok(Self {
            grads: stage.gradients()?,
            reference: None,
            teacher: None,
            critic,
            ops,
            config,
            parallel,
            mesh,
            stage,
            optimizer,
            recompute,
            vocab,
        })
    }

    /// Give it the reference model's weights.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn set_reference(&mut self, make: &Make<'_, O>) -> Result<()> {
        let (ops, spec) = (self.ops.clone(), self.stage.spec.clone());
        let stage = Stage::new(ops, spec, &self.mesh, &self.parallel, make)?;
        self.reference = Some(stage);
        Ok(())
    }

    /// Give it the weights of a teacher to distil from: any model over the same tokens that the layout fits.
    ///
    /// # Errors
    /// The layout does not fit it, its tokens are others, or the device has no room.
    pub fn set_teacher(&mut self, spec: Arc<ModelSpec>, make: &Make<'_, O>) -> Result<()> {
        check_teacher(&spec, self.vocab)?;
        let mut parallel = self.parallel.clone();
        if !spec.layers.iter().any(|l| matches!(l.ffn, Ffn::Moe(_))) {
            // A dense teacher of a mixture: nothing of it is an expert's.
            parallel.expert_model_parallel_size = 1;
            parallel.expert_tensor_parallel_size = None;
        }
        let mut stage = Stage::new(self.ops.clone(), spec, &self.mesh, &parallel, make)?;
        stage.replays = false;
        self.teacher = Some(stage);
        Ok(())
    }

    /// This rank's share of a batch, cut for it.
    fn micros(&self, batch: &Batch<'_>) -> Vec<LocalMicro> {
        let place = &self.mesh.place;
        let (cp, dp, pp) = (
            place.size(Axis::Cp),
            place.size(Axis::Dp),
            place.size(Axis::Pp),
        );
        let chunks = self.parallel.virtual_pipeline_model_parallel_size;
        let capacity = self.config.max_tokens_per_gpu.saturating_mul(cp);
        let spec = &self.stage.spec;
        let cost = Cost {
            linear: 2.0 * spec.param_counts().active as f64,
            pair: spec.layers.iter().map(|l| l.attn.pair_flops()).sum(),
        };
        let multiple = if chunks > 1 { pp } else { 1 };
        let dealt = micro_batches(batch, capacity, (dp, place.along(Axis::Dp)), multiple, cost);
        let slicing = Slicing {
            cp,
            cp_rank: place.along(Axis::Cp),
            multiple: match self.parallel.sequence_parallel {
                true => place.size(Axis::Tp),
                false => 1,
            },
        };
        dealt
            .iter()
            .map(|micro| LocalMicro::new(micro, slicing))
            .collect()
    }

    /// Train on the records of one rollout step: one or several train steps, in order.
    ///
    /// # Errors
    /// As [`crate::Trainer::train`]; also if another rank failed.
    pub fn train(&mut self, records: &[RolloutRecord]) -> Result<Vec<TrainMetrics>> {
        let rollouts = rollouts(records, self.limits())?;
        if rollouts.is_empty() {
            return Err(Error::Empty);
        }
        let length = self.config.loss_constant_length.unwrap_or(0);
        let how = self.config.loss_aggregation;
        let mut batches: Vec<Batch<'_>> = split_steps(rollouts.len(), &self.config)
            .into_iter()
            .map(|range| Batch::new(&rollouts, range, how, length))
            .collect();
        check_rollout_logprobs(&self.config, records)?;
        let mut micros: Vec<Vec<LocalMicro>> = batches.iter().map(|b| self.micros(b)).collect();
        if let Some(asked_by) = self.config.needs_reference() {
            let reference = self.reference.as_ref();
            let reference = reference.ok_or(Error::NoReference(asked_by))?;
            for (batch, micros) in batches.iter_mut().zip(&micros) {
                batch.columns.reference = self.scores(reference, batch, micros, None)?.logp;
            }
        }
        if let Some(teacher) = self.teacher.as_ref().filter(|_| self.config.use_opd) {
            for (batch, micros) in batches.iter_mut().zip(&micros) {
                batch.columns.teacher = self.scores(teacher, batch, micros, None)?.logp;
            }
        } else if self.config.use_opd {
            check_taught(&batches)?;
        }
        // Weights without values choose no experts.
        if self.config.use_rollout_routing_replay && self.ops.computes() {
            replay::of_rollouts(&self.stage, &self.mesh, &batches, &mut micros)?;
        }
        if self.config.use_rollout_logprobs {
            for batch in &mut batches {
                batch.columns.old = batch.columns.rollout.clone();
            }
        } else if batches.len() > 1 || self.config.needs_old() {
            for (batch, micros) in batches.iter_mut().zip(&mut micros) {
                let room = replay::room(micros);
                let record = self.config.use_routing_replay.then_some(&room[..]);
                batch.columns.old = self.scores(&self.stage, batch, micros, record)?.logp;
                if self.config.use_routing_replay {
                    replay::keep(&self.stage, room, micros);
                }
            }
        }
        let mut warms_up = false;
        if let Some(critic) = &mut self.critic {
            for (batch, micros) in batches.iter_mut().zip(&micros) {
                batch.columns.value = critic.values(&self.mesh, batch, micros)?;
            }
            warms_up = critic.begin(self.config.num_critic_only_steps);
        }
        advantages::fill(&self.config, &rollouts, &mut batches);
        if let Some(mismatch) = self.config.mismatch() {
            for batch in &mut batches {
                correct(batch, &mismatch);
            }
        }
        let objective = self.config.objective();
        let mut done = Vec::with_capacity(batches.len());
        for (step, (batch, micros)) in batches.iter().zip(&micros).enumerate() {
            let num_tokens = batch.num_tokens();
            let _train = info_span!("train", step, num_tokens).entered();
            let evaluation = Evaluation {
                objective,
                batch,
                old_is_engine: self.config.use_rollout_logprobs,
            };
            let criticised = self.critic_step(batch, micros)?;
            let mut metrics = match warms_up {
                true => without_policy(batch, self.optimizer.lr(), &self.optimizer.progress),
                false => self.step(&evaluation, micros)?,
            };
            if let Some(report) = criticised {
                critic::tell(&mut metrics, &report, batch);
            }
            done.push(metrics);
        }
        Ok(done)
    }

    /// One step of supervised fine-tuning, as [`crate::Trainer::sft_step`].
    ///
    /// # Errors
    /// A sequence that cannot be trained on, or a rank failed.
    pub(super) fn sft_step(&mut self, sequences: &[OwnSequence]) -> Result<TrainMetrics> {
        let sequences: Vec<_> = sequences.iter().map(SftSequence::of).collect();
        let pairs = checked(&sequences, self.limits())?;
        let length = self.config.loss_constant_length.unwrap_or(0);
        let batch = Batch::from_masked(&pairs, self.config.loss_aggregation, length);
        let evaluation = Evaluation {
            objective: Objective::sft(),
            batch: &batch,
            old_is_engine: false,
        };
        let micros = self.micros(&batch);
        let num_tokens = batch.num_tokens();
        let _train = info_span!("train", step = 0, num_tokens).entered();
        self.step(&evaluation, &micros)
    }

    /// Log-probs and entropies of every token but the first, as [`crate::Trainer::log_probs`].
    ///
    /// # Errors
    /// A sequence the model cannot take, or a rank failed.
    pub fn log_probs(&self, sequences: &[Vec<u32>]) -> Result<Vec<TokenScores>> {
        let limits = self.limits();
        for (index, tokens) in sequences.iter().enumerate() {
            check_tokens(tokens, limits).map_err(|detail| Error::Sequence { index, detail })?;
        }
        let masks: Vec<Vec<u8>> = sequences.iter().map(|t| vec![1; t.len()]).collect();
        let pairs: Vec<(&[u32], &[u8])> = sequences
            .iter()
            .zip(&masks)
            .map(|(tokens, mask)| (&tokens[..], &mask[..]))
            .collect();
        let batch = Batch::from_masked(&pairs, self.config.loss_aggregation, 0);
        let scores = self.scores(&self.stage, &batch, &self.micros(&batch), None)?;
        let mut out = vec![TokenScores::default(); sequences.len()];
        for sequence in &batch.sequences {
            out[sequence.rollout] = TokenScores {
                logprobs: scores.logp[sequence.trained.clone()].to_vec(),
                entropy: scores.entropy[sequence.trained.clone()].to_vec(),
            };
        }
        Ok(out)
    }

    fn limits(&self) -> Limits {
        Limits {
            vocab: self.vocab,
            max_positions: self.stage.spec.max_positions,
        }
    }

    /// Log-probs and entropies of every token of `batch` that trains, under one of the models, on every rank. Experts that
    /// routers choose are noted in `record`.
    fn scores(
        &self,
        stage: &Stage<O>,
        batch: &Batch<'_>,
        micros: &[LocalMicro],
        record: Option<&[RefCell<Routes>]>,
    ) -> Result<Scores> {
        let pipeline = Pipeline {
            stage,
            pp: &self.mesh.pp,
            micros,
        };
        let head = head(&*self.ops, stage, &self.mesh, &self.config, self.vocab);
        let mut found = Found::default();
        pipeline.look_and_record(record, |micro, hidden| {
            let stats = head.stats(&hidden, &micros[micro].targets)?;
            found.add(&micros[micro], &stats);
            Ok(())
        })?;
        found.shared(&self.mesh, batch.num_trained())
    }

    fn critic_step(
        &mut self,
        batch: &Batch<'_>,
        micros: &[LocalMicro],
    ) -> Result<Option<CriticReport>> {
        let (mesh, recompute, clip) = (&self.mesh, &self.recompute, self.config.value_clip);
        let critic = self.critic.as_mut();
        critic
            .map(|critic| critic.step(mesh, batch, micros, recompute, clip))
            .transpose()
    }

    /// Forward, backward and update of one train step.
    fn step(&mut self, evaluation: &Evaluation<'_>, micros: &[LocalMicro]) -> Result<TrainMetrics> {
        let (found, slices) = self.accumulate(evaluation, micros)?;
        let scores = found.shared(&self.mesh, evaluation.batch.num_trained())?;
        let mut metrics = metrics(evaluation, &scores);
        metrics.micro_batches = micros.len() * self.mesh.place.size(Axis::Dp);
        metrics.lr = self.optimizer.lr();
        if evaluation.batch.num_trained() == metrics.masked_tokens {
            self.optimizer.skip();
            metrics.skipped = 1;
        } else {
            let _update = debug_span!("update").entered();
            let (ops, mesh) = (&*self.ops, &self.mesh);
            let report = self
                .optimizer
                .step(ops, &mut self.stage, mesh, &self.grads, slices)?;
            metrics.grad_norm = Some(report.grad_norm);
            metrics.skipped = u64::from(report.skipped);
        }
        metrics.num_updates = self.optimizer.progress.num_updates;
        Ok(metrics)
    }

    /// Forward and backward of all micro-batches: gradients set, numbers of this rank's tokens found, and its slices of the
    /// gradients summed over data-parallel ranks.
    fn accumulate(
        &mut self,
        evaluation: &Evaluation<'_>,
        micros: &[LocalMicro],
    ) -> Result<(Found, Vec<Option<O::Float>>)> {
        let (ops, mesh, stage) = (&*self.ops, &self.mesh, &self.stage);
        self.grads.zero(ops)?;
        let head = head(ops, stage, mesh, &self.config, self.vocab);
        let pipeline = Pipeline {
            stage,
            pp: &mesh.pp,
            micros,
        };
        let mut found = Found::default();
        let objective = &evaluation.objective;
        let mut sending = self.optimizer.sending(ops, mesh, stage.is_awaited());
        let last = |micro: usize, hidden: O::Tensor, grads: &mut Gradients<O>| {
            let micro = &micros[micro];
            let with_ratio = match objective.needs_trajectory() {
                true => {
                    let stats = head.stats(&hidden, &micro.targets)?;
                    Some(trajectory_ratios(evaluation, micro, &stats, mesh)?)
                }
                false => None,
            };
            let slopes = |rows: Range<usize>, stats: &TokenStats| {
                let scored = stats.logprob.iter().zip(&stats.entropy);
                rows.zip(scored)
                    .map(|(row, (&logp, &entropy))| {
                        let number = micro.tokens[row];
                        let token = match &with_ratio {
                            Some(tokens) => tokens[&number],
                            None => evaluation.token(number, logp, entropy),
                        };
                        slopes_of(objective, &token)
                    })
                    .unzip()
            };
            let dweight = grads.get(stage.head());
            let (dhidden, stats) = head.backward(&hidden, &micro.targets, dweight, slopes)?;
            found.add(micro, &stats);
            Ok(dhidden)
        };
        let mut finished = |params: &[usize], grads: &Gradients<O>| sending.finished(params, grads);
        pipeline.train(&self.recompute, &mut self.grads, last, &mut finished)?;
        let _reduce = debug_span!("reduce").entered();
        sum_copies(ops, stage, mesh, &mut self.grads)?;
        Ok((found, sending.all(&self.grads)?))
    }
}

fn slopes_of(objective: &Objective, token: &Token) -> (f64, f64) {
    let loss = objective.token(token);
    (loss.dlogp, loss.dentropy)
}

/// Every token of a micro-batch with its trajectory's ratio, wherever in the cp group its parts were scored.
fn trajectory_ratios<O: Ops>(
    evaluation: &Evaluation<'_>,
    micro: &LocalMicro,
    stats: &TokenStats,
    mesh: &Mesh<O>,
) -> Result<BTreeMap<usize, Token>> {
    let count = micro.all_tokens.len();
    let at: BTreeMap<usize, usize> = micro.all_tokens.iter().copied().zip(0..).collect();
    let mut scored = vec![0.0; 2 * count];
    for (row, number) in micro.tokens.iter().enumerate() {
        scored[at[number]] = stats.logprob[row];
        scored[count + at[number]] = stats.entropy[row];
    }
    mesh.cp.all_reduce_host(&mut scored, Reduce::Sum)?;
    let mut tokens: Vec<Token> = micro
        .all_tokens
        .iter()
        .enumerate()
        .map(|(i, &number)| evaluation.token(number, scored[i], scored[count + i]))
        .collect();
    evaluation.spread_ratio(&mut tokens, micro.all_lengths.iter().copied());
    Ok(micro.all_tokens.iter().copied().zip(tokens).collect())
}

fn head<'a, O: Ops>(
    ops: &'a O,
    stage: &'a Stage<O>,
    mesh: &'a Mesh<O>,
    config: &TrainConfig,
    vocab: usize,
) -> SplitHead<'a, O> {
    SplitHead {
        ops,
        weight: stage.weights.get(stage.head()),
        temperature: config.rollout_temperature,
        model_vocab: stage.spec.vocab,
        vocab,
        chunk_rows: config.log_probs_chunk_size,
        tp: &mesh.tp,
    }
}

/// What this rank's last stage learned of its tokens: number, log-prob, entropy.
#[derive(Default)]
pub(super) struct Found(Vec<(usize, f64, f64)>);

impl Found {
    pub(super) fn add(&mut self, micro: &LocalMicro, stats: &TokenStats) {
        let scored = stats.logprob.iter().zip(&stats.entropy);
        let numbers = micro.tokens.iter().zip(scored);
        self.0
            .extend(numbers.map(|(&number, (&logp, &entropy))| (number, logp, entropy)));
    }

    /// Every token's numbers, on every rank. Each token was scored by one rank of each tp group, on the last stage.
    pub(super) fn shared<O: Ops>(&self, mesh: &Mesh<O>, num_tokens: usize) -> Result<Scores> {
        let mut all = vec![0.0; 2 * num_tokens];
        if mesh.is_last_stage() && mesh.tp.rank() == 0 {
            for &(number, logp, entropy) in &self.0 {
                all[number] = logp;
                all[num_tokens + number] = entropy;
            }
        }
        mesh.world.all_reduce_host(&mut all, Reduce::Sum)?;
        let entropy = all.split_off(num_tokens);
        Ok(Scores { logp: all, entropy })
    }
}
