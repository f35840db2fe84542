//! The optimizer: gradient norm, clipping, AdamW, learning rate.
//!
//! Which parameters decay is the model's knowledge (`ParamSpec::decay`: matrices do, norms and biases do not).
//! Read [`schedule`] for the learning rate.

pub mod precision;
pub mod schedule;

use crate::checkpoint::tensors::Data;
use crate::config::TrainConfig;
use precision::Precision;
use schedule::{DecayStyle, Schedule};
use slime_kernels::{AdamW, Ops, Result, Update};
use slime_model::ParamSpec;
use slime_model::layers::{Gradients, Weights};

/// Adam's moments, and the weights in full precision where the device's weights are rounded.
pub struct Optimizer<O: Ops> {
    config: AdamW,
    clip_grad: f64,
    schedule: Schedule,
    samples_per_step: u64,
    compact: bool,
    /// First moments, one a parameter.
    pub m: Vec<O::Float>,
    /// Second moments.
    pub v: Vec<O::Float>,
    /// Full-precision weights.
    pub master: Option<Vec<O::Float>>,
    /// Where the optimizer stands.
    pub progress: Progress,
}

/// One of the optimizer's tensors of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    First,
    Second,
    Master,
}

/// What an optimizer remembers besides its tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// Updates made.
    pub num_updates: u64,
    /// Samples the learning rate has counted.
    pub num_samples: u64,
    /// Steps skipped because their gradient was not finite, or because nothing was to be trained.
    pub num_skipped: u64,
}

/// What one step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// L2 norm over all parameters, before clipping.
    pub grad_norm: f64,
    /// The rate that was used, or would have been.
    pub lr: f64,
    /// The weights were left alone, because the norm is not finite.
    pub skipped: bool,
}

impl<O: Ops> Optimizer<O> {
    /// Fresh moments for `weights`.
    ///
    /// # Errors
    /// The device has no room.
    pub fn new(ops: &O, weights: &Weights<O>, config: &TrainConfig) -> Result<Self> {
        let compact = config.use_precision_aware_optimizer;
        let moment = |(i, w): (usize, &O::Tensor)| {
            let (rows, cols) = ops.shape(w);
            match compact {
                true => ops.compact_piece(rows, cols, i, 0),
                false => ops.float_zeros(rows, cols),
            }
        };
        let all = || weights.0.iter().enumerate();
        let zeros = || all().map(moment).collect::<Result<Vec<_>>>();
        let full = |w: &O::Tensor| match compact {
            true => ops.compact_master(w),
            false => ops.widened(w),
        };
        let master = match Precision::of_weights(ops)? {
            Precision::Rounded => Some(weights.0.iter().map(full).collect::<Result<_>>()?),
            _ => None,
        };
        let samples_per_step = config.global_batch_size.unwrap_or(1) as u64;
        Ok(Self {
            config: adamw_of(config),
            clip_grad: config.clip_grad,
            schedule: schedule_of(config, samples_per_step),
            samples_per_step,
            compact,
            m: zeros()?,
            v: zeros()?,
            master,
            progress: Progress::default(),
        })
    }

    /// Put the states of parameter `i` in place, kept as they are kept; `weight` is its tensor.
    ///
    /// # Errors
    /// The device has no room.
    pub(crate) fn restore(
        &mut self,
        ops: &O,
        i: usize,
        weight: &O::Tensor,
        mut read: impl FnMut(State) -> crate::Result<Data>,
    ) -> crate::Result<()> {
        put(ops, &mut self.m[i], read(State::First)?)?;
        put(ops, &mut self.v[i], read(State::Second)?)?;
        if let Some(master) = &mut self.master {
            // A compact master belongs to the tensor it was made of, and that one may have been replaced.
            if self.compact {
                master[i] = ops.compact_master(weight)?;
            }
            put(ops, &mut master[i], read(State::Master)?)?;
        }
        Ok(())
    }

    /// The rate of the next step.
    pub fn lr(&self) -> f64 {
        self.schedule.lr(self.progress.num_samples)
    }

