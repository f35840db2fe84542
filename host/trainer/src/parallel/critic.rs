//! The critic of PPO on several ranks: [`crate::critic`] with a stage's layers, and a value head that every rank has.
//!
//! ```text
//! hidden rows, whole on each tp rank of the last stage ─► V = h · wᵀ + b ─► values of all tokens, on every rank
//! ```
//!
//! The head is hidden + 1 numbers. Its gradient is summed over all ranks on the host and every rank updates its own copy, so
//! that copies stay equal bit by bit. A stage that would hold the policy's head holds a copy of the embedding here, which is
//! what a tied model's last stage holds. Read [`super::rank`] for when it is asked.

use super::copies::sum_copies;
use super::layout::ParallelConfig;
use super::mesh::Mesh;
use super::pipeline::Pipeline;
use super::rank::Found;
use super::slice::LocalMicro;
use super::stage::{Make, Stage};
use super::zero::Zero;
use crate::Result;
use crate::algo::value;
use crate::config::TrainConfig;
use crate::critic::{CriticProgress, CriticReport, config_of, fresh_head, head_params, spec_of};
use crate::data::Batch;
use crate::optim::Optimizer;
use slime_kernels::{Ops, Reduce, TokenStats};
use slime_model::layers::{Gradients, Recompute, Weights};
use slime_model::{ModelSpec, ParamSpec};
use std::sync::Arc;

/// A rank's part of a critic.
pub(super) struct RankCritic<O: Ops> {
    ops: Arc<O>,
    /// Its layers.
    pub(super) stage: Stage<O>,
    grads: Gradients<O>,
    /// Its part of their optimizer.
    pub(super) optimizer: Zero<O>,
    /// `[1, hidden]` and `[1, 1]`, the same on all ranks.
    pub(super) head: Weights<O>,
    /// Their names and shapes.
    pub(super) head_params: [ParamSpec; 2],
    /// All of its states, the same on all ranks.
    pub(super) head_optimizer: Optimizer<O>,
    head_grads: Gradients<O>,
    num_rollouts: u64,
}

impl<O: Ops> RankCritic<O> {
    /// This rank's part of a critic that begins as the policy that `make` makes.
    ///
    /// # Errors
    /// The device has no room.
    pub(super) fn new(
        ops: Arc<O>,
        policy: &ModelSpec,
        mesh: &Mesh<O>,
        (config, parallel): (&TrainConfig, &ParallelConfig),
        make: &Make<'_, O>,
    ) -> Result<Self> {
        let config = config_of(config);
        let spec = Arc::new(spec_of(policy));
        let (head, head_params) = (fresh_head(&*ops, spec.hidden)?, head_params(spec.hidden));
        let mut stage = Stage::new(ops.clone(), spec, mesh, parallel, make)?;
        stage.replays = false;
        Ok(Self {
            grads: stage.gradients()?,
            optimizer: Zero::new(&*ops, &stage, mesh, &config, parallel.ddp_bucket_size)?,
            head_optimizer: Optimizer::new(&*ops, &head, &config)?,
            head_grads: Gradients::zeros(&*ops, &head)?,
            head_params,
            head,
            stage,
            ops,
            num_rollouts: 0,
        })
    }

    /// One more rollout step → whether the policy stays as it is in it.
    pub(super) fn begin(&mut self, num_critic_only_steps: u64) -> bool {
        self.num_rollouts += 1;
        self.num_rollouts <= num_critic_only_steps
    }

    /// The values of a micro-batch's tokens that train, of whose hidden rows there may be one more.
    fn of_hidden(&self, hidden: &O::Tensor, micro: &LocalMicro) -> Result<TokenStats> {
        let bias = self.ops.read_f64(&self.head.0[1])?[0];
        let values = self.ops.logits(hidden, &self.head.0[0])?;
        let mut values = self.ops.read_float_f64(&values)?;
        values.truncate(micro.tokens.len());
        values.iter_mut().for_each(|v| *v += bias);
        Ok(TokenStats {
            entropy: vec![0.0; values.len()],
            logprob: values,
            lse: Vec::new(),
        })
    }

    /// Values of every token that trains, on every rank.
    ///
    /// # Errors
    /// A rank or the device failed.
    pub(super) fn values(
        &self,
        mesh: &Mesh<O>,
        batch: &Batch<'_>,
        micros: &[LocalMicro],
    ) -> Result<Vec<f64>> {
        let pipeline = Pipeline {
            stage: &self.stage,
            pp: &mesh.pp,
            micros,
        };
        let mut found = Found::default();
        pipeline.look(|micro, hidden| {
            let micro = &micros[micro];
            found.add(micro, &self.of_hidden(&hidden, micro)?);
            Ok(())
        })?;
        Ok(found.shared(mesh, batch.num_trained())?.logp)
    }

