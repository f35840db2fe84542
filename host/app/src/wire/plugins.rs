//! Plugins: folders built, components loaded, each put to the use its worlds allow.

use super::around::{around, shadow};
use super::http::Client;
use super::pulled;
use crate::config::plan::{GatewayPlan, LimitsPlan, Plan};
use crate::config::{Problem, Resolved};
use crate::error::{Failure, Result};
use crate::telemetry::Console;
use slime_core::Tool;
use slime_core::ports::{
    Filter, Generator, GroupVerifier, Models, Shaper, Source, Tools, Verifier,
};
use slime_rollout::{Address, Gateway, GatewayConfig, NamedModels, SingleTurn};
use slime_runtime::code::{self, CodeExec, Python};
use slime_runtime::trust::PublicKey;
use slime_runtime::{
    Grants, Limits, MAKE_WHOLE, Plugin, Runtime, RuntimeConfig, RuntimeError, Services,
    build_plugin,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The plugins of a run, by what they do.
pub struct Plugins {
    /// Give rewards.
    pub scorers: Scorers,
    /// Drives rollouts.
    pub generator: Arc<dyn Generator>,
    /// Make prompts up, by name.
    pub sources: BTreeMap<String, Plugin>,
    /// Keep groups or drop them, in order.
    pub filters: Vec<Arc<dyn Filter>>,
    /// What the policy may call.
    pub tools: Vec<Tool>,
    /// Name and digest of every component, in order.
    pub digests: Vec<(String, String)>,
    _runtime: Runtime,
}

/// Everybody who has a say about rewards.
#[derive(Default)]
pub struct Scorers {
    /// Score rollouts one by one, by name.
    pub verifiers: BTreeMap<String, Scores<dyn Verifier>>,
    /// Score whole groups, in order.
    pub groups: Vec<Scores<dyn GroupVerifier>>,
    /// Change the rewards that train, in order.
    pub shapers: Vec<Arc<dyn Shaper>>,
}

/// Somebody who gives rewards.
pub struct Scores<V: ?Sized> {
    /// Who.
    pub verifier: Arc<V>,
    /// Smallest and largest reward.
    pub range: (f64, f64),
    /// Whether it asks a model.
    pub is_judge: bool,
}

impl Plugins {
    /// Build and load every plugin.
    ///
    /// # Errors
    /// Every plugin that cannot be built or loaded; none that scores, or two generators.
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
        let of = |world: &'static str| {
            loaded
                .iter()
                .filter(move |plugin: &&Plugin| plugin.worlds().contains(&world))
        };
        let at = |problem: Problem, key: &str| problem.at(said.place(key));
        let generators: Vec<&Plugin> = of("generator").collect();
        if let [first, second, ..] = generators[..] {
            let (first, second) = (first.name(), second.name());
            let message = format!("{first} and {second} are both a generator");
            problems.push(at(
                Problem::new(message).help("name one of them"),
                "run.plugins",
            ));
        }
        if let (Some(_), Some(generator)) = (plan.gateway, generators.first()) {
            let name = generator.name();
            let message =
                format!("{name} is a generator, and `run.gateway` has agents drive the rollouts");
            let help = "leave out one of them";
            problems.push(at(Problem::new(message).help(help), "run.gateway"));
        }
        let agents_score = plan.gateway.is_some_and(|gateway| gateway.rewards);
        if agents_score {
            let scores_only = |plugin: &&Plugin| {
                let worlds = plugin.worlds();
                let scores = worlds.contains(&"verifier") || worlds.contains(&"judge");
                scores && !worlds.contains(&"source")
            };
            let mut idle: Vec<String> = loaded
                .iter()
                .filter(scores_only)
                .map(|plugin| format!("{} scores nothing", plugin.name()))
                .collect();
            idle.extend(plan.memoise.then(|| "`run.memoise` has no effect".into()));
            let shadow = plan.shadow.is_some();
            idle.extend(shadow.then(|| "`run.shadow` has no effect".into()));
            for what in idle {
                let message = format!("{what}: `run.gateway_rewards` has agents give the rewards");
                let help = "leave out one of them";
                problems.push(at(Problem::new(message).help(help), "run.gateway_rewards"));
            }
        }
        for (index, plugin) in loaded.iter().enumerate() {
            if loaded[..index].iter().any(|p| p.name() == plugin.name()) {
                let message = format!("two plugins are called {}", plugin.name());
                let help = "rename a file: sources, grants and metrics go by the name";
                problems.push(at(Problem::new(message).help(help), "run.plugins"));
            }
        }
        for name in plan.grants.keys() {
            let is_shadow = plan
                .shadow
                .as_deref()
                .is_some_and(|path| self::name(path) == *name);
            let is_known = is_shadow || loaded.iter().any(|plugin| plugin.name() == name);
            if !is_known && problems.is_empty() {
                let names: Vec<&str> = loaded.iter().map(Plugin::name).collect();
                let problem = Problem::new(format!("grants.{name}: no plugin is called {name}"));
                let help = format!("the plugins are {}", names.join(", "));
                problems.push(at(problem.help(help), "grants"));
            }
        }
        let scores = |plugin: &Plugin| {
            let worlds = plugin.worlds();
            ["verifier", "judge", "group-verifier"]
                .iter()
                .any(|world| worlds.contains(world))
        };
        if problems.is_empty() && !agents_score && !loaded.iter().any(scores) {
            let names: Vec<String> = loaded
                .iter()
                .map(|p| format!("{} exports {}", p.name(), p.worlds().join(" and ")))
                .collect();
            let problem = Problem::new(format!("no plugin is a verifier: {}", names.join(", ")));
            let help = "add one that scores, like plugins/exact-match";
            problems.push(at(problem.help(help), "run.plugins"));
        }
        let models = models(plan, said, &mut problems);
        let second = match shadow(&runtime, plan, said, console) {
            Ok(second) => second,
            Err(problem) => {
                problems.push(problem);
                None
            }
        };
        crate::cli::collected(problems)?;
        let gateway = gateway(plan, console).map_err(|problem| at(problem, "run.gateway"))?;
        let fits = |e: RuntimeError| Failure::from(problem(&e));
        let boxes = of("tool").map(Plugin::tools);
        let boxes: Vec<Arc<dyn Tools>> = boxes.collect::<Result<_, _>>().map_err(fits)?;
        for plugin in &loaded {
            plugin.serve(Services {
                tools: boxes.clone(),
                models: models.clone(),
                ..services(&runtime, &granted(&plan.grants, Path::new(plugin.name())))?
            });
        }
        let range = |plugin: &Plugin| plugin.describe().reward_range.unwrap_or((0.0, 1.0));
        let single = loaded.iter().filter_map(|plugin| {
            let worlds = plugin.worlds();
            let (verifies, judges) = (worlds.contains(&"verifier"), worlds.contains(&"judge"));
            (verifies || judges).then(|| {
                let scores = plugin.verifier().map(|verifier| Scores {
                    verifier: if verifies {
                        around(verifier, plan, second.as_ref())
                    } else {
                        verifier
                    },
                    range: range(plugin),
                    is_judge: !verifies,
                });
                scores.map(|scores| (plugin.name().to_owned(), scores))
            })
        });
        let verifiers = match &gateway {
            Some(gateway) if agents_score => {
                let scores = Scores {
                    verifier: Arc::new(gateway.clone()) as Arc<dyn Verifier>,
                    range: (0.0, 1.0),
                    // An agent's opinion of a response that it did not see is no test of anything.
                    is_judge: true,
                };
                BTreeMap::from([("gateway".to_owned(), scores)])
            }
            _ => single.collect::<Result<_, _>>().map_err(fits)?,
        };
        let together = of("group-verifier").map(|plugin| {
            plugin.group_verifier().map(|verifier| Scores {
                verifier,
                range: range(plugin),
                is_judge: false,
            })
        });
        Ok(Self {
            scorers: Scorers {
                verifiers,
                groups: together.collect::<Result<_, _>>().map_err(fits)?,
                shapers: of("shaper")
                    .map(Plugin::shaper)
                    .collect::<Result<_, _>>()
                    .map_err(fits)?,
            },
            filters: of("filter")
                .map(Plugin::filter)
                .collect::<Result<_, _>>()
                .map_err(fits)?,
            sources: of("source")
                .map(|plugin| (plugin.name().to_owned(), plugin.clone()))
                .collect(),
            generator: match (gateway, generators.first()) {
                (Some(gateway), _) => Arc::new(gateway),
                (None, Some(plugin)) => plugin.generator().map_err(fits)?,
                (None, None) => Arc::new(SingleTurn),
            },
            tools: boxes
                .iter()
                .flat_map(|tools| tools.definitions().to_vec())
                .collect(),
            digests: loaded
                .iter()
                .map(|p| (p.name().to_owned(), p.describe().digest))
                .collect(),
            _runtime: runtime,
        })
    }

    /// The only plugin that makes prompts up, if it is only one.
    pub fn only_source(&self) -> Option<&Plugin> {
        let mut sources = self.sources.values();
        sources.next().filter(|_| self.sources.len() == 1)
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

/// Listen for agents, where the recipe has them drive the rollouts.
fn gateway(plan: &Plan, console: &Console) -> Result<Option<Gateway>, Problem> {
    let Some(GatewayPlan { address, rewards }) = plan.gateway else {
        return Ok(None);
    };
    let config = GatewayConfig {
        address,
        rewards,
        wall: Limits::default().rollout_wall,
        temperature: plan.rollout.sampling.temperature,
    };
    let gateway = Gateway::start(config).map_err(|error| {
        Problem::new(format!("`run.gateway`: {address}: {error}"))
            .help("give another port; 0 takes any that is free")
    })?;
    console.line(&format!(" gateway  http://{}/v1", gateway.address()));
    Ok(Some(gateway))
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

/// From a judge's question to its answer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(600);

/// The models that judges may ask; every grant must name one of them, and each must be granted to somebody.
fn models(plan: &Plan, said: &Resolved, problems: &mut Vec<Problem>) -> Option<Arc<dyn Models>> {
    let named = &plan.model.judge_servers;
    for (plugin, grants) in &plan.grants {
        for model in grants.models.iter().filter(|m| !named.contains_key(*m)) {
            let what = format!("grants.{plugin}: no servers hold the model `{model}`");
            let help = format!("add `judge_addrs.{model} = [\"host:port\"]` to [model]");
            problems.push(Problem::new(what).help(help).at(said.place("grants")));
        }
    }
    let mut models = BTreeMap::new();
    for (name, servers) in named {
        let key = format!("model.judge_addrs.{name}");
        if !plan.grants.values().any(|g| g.models.contains(name)) {
            let what = format!("`{key}` has no effect: no plugin may ask it");
            let help = format!("add `models = [\"{name}\"]` to the [grants.PLUGIN] of a judge");
            problems.push(Problem::new(what).help(help).at(said.place(&key)));
        }
        let addresses = servers.iter().map(|text| Address::parse(text));
        match addresses.collect::<Result<Vec<_>, _>>() {
            Ok(addresses) => {
                models.insert(name.clone(), addresses);
            }
            Err(error) => problems.push(super::refused(said, &[&key], error)),
        }
    }
    if models.is_empty() {
        return None;
    }
    match NamedModels::new(models, plan.rollout.concurrency, ANSWER_DEADLINE) {
        Ok(models) => Some(Arc::new(models)),
        Err(error) => {
            problems.push(super::refused(said, &["model.judge_addrs"], error));
            None
        }
    }
}

/// What a plugin's name is granted.
pub fn granted(all: &BTreeMap<String, Grants>, path: &Path) -> Grants {
    all.get(&name(path)).cloned().unwrap_or_default()
}

/// What a plugin is called: as its file or folder is.
pub fn name(path: &Path) -> String {
    if let Some(reference) = pulled::reference(path) {
        return pulled::name(reference).to_owned();
    }
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
    load_as(runtime, &component, &name(path), limits, grants)
}

/// Load what was built.
///
/// # Errors
/// It cannot be loaded.
pub fn load_as(
    runtime: &Runtime,
    component: &Path,
    name: &str,
    limits: LimitsPlan,
    grants: Grants,
) -> Result<Plugin, RuntimeError> {
    let defaults = Limits::default();
    let limits = Limits {
        cpu: limits.cpu.unwrap_or(defaults.cpu),
        wall: limits.wall.unwrap_or(defaults.wall),
        memory_bytes: limits.memory_bytes.unwrap_or(defaults.memory_bytes),
        ..defaults
    };
    runtime.load(component, name, limits, grants)
}

/// The component at `path`: the file itself, what the folder builds to, or what a registry holds under that digest.
///
/// # Errors
/// The folder cannot be built, or the registry has no such component.
pub fn component(path: &Path, console: &Console) -> Result<PathBuf, RuntimeError> {
    if let Some(reference) = pulled::reference(path) {
        return pulled::component(reference).map_err(|error| RuntimeError::Read {
            path: path.into(),
            source: std::io::Error::other(error.to_string()),
        });
    }
    if path.is_file() {
        return Ok(path.into());
    }
    if !path.exists() {
        return Err(RuntimeError::Read {
            path: path.into(),
            source: std::io::ErrorKind::NotFound.into(),
        });
    }
    console.doing(&format!("building {}", path.display()), || {
        build_plugin(path)
    })
}

/// A plugin's error as a problem; its text holds the cure.
pub fn problem(error: &RuntimeError) -> Problem {
    match error {
        RuntimeError::Read { path, source } if source.kind() == std::io::ErrorKind::NotFound => {
            let problem = Problem::new(format!("there is no plugin at {}", path.display()));
            problem.help(match pulled::is_tagged(path) {
                true => "from a registry it is taken pinned by digest, because a tag moves: HOST:PORT/NAME@sha256:…, as `slime-host \
                         plugin push` and `plugin pull` print it",
                false => "give a .wasm component or a plugin folder, like plugins/arith",
            })
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
        RuntimeError::Invalid { name, reason } => {
            Problem::new(format!("{name}: the component is broken: {reason}")).help(MAKE_WHOLE)
        }
        RuntimeError::Trial { name, reason } => {
            let problem = Problem::new(format!("{name}: the trial start failed: {reason}"));
            match budget(reason) {
                Some(cure) => problem.help(cure),
                None => problem,
            }
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

/// Which budget to raise, where one ended the trial start.
fn budget(reason: &str) -> Option<&'static str> {
    let (kind, _) = reason.split_once(':')?;
    Some(match kind {
        "out-of-memory" => {
            "give it more memory: limits.memory in a recipe, --memory in `score`; 256MiB is the default"
        }
        "timeout" => {
            "give it more time: limits.cpu and limits.wall in a recipe, --cpu and --wall in `score`"
        }
        _ => return None,
    })
}
