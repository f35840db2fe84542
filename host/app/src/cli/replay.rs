//! `slime-host replay`: stored rollouts once more, under the same components and seeds, and what differs.

use super::recipe::Recipe;
use super::{Context, Outcome};
use crate::config::{Plan, Problem, Verb};
use crate::error::{Failure, Result};
use crate::job::opened::Opened;
use crate::job::run_dir;
use crate::wire::rollout_failed;
use slime_core::{Group, Rollout, Step};
use slime_rollout::{Buffer, Start};
use std::path::PathBuf;

/// What to run again.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run's directory
    run: PathBuf,
    /// Rollouts by id; all of them where none is named
    rollouts: Vec<u64>,
    /// Print every difference instead of the first 20
    #[arg(long)]
    all: bool,
}

/// Do it; exit 1 where a rollout comes out differently.
///
/// # Errors
/// The run cannot be read, or its components are not the ones it was made with.
pub fn run(args: Args, context: &Context) -> Result<Outcome> {
    let dir = args.run;
    let name = dir.join(run_dir::RESOLVED).display().to_string();
    let Some(text) = run_dir::recipe(&dir) else {
        return Err(
            Problem::new(format!("there is no run at {}", dir.display()))
                .help("give a run's directory, like runs/arith-42")
                .into(),
        );
    };
    let said = Recipe::<0>::default().resolve(Some((name.as_str(), text.as_str())), &[])?;
    let plan = Plan::without_servers(&said, Verb::Run)?;
    if plan.gateway.is_some() {
        let what = format!(
            "the rollouts of {} were driven by agents outside the host",
            dir.display()
        );
        let help = "only plugins can be run again: what an agent did is not recorded";
        return Err(Problem::new(what).help(help).into());
    }
    let opened = Opened::new(plan, said, true, &context.console)?;
    let identity = run_dir::identity(&opened.said, &opened.model, &opened.plugins);
    let lag = opened.plan.rollout.max_lag;
    let buffer = Buffer::open(&dir.join(run_dir::DATABASE), &identity, Start::Resume, lag)
        .map_err(|e| Problem::new(e.to_string()).help("replay needs the components of the run"))?;
    let mut groups = Vec::new();
    for step in 0..opened.num_steps() {
        let of_step = buffer.groups_of(Step(step)).map_err(rollout_failed)?;
        if of_step.is_empty() {
            break;
        }
        groups.extend(of_step);
    }
    for id in &args.rollouts {
        if !groups
            .iter()
            .any(|g| g.rollouts.iter().any(|r| r.id.0 == *id))
        {
            return Err(
                Problem::new(format!("the run has no rollout {id} that was trained on"))
                    .help("`rollouts/step_N.parquet` lists them")
                    .into(),
            );
        }
    }
    // One thread: trajectories that sample together after the same text are told apart by who asks first, and on one
    // thread they ask in their order.
    let one = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::run(format!("no threads: {e}")))?;
    let found = one.block_on(replay(&opened, &groups, &args.rollouts, context));
    let (count, differences) = found?;
    let shown = if args.all { usize::MAX } else { 20 };
    let mut text: String = differences
        .iter()
        .take(shown)
        .map(|d| format!("{d}\n"))
        .collect();
    text.push_str(&format!(
        "{count} rollouts replayed, {} differences\n",
        differences.len()
    ));
    super::data(&text)?;
    Ok(if differences.is_empty() {
        Outcome::Done
    } else {
        Outcome::NotWell
    })
}

async fn replay(
    opened: &Opened,
    groups: &[Group],
    only: &[u64],
    context: &Context,
) -> Result<(u64, Vec<String>)> {
    let driver = opened.replayer();
    let wanted = |rollout: &Rollout| only.is_empty() || only.contains(&rollout.id.0);
    let all = groups.iter().flat_map(|group| &group.rollouts);
    let bar = context
        .console
        .progress("rollouts", all.filter(|r| wanted(r)).count() as u64);
    let (mut count, mut differences) = (0, Vec::new());
    for group in groups {
        for (id, found) in driver.replay(group, wanted).await {
            differences.extend(found.iter().map(|what| format!("rollout {id}: {what}")));
            count += 1;
            bar.set_exact(count);
        }
    }
    if count == 0 {
        return Err(Failure::run("the run holds no rollout that was trained on"));
    }
    Ok((count, differences))
}
