//! The critic of PPO: a second model that ends in one number a token instead of logits.
//!
//! It begins as the policy, with the head replaced by `V = h · wᵀ + b` in the accumulator's precision; `w` and `b` begin
//! at 0, so that the first advantages are plain returns. Its embedding is its own, also where the policy's head is tied
//! to it. Values are never divided by the temperature. Read [`crate::algo::value`] for its loss and [`crate::algo::gae`]
//! for what its values are for; [`checkpoint`](crate::checkpoint) saves it beside the policy.

use crate::Result;
use crate::algo::value;
use crate::config::TrainConfig;
use crate::data::{Batch, MicroBatch};
use crate::metrics::TrainMetrics;
use crate::optim::{Optimizer, Progress};
use slime_kernels::Ops;
use slime_model::layers::{Gradients, Recompute, Weights};
use slime_model::{ModelSpec, Network, ParamKind, ParamSpec, Part};
use std::sync::Arc;

/// A critic and its optimizer.
pub struct Critic<O: Ops> {
    pub(crate) network: Network<O>,
    pub(crate) optimizer: Optimizer<O>,
    grads: Gradients<O>,
    /// `[1, hidden]` and `[1, 1]`.
    pub(crate) head: Weights<O>,
    pub(crate) head_params: [ParamSpec; 2],
    pub(crate) head_optimizer: Optimizer<O>,
    head_grads: Gradients<O>,
    /// Rollout steps trained on.
    pub(crate) num_rollouts: u64,
}

/// What one of its train steps did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CriticReport {
    /// Weighted as it was minimised.
    pub loss: f64,
    /// Share of tokens whose value moved beyond the clip.
    pub clipfrac: f64,
    /// `None` where nothing was trained.
    pub grad_norm: Option<f64>,
    /// Learning rate of the step.
    pub lr: f64,
}

/// What a checkpoint remembers of it besides tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CriticProgress {
    pub(crate) body: Progress,
    pub(crate) head: Progress,
    pub(crate) num_rollouts: u64,
}

impl<O: Ops> Critic<O> {
    /// A critic that begins as `policy`.
    ///
    /// # Errors
    /// The device has no room.
    pub fn new(policy: &Network<O>, config: &TrainConfig) -> Result<Self> {
        let ops = policy.ops().clone();
        let spec = Arc::new(spec_of(policy.spec()));
        let body = policy
            .params()
            .iter()
            .zip(&policy.weights().0)
            .filter(|(param, _)| param.kind != ParamKind::Head);
        let weights = body
            .map(|(param, weight)| {
                // A copy: the policy's own storage is updated in place.
                let data = ops.read_f64(weight)?;
                Ok(ops.tensor_f64(param.rows, param.cols, &data)?)
            })
            .collect::<Result<Vec<_>>>()?;
        let hidden = spec.hidden;
        let head = fresh_head(&*ops, hidden)?;
        let config = &config_of(config);
        let network = Network::new(ops.clone(), spec, weights)?;
        Ok(Self {
            optimizer: Optimizer::new(&*ops, network.weights(), config)?,
            grads: Gradients::zeros(&*ops, network.weights())?,
            head_optimizer: Optimizer::new(&*ops, &head, config)?,
            head_grads: Gradients::zeros(&*ops, &head)?,
            head_params: head_params(hidden),
            network,
            head,
            num_rollouts: 0,
        })
    }

    /// The values of hidden rows, `[rows]`.
    fn of_hidden(&self, hidden: &O::Tensor) -> Result<Vec<f64>> {
        let ops = self.network.ops();
        let bias = ops.read_f64(&self.head.0[1])?[0];
        let values = ops.logits(hidden, &self.head.0[0])?;
        let values = ops.read_float_f64(&values)?;
        Ok(values.into_iter().map(|v| v + bias).collect())
    }

    /// Values of every token that trains, `[trained tokens]`.
    ///
    /// # Errors
    /// The device failed.
    pub fn values(&self, batch: &Batch<'_>, packed: &[MicroBatch]) -> Result<Vec<f64>> {
        let mut out = vec![f64::NAN; batch.num_trained()];
        for micro in packed {
            let hidden = self
                .network
                .forward(&micro.ids, &micro.sequences, &micro.rows)?;
            let values = self.of_hidden(&hidden)?;
            micro
                .tokens
                .iter()
                .zip(values)
                .for_each(|(&number, v)| out[number] = v);
        }
        Ok(out)
    }

    /// Gradients of one train step, and its loss; the weights stay.
    ///
    /// # Errors
    /// The device failed.
    pub fn gradients(
        &mut self,
        batch: &Batch<'_>,
        packed: &[MicroBatch],
        recompute: &[Recompute],
        clip: f64,
    ) -> Result<CriticReport> {
        let ops = self.network.ops().clone();
        self.grads.zero(&*ops)?;
        self.head_grads.zero(&*ops)?;
        let columns = &batch.columns;
        let mut losses = vec![value::ValueLoss::default(); batch.num_trained()];
        for micro in packed {
            let (ids, sequences, rows) = (&micro.ids, &micro.sequences, &micro.rows);
            let (hidden, activations) = self
                .network
                .forward_train(ids, sequences, rows, recompute)?;
            let values = self.of_hidden(&hidden)?;
            let slopes: Vec<f64> = micro
                .tokens
                .iter()
                .zip(values)
                .map(|(&number, v)| {
                    let (old, target) = (columns.value[number], columns.returns[number]);
                    losses[number] = value::loss(v, old, target, clip);
                    columns.weight[number] * losses[number].dvalue
                })
                .collect();
            if slopes.iter().all(|slope| *slope == 0.0) {
                continue;
            }
            let dvalue = ops.tensor_f64(slopes.len(), 1, &slopes)?;
            ops.accumulate_tn(&dvalue, &hidden, &mut self.head_grads.0[0])?;
            ops.accumulate_bias(&dvalue, &mut self.head_grads.0[1])?;
            let dhidden = ops.matmul_nn(&dvalue, &self.head.0[0])?;
            self.network
                .backward(&dhidden, activations, &mut self.grads)?;
        }
        let mut report = CriticReport::default();
        for (loss, weight) in losses.iter().zip(&columns.weight) {
            report.loss += weight * loss.loss;
            report.clipfrac += if loss.clipped { *weight } else { 0.0 };
        }
        Ok(report)
    }

