//! Loading a component: checks, compilation, trial start. What is loaded fits and has run once.

use crate::bindings::{generator, source, types, verifier};
use crate::call::{self, Job};
use crate::context::Context;
use crate::contract::{self, Fit};
use crate::description::Description;
use crate::generator::ComponentGenerator;
use crate::runtime::Shared;
use crate::source::ComponentSource;
use crate::verifier::ComponentVerifier;
use crate::{Grants, Limits, Problem, RuntimeError, cache, engine, units};
use slime_core::ports::{Generator, Source, Verifier};
use std::sync::{Arc, OnceLock};
use wasmtime::component::{Component, HasSelf, Linker};
use wasmtime::{Engine, Store};

/// A loaded component. Cheap to clone.
#[derive(Clone)]
pub struct Plugin(Arc<Loaded>);

pub(crate) struct Loaded {
    pub(crate) shared: Arc<Shared>,
    pub(crate) name: Arc<str>,
    pub(crate) limits: Limits,
    pub(crate) grants: Grants,
    pub(crate) worlds: Worlds,
    /// Slots that one instance needs.
    pub(crate) weight: u32,
    /// Known after the trial start.
    told: OnceLock<Told>,
    exported: Vec<&'static str>,
    imports: Vec<String>,
    digest: String,
    size_bytes: u64,
    was_cached: bool,
}

/// What a plugin says of itself.
#[derive(Default)]
pub(crate) struct Told {
    about: Option<types::About>,
    pub(crate) reward_range: Option<(f64, f64)>,
    pub(crate) num_rows: Option<u64>,
}

impl Loaded {
    pub(crate) fn told(&self) -> Option<&Told> {
        self.told.get()
    }
}

/// The exported worlds, linked and ready to instantiate.
#[derive(Default)]
pub(crate) struct Worlds {
    pub(crate) verifier: Option<verifier::VerifierPre<Context>>,
    pub(crate) generator: Option<generator::GeneratorPre<Context>>,
    pub(crate) source: Option<source::SourcePre<Context>>,
}

impl Plugin {
    pub(crate) fn load(
        shared: &Arc<Shared>,
        bytes: &[u8],
        name: &str,
        limits: Limits,
        grants: Grants,
    ) -> Result<Self, RuntimeError> {
        check_kind(name, bytes)?;
        check_limits(shared, name, &limits)?;
        let digest = cache::digest(bytes);
        let (component, was_cached) = compile(shared, name, bytes, &digest)?;
        let Fit {
            worlds: exported,
            imports,
            mut problems,
        } = contract::examine(&shared.engine, &component);
        let weight = weight(shared, &component)
            .map_err(|problem| problems.push(problem))
            .unwrap_or(1);
        if !problems.is_empty() {
            return Err(RuntimeError::Refused {
                name: name.into(),
                problems,
            });
        }
        let worlds =
            link(&shared.engine, &component, &exported).map_err(|error| RuntimeError::Refused {
                name: name.into(),
                problems: vec![Problem {
                    what: format!("it does not link: {error:#}"),
                    cure: format!("rebuild it against slime:plugin@{}", contract::VERSION),
                }],
            })?;
        let loaded = Arc::new(Loaded {
            shared: Arc::clone(shared),
            name: name.into(),
            limits,
            grants,
            worlds,
            weight,
            told: OnceLock::new(),
            exported,
            imports,
            digest,
            size_bytes: bytes.len() as u64,
            was_cached,
        });
        trial(&loaded)?;
        Ok(Self(loaded))
    }

    /// What metrics and messages call it.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The worlds it exports, of those that this host runs: `verifier`, `generator`, `source`.
    pub fn worlds(&self) -> &[&'static str] {
        &self.0.exported
    }

    /// The component as a verifier.
    ///
    /// # Errors
    /// It exports no such world.
    pub fn verifier(&self) -> Result<Arc<dyn Verifier>, RuntimeError> {
        self.require("verifier")?;
        Ok(Arc::new(ComponentVerifier(Arc::clone(&self.0))))
    }

    /// The component as a generator.
    ///
    /// # Errors
    /// It exports no such world.
    pub fn generator(&self) -> Result<Arc<dyn Generator>, RuntimeError> {
        self.require("generator")?;
        Ok(Arc::new(ComponentGenerator(Arc::clone(&self.0))))
    }

    /// The component as a source that gives its easiest prompts.
    ///
    /// # Errors
    /// It exports no such world.
    pub fn source(&self) -> Result<Arc<dyn Source>, RuntimeError> {
        self.source_at(0.0)
    }

