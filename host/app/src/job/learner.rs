//! The trainer behind the loop's trait, with the places its weights go.

use super::Learn;
use super::cast::{Buckets, Kept, Seen};
use super::hand_over::Beside;
use super::ranks::Ranks;
use super::team;
use crate::config::{Problems, Resolved};
use crate::error::{Failure, Result};
use crate::wire::caster::Gpu;
use crate::wire::device::Machine;
use crate::wire::{Model, refused, rollout_failed};
use slime_core::{RolloutRecord, Step};
use slime_kernels::Ops;
use slime_model::ParamSpec;
use slime_model::hf::{self, DEFAULT_SHARD_BYTES, save_dir, save_weights};
use slime_rollout::Fence;
use slime_rollout::publish::Handed;
use slime_trainer::parallel::trainer::Take;
use slime_trainer::{TrainMetrics, checkpoint};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A trainer on its ranks.
pub struct Learner<O: Ops> {
    /// The trainer.
    pub trainer: Ranks<O>,
    /// What it trains.
    pub model: Arc<Model>,
    /// Where checkpoints go.
    pub checkpoints: PathBuf,
    /// Newest ones kept.
    pub keep: usize,
    /// Whose run it is: no checkpoint is written once it is another's.
    pub fence: Fence,
    /// The engine of this process that samples, where one does.
    pub beside: Option<Beside<O>>,
    /// What broadcasts from the trainer's device, where weights travel so.
    pub caster: Option<Arc<Gpu>>,
}

impl<O: Ops> Learner<O> {
    /// Continue from the newest checkpoint of those that may be used; 0 where there is none.
    ///
    /// # Errors
    /// It is of another model, or damaged.
    pub fn resume(&mut self, usable: &[Step]) -> Result<Step> {
        let Some((step, before)) = usable.split_last() else {
            return Ok(Step(0));
        };
        let dir = self.checkpoints.join(format!("step_{step}"));
        let failed = |error| {
            let damaged = matches!(error, slime_trainer::Error::Checkpoint { .. });
            let failure = train_failed(error);
            match before.last() {
                Some(before) if damaged => failure.help(format!(
                    "move {} away: --resume then goes on from step {before}",
                    dir.display()
                )),
                None if damaged => failure
                    .help("there is no other checkpoint: begin a new run, --set run.dir=PATH"),
                _ => failure,
            }
        };
        self.trainer.load(&dir).map_err(failed)
    }
}

impl<O: Machine> Learn for Learner<O> {
    fn train(&mut self, records: &[RolloutRecord]) -> Result<Vec<TrainMetrics>> {
        self.trainer.train(records).map_err(train_failed)
    }

    fn save(&mut self, finished: Step) -> Result<()> {
        save(
            &self.trainer,
            &self.checkpoints,
            self.keep,
            &self.fence,
            finished,
        )
    }

    fn write_weights(&self, dir: &Path, form: &hf::Form) -> Result<Duration> {
        let mut reading = Duration::ZERO;
        let read = |param: &_| {
            let begin = Instant::now();
            let data = self.trainer.read_param(param);
            reading += begin.elapsed();
            data
        };
        save_weights(
            dir,
            &self.model.spec,
            form.clone(),
            DEFAULT_SHARD_BYTES,
            read,
        )
        .map_err(train_failed)?;
        Ok(reading)
    }

    fn hand_over(&self) -> Result<Option<Arc<dyn Handed>>> {
        let params = slime_model::params(&self.model.spec);
        let handed = self
            .beside
            .as_ref()
            .map(|beside| beside.take(&self.trainer, &params));
        handed.transpose().map_err(train_failed)
    }

    fn buckets(&self, form: &hf::Form) -> Result<Option<Arc<Buckets>>> {
        let as_they_lie = O::NUMBER_BYTES == 2 && *form == hf::Dtype::Bf16.into();
        // Ranks that are processes share no device to meet on.
        let is_apart = matches!(self.trainer, Ranks::Far(_));
        if self.caster.is_none() || !as_they_lie || is_apart {
            return Ok(None);
        }
        Ok(Some(Arc::new(Buckets::of(&self.model.spec)?)))
    }

