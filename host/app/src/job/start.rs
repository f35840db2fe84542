//! The trainer at a run's first step: warmed up, or resumed from a checkpoint.

use super::learner::{Learner, train_failed, unfit};
use super::opened::Opened;
use super::ranks::{Ranks, Trained, source};
use super::stop::Stop;
use super::team::{self, Begin, From, Work};
use super::warm_up::{self, Corpus};
use super::watch::on_train;
use super::{Learn, row, run_dir};
use crate::config::Problem;
use crate::error::{Failure, Result, at_path};
use crate::telemetry::Metrics;
use crate::telemetry::console::{Console, Progress};
use crate::wire::device::Machine;
use crate::wire::model::{load_other, load_teacher, model_failed};
use crate::wire::{refused, sources};
use slime_core::Step;
use slime_core::ports::{Source, TextCodec};
use slime_kernels::comm::Processes;
use slime_model::hf::{self, DEFAULT_SHARD_BYTES, save_weights};
use slime_rollout::Fence;
use slime_trainer::checkpoint;
use std::path::Path;
use std::sync::Arc;

/// Rows of the supervised warm-up.
const WARM_UP_FILE: &str = "sft.jsonl";
/// Weights of the reference, where they are not on disk already.
const REFERENCE: &str = "reference";

/// What holds a run together.
pub struct Held {
    /// Whose it is.
    pub fence: Fence,
    /// The processes its ranks are, where they are.
    pub processes: Option<Arc<Processes>>,
}

/// The trainer, warmed up or resumed, and how many steps are finished. `None` if the person stopped it meanwhile.
pub async fn learner<O: Machine>(
    ops: Arc<O>,
    opened: &Opened,
    dir: &Path,
    bar: &Progress,
    stop: &Stop,
    console: &Console,
    held: &Held,
) -> Result<Option<(Learner<O>, Step)>> {
    let (plan, model) = (&opened.plan, &opened.model);
    let checkpoints = dir.join(run_dir::CHECKPOINTS);
    let mut usable = checkpoint::steps(&checkpoints).map_err(train_failed)?;
    let found = !usable.is_empty();
    let reference = dir.join(REFERENCE);
    let mut warmed = false;
    let weights = match &plan.sft {
        Some(_) if !found => {
            let Some(trainer) = warm_up(opened, dir, &ops, stop, console, held).await? else {
                return Ok(None);
            };
            warmed = true;
            let params = slime_model::params(&model.spec);
            let weights = params.iter().map(|param| {
                let data = trainer.read_param(param).map_err(train_failed)?;
                ops.tensor(param.rows, param.cols, &data)
                    .map_err(|e| Failure::run(e.to_string()))
            });
            weights.collect::<Result<Vec<_>>>()?
        }
        _ => model.load(&*ops).map_err(model_failed)?,
    };
    if let Some(processes) = &held.processes {
        if warmed {
            let by_name = source(ops.clone(), &model.spec, weights.clone());
            let read = |param: &_| by_name(param);
            save_weights(
                &reference,
                &model.spec,
                hf::Dtype::F32,
                DEFAULT_SHARD_BYTES,
                read,
            )
            .map_err(train_failed)?;
        }
        usable = team::begin(processes, &told(opened, dir, warmed)?, usable)?;
        if found && usable.is_empty() {
            return Err(team::none_in_common(&checkpoints));
        }
    }
    let trained = Trained {
        spec: &model.spec,
        config: &plan.train,
        ranks: &plan.ranks,
        vocab: model.text.vocab_size(),
        processes: held.processes.as_ref(),
    };
    let progress = on_train(bar.clone());
    let trainer = Ranks::new(ops.clone(), &trained, weights, progress);
    let trainer = trainer.map_err(|e| unfit(&opened.said, e))?;
    let mut learner = Learner {
        trainer,
        model: model.clone(),
        checkpoints,
        keep: plan.run.keep_checkpoints,
        fence: held.fence.clone(),
        beside: None,
        caster: None,
    };
    if warmed {
        if plan.train.needs_reference().is_some() && plan.model.reference.is_none() {
            learner.write_weights(&reference, &hf::Dtype::F32.into())?;
        }
        learner.save(Step(0))?;
        usable = vec![Step(0)];
    }
    if plan.train.needs_reference().is_some() {
        let weights = match &plan.model.reference {
            Some(other) => load_other(model, other, &*ops)
                .map_err(|e| refused(&opened.said, &["model.ref_load"], e))?,
            None if plan.sft.is_some() => {
                load_other(model, &reference, &*ops).map_err(model_failed)?
            }
            None => model.load(&*ops).map_err(model_failed)?,
        };
        learner.trainer = learner
            .trainer
            .with_reference(&ops, &model.spec, weights)
            .map_err(train_failed)?;
    }
    if let Some(teacher) = &plan.model.teacher {
        let (spec, weights) = load_teacher(model, teacher, &*ops)
            .map_err(|e| refused(&opened.said, &["model.teacher_load"], e))?;
        learner.trainer = learner
            .trainer
            .with_teacher(&ops, spec, weights)
            .map_err(train_failed)?;
    }
    let start = learner.resume(&usable)?;
    Ok(Some((learner, start)))
}

