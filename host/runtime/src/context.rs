//! What one call's store holds: the guest's world, and the books kept on it.

use crate::Limits;
use crate::bindings::types::ErrorCode;
use crate::meter::Meter;
use crate::plugin::Loaded;
use crate::sandbox::{self, Tail};
use crate::services::Services;
use slime_core::ports::LiveTrajectory;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use wasmtime::ResourceLimiter;
use wasmtime_wasi::{ResourceTable, WasiCtx, WasiCtxView, WasiView};

/// Handles that one call may hold, the host's and WASI's together.
const MAX_HANDLES: usize = 4096;
/// Lines of the log that one call may write.
const LOG_LINES: u64 = 64;
/// Table elements of one table: enough for the function tables of large interpreters.
const MAX_TABLE_ELEMENTS: usize = 100_000;

pub(crate) struct Context {
    pub(crate) plugin: Arc<Loaded>,
    /// What this run's host offers beyond the call itself.
    pub(crate) services: Arc<Services>,
    /// Fixes the call's randomness.
    pub(crate) seed: u64,
    /// Made when the guest first reaches for it: most calls never do.
    wasi: Option<WasiCtx>,
    pub(crate) table: ResourceTable,
    pub(crate) memory: MemoryBooks,
    pub(crate) meter: Arc<Meter>,
    /// Time in which the guest may run, all in all.
    pub(crate) cpu: Duration,
    /// Where the meter stood when the guest last gave a sign of life; of one that serves one call, its start.
    pub(crate) since: Duration,
    pub(crate) stderr: Tail,
    pub(crate) host_calls: Budget,
    pub(crate) tokens: Budget,
    pub(crate) log_lines: Budget,
    /// Programs that the call may still run.
    pub(crate) programs: Budget,
    /// Bytes of one log line, prompt, response and so on that may go to the guest.
    pub(crate) hostcall_bytes: u64,
    /// Where futures of the pool run: the runtime that asked for the call, never the plugins' own.
    pub(crate) caller: Option<tokio::runtime::Handle>,
    /// Every trajectory the call has held, in order of creation.
    pub(crate) opened: Vec<Arc<dyn LiveTrajectory>>,
    /// The kinds of error the host gave the guest; a guest cannot claim one that it was never given.
    pub(crate) given: Vec<ErrorCode>,
    /// The rollout whose books the fields above are; an instance that serves one call knows no other than 0.
    pub(crate) rollout: u64,
    /// The books of the other rollouts of the instance.
    parked: HashMap<u64, Books>,
}

/// What belongs to one rollout among several of an instance.
pub(crate) struct Books {
    pub(crate) seed: u64,
    pub(crate) tokens: Budget,
    pub(crate) caller: Option<tokio::runtime::Handle>,
    pub(crate) opened: Vec<Arc<dyn LiveTrajectory>>,
    pub(crate) given: Vec<ErrorCode>,
}

impl Context {
    pub(crate) fn new(plugin: Arc<Loaded>, seed: u64) -> Self {
        let limits: &Limits = &plugin.limits;
        let mut table = ResourceTable::new();
        table.set_max_capacity(MAX_HANDLES);
        Self {
            services: plugin.services(),
            seed,
            wasi: None,
            table,
            memory: MemoryBooks::new(limits.memory_bytes),
            meter: Arc::default(),
            cpu: limits.cpu,
            since: Duration::ZERO,
            stderr: Tail::default(),
            host_calls: Budget::new(limits.host_calls),
            tokens: Budget::new(limits.tokens),
            log_lines: Budget::new(LOG_LINES),
            programs: Budget::new(limits.programs),
            hostcall_bytes: limits.hostcall_bytes,
            caller: None,
            opened: Vec::new(),
            given: Vec::new(),
            rollout: 0,
            parked: HashMap::new(),
            plugin,
        }
    }

    /// Count one call of the guest into the host; the call that exceeds the budget ends the guest.
    pub(crate) fn count_host_call(&mut self) -> wasmtime::Result<()> {
        if self.rollout > 0 {
            self.since = self.meter.running();
        }
        if self.host_calls.take(1) {
            Ok(())
        } else {
            Err(Exhausted::HostCalls(self.host_calls.limit).into())
        }
    }

