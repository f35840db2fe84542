//! What verbs with a recipe have in common: files, `--set`, named flags.

use crate::config::flags::Flags;
use crate::config::layer::{Origin, Setting};
use crate::config::{Problem, Problems, Resolved, Said, resolve};
use std::path::PathBuf;

/// Where settings come from.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Recipe<const GROUPS: u32> {
    /// Recipe, TOML; later ones win
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Set one key of the recipe, like `--set train.lr=1e-5`
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Named flags.
    #[command(flatten)]
    pub flags: Flags<GROUPS>,
}

impl<const GROUPS: u32> Recipe<GROUPS> {
    /// All layers together, above `base`. Plugins named on the command line take the place of the recipe's.
    ///
    /// # Errors
    /// Every problem of every layer.
    pub fn resolve(
        &self,
        base: Option<(&str, &str)>,
        plugins: &[PathBuf],
    ) -> Result<Resolved, Problems> {
        let is_recipe = |path: &&PathBuf| path.extension().is_some_and(|end| end == "toml");
        let recipes: Vec<Problem> = plugins
            .iter()
            .filter(is_recipe)
            .map(|path| {
                let path = path.display();
                Problem::new(format!(
                    "{path} is a recipe, and stands where plugins are named"
                ))
                .help(format!("write: -c {path}"))
            })
            .collect();
        if !recipes.is_empty() {
            return Err(Problems(recipes));
        }
        let mut flags = self.flags.settings.clone();
        if !plugins.is_empty() {
            let names: Vec<String> = plugins
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            flags.push(Setting {
                key: "run.plugins".into(),
                value: Some(names.clone().into()),
                origin: Origin::Flag(names.join(" ")),
            });
        }
        resolve(Said {
            base: base.map(|(name, text)| (name.to_owned(), text.to_owned())),
            files: self.files.clone(),
            env: std::env::vars_os()
                .filter_map(|(name, value)| {
                    Some((name.into_string().ok()?, value.into_string().ok()?))
                })
                .collect(),
            sets: self.sets.clone(),
            flags,
            flag_problems: self.flags.problems.clone(),
        })
    }
}