    /// The component as a source of prompts of one difficulty, from 0 (easiest) to 1 (hardest).
    ///
    /// # Errors
    /// It exports no such world.
    pub fn source_at(&self, difficulty: f64) -> Result<Arc<dyn Source>, RuntimeError> {
        self.require("source")?;
        let difficulty = difficulty.clamp(0.0, 1.0);
        Ok(Arc::new(ComponentSource {
            plugin: Arc::clone(&self.0),
            difficulty,
        }))
    }

    /// Everything `plugin inspect` shows.
    pub fn describe(&self) -> Description {
        let loaded = &*self.0;
        let told = loaded.told();
        Description {
            name: loaded.name.to_string(),
            about: told
                .and_then(|told| told.about.as_ref())
                .map(|about| (about.name.clone(), about.version.clone())),
            worlds: loaded.exported.iter().map(ToString::to_string).collect(),
            imports: loaded.imports.clone(),
            digest: format!("sha256:{}", loaded.digest),
            size_bytes: loaded.size_bytes,
            reward_range: told.and_then(|told| told.reward_range),
            num_rows: told.and_then(|told| told.num_rows),
            limits: loaded.limits.clone(),
            grants: loaded.grants.names(),
            is_deterministic: loaded.grants.is_deterministic(),
            was_cached: loaded.was_cached,
        }
    }

    /// The runtime's threads, for work that makes many calls of this plugin.
    pub(crate) fn threads(&self) -> &tokio::runtime::Handle {
        &self.0.shared.threads
    }

    fn require(&self, wanted: &'static str) -> Result<(), RuntimeError> {
        if self.0.exported.contains(&wanted) {
            return Ok(());
        }
        Err(RuntimeError::NoWorld {
            name: self.name().into(),
            wanted,
            exported: self.0.exported.clone(),
        })
    }
}

/// Tell what is no component by its first bytes.
fn check_kind(name: &str, bytes: &[u8]) -> Result<(), RuntimeError> {
    let refuse = |found: &str, cure: &str| {
        Err(RuntimeError::NotAComponent {
            name: name.into(),
            found: found.into(),
            cure: cure.into(),
        })
    };
    if Engine::detect_precompiled(bytes).is_some() {
        return refuse(
            "this is compiled machine code (.cwasm), which no sandbox can hold",
            "give the .wasm component it was made from",
        );
    }
    match bytes {
        [0, b'a', b's', b'm', 0x0d, 0, 1, 0, ..] => Ok(()),
        [0, b'a', b's', b'm', 1, 0, 0, 0, ..] => refuse(
            "this is a core module, not a component",
            "build it for wasm32-wasip2, or wrap it with `wasm-tools component new`",
        ),
        [0, b'a', b's', b'm', ..] => refuse(
            "this WebAssembly is of a version that this host does not know",
            "build it for wasm32-wasip2",
        ),
        [] => refuse(
            "the file is empty",
            "build the plugin: slime-host plugin build FOLDER",
        ),
        _ => refuse(
            "this is no WebAssembly",
            "give a .wasm component or a plugin folder",
        ),
    }
}

fn check_limits(shared: &Shared, name: &str, limits: &Limits) -> Result<(), RuntimeError> {
    let refuse = |reason: String| {
        Err(RuntimeError::Limits {
            name: name.into(),
            reason,
        })
    };
    let most = shared.config.max_memory_bytes;
    if limits.memory_bytes > most {
        let (asked, most) = (
            units::bytes::text(limits.memory_bytes),
            units::bytes::text(most),
        );
        return refuse(format!(
            "memory_bytes is {asked}, this host gives an instance at most {most}; lower it"
        ));
    }
    if limits.cpu < shared.config.tick {
        let tick = units::duration::text(shared.config.tick);
        return refuse(format!(
            "cpu is below the precision of {tick} at which this host watches guests; raise it"
        ));
    }
    Ok(())
}

fn compile(
    shared: &Shared,
    name: &str,
    bytes: &[u8],
    digest: &str,
) -> Result<(Component, bool), RuntimeError> {
    if let Some(component) = shared
        .cache
        .as_ref()
        .and_then(|cache| cache.get(&shared.engine, digest))
    {
        return Ok((component, true));
    }
    let component =
        Component::from_binary(&shared.engine, bytes).map_err(|error| RuntimeError::Invalid {
            name: name.into(),
            reason: format!("{error:#}"),
        })?;
    if let Some(cache) = &shared.cache {
        cache.put(&component, digest);
    }
    Ok((component, false))
}

