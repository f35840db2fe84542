//! `slime-host train`: training only, on recorded rollouts.

use super::recipe::Recipe;
use super::{Context, Outcome};
use crate::config::flags::{Group, bits};
use crate::config::{Plan, Problem, Resolved, Verb};
use crate::error::{Result, at_path};
use crate::job::learner::{export, train_failed, unfit};
use crate::job::ranks::{Ranks, Trained};
use crate::job::stop::{ENDING, Stop};
use crate::job::{row, run_dir, watch};
use crate::telemetry::{Telemetry, console};
use crate::wire::device::Machine;
use crate::wire::device::on_device;
use crate::wire::model::{load_other, load_teacher};
use crate::wire::{Computer, Model, refused};
use slime_core::RolloutRecord;
use slime_core::ports::TextCodec;
use slime_rollout::buffer::read_records;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

const GROUPS: u32 = bits(Some(Verb::Train), &[Group::Algorithm, Group::Train]);
const AXIS: &str = "train/step";

/// What to train on.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// HF directory to start from
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// Rollout records, as `rollout` writes them
    #[arg(long, value_name = "FILE.jsonl")]
    rollouts: PathBuf,
    /// Where metrics.jsonl and model/ go; run.dir says the same
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Weights of the reference model
    #[arg(long = "ref-load", value_name = "DIR")]
    reference: Option<PathBuf>,
    #[command(flatten)]
    recipe: Recipe<GROUPS>,
}

/// Do it.
///
/// # Errors
/// What was asked for is wrong, or training failed.
pub fn run(args: Args, context: &Context) -> Result<Outcome> {
    let said = args.recipe.resolve(None, &[])?;
    let plan = Plan::new(&said, Verb::Train)?;
    let device = Computer::open(plan.model.device).map_err(|p| p.at(said.place("model.device")))?;
    on_device!(device, ops => super::block_on(train(ops, args, plan, said, context))?)
}

async fn train<O: Machine>(
    ops: Arc<O>,
    args: Args,
    plan: Plan,
    said: Resolved,
    context: &Context,
) -> Result<Outcome> {
    let console = &context.console;
    let model = Model::directory(&args.model).map_err(|e| Problem::new(e.to_string()))?;
    let records = read_records(&args.rollouts).map_err(|e| Problem::new(e.to_string()))?;
    let no_place = || Problem::new("it is not said where the result goes").help("add --out DIR");
    let dir = args.out.or(plan.run.dir).ok_or_else(no_place)?;
    run_dir::no_run_at(&dir)?;
    std::fs::create_dir_all(&dir).map_err(at_path(&dir))?;
    let weights = model.load(&*ops).map_err(|e| Problem::new(e.to_string()))?;
    let steps = by_step(&records);
    let bar = console.progress("rollout steps", steps.len() as u64);
    let trained = Trained {
        spec: &model.spec,
        config: &plan.train,
        ranks: &plan.ranks,
        vocab: model.text.vocab_size(),
        processes: None,
    };
    let progress = watch::on_train(bar.clone());
    let trainer = Ranks::new(ops.clone(), &trained, weights, progress);
    let mut trainer = trainer.map_err(|e| unfit(&said, e))?;
    if plan.train.needs_reference().is_some() {
        let reference = args
            .reference
            .as_deref()
            .or(plan.model.reference.as_deref())
            .unwrap_or(&args.model);
        let weights = load_other(&model, reference, &*ops)
            .map_err(|e| refused(&said, &["model.ref_load"], e))?;
        trainer = trainer
            .with_reference(&ops, &model.spec, weights)
            .map_err(train_failed)?;
    } else if args.reference.is_some() {
        let problem = Problem::new("--ref-load has no effect: no KL to a reference is computed");
        return Err(problem
            .help("add --use-kl-loss, or a --kl-coef above 0")
            .into());
    }
    if let Some(teacher) = &plan.model.teacher {
        let (spec, weights) = load_teacher(&model, teacher, &*ops)
            .map_err(|e| refused(&said, &["model.teacher_load"], e))?;
        trainer = trainer
            .with_teacher(&ops, spec, weights)
            .map_err(train_failed)?;
    }
    console.line(&console::header(&[
        ("model", format!("{} ({})", model.name(), model.size())),
        (
            "rollouts",
            format!("{} records of {} rollout steps", records.len(), steps.len()),
        ),
    ]));
    let mut telemetry = Telemetry::open(&dir, AXIS, &context.trace, None).map_err(at_path(&dir))?;
    let stop = Stop::listen(console.clone(), ENDING);
    let mut number = 0;
    for records in steps {
        let begin = Instant::now();
        let trained =
            tokio::task::block_in_place(|| trainer.train(&records)).map_err(train_failed)?;
        let took = begin.elapsed() / trained.len().max(1) as u32;
        let advantages: Vec<f64> = trained.iter().filter_map(|m| m.advantage_abs).collect();
        if !advantages.is_empty() && advantages.iter().all(|a| *a == 0.0) {
            tracing::warn!(
                step = number,
                "every advantage is 0, so this step teaches nothing: within each group all rewards are equal"
            );
        }
        for metrics in &trained {
            telemetry
                .record(&row::of_train(AXIS, number, metrics, took))
                .map_err(at_path(&dir))?;
            tracing::info!(step = number, loss = metrics.loss, "step");
            let norm = metrics
                .grad_norm
                .map_or_else(|| "–".into(), |norm| format!("{norm:.4}"));
            console.line(&format!(
                " {number:>5}   loss {:+.5}   grad norm {norm}   lr {:.2e}",
                metrics.loss, metrics.lr
            ));
            number += 1;
        }
        bar.advance();
        if stop.is_asked() {
            break;
        }
    }
    drop(bar);
    export::<O>(&model, &dir.join(run_dir::MODEL), |param| {
        trainer.read_param(param)
    })?;
    context.trace.close();
    let files = ["model", "metrics.jsonl", "tensorboard", "trace.json"];
    console.line(&console::summary(
        &format!("{number} train steps."),
        &dir,
        &files,
        &[],
    ));
    Ok(if stop.is_asked() {
        Outcome::Stopped
    } else {
        Outcome::Done
    })
}

/// Records of one rollout step together, in the order in which the steps first occur.
fn by_step(records: &[RolloutRecord]) -> Vec<Vec<RolloutRecord>> {
    let mut steps: Vec<(slime_core::Step, Vec<RolloutRecord>)> = Vec::new();
    for record in records {
        match steps.iter_mut().find(|(step, _)| *step == record.step) {
            Some((_, records)) => records.push(record.clone()),
            None => steps.push((record.step, vec![record.clone()])),
        }
    }
    steps.into_iter().map(|(_, records)| records).collect()
}
