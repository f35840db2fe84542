//! `slime-host run`: the RL loop.

use super::ranked::ranked;
use super::recipe::Recipe;
use super::{Context, Outcome};
use crate::config::flags::{ALL, bits};
use crate::config::{Device, Plan, Problem, Verb};
use crate::error::Result;
use crate::job::open::Place;
use crate::job::opened::Opened;
use crate::job::{End, run_dir};
use crate::wire::caster;
use slime_kernels::comm::Processes;
use slime_rollout::publish::Transport;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const GROUPS: u32 = bits(Some(Verb::Run), &ALL);

/// The recipe of the demo, used when neither a recipe nor a model is given.
const DEMO: (&str, &str) = (
    "configs/demo.toml (built in)",
    include_str!("../../../../configs/demo.toml"),
);

/// How a run is continued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Resume {
    /// Unless another process has it open
    IfFree,
    /// Whoever has it open; or start it
    TakeOver,
}

/// What to run.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Components (.wasm) or plugin folders, which are built first
    plugins: Vec<PathBuf>,
    /// Continue the run in run.dir, or the newest one, from its last checkpoint. `--resume=take-over` is for schedulers: it
    /// starts the run where there is none yet, and fences off whoever else still has it open
    #[arg(long, value_enum, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "if-free")]
    resume: Option<Resume>,
    #[command(flatten)]
    recipe: Recipe<GROUPS>,
}

/// Do it.
///
/// # Errors
/// What was asked for is wrong, or the run failed.
pub fn run(args: Args, context: &Context) -> Result<Outcome> {
    ranked(context, |processes| {
        alone_or_leading(args, processes, context)
    })
}

fn alone_or_leading(
    args: Args,
    processes: Option<Arc<Processes>>,
    context: &Context,
) -> Result<Outcome> {
    let take_over = args.resume == Some(Resume::TakeOver);
    let resumed = match args.resume {
        None => false,
        Some(Resume::IfFree) => true,
        Some(Resume::TakeOver) => {
            let dir = args.recipe.resolve(None, &args.plugins)?.config.run.dir;
            let dir = dir.ok_or_else(|| {
                Problem::new("--resume=take-over continues a run that may not have begun, and no directory is given")
                    .help("name it: --set run.dir=PATH")
            })?;
            dir.join(run_dir::DATABASE).exists()
        }
    };
    let (said, dir) = if resumed {
        let first = args.recipe.resolve(None, &args.plugins)?;
        let dir = run_dir::to_resume(first.config.run.dir.as_deref())?;
        let name = dir.join(run_dir::RESOLVED).display().to_string();
        let recipe = run_dir::recipe(&dir);
        let base = recipe.as_deref().map(|text| (name.as_str(), text));
        (args.recipe.resolve(base, &args.plugins)?, Some(dir))
    } else {
        let said = args.recipe.resolve(None, &args.plugins)?;
        // A model of one's own is no demo: what it is not told comes from the defaults.
        let said = if args.recipe.files.is_empty() && said.config.model.path.is_none() {
            args.recipe.resolve(Some(DEMO), &args.plugins)?
        } else {
            said
        };
        (said, None)
    };
    let plan = Plan::new(&said, Verb::Run)?;
    if plan.rollout.transport == Transport::Nccl && plan.model.device == Device::Cuda {
        caster::same_memory_as_servers()?;
    }
    let place = match dir {
        Some(dir) => Place {
            dir,
            resume: true,
            take_over,
        },
        None => {
            let name = plan
                .run
                .name
                .clone()
                .unwrap_or_else(|| name_of(&plan.plugins));
            Place {
                dir: run_dir::fresh(plan.run.dir.as_deref(), &name, plan.seed)?,
                resume: false,
                take_over,
            }
        }
    };
    let new = (!place.resume).then(|| place.dir.clone());
    let ended = Opened::new(plan, said, true, &context.console).and_then(|opened| {
        let console = &context.console;
        let work = crate::job::open::run(opened, place, processes, console, &context.trace);
        super::block_on(work)?
    });
    if ended.is_err()
        && let Some(dir) = new
    {
        // Only an empty one can be removed so: a start that failed leaves nothing, and takes no name.
        let _ = std::fs::remove_dir(dir);
    }
    Ok(match ended? {
        End::Finished => Outcome::Done,
        End::Stopped(_) => Outcome::Stopped,
    })
}

/// A run is named after its first plugin.
fn name_of(plugins: &[PathBuf]) -> String {
    let first = plugins.first().and_then(|path| path.file_stem());
    first.map_or_else(
        || "run".into(),
        |name| Path::new(name).display().to_string(),
    )
}
