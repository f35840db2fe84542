//! CPython as WebAssembly. A program meets an interpreter that has just started, with numpy and sympy imported:
//! every run begins from the same snapshot, mapped copy-on-write, and is thrown away.
//!
//! An engine of its own, because an interpreter needs a deeper stack and more memory than plugins are given.

use super::capture::Capture;
use super::{CodeExec, Ending, Program, Ran, install};
use crate::cache::Cache;
use crate::context::{Exhausted, MemoryBooks};
use crate::meter::Meter;
use crate::ticker::Ticker;
use crate::{Grants, Runtime, RuntimeError, sandbox};
use slime_core::ports::BoxFuture;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio_util::task::AbortOnDropHandle;
use wasmtime::{
    Caller, Config, Engine, InstanceAllocationStrategy, InstancePre, Linker, Module, OptLevel,
    PoolingAllocationConfig, Store, UpdateDeadline,
};
use wasmtime_wasi::p1::WasiP1Ctx;
use wasmtime_wasi::p2::pipe::MemoryInputPipe;
use wasmtime_wasi::{FsPerms, WasiCtxBuilder};

/// An interpreter alone holds three quarters of this.
const LEAST_MEMORY_BYTES: u64 = 96 << 20;
/// The most that a program may be given.
const MAX_MEMORY_BYTES: usize = 2 << 30;
const WASM_STACK_BYTES: usize = 8 << 20;
const FIBER_STACK_BYTES: usize = 10 << 20;
const TICK: Duration = Duration::from_millis(1);
/// Pages that a free slot keeps, so that the next interpreter rewrites them instead of faulting them in.
const RESIDENT_BYTES: usize = 16 << 20;

/// CPython in a sandbox. Cheap to clone.
#[derive(Clone)]
pub struct Python(Arc<Inner>);

pub(crate) struct Inner {
    engine: Engine,
    start: InstancePre<Guest>,
    ticker: Ticker,
    threads: tokio::runtime::Handle,
    slots: Semaphore,
    lib: PathBuf,
    _runtime: Runtime,
}

/// The interpreter that a runtime has open.
#[derive(Default)]
pub(crate) struct Opened(Mutex<Option<(PathBuf, Weak<Inner>)>>);

/// One interpreter's store.
pub(super) struct Guest {
    pub(super) wasi: WasiP1Ctx,
    memory: MemoryBooks,
    meter: Arc<Meter>,
}

impl Guest {
    pub(super) fn new(wasi: WasiP1Ctx, memory_bytes: u64) -> Self {
        Self {
            wasi,
            memory: MemoryBooks::new(memory_bytes),
            meter: Arc::default(),
        }
    }
}

impl Python {
    /// Start from what [`install`] left in `dir`, on the threads of `runtime`. Plugins of one runtime share it.
    ///
    /// # Errors
    /// Nothing is installed there, with the cure; or this machine cannot hold it.
    pub fn open(runtime: &Runtime, dir: &Path) -> Result<Self, RuntimeError> {
        let mut opened = runtime
            .0
            .python
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some((of, inner)) = &*opened
            && of == dir
            && let Some(inner) = inner.upgrade()
        {
            return Ok(Self(inner));
        }
        let python = Self::start(runtime, dir)?;
        *opened = Some((dir.into(), Arc::downgrade(&python.0)));
        Ok(python)
    }

