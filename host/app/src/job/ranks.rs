//! The trainer of a run: on one rank, on several ranks as threads of this process, or on several processes.
//!
//! All train on the same records to the same weights; who calls need not know which it is. Read
//! `slime_trainer::parallel` for what several ranks do.

use crate::config::plan::RanksPlan;
use crate::wire::device::Machine;
use slime_core::{RolloutRecord, Step};
use slime_kernels::Ops;
use slime_kernels::comm::Processes;
use slime_model::{ModelSpec, ParamSpec};
use slime_trainer::parallel::trainer::{Take, Weights};
use slime_trainer::parallel::{ParallelTrainer, ProcessTrainer, Training};
use slime_trainer::{Error, OnProgress, Result, SftSequence, TrainConfig, TrainMetrics, Trainer};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// Elements of several ranks that meet at once on the first one's device: 128 MiB of bf16, twice.
const AT_ONCE: usize = 64 << 20;

/// A trainer, whatever its ranks.
pub enum Ranks<O: Ops> {
    /// One.
    One(Box<Trainer<O>>),
    /// Several.
    Many(Box<ParallelTrainer<O>>),
    /// Several, each in a process.
    Far(Box<ProcessTrainer<O>>),
}

/// What is trained.
pub struct Trained<'a> {
    /// The model.
    pub spec: &'a Arc<ModelSpec>,
    /// How.
    pub config: &'a TrainConfig,
    /// On which ranks.
    pub ranks: &'a RanksPlan,
    /// Ids from here on are no tokens.
    pub vocab: usize,
    /// The processes the ranks are, where they are.
    pub processes: Option<&'a Arc<Processes>>,
}

impl<O: Machine> Ranks<O> {
    /// A trainer of `weights`, which are in the order of the model's parameters and lie on `ops`. Its ranks compute there, or
    /// each on a GPU of its own.
    ///
    /// # Errors
    /// Every problem of the configuration; a layout that does not fit the model; a device without room.
    pub fn new(
        ops: Arc<O>,
        trained: &Trained<'_>,
        weights: Vec<O::Tensor>,
        on_progress: OnProgress,
    ) -> Result<Self> {
        let Trained {
            spec,
            config,
            ranks,
            vocab,
            processes,
        } = trained;
        if processes.is_none() && ranks.parallel.world() == 1 {
            let trainer = Trainer::new(ops, (*spec).clone(), weights, (*config).clone())?;
            let trainer = trainer.with_vocab(*vocab).with_progress(on_progress);
            return Ok(Self::One(Box::new(trainer)));
        }
        let training = Training {
            spec: (*spec).clone(),
            config: (*config).clone(),
            parallel: ranks.parallel.clone(),
            vocab: *vocab,
        };
        let source = source(ops.clone(), spec, weights);
        if let Some(processes) = processes {
            let (processes, patience) = (Arc::clone(processes), ranks.patience);
            let far =
                ProcessTrainer::lead(&ops, processes, training, &source, O::MEETING, patience)?;
            return Ok(Self::Far(Box::new(far)));
        }
        let launch = ops.launch(&training)?;
        let many = ParallelTrainer::start(training, source, launch, ranks.patience)?;
        Ok(Self::Many(Box::new(many)))
    }
}

impl<O: Ops> Ranks<O> {
    /// Give it the reference model's weights.
    ///
    /// # Errors
    /// They do not fit the model.
    pub fn with_reference(
        self,
        ops: &Arc<O>,
        spec: &Arc<ModelSpec>,
        weights: Vec<O::Tensor>,
    ) -> Result<Self> {
        Ok(match self {
            Self::One(trainer) => Self::One(Box::new(trainer.with_reference(weights)?)),
            Self::Many(trainer) => {
                let source = source(ops.clone(), spec, weights);
                Self::Many(Box::new(trainer.with_reference(source)?))
            }
            Self::Far(trainer) => {
                let source = source(ops.clone(), spec, weights);
                Self::Far(Box::new(trainer.with_reference(&source)?))
            }
        })
    }

    /// Give it a teacher.
    ///
    /// # Errors
    /// The weights do not fit, or the layout does not.
    pub fn with_teacher(
        self,
        ops: &Arc<O>,
        spec: Arc<ModelSpec>,
        weights: Vec<O::Tensor>,
    ) -> Result<Self> {
        let whole = |weights| source(ops.clone(), &spec, weights);
        Ok(match self {
            Self::One(trainer) => Self::One(Box::new(trainer.with_teacher(spec, weights)?)),
            Self::Many(trainer) => {
                let weights = whole(weights);
                Self::Many(Box::new(trainer.with_teacher(spec, weights)?))
            }
            Self::Far(trainer) => {
                let weights = whole(weights);
                Self::Far(Box::new(trainer.with_teacher(spec, &weights)?))
            }
        })
    }

