//! `slime-host eval`: held-out prompts only; the metrics as JSON on stdout.

use super::recipe::Recipe;
use super::{Context, Outcome};
use crate::config::flags::{Group, bits};
use crate::config::{Plan, Verb};
use crate::error::{Failure, Result, at_path};
use crate::job::evals::Evals;
use crate::job::opened::Opened;
use crate::job::run_dir::{self, logs};
use crate::job::watch::Watch;
use crate::telemetry::{Row, Telemetry};
use crate::wire::{Whose, rollout_failed};
use slime_core::{Group as Rollouts, RolloutRecord, Step, WeightVersion};
use slime_rollout::buffer::write_jsonl;
use std::path::PathBuf;
use std::sync::Arc;

const GROUPS: u32 = bits(
    Some(Verb::Eval),
    &[
        Group::Run,
        Group::Model,
        Group::Data,
        Group::Eval,
        Group::Rollout,
    ],
);

/// What to evaluate.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Components (.wasm) or plugin folders
    #[arg(required = true)]
    plugins: Vec<PathBuf>,
    /// Also write the rollout records
    #[arg(long, value_name = "FILE.jsonl")]
    out: Option<PathBuf>,
    #[command(flatten)]
    recipe: Recipe<GROUPS>,
}

/// Do it.
///
/// # Errors
/// What was asked for is wrong, or no engine answered.
pub fn run(args: Args, context: &Context) -> Result<Outcome> {
    let said = args.recipe.resolve(None, &args.plugins)?;
    let plan = Plan::new(&said, Verb::Eval)?;
    if let Some(out) = &args.out {
        super::room_for(out)?;
    }
    if let Some(dir) = &plan.run.dir {
        run_dir::no_run_at(dir).map_err(|p| p.at(said.place("run.dir")))?;
    }
    let opened = Opened::new(plan, said, false, &context.console)?;
    super::block_on(evaluate(opened, args.out, context))?
}

async fn evaluate(opened: Opened, out: Option<PathBuf>, context: &Context) -> Result<Outcome> {
    let version = WeightVersion(1);
    let eval = opened
        .plan
        .eval
        .as_ref()
        .ok_or_else(|| Failure::run("no evaluation"))?;
    let whose = Whose {
        label: "eval",
        frozen: Some(version),
        fence: None,
    };
    let serving = opened
        .serve(whose, &logs(opened.plan.run.dir.as_deref()))
        .await?;
    let bar = context
        .console
        .progress("data sets", opened.held_out.len() as u64);
    let evals = Evals {
        sets: opened.eval_sets(&serving, eval),
        progress: Arc::new(Watch::new(bar.clone(), "evaluate")),
    };
    let reports = evals.reports(Step(0), version).await?;
    drop(bar);
    serving.stop().await;
    let mut row = Row::at("eval/step", 0);
    for report in &reports {
        for (name, value) in &report.metrics.0 {
            row.set(name.clone(), *value);
        }
        let reward = row
            .get(&format!("eval/{}", report.name))
            .map_or_else(|| "not scored".into(), |r| format!("{r:.4}"));
        context.console.line(&format!(
            " {}: mean reward {reward} over {} prompts",
            report.name,
            report.groups.len()
        ));
    }
    if let Some(dir) = &opened.plan.run.dir {
        let mut telemetry =
            Telemetry::open(dir, "eval/step", &context.trace, None).map_err(at_path(dir))?;
        telemetry.record(&row).map_err(at_path(dir))?;
    }
    if let Some(out) = out {
        let records: Vec<RolloutRecord> = reports
            .iter()
            .flat_map(|r| &r.groups)
            .flat_map(Rollouts::records)
            .collect();
        write_jsonl(&out, &records).map_err(rollout_failed)?;
    }
    super::data(&format!("{}\n", serde_json::Value::Object(row.0)))
}
