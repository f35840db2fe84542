//! Loading a component: checks, compilation, trial start. What is loaded fits and has run once.

use crate::contract::{self, Fit};
use crate::description::Description;
use crate::generator::ComponentGenerator;
use crate::group::ComponentGroup;
use crate::kept::Kept;
use crate::runtime::{Home, Shared};
use crate::seen::{Content, Seen};
use crate::services::Services;
use crate::shards::Shards;
use crate::source::ComponentSource;
use crate::toolbox::ComponentTools;
use crate::verifier::ComponentVerifier;
use crate::worlds::{self, Told, Worlds};
use crate::{Grants, Limits, Problem, RuntimeError, cache, engine, sandbox, units};
use slime_core::ports::{Filter, Generator, GroupVerifier, Shaper, Source, Tools, Verifier};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use wasmtime::Engine;
use wasmtime::component::Component;

/// A loaded component. Cheap to clone.
#[derive(Clone)]
pub struct Plugin(Arc<Loaded>);

pub(crate) struct Loaded {
    pub(crate) shared: Arc<Shared>,
    pub(crate) name: Arc<str>,
    pub(crate) limits: Limits,
    pub(crate) grants: Grants,
    pub(crate) worlds: Worlds,
    /// Instances that drive many rollouts each, where it is an asynchronous generator.
    pub(crate) shards: Shards,
    /// Slots that one instance needs.
    pub(crate) weight: u32,
    /// What `kv` keeps for it.
    pub(crate) kept: Kept,
    /// Known after the trial start.
    told: OnceLock<Told>,
    /// Set before the first call of a run; without it nothing is offered.
    services: OnceLock<Arc<Services>>,
    pub(crate) exported: Vec<&'static str>,
    imports: Vec<String>,
    asks: Vec<String>,
    digest: String,
    size_bytes: u64,
    was_cached: bool,
}

impl Loaded {
    pub(crate) fn told(&self) -> Option<&Told> {
        self.told.get()
    }

    /// The engine it was compiled for.
    pub(crate) fn home(&self) -> &Home {
        match self.shared.concurrent() {
            Ok(home) if self.worlds.is_concurrent => home,
            _ => &self.shared.home,
        }
    }

    pub(crate) fn services(&self) -> Arc<Services> {
        self.services.get().cloned().unwrap_or_default()
    }
}

impl Plugin {
    pub(crate) fn load(
        shared: &Arc<Shared>,
        compiled: Compiled,
        name: &str,
        limits: Limits,
        grants: Grants,
    ) -> Result<Self, RuntimeError> {
        check_limits(shared, name, &limits)?;
        let refused = |mut problems: Vec<Problem>| {
            for problem in &mut problems {
                problem.cure = problem
                    .cure
                    .replace("grants.NAME", &format!("grants.{name}"));
            }
            RuntimeError::Refused {
                name: name.into(),
                problems,
            }
        };
        let Compiled {
            component,
            seen:
                Seen {
                    digest,
                    size_bytes,
                    concurrent,
                },
            was_cached,
        } = compiled;
        let home = shared.home(concurrent)?;
        let Fit {
            worlds: exported,
            imports,
            asks,
            mut problems,
        } = contract::examine(&home.engine, &component, &grants);
        if let Err(what) = sandbox::check_files(&grants) {
            let cure = "grant a directory that exists".into();
            problems.push(Problem { what, cure });
        }
        let weight = weight(shared, &component)
            .map_err(|problem| problems.push(problem))
            .unwrap_or(1);
        if !problems.is_empty() {
            return Err(refused(problems));
        }
        let imported = contract::interfaces(&imports);
        let worlds = worlds::link(&home.engine, &component, &exported, &imported, concurrent);
        let worlds = worlds.map_err(|error| {
            refused(vec![Problem {
                what: format!("it does not link: {error:#}"),
                cure: format!("rebuild it against slime:plugin@{}", contract::VERSION),
            }])
        })?;
        let loaded = Arc::new(Loaded {
            shared: Arc::clone(shared),
            name: name.into(),
            limits,
            grants,
            worlds,
            shards: Shards::default(),
            weight,
            kept: Kept::default(),
            told: OnceLock::new(),
            services: OnceLock::new(),
            exported,
            imports,
            asks,
            digest,
            size_bytes,
            was_cached,
        });
        let told = worlds::trial(&loaded).map_err(|reason| RuntimeError::Trial {
            name: name.into(),
            reason,
        })?;
        let _ = loaded.told.set(told);
        Ok(Self(loaded))
    }

    /// What metrics and messages call it.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// `sha256:…` of the component: what it is, whatever it is called.
    pub fn digest(&self) -> String {
        format!("sha256:{}", self.0.digest)
    }

    /// What this host offers it. Counts once, before the first call.
    pub fn serve(&self, services: Services) {
        let _ = self.0.services.set(Arc::new(services));
    }