/// How many slots one instance takes.
fn weight(shared: &Shared, component: &Component) -> Result<u32, Problem> {
    let slots = match component.resources_required() {
        Some(needs) => {
            if needs.num_memories > engine::MAX_MEMORIES || needs.num_tables > engine::MAX_TABLES {
                return Err(Problem {
                    what: format!(
                        "it needs {} memories and {} tables",
                        needs.num_memories, needs.num_tables
                    ),
                    cure: format!(
                        "at most {} and {} are given",
                        engine::MAX_MEMORIES,
                        engine::MAX_TABLES
                    ),
                });
            }
            let memories = needs.num_memories.div_ceil(engine::MEMORIES_PER_SLOT);
            memories
                .max(needs.num_tables.div_ceil(engine::TABLES_PER_SLOT))
                .max(1)
        }
        None => engine::MAX_MEMORIES,
    };
    if slots > shared.config.slots {
        return Err(Problem {
            what: format!(
                "one instance takes {slots} slots, this host has {}",
                shared.config.slots
            ),
            cure: "raise the number of slots".into(),
        });
    }
    Ok(slots)
}

/// Link only what the exported worlds import.
fn link(engine: &Engine, component: &Component, exported: &[&str]) -> wasmtime::Result<Worlds> {
    let mut linker: Linker<Context> = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    crate::bindings::types::add_to_linker::<_, HasSelf<_>>(&mut linker, |context| context)?;
    crate::bindings::log::add_to_linker::<_, HasSelf<_>>(&mut linker, |context| context)?;
    if exported.contains(&"verifier") {
        crate::bindings::rollouts::add_to_linker::<_, HasSelf<_>>(&mut linker, |context| context)?;
    }
    if exported.contains(&"generator") {
        crate::bindings::trajectories::add_to_linker::<_, HasSelf<_>>(&mut linker, |context| {
            context
        })?;
    }
    let pre = linker.instantiate_pre(component)?;
    let mut worlds = Worlds::default();
    if exported.contains(&"verifier") {
        worlds.verifier = Some(verifier::VerifierPre::new(pre.clone())?);
    }
    if exported.contains(&"generator") {
        worlds.generator = Some(generator::GeneratorPre::new(pre.clone())?);
    }
    if exported.contains(&"source") {
        worlds.source = Some(source::SourcePre::new(pre)?);
    }
    Ok(worlds)
}

/// Start the component as every call will, and ask each world who it is.
fn trial(loaded: &Arc<Loaded>) -> Result<(), RuntimeError> {
    let failed = |reason: String| RuntimeError::Trial {
        name: loaded.name.to_string(),
        reason,
    };
    let mut told = Told::default();
    for &world in &loaded.exported {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let plugin = Arc::clone(loaded);
        loaded.shared.threads.spawn(async move {
            let ended = call::dispatch(&plugin, Describe(world), 0, plugin.limits.wall).await;
            drop(plugin);
            let _ = sender.send(ended.answer);
        });
        let answer = receiver
            .recv()
            .map_err(|_| failed("the host shut down".into()))?;
        let of_world = answer.map_err(|outcome| failed(outcome.to_string()))?;
        told.about = of_world.about.or(told.about);
        told.reward_range = of_world.reward_range.or(told.reward_range);
        told.num_rows = of_world.num_rows.or(told.num_rows);
    }
    if let Some((min, max)) = told.reward_range
        && !(min.is_finite() && max.is_finite() && min <= max)
    {
        return Err(failed(format!(
            "it declares rewards from {min} to {max}; both must be finite, the first not above the second"
        )));
    }
    let _ = loaded.told.set(told);
    Ok(())
}

/// Ask one world who it is.
struct Describe(&'static str);

impl Job for Describe {
    type Answer = Told;

    async fn run(self, plugin: &Loaded, store: &mut Store<Context>) -> wasmtime::Result<Told> {
        let mut told = Told::default();
        let worlds = &plugin.worlds;
        if let ("source", Some(world)) = (self.0, &worlds.source) {
            let bindings = world.instantiate_async(&mut *store).await?;
            let info = bindings.slime_plugin_drawing().call_describe(store).await?;
            told.num_rows = info.num_rows;
            told.about = Some(info.about);
        } else if let ("generator", Some(world)) = (self.0, &worlds.generator) {
            let bindings = world.instantiate_async(&mut *store).await?;
            told.about = Some(
                bindings
                    .slime_plugin_generation()
                    .call_describe(store)
                    .await?,
            );
        } else if let ("verifier", Some(world)) = (self.0, &worlds.verifier) {
            let bindings = world.instantiate_async(&mut *store).await?;
            let info = bindings
                .slime_plugin_verification()
                .call_describe(store)
                .await?;
            told.reward_range = Some((info.reward_min, info.reward_max));
            told.about = Some(info.about);
        }
        Ok(told)
    }
}
