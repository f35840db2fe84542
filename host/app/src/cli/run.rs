//! `slime-host run`: the RL loop.

use super::recipe::Recipe;
use super::{Context, Outcome};
use crate::config::flags::{Group, bits};
use crate::config::{Plan, Verb};
use crate::error::Result;
use crate::job::open::Place;
use crate::job::opened::Opened;
use crate::job::{End, run_dir};
use std::path::{Path, PathBuf};

const GROUPS: u32 = bits(&[
    Group::Run,
    Group::Model,
    Group::Data,
    Group::Eval,
    Group::Rollout,
    Group::Algorithm,
    Group::Train,
]);

/// The recipe of the demo, used when neither a recipe nor a model is given.
const DEMO: (&str, &str) = (
    "configs/demo.toml (built in)",
    include_str!("../../../../configs/demo.toml"),
);

/// What to run.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Components (.wasm) or plugin folders, which are built first
    plugins: Vec<PathBuf>,
    /// Continue the run in run.dir, or the newest one, from its last checkpoint
    #[arg(long)]
    resume: bool,
    #[command(flatten)]
    recipe: Recipe<GROUPS>,
}

/// Do it.
///
/// # Errors
/// What was asked for is wrong, or the run failed.
pub fn run(args: Args, context: &Context) -> Result<Outcome> {
    let (said, dir) = if args.resume {
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
    let place = match dir {
        Some(dir) => Place { dir, resume: true },
        None => {
            let name = plan
                .run
                .name
                .clone()
                .unwrap_or_else(|| name_of(&plan.plugins));
            Place {
                dir: run_dir::fresh(plan.run.dir.as_deref(), &name, plan.seed)?,
                resume: false,
            }
        }
    };
    let opened = Opened::new(plan, said, true, &context.console)?;
    let end = super::block_on(crate::job::open::run(
        opened,
        place,
        &context.console,
        &context.trace,
    ))??;
    Ok(match end {
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