    /// Keep books for one more rollout, and let this instance do what one more may do.
    pub(crate) fn open_rollout(
        &mut self,
        rollout: u64,
        seed: u64,
        caller: Option<tokio::runtime::Handle>,
    ) {
        let limits = &self.plugin.limits;
        self.host_calls.limit += limits.host_calls;
        self.log_lines.limit += LOG_LINES;
        self.programs.limit += limits.programs;
        self.cpu += limits.cpu;
        self.since = self.meter.running();
        let books = Books {
            seed,
            tokens: Budget::new(limits.tokens),
            caller,
            opened: Vec::new(),
            given: Vec::new(),
        };
        self.parked.insert(rollout, books);
        self.enter(rollout);
    }

    /// Turn to the books of a rollout; `false` where it is over.
    pub(crate) fn enter(&mut self, rollout: u64) -> bool {
        if rollout == self.rollout {
            return true;
        }
        let Some(mut books) = self.parked.remove(&rollout) else {
            return false;
        };
        std::mem::swap(&mut self.seed, &mut books.seed);
        std::mem::swap(&mut self.tokens, &mut books.tokens);
        std::mem::swap(&mut self.caller, &mut books.caller);
        std::mem::swap(&mut self.opened, &mut books.opened);
        std::mem::swap(&mut self.given, &mut books.given);
        self.parked.insert(self.rollout, books);
        self.rollout = rollout;
        true
    }

    /// Close the books of a rollout and hand them over.
    pub(crate) fn close_rollout(&mut self, rollout: u64) -> Option<Books> {
        self.enter(0);
        self.parked.remove(&rollout)
    }

    /// Refuse to build text for the guest that exceeds what may cross.
    pub(crate) fn check_outgoing(&self, bytes: usize) -> wasmtime::Result<()> {
        if bytes as u64 <= self.hostcall_bytes {
            Ok(())
        } else {
            Err(Exhausted::Outgoing(bytes as u64, self.hostcall_bytes).into())
        }
    }
}

impl WasiView for Context {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        let (plugin, seed, stderr) = (&self.plugin, self.seed, &self.stderr);
        WasiCtxView {
            ctx: self
                .wasi
                .get_or_insert_with(|| sandbox::wasi(&plugin.grants, seed, stderr)),
            table: &mut self.table,
        }
    }
}

/// A count and the most it may reach.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) used: u64,
    pub(crate) limit: u64,
}

impl Budget {
    fn new(limit: u64) -> Self {
        Self { used: 0, limit }
    }

    /// Count `n`; `false` when that exceeds the limit.
    pub(crate) fn take(&mut self, n: u64) -> bool {
        self.used = self.used.saturating_add(n);
        self.used <= self.limit
    }

    pub(crate) fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

/// A budget that ran out in the middle of a call, as the reason why the store was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exhausted {
    Cpu,
    HostCalls(u64),
    Outgoing(u64, u64),
}

impl fmt::Display for Exhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::error::Error for Exhausted {}

/// Counts memory, and refuses what exceeds the budget: the guest sees a failed `memory.grow`.
#[derive(Debug)]
pub(crate) struct MemoryBooks {
    limit: u64,
    held: u64,
    pub(crate) peak: u64,
    pub(crate) refused: bool,
}

impl MemoryBooks {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            limit,
            held: 0,
            peak: 0,
            refused: false,
        }
    }
}

impl ResourceLimiter for MemoryBooks {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let held = self.held + (desired - current) as u64;
        if held > self.limit {
            self.refused = true;
            return Ok(false);
        }
        self.held = held;
        self.peak = self.peak.max(held);
        Ok(true)
    }

    fn memory_grow_failed(&mut self, _error: wasmtime::Error) -> wasmtime::Result<()> {
        // The engine could not give what the books allowed: the pool's own ceiling.
        self.refused = true;
        Ok(())
    }

    fn table_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(desired <= MAX_TABLE_ELEMENTS)
    }
}