    fn start(runtime: &Runtime, dir: &Path) -> Result<Self, RuntimeError> {
        let snapshot = dir.join(install::SNAPSHOT);
        let missing = || RuntimeError::NoPython {
            dir: dir.into(),
            cure: install::CURE.into(),
        };
        let digest = std::fs::read_to_string(dir.join(install::DIGEST)).map_err(|_| missing())?;
        let lib = dir.join(install::LIB);
        if !snapshot.is_file() || !lib.is_dir() {
            return Err(missing());
        }
        let cores = runtime.0.threads.metrics().num_workers();
        let slots = u32::try_from(4 * cores).unwrap_or(64).clamp(4, 128);
        let engine = engine(Some(slots), OptLevel::Speed)
            .or_else(|_| engine(None, OptLevel::Speed))
            .map_err(RuntimeError::Engine)?;
        let cache = Cache::open(&dir.join("compiled"), &engine);
        let module = match cache
            .as_ref()
            .and_then(|c| c.module(&engine, digest.trim()))
        {
            Some(module) => module,
            None => {
                let module = Module::from_file(&engine, &snapshot)
                    .map_err(|error| RuntimeError::Engine(format!("{error:#}")))?;
                if let Some(cache) = &cache {
                    cache.put_module(&module, digest.trim());
                }
                module
            }
        };
        let start = linker(&engine)
            .and_then(|linker| linker.instantiate_pre(&module))
            .map_err(|error| RuntimeError::Engine(format!("{error:#}")))?;
        let ticker = Ticker::start(&engine, TICK)
            .map_err(|error| RuntimeError::Engine(error.to_string()))?;
        Ok(Self(Arc::new(Inner {
            start,
            ticker,
            threads: runtime.0.threads.clone(),
            // As many at once as there are threads to run them: more would only hold memory.
            slots: Semaphore::new((2 * cores).min(slots as usize)),
            lib,
            engine,
            _runtime: runtime.clone(),
        })))
    }
}

/// The engine of interpreters; `slots` preallocates so many.
pub(super) fn engine(slots: Option<u32>, optimised: OptLevel) -> Result<Engine, String> {
    let mut config = Config::new();
    config.cranelift_opt_level(optimised);
    config.concurrency_support(false);
    config.epoch_interruption(true);
    config.cranelift_nan_canonicalization(true);
    config.relaxed_simd_deterministic(true);
    config.wasm_exceptions(true);
    config.max_wasm_stack(WASM_STACK_BYTES);
    config.async_stack_size(FIBER_STACK_BYTES);
    if let Some(slots) = slots {
        let mut pool = PoolingAllocationConfig::new();
        pool.total_core_instances(slots)
            .total_memories(slots)
            .total_tables(2 * slots)
            .total_stacks(slots)
            .total_gc_heaps(slots)
            .max_memory_size(MAX_MEMORY_BYTES)
            .table_elements(200_000)
            .max_core_instance_size(4 << 20)
            .max_unused_warm_slots(slots);
        if PoolingAllocationConfig::is_pagemap_scan_available() {
            pool.pagemap_scan(wasmtime::Enabled::Yes)
                .linear_memory_keep_resident(RESIDENT_BYTES)
                .table_keep_resident(1 << 20);
        }
        config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    }
    Engine::new(&config).map_err(|error| format!("{error:#}"))
}

/// What an interpreter imports: WASI, and a call into its host that always answers "no such function".
pub(super) fn linker(engine: &Engine) -> wasmtime::Result<Linker<Guest>> {
    let mut linker: Linker<Guest> = Linker::new(engine);
    wasmtime_wasi::p1::add_to_linker_async(&mut linker, |guest: &mut Guest| &mut guest.wasi)?;
    linker.func_wrap(
        "host",
        "call",
        |_: Caller<'_, Guest>, _: i32, _: i32, _: i32, _: i32| -> i32 { -1 },
    )?;
    Ok(linker)
}

/// The world that an interpreter meets: its own library, read only, and nothing else.
pub(super) fn world(lib: &Path) -> Result<WasiCtxBuilder, String> {
    let mut wasi = sandbox::builder(&Grants::default(), 0);
    wasi.arg("/usr/local/bin/python.wasm")
        .env("TMPDIR", "/tmp")
        .env("PYTHONTZPATH", "")
        .env("HOME", "/");
    wasi.preopened_dir(lib, "/usr/local/lib", FsPerms::ReadOnly)
        .map_err(|error| format!("cannot open Python's library: {error}"))?;
    Ok(wasi)
}

