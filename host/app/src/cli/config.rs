//! `slime-host config`: what a recipe resolves to, before anything is started.

use super::Outcome;
use super::recipe::Recipe;
use crate::config::flags::{ALL, bits, slime};
use crate::config::plan::Weights;
use crate::config::{Plan, Verb, schema};
use crate::error::Result;
use std::path::PathBuf;

const GROUPS: u32 = bits(None, &ALL);

/// What to do with a recipe.
#[derive(Debug, clap::Subcommand)]
pub enum Args {
    /// Print the resolved recipe as TOML, each value with where it was said
    Show(Recipe<GROUPS>),
    /// Check the recipe for `run` and start nothing
    Check(Check),
    /// List every key
    Keys,
    /// Print what became of slime's flags, as a page
    Flags,
}

/// A recipe and the verb it is for.
#[derive(Debug, clap::Args)]
pub struct Check {
    /// The verb that will use it
    #[arg(long = "for", value_name = "VERB", default_value = "run", value_parser = ["run", "sft", "rollout", "train", "eval"])]
    verb: String,
    /// Plugins, as for the verb
    plugins: Vec<PathBuf>,
    #[command(flatten)]
    recipe: Recipe<GROUPS>,
}

/// What the plan names and this machine has not.
fn not_here(plan: &Plan) -> Vec<PathBuf> {
    let mut named: Vec<PathBuf> = plan.plugins.iter().chain(&plan.shadow).cloned().collect();
    named.retain(|path| !crate::wire::is_reference(path));
    if let Weights::Directory(path) = &plan.model.weights {
        named.push(path.clone());
    }
    named.extend(plan.model.reference.clone());
    named.retain(|path| !path.exists());
    named
}

/// Do it.
///
/// # Errors
/// The recipe is wrong.
pub fn run(args: Args) -> Result<Outcome> {
    let text = match args {
        Args::Show(recipe) => recipe.resolve(None, &[])?.to_toml(true),
        Args::Keys => schema::keys()
            .iter()
            .map(|key| format!("{key}\n"))
            .collect(),
        Args::Flags => slime::page(),
        Args::Check(check) => {
            let verb = Verb::ALL
                .into_iter()
                .find(|v| v.name() == check.verb)
                .unwrap_or(Verb::Run);
            let plan = Plan::new(&check.recipe.resolve(None, &check.plugins)?, verb)?;
            let mut text = format!("the recipe is right for `{}`\n", verb.name());
            for path in not_here(&plan) {
                // It may be meant for another machine.
                text.push_str(&format!("not on this machine: {}\n", path.display()));
            }
            text
        }
    };
    super::data(&text)
}
