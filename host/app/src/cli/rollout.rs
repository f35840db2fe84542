//! `slime-host rollout`: rollouts only, as records in a JSONL file.

use super::recipe::Recipe;
use super::{Context, Outcome};
use crate::config::flags::{Group, bits};
use crate::config::plan::Length;
use crate::config::{Plan, Verb};
use crate::error::{Failure, Result, at_path};
use crate::job::opened::Opened;
use crate::job::row::AXIS;
use crate::job::run_dir::{self, logs};
use crate::job::stop::{ENDING, Stop};
use crate::job::watch::Watch;
use crate::telemetry::{Row, Telemetry};
use crate::wire::{Whose, rollout_failed};
use slime_core::{RolloutRecord, Step, WeightVersion};
use slime_rollout::collect::MemoryLedger;
use slime_rollout::{Sampler, WholeFile};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const GROUPS: u32 = bits(
    Some(Verb::Rollout),
    &[Group::Run, Group::Model, Group::Data, Group::Rollout],
);

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
    super::room_for(&args.out)?;
    if let Some(dir) = &plan.run.dir {
        run_dir::no_run_at(dir).map_err(|p| p.at(said.place("run.dir")))?;
    }
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
    let mut records = Growing::begin(&out)?;
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
        records.add(collected.groups.iter().flat_map(slime_core::Group::records))?;
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
    let (count, scored) = records.end()?;
    serving.stop().await;
    console.line(&format!(
        " {count} trajectories, {scored} scored, in {}",
        out.display()
    ));
    Ok(if stopped {
        Outcome::Stopped
    } else {
        Outcome::Done
    })
}

/// Records on the disk as they come: a process that is killed, or a disk that is full, leaves what was sampled in
/// `FILE.writing`.
struct Growing {
    path: PathBuf,
    file: WholeFile,
    count: usize,
    scored: usize,
}

impl Growing {
    fn begin(out: &Path) -> Result<Self> {
        Ok(Self {
            path: out.into(),
            file: WholeFile::create(out).map_err(at_path(out))?,
            count: 0,
            scored: 0,
        })
    }

    fn add(&mut self, records: impl Iterator<Item = RolloutRecord>) -> Result<()> {
        for record in records {
            self.count += 1;
            self.scored += usize::from(record.is_scored());
            serde_json::to_writer(&mut self.file, &record)
                .map_err(std::io::Error::from)
                .and_then(|()| self.file.write_all(b"\n"))
                .map_err(at_path(&self.path))?;
        }
        self.file.flush().map_err(at_path(&self.path))
    }

    /// How many there are, and how many were scored.
    fn end(self) -> Result<(usize, usize)> {
        self.file.finish().map_err(at_path(&self.path))?;
        Ok((self.count, self.scored))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_lie_on_the_disk_before_the_last_step() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("r.jsonl");
        let line = r#"{"step":0,"group_id":0,"rollout_id":0,"index":0,"tokens":[1,2],"response_length":1,"loss_mask":[1],"rollout_log_probs":[-1.0],"reward":1.0,"outcome":"scored","finish_reason":"stop","weight_versions":[1],"label":"4","metadata":{}}"#;
        let record: RolloutRecord = serde_json::from_str(line).unwrap();
        let mut growing = Growing::begin(&out).unwrap();
        growing.add([record.clone(), record].into_iter()).unwrap();
        let writing = dir.path().join("r.jsonl.writing");
        let half = std::fs::read_to_string(&writing).unwrap();
        assert_eq!((half.lines().count(), out.exists()), (2, false));
        assert_eq!(growing.end().unwrap(), (2, 2));
        assert_eq!(std::fs::read_to_string(&out).unwrap(), half);
        assert!(!writing.exists());
        assert_eq!(slime_rollout::buffer::read_records(&out).unwrap().len(), 2);
    }
}