/// Run `source` in a started interpreter and return its status.
pub(super) async fn turn(
    store: &mut Store<Guest>,
    instance: &wasmtime::Instance,
    source: &str,
) -> wasmtime::Result<i32> {
    let length = i32::try_from(source.len())?;
    let at = instance
        .get_typed_func::<i32, i32>(&mut *store, "host_alloc")?
        .call_async(&mut *store, length)
        .await?;
    let memory = instance
        .get_memory(&mut *store, "memory")
        .ok_or_else(|| wasmtime::Error::msg("the interpreter exports no memory"))?;
    memory.write(&mut *store, at as u32 as usize, source.as_bytes())?;
    instance
        .get_typed_func::<(i32, i32), i32>(&mut *store, "turn")?
        .call_async(store, (at, length))
        .await
}

impl CodeExec for Python {
    fn describe(&self) -> String {
        "CPython 3.15 in WebAssembly, sandboxed".into()
    }

    fn run(&self, program: Program) -> BoxFuture<'_, Result<Ran, String>> {
        let python = self.clone();
        Box::pin(async move {
            let threads = python.0.threads.clone();
            let task = threads.spawn(async move { python.0.run(program).await });
            AbortOnDropHandle::new(task)
                .await
                .unwrap_or_else(|_| Err("the host shut down".into()))
        })
    }
}

impl Inner {
    async fn run(&self, program: Program) -> Result<Ran, String> {
        let Ok(_slot) = self.slots.acquire().await else {
            return Err("the host shut down".into());
        };
        let stdout = Capture::new(program.output_bytes);
        let stderr = Capture::new(program.output_bytes);
        let mut wasi = world(&self.lib)?;
        wasi.stdin(MemoryInputPipe::new(program.stdin))
            .stdout(stdout.clone())
            .stderr(stderr.clone());
        let memory_bytes = program.memory_bytes.max(LEAST_MEMORY_BYTES);
        let mut store = Store::new(&self.engine, Guest::new(wasi.build_p1(), memory_bytes));
        store.limiter(|guest| &mut guest.memory);
        let cpu = program.cpu;
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(move |guest| {
            if guest.data().meter.running() >= cpu {
                return Err(Exhausted::Cpu.into());
            }
            Ok(UpdateDeadline::Yield(1))
        });
        let meter = Arc::clone(&store.data().meter);
        let running = self.ticker.running();
        // A program that sleeps computes nothing; it is given as much again, and a second.
        let wall = 2 * cpu + Duration::from_secs(1);
        let work = meter.time(async {
            let instance = self.start.instantiate_async(&mut store).await?;
            turn(&mut store, &instance, &program.source).await
        });
        let ended = tokio::time::timeout(wall, work).await;
        drop(running);
        let ((stdout, out_flooded), (stderr, err_flooded)) = (stdout.take(), stderr.take());
        let refused = store.data().memory.refused;
        let (ending, exit_code) = match ended {
            Err(_elapsed) => (Ending::TimedOut, -1),
            Ok(Ok(0)) => (Ending::Finished, 0),
            Ok(Ok(code)) if refused => (Ending::OutOfMemory, code),
            Ok(Ok(code)) => (Ending::Failed, code),
            Ok(Err(error)) => why(&error, out_flooded || err_flooded, refused),
        };
        Ok(Ran {
            ending,
            exit_code,
            stdout,
            stderr,
            cpu: meter.used(),
            peak_memory_bytes: store.data().memory.peak,
        })
    }
}

/// Why an interpreter stopped without returning.
fn why(error: &wasmtime::Error, flooded: bool, refused: bool) -> (Ending, i32) {
    if error.downcast_ref::<Exhausted>().is_some() {
        return (Ending::TimedOut, -1);
    }
    if flooded {
        return (Ending::OutputLimit, -1);
    }
    match error.downcast_ref::<wasmtime_wasi::I32Exit>() {
        Some(exit) if exit.0 == 0 => (Ending::Finished, 0),
        Some(exit) => (Ending::Failed, exit.0),
        None if refused => (Ending::OutOfMemory, -1),
        None => (Ending::Crashed, -1),
    }
}
