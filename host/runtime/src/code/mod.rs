//! Programs that a model wrote, each in a sandbox of its own: what stands behind the capability `code-exec`.
//!
//! [`Python`] is CPython as WebAssembly, started from a snapshot. [`Subprocess`] runs the machine's own interpreter
//! and is no sandbox; it exists for machines that cannot hold the first, and says so in its name. Neither knows who
//! asks, or what the answer should have been. Read [`python`] next.

mod capture;
mod install;
mod python;
mod subprocess;

pub use install::{Artifacts, default_dir, install};
pub(crate) use python::Opened;
pub use python::Python;
pub use subprocess::Subprocess;

use slime_core::ports::BoxFuture;
use std::time::Duration;

/// One program and its budgets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Python source.
    pub source: String,
    /// What it reads from standard input.
    pub stdin: Vec<u8>,
    /// Time in which it computes.
    pub cpu: Duration,
    /// Memory that it may hold.
    pub memory_bytes: u64,
    /// Bytes of each of its outputs that are kept; writing more ends it.
    pub output_bytes: u64,
}

impl Program {
    /// A program with budgets that suit a test of a competition's answer.
    pub fn new(source: impl Into<String>) -> Self {
        let limits = crate::ProgramLimits::default();
        Self {
            source: source.into(),
            stdin: Vec::new(),
            cpu: limits.cpu,
            memory_bytes: limits.memory_bytes,
            output_bytes: limits.output_bytes,
        }
    }
}

/// How a program ended. Never read from what it printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It came to its end, or left with status 0.
    Finished,
    /// An exception nobody caught, or another status.
    Failed,
    /// Its time ran out.
    TimedOut,
    /// Its memory ran out.
    OutOfMemory,
    /// It wrote more than it may.
    OutputLimit,
    /// The interpreter itself broke.
    Crashed,
}

/// What a program left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// How it ended.
    pub ending: Ending,
    /// 0 exactly where it finished.
    pub exit_code: i32,
    /// The first bytes of its output.
    pub stdout: Vec<u8>,
    /// The first bytes of its error output.
    pub stderr: Vec<u8>,
    /// Time in which it computed.
    pub cpu: Duration,
    /// The most memory it held.
    pub peak_memory_bytes: u64,
}

/// Runs programs.
pub trait CodeExec: Send + Sync {
    /// What it is, for people; a back end without a sandbox says so.
    fn describe(&self) -> String;
    /// Run one program. The error says why none can run here.
    fn run(&self, program: Program) -> BoxFuture<'_, Result<Ran, String>>;
}