    /// Forward and backward of all micro-batches → the loss, and slices of the layers' gradients as [`Zero`] takes them.
    /// Gradients of the layers are this rank's part, those of the head whole.
    fn accumulate(
        &mut self,
        mesh: &Mesh<O>,
        batch: &Batch<'_>,
        micros: &[LocalMicro],
        recompute: &[Recompute],
        clip: f64,
    ) -> Result<(CriticReport, Vec<Option<O::Float>>)> {
        let ops = self.ops.clone();
        let mut grads = std::mem::replace(&mut self.grads, Gradients(Vec::new()));
        let mut head_grads = std::mem::replace(&mut self.head_grads, Gradients(Vec::new()));
        grads.zero(&*ops)?;
        head_grads.zero(&*ops)?;
        let columns = &batch.columns;
        let loss_of = |number: usize, value: f64| {
            value::loss(value, columns.value[number], columns.returns[number], clip)
        };
        let pipeline = Pipeline {
            stage: &self.stage,
            pp: &mesh.pp,
            micros,
        };
        let mut found = Found::default();
        let mut sending = self.optimizer.sending(&*ops, mesh, self.stage.is_awaited());
        let last = |micro: usize, hidden: O::Tensor, _: &mut Gradients<O>| {
            let micro = &micros[micro];
            let values = self.of_hidden(&hidden, micro)?;
            let (rows, cols) = ops.shape(&hidden);
            let scored = micro.tokens.iter().zip(&values.logprob);
            let mut slopes: Vec<f64> = scored
                .map(|(&number, &value)| columns.weight[number] * loss_of(number, value).dvalue)
                .collect();
            found.add(micro, &values);
            slopes.resize(rows, 0.0);
            // The ranks of a tp group have the same rows: one of them counts.
            if mesh.tp.rank() > 0 || slopes.iter().all(|slope| *slope == 0.0) {
                return Ok(ops.tensor(rows, cols, &vec![0.0; rows * cols])?);
            }
            let dvalue = ops.tensor_f64(rows, 1, &slopes)?;
            ops.accumulate_tn(&dvalue, &hidden, &mut head_grads.0[0])?;
            ops.accumulate_bias(&dvalue, &mut head_grads.0[1])?;
            Ok(ops.matmul_nn(&dvalue, &self.head.0[0])?)
        };
        let mut finished = |params: &[usize], grads: &Gradients<O>| sending.finished(params, grads);
        pipeline.train(recompute, &mut grads, last, &mut finished)?;
        sum_copies(&*ops, &self.stage, mesh, &mut grads)?;
        let slices = sending.all(&grads)?;
        self.grads = grads;
        self.head_grads = self.summed_head(mesh, &head_grads)?;
        let values = found.shared(mesh, batch.num_trained())?.logp;
        let mut report = CriticReport::default();
        for (number, (&value, weight)) in values.iter().zip(&columns.weight).enumerate() {
            let loss = loss_of(number, value);
            report.loss += weight * loss.loss;
            report.clipfrac += if loss.clipped { *weight } else { 0.0 };
        }
        Ok((report, slices))
    }

    /// The head's gradient, of all ranks together.
    fn summed_head(&self, mesh: &Mesh<O>, own: &Gradients<O>) -> Result<Gradients<O>> {
        let ops = &*self.ops;
        let mut all = ops.read_float_f64(&own.0[0])?;
        let hidden = all.len();
        all.extend(ops.read_float_f64(&own.0[1])?);
        mesh.world.all_reduce_host(&mut all, Reduce::Sum)?;
        Ok(Gradients(vec![
            ops.float_f64(1, hidden, &all[..hidden])?,
            ops.float_f64(1, 1, &all[hidden..])?,
        ]))
    }

    /// One train step.
    ///
    /// # Errors
    /// A rank or the device failed.
    pub(super) fn step(
        &mut self,
        mesh: &Mesh<O>,
        batch: &Batch<'_>,
        micros: &[LocalMicro],
        recompute: &[Recompute],
        clip: f64,
    ) -> Result<CriticReport> {
        let (mut report, slices) = self.accumulate(mesh, batch, micros, recompute, clip)?;
        report.lr = self.optimizer.lr();
        if batch.num_trained() == 0 {
            self.optimizer.skip();
            self.head_optimizer.skip();
            return Ok(report);
        }
        let ops = self.ops.clone();
        let of_head: Vec<&O::Float> = self.head_grads.0.iter().collect();
        let beside = ops.sum_squares_of_all(&of_head)?;
        let (stage, grads) = (&mut self.stage, &self.grads);
        let step = self
            .optimizer
            .step_beside(&*ops, stage, mesh, grads, slices, beside)?;
        report.grad_norm = Some(step.grad_norm);
        let (params, grads) = (&self.head_params, &self.head_grads);
        self.head_optimizer
            .step_of_norm(&*ops, params, &mut self.head, grads, step.grad_norm)?;
        Ok(report)
    }

    /// What a checkpoint remembers of it besides tensors.
    pub(super) fn progress(&self) -> CriticProgress {
        CriticProgress {
            body: self.optimizer.progress,
            head: self.head_optimizer.progress,
            num_rollouts: self.num_rollouts,
        }
    }

    /// Stand where a checkpoint stood.
    pub(super) fn set_progress(&mut self, progress: CriticProgress) {
        self.optimizer.progress = progress.body;
        self.head_optimizer.progress = progress.head;
        self.num_rollouts = progress.num_rollouts;
    }
}
