//! `slime-host plugin`: build, check and look at components.

use super::{Context, Outcome};
use crate::config::Problem;
use crate::config::plan::LimitsPlan;
use crate::error::{Result, at_path};
use crate::wire::plugins;
use std::path::{Path, PathBuf};

/// What to do with a plugin.
#[derive(Debug, clap::Subcommand)]
pub enum Args {
    /// Build a plugin folder and print the component's path
    Build {
        /// Plugin folder
        folder: PathBuf,
    },
    /// Load plugins as a run would, and start nothing else
    Check {
        /// Components (.wasm) or plugin folders
        #[arg(required = true)]
        plugins: Vec<PathBuf>,
    },
    /// Show a component's worlds, imports, digest and budgets
    Inspect {
        /// Component (.wasm) or plugin folder
        plugin: PathBuf,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Start a verifier in a new folder
    New {
        /// Folder to make
        folder: PathBuf,
    },
}

/// Do it.
///
/// # Errors
/// The plugin cannot be built, loaded or made.
pub fn run(args: Args, context: &Context) -> Result<Outcome> {
    match args {
        Args::Build { folder } => {
            let component =
                plugins::component(&folder, &context.console).map_err(|e| plugins::problem(&e))?;
            super::data(&format!("{}\n", component.display()))
        }
        Args::Check { plugins } => check(&plugins, context),
        Args::Inspect { plugin, json } => {
            let runtime = plugins::start()?;
            let plugin = plugins::load(&runtime, &plugin, LimitsPlan::default(), &context.console);
            let description = plugin.map_err(|e| plugins::problem(&e))?.describe();
            super::data(&if json {
                format!(
                    "{}\n",
                    serde_json::to_string_pretty(&description).unwrap_or_default()
                )
            } else {
                description.to_string()
            })
        }
        Args::New { folder } => new(&folder, context),
    }
}

fn check(paths: &[PathBuf], context: &Context) -> Result<Outcome> {
    let runtime = plugins::start()?;
    let (mut lines, mut problems) = (String::new(), Vec::new());
    for path in paths {
        match plugins::load(&runtime, path, LimitsPlan::default(), &context.console) {
            Ok(plugin) => lines.push_str(&format!(
                "✓ {:<24} {}\n",
                plugin.name(),
                plugin.worlds().join(", ")
            )),
            Err(e) => problems.push(plugins::problem(&e)),
        }
    }
    super::data(&lines)?;
    super::collected(problems)?;
    Ok(Outcome::Done)
}

/// A verifier in as few lines as it takes. The SDK is found beside this repository's plugins.
fn new(folder: &Path, context: &Context) -> Result<Outcome> {
    if folder.exists() {
        return Err(Problem::new(format!("{} exists already", folder.display()))
            .help("choose another name")
            .into());
    }
    let name = folder.file_name().map_or_else(
        || "verifier".into(),
        |n| n.to_string_lossy().replace('_', "-"),
    );
    let source = folder.join("src");
    std::fs::create_dir_all(&source).map_err(at_path(&source))?;
    for (path, text) in [
        (folder.join("Cargo.toml"), manifest(&name, &sdk(folder))),
        (source.join("lib.rs"), VERIFIER.to_owned()),
    ] {
        std::fs::write(&path, text).map_err(at_path(&path))?;
    }
    context.console.line(&format!(
        " next:  slime-host plugin check {}",
        folder.display()
    ));
    super::data(&format!("{}\n", folder.display()))
}

/// Path from the folder to the verifier SDK of the checkout it lies in, or the one it would have in a clone.
fn sdk(folder: &Path) -> String {
    let start = std::path::absolute(folder).unwrap_or_else(|_| folder.into());
    let found = start
        .ancestors()
        .skip(1)
        .position(|dir| dir.join("sdk/verifier/Cargo.toml").is_file());
    match found {
        Some(up) => format!("{}sdk/verifier", "../".repeat(up + 1)),
        None => "/path/to/slime-host/sdk/verifier".into(),
    }
}

fn manifest(name: &str, sdk: &str) -> String {
    format!(
        "[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n\
         [lib]\ncrate-type = [\"cdylib\", \"rlib\"]\n\n\
         [dependencies]\nslime-sdk-verifier = {{ path = \"{sdk}\" }}\n\n[workspace]\n"
    )
}

const VERIFIER: &str = r#"//! Reward 1 when the response equals the label, else 0.

use slime_sdk_verifier::{Error, Finished, Verdict, Verifier, export};

struct Mine;

impl Verifier for Mine {
    fn score(item: Finished) -> Result<Verdict, Error> {
        let label = item.label().ok_or_else(|| Error::invalid_gold("this verifier needs a label"))?;
        let hit = item.response().trim() == label.trim();
        Ok(Verdict::reward(f64::from(hit)))
    }
}

export!(Mine);
"#;