    /// Count a step in which nothing was to be trained. The rate does not move, as in Megatron.
    pub fn skip(&mut self) {
        self.progress.num_skipped += 1;
    }

    /// Clip and update. A gradient that is not finite leaves weights, moments and rate as they are.
    ///
    /// # Errors
    /// The device failed.
    pub fn step(
        &mut self,
        ops: &O,
        params: &[ParamSpec],
        weights: &mut Weights<O>,
        grads: &Gradients<O>,
    ) -> Result<StepReport> {
        let all: Vec<_> = grads.0.iter().collect();
        let grad_norm = ops.sum_squares_of_all(&all)?.sqrt();
        self.step_of_norm(ops, params, weights, grads, grad_norm)
    }

    /// The same, where these parameters are a part of a model whose gradient has this norm as a whole.
    ///
    /// # Errors
    /// The device failed.
    pub fn step_of_norm(
        &mut self,
        ops: &O,
        params: &[ParamSpec],
        weights: &mut Weights<O>,
        grads: &Gradients<O>,
        grad_norm: f64,
    ) -> Result<StepReport> {
        let lr = self.lr();
        if !grad_norm.is_finite() {
            self.skip();
            return Ok(StepReport {
                grad_norm,
                lr,
                skipped: true,
            });
        }
        self.progress.num_updates += 1;
        let step = AdamW {
            lr,
            step: self.progress.num_updates,
            grad_scale: clip_scale(grad_norm, self.clip_grad),
            ..self.config
        };
        let mut masters = self.master.as_mut().map(|all| all.iter_mut());
        let states = self.m.iter_mut().zip(&mut self.v);
        let states = states.zip(grads.0.iter().zip(&mut weights.0));
        let mut updates = Vec::with_capacity(params.len());
        for (param, ((m, v), (grad, weight))) in params.iter().zip(states) {
            updates.push(Update {
                weight_decay: if param.decay {
                    self.config.weight_decay
                } else {
                    0.0
                },
                grad,
                m,
                v,
                master: masters.as_mut().and_then(Iterator::next),
                weight,
            });
        }
        ops.adamw_all(&step, updates)?;
        self.progress.num_samples += self.samples_per_step;
        Ok(StepReport {
            grad_norm,
            lr,
            skipped: false,
        })
    }
}

/// A state's numbers, kept as they are kept.
pub(crate) fn put<O: Ops>(ops: &O, to: &mut O::Float, data: Data) -> Result<()> {
    match data {
        Data::F32(data) => ops.assign(to, &data),
        Data::F64(data) => {
            let (rows, cols) = ops.float_shape(to);
            *to = ops.float_f64(rows, cols, &data)?;
            Ok(())
        }
    }
}

/// A step's numbers, but for those that change from step to step.
pub(crate) fn adamw_of(config: &TrainConfig) -> AdamW {
    AdamW {
        lr: config.lr,
        beta1: config.adam_beta1,
        beta2: config.adam_beta2,
        eps: config.adam_eps,
        weight_decay: config.weight_decay,
        step: 0,
        grad_scale: 1.0,
    }
}

/// Megatron's: `max / (norm + 1e-6)`, only where that is below 1.
pub(crate) fn clip_scale(norm: f64, max: f64) -> f64 {
    if max > 0.0 {
        (max / (norm + 1e-6)).min(1.0)
    } else {
        1.0
    }
}

pub(crate) fn schedule_of(config: &TrainConfig, samples_per_step: u64) -> Schedule {
    let samples = |iters: u64| iters * samples_per_step;
    let constant = config.lr_decay_style == DecayStyle::Constant;
    Schedule {
        max_lr: config.lr,
        min_lr: if constant { config.lr } else { config.min_lr },
        init_lr: config.lr_warmup_init,
        warmup: samples(config.lr_warmup_iters),
        decay: samples(config.lr_decay_iters.unwrap_or(0)),
        style: config.lr_decay_style,
        wsd_decay: samples(config.lr_wsd_decay_iters.unwrap_or(0)),
        wsd_style: config.lr_wsd_decay_style,
    }
}
