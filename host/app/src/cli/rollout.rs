//! `slime-host rollout`: rollouts only, as records in a JSONL file.

use super::recipe::Recipe;
use super::{Context, Outcome};
use crate::config::flags::{Group, bits};
use crate::config::plan::Length;
use crate::config::{Plan, Verb};
use crate::error::{Failure, Result, at_path};
use crate::job::opened::Opened;
use crate::job::row::AXIS;
use crate::job::run_dir::logs;
use crate::job::stop::{ENDING, Stop};
use crate::job::watch::Watch;
use crate::telemetry::{Row, Telemetry};
use crate::wire::{Whose, rollout_failed};
use slime_core::{RolloutRecord, Step, WeightVersion};
use slime_rollout::Sampler;
use slime_rollout::buffer::write_jsonl;
use slime_rollout::collect::MemoryLedger;
use std::path::PathBuf;
use std::sync::Arc;

const GROUPS: u32 = bits(&[Group::Run, Group::Model, Group::Data, Group::Rollout]);

/// What to sample.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Components (.wasm) or plugin folders
    #[arg(required = true)]
    plugins: Vec<PathBuf>,
    /// Rollout records, one trajectory a line
    #[arg(long, value_name = "FILE.jsonl")]
    out: PathBuf,
    #[command(flatten)]
    recipe: Recipe<GROUPS>,
}

/// Do it.
///
/// # Errors
/// What was asked for is wrong, or no engine answered.
pub fn run(args: Args, context: &Context) -> Result<Outcome> {
    let said = args.recipe.resolve(None, &args.plugins)?;
    let plan = Plan::new(&said, Verb::Rollout)?;
    let opened = Opened::new(plan, said, true, &context.console)?;
    super::block_on(sample(opened, args.out, context))?
}

async fn sample(opened: Opened, out: PathBuf, context: &Context) -> Result<Outcome> {
    let console = &context.console;
    let rollout = &opened.plan.rollout;
    let steps = match opened.plan.run.length {
        Length::Steps(steps) => steps,
        Length::Epochs(epochs) => {
            let rows = opened
                .source
                .as_ref()
                .and_then(|source| source.len())
                .unwrap_or(0);
            (epochs * rows).div_ceil(rollout.batch_size)
        }
    };
    let stop = Stop::listen(console.clone(), ENDING);
    let version = WeightVersion(1);
    let whose = Whose {
        label: "rollout",
        frozen: Some(version),
        fence: None,
    };
    let serving = opened
        .serve(whose, &logs(opened.plan.run.dir.as_deref()))
        .await?;
    let driver = opened.driver(
        &serving,
        &rollout.sampling,
        rollout.n_samples_per_prompt,
        "rollout",
    );
    let bar = console.progress("steps", steps);
    let source = opened
        .source
        .clone()
        .ok_or_else(|| Failure::run("no prompts"))?;
    let sampler = Sampler::new(driver, source, Arc::new(MemoryLedger::default()))
        .with_filters(opened.filters())
        .with_progress(Arc::new(Watch::new(bar.clone(), "sample")));
    sampler.serve(version);
    let mut rows = match &opened.plan.run.dir {
        Some(dir) => Some(Telemetry::open(dir, AXIS, &context.trace, None).map_err(at_path(dir))?),
        None => None,
    };
    let mut records: Vec<RolloutRecord> = Vec::new();
    let mut stopped = false;
    for step in 0..steps {
        let groups = sampler.groups(Step(step), rollout.batch_size as usize);
        let collected = tokio::select! {
            collected = groups => collected.map_err(rollout_failed)?,
            () = stop.asked() => {
                stopped = true;
                break;
            }
        };
        records.extend(collected.groups.iter().flat_map(slime_core::Group::records));
        let mut row = Row::at(AXIS, step);
        for (name, value) in &collected.metrics.0 {
            row.set(name.clone(), *value);
        }
        if let Some(rows) = &mut rows {
            rows.record(&row).map_err(at_path(&out))?;
        }
        bar.advance();
        tracing::info!(step, reward = row.get("rollout/reward"), "step");
        let show = |name: &str| {
            row.get(name)
                .map_or_else(|| "–".into(), |value| format!("{value:.3}"))
        };
        console.line(&format!(
            " {step:>5}   reward {}   length {}   {} tok/s",
            show("rollout/reward"),
            show("rollout/response_len/mean"),
            show("perf/tokens_per_sec")
        ));
    }
    drop(bar);
    write_jsonl(&out, &records).map_err(rollout_failed)?;
    serving.stop().await;
    let scored = records.iter().filter(|record| record.is_scored()).count();
    console.line(&format!(
        " {} trajectories, {scored} scored, in {}",
        records.len(),
        out.display()
    ));
    Ok(if stopped {
        Outcome::Stopped
    } else {
        Outcome::Done
    })
}