    /// Train on the records of one rollout step.
    ///
    /// # Errors
    /// As [`Trainer::train`].
    pub fn train(&mut self, records: &[RolloutRecord]) -> Result<Vec<TrainMetrics>> {
        match self {
            Self::One(trainer) => trainer.train(records),
            Self::Many(trainer) => trainer.train(records),
            Self::Far(trainer) => trainer.train(records),
        }
    }

    /// One step of supervised fine-tuning.
    ///
    /// # Errors
    /// As [`Trainer::sft_step`].
    pub fn sft_step(&mut self, sequences: &[SftSequence<'_>]) -> Result<TrainMetrics> {
        match self {
            Self::One(trainer) => trainer.sft_step(sequences),
            Self::Many(trainer) => trainer.sft_step(sequences),
            Self::Far(trainer) => trainer.sft_step(sequences),
        }
    }

    /// One parameter's present values.
    ///
    /// # Errors
    /// As [`Trainer::read_param`].
    pub fn read_param(&self, param: &ParamSpec) -> Result<Vec<f32>> {
        match self {
            Self::One(trainer) => trainer.read_param(param),
            Self::Many(trainer) => trainer.read_param(param),
            Self::Far(trainer) => trainer.read_param(param),
        }
    }

    /// The present values of `params`, all of the model's, as tensors in the keeping of `to`. Ranks of one process meet on
    /// the first one's device, and nothing takes the way over the host that need not.
    ///
    /// # Errors
    /// A rank failed, or the device is full.
    pub fn copy_to(&self, to: &Arc<O>, params: &[ParamSpec]) -> Result<Vec<O::Tensor>> {
        match self {
            Self::One(trainer) => {
                let network = trainer.network();
                Ok(to.adopt(&**network.ops(), &network.weights().0)?)
            }
            Self::Many(trainer) => trainer.copy_to(to, AT_ONCE),
            Self::Far(trainer) => {
                let tensors = params.iter().map(|param| {
                    let values = trainer.read_param(param)?;
                    Ok(to.tensor(param.rows, param.cols, &values)?)
                });
                tensors.collect()
            }
        }
    }

    /// Give `take` runs of parameters, by number, each as one row on the first rank's device, one after the other.
    ///
    /// # Errors
    /// What `take` returns; a rank failed, or the device is full.
    pub fn each_run(&self, runs: &Arc<[Vec<usize>]>, take: Take<O>) -> Result<()> {
        let trainer = match self {
            Self::One(trainer) => trainer,
            Self::Many(trainer) => return trainer.each_run(runs.clone(), take),
            Self::Far(_) => {
                let reason = "ranks that are processes share no device";
                return Err(Error::Ranks(reason.into()));
            }
        };
        let network = trainer.network();
        let (ops, weights) = (network.ops(), &network.weights().0);
        for (number, run) in runs.iter().enumerate() {
            let parts = run.iter().map(|&param| {
                let (rows, cols) = ops.shape(&weights[param]);
                (&weights[param], 0..rows * cols)
            });
            let parts: Vec<_> = parts.collect();
            let len = parts.iter().map(|(_, range)| range.len()).sum();
            take(ops, number, ops.join(&parts, len)?)?;
        }
        Ok(())
    }

    /// Log-probs of every token but the first.
    ///
    /// # Errors
    /// As [`Trainer::log_probs`].
    pub fn log_probs(&self, tokens: &[u32]) -> Result<Vec<f64>> {
        let scores = match self {
            Self::One(trainer) => trainer.log_probs(&[tokens])?,
            Self::Many(trainer) => trainer.log_probs(&[tokens])?,
            Self::Far(trainer) => trainer.log_probs(&[tokens])?,
        };
        Ok(scores.into_iter().next().unwrap_or_default().logprobs)
    }

    /// Write a checkpoint.
    ///
    /// # Errors
    /// As [`Trainer::save`].
    pub fn save(&self, dir: &Path, step: Step) -> Result<()> {
        match self {
            Self::One(trainer) => trainer.save(dir, step),
            Self::Many(trainer) => trainer.save(dir, step),
            Self::Far(trainer) => trainer.save(dir, step),
        }
    }

    /// Continue from a checkpoint, whichever layout wrote it.
    ///
    /// # Errors
    /// As [`Trainer::load`].
    pub fn load(&mut self, dir: &Path) -> Result<Step> {
        match self {
            Self::One(trainer) => trainer.load(dir),
            Self::Many(trainer) => trainer.load(dir),
            Self::Far(trainer) => trainer.load(dir),
        }
    }
}

/// Whole parameters from tensors that lie on a device.
pub fn source<O: Ops>(ops: Arc<O>, spec: &ModelSpec, weights: Vec<O::Tensor>) -> Weights {
    let params = slime_model::params(spec);
    let by_name: HashMap<String, O::Tensor> =
        params.into_iter().map(|p| p.name).zip(weights).collect();
    Arc::new(move |param| match by_name.get(&param.name) {
        Some(tensor) => Ok(ops.read(tensor)?),
        None => {
            let detail = format!("{} is no parameter of this model", param.name);
            Err(Error::from(slime_model::Error::Input(detail)))
        }
    })
}
