//! `slime-host sft`: supervised fine-tuning on the same trainer.

use super::recipe::Recipe;
use super::{Context, Outcome};
use crate::config::flags::{Group, bits};
use crate::config::plan::SftPlan;
use crate::config::{Plan, Problem, Resolved, Verb};
use crate::error::{Result, at_path};
use crate::job::learner::export;
use crate::job::stop::{ENDING, Stop};
use crate::job::{row, run_dir, warm_up};
use crate::telemetry::{Telemetry, console};
use crate::wire::device::on_device;
use crate::wire::{Computer, Model, Plugins, refused, sources};
use slime_core::ports::Source;
use slime_kernels::Ops;
use std::path::PathBuf;
use std::sync::Arc;

const GROUPS: u32 = bits(&[Group::Run, Group::Model, Group::Train]);
const AXIS: &str = "train/step";

/// What to fine-tune.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A plugin that is a source, whose labels are learned; not needed with `sft.data`
    plugins: Vec<PathBuf>,
    #[command(flatten)]
    recipe: Recipe<GROUPS>,
}

/// Do it.
///
/// # Errors
/// What was asked for is wrong, or training failed.
pub fn run(args: Args, context: &Context) -> Result<Outcome> {
    let said = args.recipe.resolve(None, &args.plugins)?;
    let plan = Plan::new(&said, Verb::Sft)?;
    let device = Computer::open(plan.model.device).map_err(|p| p.at(said.place("model.device")))?;
    on_device!(device, ops => super::block_on(fine_tune(ops, plan, said, context))?)
}

async fn fine_tune<O: Ops>(
    ops: Arc<O>,
    plan: Plan,
    said: Resolved,
    context: &Context,
) -> Result<Outcome> {
    let Some(sft) = &plan.sft else {
        return Ok(Outcome::Done);
    };
    let console = &context.console;
    let model = Model::open(&plan.model, &said, plan.seed)?;
    let source = source(&plan, sft, &said, context)?;
    let corpus = warm_up::Corpus::open(
        &*source,
        &*model.text,
        &plan.template_kwargs,
        plan.seed,
        sft.shuffled_label_frac,
    )
    .await?;
    let dir = run_dir::fresh(
        plan.run.dir.as_deref(),
        plan.run.name.as_deref().unwrap_or("sft"),
        plan.seed,
    )?;
    run_dir::write_recipe(&dir, &said)?;
    let stop = Stop::listen(console.clone(), ENDING);
    let total = sft
        .num_steps
        .unwrap_or_else(|| corpus.steps_per_pass(sft.batch_size));
    console.line(&console::header(&[
        ("model", format!("{} ({})", model.name(), model.size())),
        ("data", source.name().to_owned()),
        (
            "steps",
            format!(
                "{total}   {} sequences each   lr {:e}",
                sft.batch_size, sft.train.lr
            ),
        ),
        ("run", dir.display().to_string()),
    ]));
    let mut telemetry = Telemetry::open(&dir, AXIS, &context.trace, None).map_err(at_path(&dir))?;
    let bar = console.progress("steps", total);
    let span = tracing::info_span!(target: "slime", "sft", steps = total);
    let (mut last, mut done) = (0.0, 0);
    let trainer = tokio::task::block_in_place(|| {
        let _inside = span.enter();
        warm_up::run(sft, &corpus, &model, ops, |step, total, metrics, took| {
            telemetry
                .record(&row::of_train(AXIS, step, metrics, took))
                .map_err(at_path(&dir))?;
            (last, done) = (metrics.loss, step + 1);
            bar.advance();
            bar.say(format!("· loss {last:.3}"));
            tracing::info!(step, loss = metrics.loss, lr = metrics.lr, "step");
            console.line(&format!(
                " {:>5}/{total}  loss {last:.4}  lr {:.2e}  {:>6.0} tok/s",
                step + 1,
                metrics.lr,
                metrics.tokens as f64 / took.as_secs_f64()
            ));
            Ok(!stop.is_asked())
        })
    })?;
    drop(bar);
    export(&model, &dir.join(run_dir::MODEL), |param| {
        trainer.read_param(param)
    })?;
    context.trace.close();
    let sentence = format!("{done} of {total} steps, loss {last:.4}.");
    console.line(&console::summary(
        &sentence,
        &dir,
        &["model", "metrics.jsonl", "tensorboard", "trace.json"],
        &[],
    ));
    Ok(if stop.is_asked() {
        Outcome::Stopped
    } else {
        Outcome::Done
    })
}

fn source(
    plan: &Plan,
    sft: &SftPlan,
    said: &Resolved,
    context: &Context,
) -> Result<Arc<dyn Source>> {
    if let Some(data) = &sft.data {
        let file = sources::open("sft", data).map_err(|e| refused(said, &["sft.data"], e))?;
        return Ok(Arc::new(file));
    }
    let needs_steps = || {
        Problem::new("a source without end needs a number of steps")
            .help("add --set sft.num_steps=N")
    };
    let plugin = match plan.plugins.is_empty() {
        true => None,
        false => Plugins::source(plan, said, &context.console)?,
    };
    match plugin {
        Some(plugin) if plugin.len().is_none() && sft.num_steps.is_none() => {
            Err(needs_steps().into())
        }
        Some(plugin) => {
            let rows = sft.num_steps.unwrap_or(1) * sft.batch_size as u64;
            Ok(sources::warm_up(&plugin, rows, &plan.chat))
        }
        None => {
            let problem = Problem::new("there is nothing to fine-tune on");
            Err(problem
                .help("add --set sft.data=FILE.jsonl, or name a plugin that is a source")
                .into())
        }
    }
}
