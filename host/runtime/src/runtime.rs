//! The sandbox that all plugins share: engine, slots, threads and cache.

use crate::cache::Cache;
use crate::plugin::Compiled;
use crate::seen;
use crate::ticker::Ticker;
use crate::trust::{self, PublicKey};
use crate::{Grants, Limits, Plugin, RuntimeError, code, engine};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};
use wasmtime::Engine;

/// How the sandbox is set up. The default suits a laptop and a server alike.
#[derive(Clone, Debug)]
pub struct RuntimeConfig {
    /// Threads that run guests; 0 is one a core.
    pub workers: usize,
    /// Instances alive at once; further calls wait. Slots cost address space, not memory.
    pub slots: u32,
    /// The largest `memory_bytes` that a plugin's limits may ask for.
    pub max_memory_bytes: u64,
    /// How often a running guest is looked at: budgets of time are kept to this precision.
    pub tick: Duration,
    /// Preallocate the slots, which halves the cost of a call.
    pub pooling: bool,
    /// Where compiled components are kept; `None` compiles anew in every process.
    pub cache_dir: Option<PathBuf>,
    /// Only components that one of these signed are loaded from files. Empty trusts every file.
    pub trusted: Vec<PublicKey>,
}

impl Default for RuntimeConfig {
    fn default() -> Self {
        Self {
            workers: 0,
            slots: 1024,
            max_memory_bytes: 1 << 30,
            tick: Duration::from_millis(1),
            pooling: true,
            cache_dir: default_cache_dir(),
            trusted: Vec::new(),
        }
    }
}

/// `$XDG_CACHE_HOME/slime-host/components`, else the same under `~/.cache`.
fn default_cache_dir() -> Option<PathBuf> {
    let absolute = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(base.join("slime-host").join("components"))
}

/// Loads plugins and runs their calls, each in an instance of its own.
///
/// Cheap to clone. Plugins keep it alive; calls in flight when the last owner goes end as cancelled.
#[derive(Clone)]
pub struct Runtime(pub(crate) Arc<Shared>);

/// An engine and what belongs to it.
pub(crate) struct Home {
    pub(crate) engine: Engine,
    pub(crate) cache: Option<Cache>,
    pub(crate) ticker: Ticker,
    pub(crate) slots: Semaphore,
    pooled: bool,
}

/// Slots of the engine for asynchronous guests are fewer, because one instance serves many rollouts.
const SLOTS_PER_SHARD: u32 = 8;

/// What plugins and calls share.
pub(crate) struct Shared {
    pub(crate) home: Home,
    /// For asynchronous guests; started when the first of them is loaded.
    concurrent: OnceLock<Result<Home, String>>,
    pub(crate) python: code::Opened,
    pub(crate) config: RuntimeConfig,
    pub(crate) cancelled: Notify,
    pub(crate) threads: tokio::runtime::Handle,
    /// Taken when it is dropped: a runtime must not be dropped from within another.
    owned_threads: Option<tokio::runtime::Runtime>,
}

impl Runtime {
    /// Start the sandbox.
    ///
    /// # Errors
    /// The machine cannot run wasmtime, or gives no threads.
    pub fn new(config: RuntimeConfig) -> Result<Self, RuntimeError> {
        let home = Home::start(&config, false).map_err(RuntimeError::Engine)?;
        let io = |error: std::io::Error| RuntimeError::Engine(error.to_string());
        let workers = match config.workers {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        };
        // A guest hands its thread back once a tick. With the default intervals timers would be looked at after 61
        // such turns only, so look each time.
        let threads = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(workers)
            .thread_name("plugin")
            .event_interval(1)
            .global_queue_interval(1)
            .enable_all()
            .build()
            .map_err(io)?;
        Ok(Self(Arc::new(Shared {
            home,
            concurrent: OnceLock::new(),
            python: code::Opened::default(),
            cancelled: Notify::new(),
            threads: threads.handle().clone(),
            owned_threads: Some(threads),
            config,
        })))
    }

    /// Load a component from a file. `name` is what metrics and messages call it.
    ///
    /// # Errors
    /// The file is no component, or does not fit this host; every problem at once, each with its cure.
    pub fn load(
        &self,
        path: &Path,
        name: &str,
        limits: Limits,
        grants: Grants,
    ) -> Result<Plugin, RuntimeError> {
        // A signature is checked against the bytes themselves.
        let unsigned = self.0.config.trusted.is_empty();
        if unsigned && let Some(compiled) = Compiled::recall(&self.0, path) {
            return Plugin::load(&self.0, compiled, name, limits, grants);
        }
        let content = seen::read(path).map_err(|source| RuntimeError::Read {
            path: path.into(),
            source,
        })?;
        if !unsigned {
            trust::check(path, &content.bytes, &self.0.config.trusted)?;
        }
        let compiled = Compiled::new(&self.0, &content.bytes, name)?;
        compiled.remember(&self.0, &content);
        Plugin::load(&self.0, compiled, name, limits, grants)
    }

    /// Load a component from memory.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_bytes(
        &self,
        bytes: &[u8],
        name: &str,
        limits: Limits,
        grants: Grants,
    ) -> Result<Plugin, RuntimeError> {
        let compiled = Compiled::new(&self.0, bytes, name)?;
        Plugin::load(&self.0, compiled, name, limits, grants)
    }

    /// End every call in flight as cancelled. Later calls are not affected.
    pub fn cancel_calls(&self) {
        self.0.cancelled.notify_waiters();
    }

    /// Whether instances come from a pool.
    pub fn is_pooled(&self) -> bool {
        self.0.home.pooled
    }

    /// Slots that no call holds.
    pub fn free_slots(&self) -> usize {
        self.0.home.slots.available_permits()
    }
}

impl Home {
    fn start(config: &RuntimeConfig, concurrent: bool) -> Result<Self, String> {
        let (engine, pooled) = engine::start(config, concurrent)?;
        let cache = config.cache_dir.as_deref();
        Ok(Self {
            cache: cache.and_then(|dir| Cache::open(dir, &engine)),
            ticker: Ticker::start(&engine, config.tick).map_err(|error| error.to_string())?,
            slots: Semaphore::new(config.slots as usize),
            pooled,
            engine,
        })
    }
}

impl Shared {
    /// Where guests live that drive many rollouts in one instance.
    pub(crate) fn concurrent(&self) -> Result<&Home, RuntimeError> {
        let started = self.concurrent.get_or_init(|| {
            let config = RuntimeConfig {
                slots: (self.config.slots / SLOTS_PER_SHARD).max(SLOTS_PER_SHARD),
                ..self.config.clone()
            };
            Home::start(&config, true)
        });
        started
            .as_ref()
            .map_err(|reason| RuntimeError::Engine(reason.clone()))
    }

    /// Where guests of one kind live.
    pub(crate) fn home(&self, concurrent: bool) -> Result<&Home, RuntimeError> {
        if concurrent {
            self.concurrent()
        } else {
            Ok(&self.home)
        }
    }

    /// Whether the current thread belongs to the plugins' runtime.
    pub(crate) fn is_inside(&self) -> bool {
        tokio::runtime::Handle::try_current().is_ok_and(|current| current.id() == self.threads.id())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(threads) = self.owned_threads.take() {
            threads.shutdown_background();
        }
    }
}