    /// One train step.
    ///
    /// # Errors
    /// The device failed.
    pub fn step(
        &mut self,
        batch: &Batch<'_>,
        packed: &[MicroBatch],
        recompute: &[Recompute],
        clip: f64,
    ) -> Result<CriticReport> {
        let mut report = self.gradients(batch, packed, recompute, clip)?;
        report.lr = self.optimizer.lr();
        if batch.num_trained() == 0 {
            self.optimizer.skip();
            self.head_optimizer.skip();
            return Ok(report);
        }
        let ops = self.network.ops().clone();
        let all: Vec<_> = self.grads.0.iter().chain(&self.head_grads.0).collect();
        let norm = ops.sum_squares_of_all(&all)?.sqrt();
        report.grad_norm = Some(norm);
        let params = self.network.params().clone();
        let (weights, grads) = (self.network.weights_mut(), &self.grads);
        self.optimizer
            .step_of_norm(&*ops, &params, weights, grads, norm)?;
        let grads = &self.head_grads;
        self.head_optimizer
            .step_of_norm(&*ops, &self.head_params, &mut self.head, grads, norm)?;
        Ok(report)
    }

    /// Its network, without the value head.
    pub fn network(&self) -> &Network<O> {
        &self.network
    }

    /// Put other weights in the place of parameter `index` of its network.
    pub fn set_weight(&mut self, index: usize, weight: O::Tensor) {
        self.network.weights_mut().0[index] = weight;
    }

    /// Weight `[1, hidden]` and bias `[1, 1]` of the value head.
    pub fn value_head(&mut self) -> &mut Weights<O> {
        &mut self.head
    }

    /// The last step's gradients before clipping: of the network, and of the value head.
    pub fn last_gradients(&self) -> (&Gradients<O>, &Gradients<O>) {
        (&self.grads, &self.head_grads)
    }

    pub(crate) fn progress(&self) -> CriticProgress {
        CriticProgress {
            body: self.optimizer.progress,
            head: self.head_optimizer.progress,
            num_rollouts: self.num_rollouts,
        }
    }

    pub(crate) fn set_progress(&mut self, progress: CriticProgress) {
        self.optimizer.progress = progress.body;
        self.head_optimizer.progress = progress.head;
        self.num_rollouts = progress.num_rollouts;
    }
}

/// What a step's metrics say of it.
pub(crate) fn tell(metrics: &mut TrainMetrics, report: &CriticReport, batch: &Batch<'_>) {
    metrics.value_loss = Some(report.loss);
    metrics.value_clipfrac = Some(report.clipfrac);
    metrics.value_explained = explained(&batch.columns.value, &batch.columns.returns);
    metrics.critic_grad_norm = report.grad_norm;
    metrics.critic_lr = Some(report.lr);
}

/// The share of the returns' variance that the values explain: 1 for a perfect critic, 0 for a constant one.
pub fn explained(values: &[f64], returns: &[f64]) -> Option<f64> {
    let variance = |x: &mut dyn Iterator<Item = f64>| {
        let x: Vec<f64> = x.collect();
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        x.iter().map(|v| (v - mean).powi(2)).sum::<f64>()
    };
    let of_returns = variance(&mut returns.iter().copied());
    let of_errors = variance(&mut returns.iter().zip(values).map(|(r, v)| r - v));
    (of_returns > 0.0).then(|| 1.0 - of_errors / of_returns)
}

/// The critic of a policy: its model, without the head.
pub(crate) fn spec_of(policy: &ModelSpec) -> ModelSpec {
    ModelSpec {
        tied: true,
        ..policy.clone()
    }
}

/// How it is trained.
pub(crate) fn config_of(config: &TrainConfig) -> TrainConfig {
    let warmup = config.critic_lr_warmup_iters;
    TrainConfig {
        lr: config.critic_lr.unwrap_or(config.lr),
        lr_warmup_iters: warmup.unwrap_or(config.lr_warmup_iters),
        ..config.clone()
    }
}

/// A value head that says 0 of everything.
pub(crate) fn fresh_head<O: Ops>(ops: &O, hidden: usize) -> Result<Weights<O>> {
    Ok(Weights(vec![
        ops.tensor_f64(1, hidden, &vec![0.0; hidden])?,
        ops.tensor_f64(1, 1, &[0.0])?,
    ]))
}

/// Its parameters.
pub(crate) fn head_params(hidden: usize) -> [ParamSpec; 2] {
    [
        head_param("value_head.weight", hidden, true),
        head_param("value_head.bias", 1, false),
    ]
}

fn head_param(name: &str, cols: usize, decay: bool) -> ParamSpec {
    ParamSpec {
        name: name.into(),
        kind: ParamKind::Head,
        layer: None,
        rows: 1,
        cols,
        parts: vec![Part {
            name: name.into(),
            shape: vec![1, cols],
        }],
        decay,
    }
}