    /// The worlds it exports, in the contract's order: `verifier`, `group-verifier`, `judge`, `generator`, `tool`,
    /// `source`, `filter`, `shaper`.
    pub fn worlds(&self) -> &[&'static str] {
        &self.0.exported
    }

    /// The component as a verifier; of one that is only a judge, the judge.
    ///
    /// # Errors
    /// It exports neither.
    pub fn verifier(&self) -> Result<Arc<dyn Verifier>, RuntimeError> {
        let judge = !self.0.exported.contains(&"verifier") && self.0.exported.contains(&"judge");
        if !judge {
            self.require("verifier")?;
        }
        Ok(Arc::new(ComponentVerifier {
            plugin: Arc::clone(&self.0),
            judge,
        }))
    }

    /// The component as a judge: a verifier that may ask a model.
    ///
    /// # Errors
    /// It exports no such world.
    pub fn judge(&self) -> Result<Arc<dyn Verifier>, RuntimeError> {
        self.require("judge")?;
        Ok(Arc::new(ComponentVerifier {
            plugin: Arc::clone(&self.0),
            judge: true,
        }))
    }

    /// The component as a group verifier.
    ///
    /// # Errors
    /// It exports no such world.
    pub fn group_verifier(&self) -> Result<Arc<dyn GroupVerifier>, RuntimeError> {
        self.require("group-verifier")?;
        Ok(Arc::new(ComponentGroup(Arc::clone(&self.0))))
    }

    /// The component as a filter.
    ///
    /// # Errors
    /// It exports no such world.
    pub fn filter(&self) -> Result<Arc<dyn Filter>, RuntimeError> {
        self.require("filter")?;
        Ok(Arc::new(ComponentGroup(Arc::clone(&self.0))))
    }

    /// The component as a shaper.
    ///
    /// # Errors
    /// It exports no such world.
    pub fn shaper(&self) -> Result<Arc<dyn Shaper>, RuntimeError> {
        self.require("shaper")?;
        Ok(Arc::new(ComponentGroup(Arc::clone(&self.0))))
    }

    /// The component as a box of tools.
    ///
    /// # Errors
    /// It exports no such world.
    pub fn tools(&self) -> Result<Arc<dyn Tools>, RuntimeError> {
        self.require("tool")?;
        Ok(Arc::new(ComponentTools(Arc::clone(&self.0))))
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
            asks: loaded.asks.clone(),
            tools: told.map_or_else(Vec::new, |told| {
                let names = told.tools.iter().map(crate::host::tools::name);
                names.map(str::to_owned).collect()
            }),
            digest: self.digest(),
            size_bytes: loaded.size_bytes,
            reward_range: told.and_then(|told| told.reward_range),
            num_rows: told.and_then(|told| told.num_rows),
            limits: loaded.limits.clone(),
            grants: loaded.grants.names(),
            is_deterministic: loaded.grants.is_deterministic(),
            was_cached: loaded.was_cached,
        }
    }

    pub(crate) fn loaded(&self) -> &Arc<Loaded> {
        &self.0
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

/// A component as machine code, and what it was made from.
pub(crate) struct Compiled {
    component: Component,
    seen: Seen,
    was_cached: bool,
}

impl Compiled {
    /// From a file that was seen before, without reading it.
    pub(crate) fn recall(shared: &Shared, path: &Path) -> Option<Self> {
        let seen = shared.home.cache.as_ref()?.recall(path)?;
        let home = shared.home(seen.concurrent).ok()?;
        let component = home.cache.as_ref()?.get(&home.engine, &seen.digest)?;
        Some(Self {
            component,
            seen,
            was_cached: true,
        })
    }

    /// From the component itself.
    pub(crate) fn new(shared: &Shared, bytes: &[u8], name: &str) -> Result<Self, RuntimeError> {
        check_kind(name, bytes)?;
        let seen = Seen {
            digest: cache::digest(bytes),
            size_bytes: bytes.len() as u64,
            concurrent: contract::mentions_async(bytes),
        };
        let home = shared.home(seen.concurrent)?;
        let cached = home
            .cache
            .as_ref()
            .and_then(|cache| cache.get(&home.engine, &seen.digest));
        if let Some(component) = cached {
            return Ok(Self {
                component,
                seen,
                was_cached: true,
            });
        }
        let component =
            Component::from_binary(&home.engine, bytes).map_err(|error| RuntimeError::Invalid {
                name: name.into(),
                reason: format!("{error:#}"),
            })?;
        if let Some(cache) = &home.cache {
            cache.put(&component, &seen.digest);
        }
        Ok(Self {
            component,
            seen,
            was_cached: false,
        })
    }

    /// Recall it by its file's state from now on.
    pub(crate) fn remember(&self, shared: &Shared, content: &Content) {
        if let Some(cache) = &shared.home.cache {
            cache.remember(content, &self.seen.digest, self.seen.concurrent);
        }
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
