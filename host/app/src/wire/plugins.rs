//! Plugins: folders built, components loaded, each put to the use its worlds allow.

use super::http::Client;
use crate::config::plan::{LimitsPlan, Plan};
use crate::config::{Problem, Resolved};
use crate::error::{Failure, Result};
use crate::telemetry::Console;
use slime_core::Tool;
use slime_core::ports::{Filter, Generator, Source, Tools, Verifier};
use slime_rollout::SingleTurn;
use slime_runtime::code::{self, CodeExec, Python};
use slime_runtime::trust::PublicKey;
use slime_runtime::{
    Grants, Limits, Plugin, Runtime, RuntimeConfig, RuntimeError, Services, build_plugin,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The plugins of a run, by what they do.
pub struct Plugins {
    /// Scores rollouts.
    pub verifier: Arc<dyn Verifier>,
    /// Drives rollouts.
    pub generator: Arc<dyn Generator>,
    /// Makes prompts up, where one does.
    pub source: Option<Arc<dyn Source>>,
    /// Keep groups or drop them, in order.
    pub filters: Vec<Arc<dyn Filter>>,
    /// What the policy may call.
    pub tools: Vec<Tool>,
    /// Smallest and largest reward.
    pub reward_range: (f64, f64),
    /// Name and digest of every component, in order.
    pub digests: Vec<(String, String)>,
    _runtime: Runtime,
}

impl Plugins {
    /// Build and load every plugin.
    ///
    /// # Errors
    /// Every plugin that cannot be built or loaded; none or two that do the same work.
    pub fn open(plan: &Plan, said: &Resolved, console: &Console) -> Result<Self> {
        let runtime = start_trusting(&plan.trusted)?;
        let (mut loaded, mut problems) = (Vec::new(), Vec::new());
        for path in &plan.plugins {
            let grants = granted(&plan.grants, path);
            match load(&runtime, path, plan.limits, grants, console) {
                Ok(plugin) => loaded.push(plugin),
                Err(e) => problems.push(problem(&e).at(said.place("run.plugins"))),
            }
        }
        let one = |world: &str, problems: &mut Vec<Problem>| -> Option<Plugin> {
            let mut able = loaded
                .iter()
                .filter(|plugin: &&Plugin| plugin.worlds().contains(&world));
            let first = able.next().cloned();
            if let (Some(first), Some(second)) = (&first, able.next()) {
                let message = format!("{} and {} are both a {world}", first.name(), second.name());
                problems.push(
                    Problem::new(message)
                        .help("name one of them")
                        .at(said.place("run.plugins")),
                );
            }
            first
        };
        let (verifier, generator, source) = (
            one("verifier", &mut problems),
            one("generator", &mut problems),
            one("source", &mut problems),
        );
        for plugin in &loaded {
            for world in ["shaper", "group-verifier", "judge"] {
                if plugin.worlds().contains(&world) {
                    let message = format!("{} is a {world}, which no run uses yet", plugin.name());
                    problems.push(
                        Problem::new(message)
                            .help("leave it out; `slime-host plugin test` can try it")
                            .at(said.place("run.plugins")),
                    );
                }
            }
        }
        for name in plan.grants.keys() {
            if !loaded.iter().any(|plugin| plugin.name() == name) && problems.is_empty() {
                let names: Vec<&str> = loaded.iter().map(Plugin::name).collect();
                let problem = Problem::new(format!("grants.{name}: no plugin is called {name}"));
                problems.push(
                    problem
                        .help(format!("the plugins are {}", names.join(", ")))
                        .at(said.place("grants")),
                );
            }
        }
        if verifier.is_none() && problems.is_empty() {
            let names: Vec<String> = loaded
                .iter()
                .map(|p| format!("{} exports {}", p.name(), p.worlds().join(" and ")))
                .collect();
            let problem = Problem::new(format!("no plugin is a verifier: {}", names.join(", ")));
            problems.push(
                problem
                    .help("add one that scores, like plugins/exact-match")
                    .at(said.place("run.plugins")),
            );
        }
        crate::cli::collected(problems)?;
        let verifier = verifier.ok_or_else(|| Failure::run("no verifier"))?;
        let fits = |e: RuntimeError| Failure::from(problem(&e));
        let mut boxes: Vec<Arc<dyn Tools>> = Vec::new();
        let mut filters = Vec::new();
        for plugin in &loaded {
            if plugin.worlds().contains(&"tool") {
                boxes.push(plugin.tools().map_err(fits)?);
            }
            if plugin.worlds().contains(&"filter") {
                filters.push(plugin.filter().map_err(fits)?);
            }
        }
        for plugin in &loaded {
            plugin.serve(Services {
                tools: boxes.clone(),
                ..services(&runtime, &granted(&plan.grants, Path::new(plugin.name())))?
            });
        }
        Ok(Self {
            filters,
            tools: boxes
                .iter()
                .flat_map(|tools| tools.definitions().to_vec())
                .collect(),
            reward_range: verifier.describe().reward_range.unwrap_or((0.0, 1.0)),
            digests: loaded
                .iter()
                .map(|p| (p.name().to_owned(), p.describe().digest))
                .collect(),
            verifier: verifier.verifier().map_err(fits)?,
            generator: match &generator {
                Some(plugin) => plugin.generator().map_err(fits)?,
                None => Arc::new(SingleTurn),
            },
            source: source
                .map(|plugin| plugin.source_at(plan.difficulty))
                .transpose()
                .map_err(fits)?,
            _runtime: runtime,
        })
    }

    /// The source among the plan's plugins, where nothing is scored.
    ///
    /// # Errors
    /// A plugin that cannot be built or loaded.
    pub fn source(
        plan: &Plan,
        said: &Resolved,
        console: &Console,
    ) -> Result<Option<Arc<dyn Source>>> {
        let runtime = start_trusting(&plan.trusted)?;
        for path in &plan.plugins {
            let grants = granted(&plan.grants, path);
            let plugin = load(&runtime, path, plan.limits, grants, console);
            let plugin = plugin.map_err(|e| problem(&e).at(said.place("run.plugins")))?;
            if plugin.worlds().contains(&"source") {
                return plugin
                    .source_at(plan.difficulty)
                    .map(Some)
                    .map_err(|e| problem(&e).into());
            }
        }
        Ok(None)
    }

    /// Names for people.
    pub fn names(&self) -> String {
        let mut names: Vec<String> = self.digests.iter().map(|(name, _)| name.clone()).collect();
        if !names.iter().any(|name| name == self.generator.name()) {
            names.insert(0, format!("{} (built in)", self.generator.name()));
        }
        names.join(", ")
    }
}

/// Start the sandbox.
///
/// # Errors
/// This machine cannot.
pub fn start() -> Result<Runtime> {
    start_trusting(&[])
}

/// Start the sandbox with so many slots.
///
/// # Errors
/// This machine cannot.
pub fn start_with_slots(slots: u32) -> Result<Runtime> {
    let config = RuntimeConfig {
        slots,
        ..RuntimeConfig::default()
    };
    Runtime::new(config).map_err(|e| Failure::run(e.to_string()).help("slime-host doctor"))
}

/// Start the sandbox for components that one of `trusted` signed; none trusts every file.
fn start_trusting(trusted: &[PublicKey]) -> Result<Runtime> {
    let config = RuntimeConfig {
        trusted: trusted.to_vec(),
        ..RuntimeConfig::default()
    };
    Runtime::new(config).map_err(|e| Failure::run(e.to_string()).help("slime-host doctor"))
}

/// What a plugin's name is granted.
fn granted(all: &BTreeMap<String, Grants>, path: &Path) -> Grants {
    all.get(&name(path)).cloned().unwrap_or_default()
}

/// What a plugin is called: as its file or folder is.
fn name(path: &Path) -> String {
    let path = path.components().as_path();
    path.file_stem().map_or_else(
        || path.display().to_string(),
        |name| name.to_string_lossy().into_owned(),
    )
}

/// What stands behind the capabilities of one plugin.
///
/// # Errors
/// A capability is granted that this machine cannot give.
pub fn services(runtime: &Runtime, grants: &Grants) -> Result<Services> {
    let code: Option<Arc<dyn CodeExec>> = match &grants.code_exec {
        Some(_) => Some(python(runtime)?),
        None => None,
    };
    Ok(Services {
        code,
        http: (!grants.http.is_empty()).then(|| Arc::new(Client) as Arc<dyn slime_runtime::Http>),
        ..Services::default()
    })
}

/// Python in a sandbox. `SLIME_UNSANDBOXED_PYTHON=python3` runs that interpreter as a process instead.
fn python(runtime: &Runtime) -> Result<Arc<dyn CodeExec>> {
    if let Some(interpreter) = std::env::var_os("SLIME_UNSANDBOXED_PYTHON") {
        let interpreter = interpreter.to_string_lossy().into_owned();
        tracing::warn!(interpreter, "programs run as processes, WITHOUT A SANDBOX");
        return Ok(Arc::new(code::Subprocess { interpreter }));
    }
    let dir = code::default_dir()
        .ok_or_else(|| Failure::run("there is no home directory with a Python in it"))?;
    let python = Python::open(runtime, &dir).map_err(|e| problem(&e))?;
    Ok(Arc::new(python))
}

/// Build `path` if it is a folder, then load it.
///
/// # Errors
/// It cannot be built or loaded.
pub fn load(
    runtime: &Runtime,
    path: &Path,
    limits: LimitsPlan,
    grants: Grants,
    console: &Console,
) -> Result<Plugin, RuntimeError> {
    let component = component(path, console)?;
    let name = name(path);
    let defaults = Limits::default();
    let limits = Limits {
        cpu: limits.cpu.unwrap_or(defaults.cpu),
        wall: limits.wall.unwrap_or(defaults.wall),
        memory_bytes: limits.memory_bytes.unwrap_or(defaults.memory_bytes),
        ..defaults
    };
    runtime.load(&component, &name, limits, grants)
}

/// The component at `path`: the file itself, or what the folder builds to.
///
/// # Errors
/// The folder cannot be built.
pub fn component(path: &Path, console: &Console) -> Result<PathBuf, RuntimeError> {
    if !path.is_dir() {
        return Ok(path.into());
    }
    console.doing(&format!("building {}", path.display()), || {
        build_plugin(path)
    })
}

/// A plugin's error as a problem; its text holds the cure.
pub fn problem(error: &RuntimeError) -> Problem {
    match error {
        RuntimeError::Read { path, source } if source.kind() == std::io::ErrorKind::NotFound => {
            Problem::new(format!("there is no plugin at {}", path.display()))
                .help("give a .wasm component or a plugin folder, like plugins/arith")
        }
        RuntimeError::Refused { name, problems } => {
            let whats: Vec<String> = problems.iter().map(|p| p.what.clone()).collect();
            let cures: Vec<String> = problems.iter().map(|p| p.cure.clone()).collect();
            Problem::new(format!("{name} cannot be loaded: {}", whats.join("; ")))
                .help(cures.join("; "))
        }
        RuntimeError::NotAComponent { name, found, cure } => {
            Problem::new(format!("{name}: {found}")).help(cure)
        }
        RuntimeError::ToolMissing {
            folder,
            missing,
            cure,
        } => Problem::new(format!(
            "cannot build {}: {missing} is missing",
            folder.display()
        ))
        .help(format!("run: {cure}")),
        RuntimeError::NoPython { dir, cure } => Problem::new(format!(
            "code_exec is granted, but no Python is installed in {}",
            dir.display()
        ))
        .help(format!("run: {cure}")),
        RuntimeError::NoWorld { .. } => Problem::new(error.to_string())
            .help("`slime-host plugin inspect` shows what a component exports"),
        other => Problem::new(other.to_string()),
    }
}