/// What every other rank is told.
fn told(opened: &Opened, dir: &Path, warmed: bool) -> Result<Begin> {
    let plan = &opened.plan;
    let absolute = |path: &Path| std::path::absolute(path).map_err(at_path(path));
    let own = From::Directory(absolute(&dir.join(REFERENCE))?);
    let reference = match &plan.model.reference {
        Some(other) => From::Directory(absolute(other)?),
        None if plan.sft.is_some() => own.clone(),
        None => From::Model,
    };
    Ok(Begin {
        work: Work::Train,
        recipe: opened.said.to_toml(true),
        dir: absolute(dir)?,
        weights: if warmed { own } else { From::Model },
        reference: plan.train.needs_reference().is_some().then_some(reference),
        teacher: plan.model.teacher.as_deref().map(absolute).transpose()?,
    })
}

/// What every other rank is told of the warm-up.
fn told_to_warm_up(opened: &Opened, dir: &Path) -> Result<Begin> {
    Ok(Begin {
        work: Work::WarmUp,
        recipe: opened.said.to_toml(true),
        dir: std::path::absolute(dir).map_err(at_path(dir))?,
        weights: From::Model,
        reference: None,
        teacher: None,
    })
}

async fn warm_up<O: Machine>(
    opened: &Opened,
    dir: &Path,
    ops: &Arc<O>,
    stop: &Stop,
    console: &Console,
    held: &Held,
) -> Result<Option<Ranks<O>>> {
    let plan = &opened.plan;
    let Some(sft) = &plan.sft else {
        return Ok(None);
    };
    let rows = sft.num_steps.unwrap_or(1) * sft.batch_size as u64;
    let source: Arc<dyn Source> = match (&sft.data, &opened.aside) {
        (Some(data), _) => Arc::new(
            sources::open("sft", data).map_err(|e| refused(&opened.said, &["sft.data"], e))?,
        ),
        (None, Some(plugin)) => sources::warm_up(plugin, rows, &plan.chat),
        (None, None) => {
            let problem = Problem::new("there is nothing to warm up on: no plugin is a source");
            return Err(problem
                .help("add `sft.data`")
                .at(opened.said.place("sft.num_steps"))
                .into());
        }
    };
    let corpus = Corpus::open(
        &*source,
        &*opened.model.text,
        &plan.template_kwargs,
        plan.seed,
        sft.shuffled_label_frac,
    )
    .await?;
    let path = dir.join(WARM_UP_FILE);
    let mut rows = Metrics::at(&path, "train/step", None).map_err(at_path(&path))?;
    let total = warm_up::num_steps(sft, &corpus);
    let bar = console.progress("warm-up", total);
    let span = tracing::info_span!(target: "slime", "sft", steps = total);
    if let Some(processes) = &held.processes {
        team::begin(processes, &told_to_warm_up(opened, dir)?, Vec::new())?;
    }
    let processes = held.processes.as_ref();
    let mut trainer = warm_up::trainer(
        sft,
        (&opened.said, plan),
        &opened.model,
        ops.clone(),
        processes,
    )?;
    tokio::task::block_in_place(|| {
        let _inside = span.enter();
        warm_up::run(
            sft,
            &corpus,
            0..total,
            &mut trainer,
            |_, step, metrics, took| {
                let row = row::of_train("train/step", step, metrics, took);
                rows.write(&row).map_err(at_path(&path))?;
                bar.advance();
                bar.say(format!("· loss {:.3}", metrics.loss));
                if step == 0 || (step + 1) % total.div_ceil(5).max(1) == 0 || step + 1 == total {
                    console.line(&format!(
                        " warm-up  step {:>4}/{total}  loss {:.4}",
                        step + 1,
                        metrics.loss
                    ));
                }
                Ok(!stop.is_asked())
            },
        )
    })?;
    Ok((!stop.is_asked()).then_some(trainer))
}