    fn send(&self, seen: &Seen) -> Result<std::result::Result<(), String>> {
        let Some(caster) = self.caster.clone() else {
            return Ok(Err("there is nobody to send them".into()));
        };
        let (seen, failed) = (seen.clone(), Arc::new(Mutex::new(None)));
        let (runs, reason) = (seen.buckets.runs.clone(), failed.clone());
        let take: Take<O> = Arc::new(move |ops, run, tensor| {
            // Once nobody listens, what is left of the walk changes nothing: ranks end it together.
            if lock(&reason).is_some() {
                return Ok(());
            }
            seen.look(ops, run, &tensor)?;
            let sent = match seen.buckets.is_wide(run) {
                true => {
                    let bytes = ops.read(&tensor)?.into_iter().flat_map(f32::to_le_bytes);
                    caster.0.send(&bytes.collect::<Vec<_>>())
                }
                false => ops.send(&tensor, &caster.0),
            };
            if let Err(error) = sent {
                *lock(&reason) = Some(error.to_string());
            }
            Ok(())
        });
        self.trainer.each_run(&runs, take).map_err(train_failed)?;
        Ok(lock(&failed).take().map_or(Ok(()), Err))
    }

    fn keep(&self, seen: &Seen) -> Result<Kept> {
        let (own, kept) = (seen.clone(), Arc::new(Mutex::new(seen.buckets.room())));
        let bits = kept.clone();
        let take: Take<O> = Arc::new(move |ops, run, tensor| {
            own.look(ops, run, &tensor)?;
            let into = std::mem::take(&mut lock(&bits)[run]);
            let read = ops.bits(&tensor, into)?;
            lock(&bits)[run] = read;
            Ok(())
        });
        let runs = &seen.buckets.runs;
        self.trainer.each_run(runs, take).map_err(train_failed)?;
        Ok(Kept {
            buckets: seen.buckets.clone(),
            bits: std::mem::take(&mut *lock(&kept)),
        })
    }

    fn write_model(&self, dir: &Path) -> Result<()> {
        export::<O>(&self.model, dir, |param| self.trainer.read_param(param))
    }

    fn log_probs(&self, tokens: &[u32]) -> Result<Vec<f64>> {
        self.trainer.log_probs(tokens).map_err(train_failed)
    }
}

/// Write the checkpoint of `finished` steps among `checkpoints`, of which the newest `keep` stay.
///
/// # Errors
/// The disk refused, a rank failed, or the run is another process's by now.
pub fn save<O: Ops>(
    trainer: &Ranks<O>,
    checkpoints: &Path,
    keep: usize,
    fence: &Fence,
    finished: Step,
) -> Result<()> {
    fence.check().map_err(rollout_failed)?;
    let name = format!("step_{finished}");
    // Whole, but not yet the run's: that is one rename, just after the run was seen to be this process's still.
    let aside = format!(".{name}.epoch-{}.writing", fence.epoch());
    let aside = checkpoints.join(aside);
    trainer.save(&aside, finished).map_err(train_failed)?;
    fence.check().map_err(rollout_failed)?;
    checkpoint::commit(&aside, &checkpoints.join(name)).map_err(train_failed)?;
    checkpoint::keep_last(checkpoints, keep).map_err(train_failed)
}

/// Write what was trained as an HF directory, in the precision it was trained in; `read` gives each parameter.
///
/// # Errors
/// The disk refused.
pub fn export<O: Machine>(
    model: &Model,
    dir: &Path,
    read: impl FnMut(&ParamSpec) -> slime_trainer::Result<Vec<f32>>,
) -> Result<()> {
    save_dir(
        dir,
        &model.spec,
        &model.files,
        if O::NUMBER_BYTES == 2 {
            hf::Dtype::Bf16
        } else {
            hf::Dtype::F32
        },
        DEFAULT_SHARD_BYTES,
        read,
    )
    .map_err(train_failed)
}

/// What a trainer says of a recipe that does not fit it, where it was said.
pub fn unfit(said: &Resolved, error: slime_trainer::Error) -> Failure {
    let slime_trainer::Error::Config(problems) = error else {
        return train_failed(error);
    };
    let placed = |problem: slime_trainer::Problem| {
        let sections = ["train", "algorithm", "model", "rollout"];
        let keys = sections.map(|section| format!("{section}.{}", problem.key));
        refused(said, &keys.each_ref().map(String::as_str), problem)
    };
    Problems(problems.into_iter().map(placed).collect()).into()
}

/// A trainer's error once the run has begun.
pub fn train_failed(error: slime_trainer::Error) -> Failure {
    let full = matches!(&error, slime_trainer::Error::Io { source, .. } if source.kind() == std::io::ErrorKind::StorageFull);
    let failure = match &error {
        slime_trainer::Error::Ranks(reason)
        | slime_trainer::Error::Kernels(slime_kernels::Error::Comm(reason)) => team::lost(reason),
        _ => Failure::run(error.to_string()),
    };
    if full {
        failure.help("the disk is full, and what was saved before is whole: free space, then continue with --resume")
    } else {
        failure
    }
}

/// What a panic left is as good as before it.
pub(super) fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}
