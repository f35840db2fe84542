//! Programs that a model wrote, each in a sandbox of its own. Needs the grant `code_exec`.

use crate::Error;

/// One Python program and its budgets; 0 is what was granted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Python source.
    pub source: String,
    /// What it reads from standard input.
    pub stdin: Vec<u8>,
    /// Milliseconds in which it may compute.
    pub time_limit_ms: u32,
    /// Bytes of memory it may hold.
    pub memory_limit_bytes: u64,
    /// Bytes of each of its outputs that are kept.
    pub output_limit_bytes: u32,
}

/// How a program ended.
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
#[derive(Clone, Debug, PartialEq)]
pub struct Ran {
    /// How it ended.
    pub ending: Ending,
    /// 0 exactly where it finished.
    pub exit_code: i32,
    /// The first bytes it wrote.
    pub stdout: Vec<u8>,
    /// The first bytes of its error output.
    pub stderr: Vec<u8>,
    /// Milliseconds of processor time.
    pub cpu_ms: f64,
    /// The most memory it held.
    pub peak_memory_bytes: u64,
}

/// Run one program.
///
/// # Errors
/// Not granted, too many programs in one call, or no interpreter here.
#[cfg(target_family = "wasm")]
pub fn run(program: &Program) -> Result<Ran, Error> {
    wasm::run(program)
}

/// Run one program.
///
/// # Errors
/// Always, off the wasm target.
#[cfg(not(target_family = "wasm"))]
pub fn run(_program: &Program) -> Result<Ran, Error> {
    crate::nobody()
}

/// Run many programs, as many at once as the host has threads; answers come in the order given.
#[cfg(target_family = "wasm")]
pub fn run_all(programs: &[Program]) -> Vec<Result<Ran, Error>> {
    wasm::run_all(programs)
}

/// Run many programs.
#[cfg(not(target_family = "wasm"))]
pub fn run_all(programs: &[Program]) -> Vec<Result<Ran, Error>> {
    programs.iter().map(|_| crate::nobody()).collect()
}

#[cfg(target_family = "wasm")]
mod wasm {
    use super::{Ending, Program, Ran};
    use crate::Error;
    use crate::bindings::slime::plugin::code_exec as wit;

    fn program(program: &Program) -> wit::Program {
        wit::Program {
            language: wit::Language::Python,
            source: program.source.clone(),
            stdin: program.stdin.clone(),
            time_limit_ms: program.time_limit_ms,
            memory_limit_bytes: program.memory_limit_bytes,
            output_limit_bytes: program.output_limit_bytes,
        }
    }

    fn ran(ran: wit::Ran) -> Ran {
        Ran {
            ending: match ran.ending {
                wit::Ending::Finished => Ending::Finished,
                wit::Ending::Failed => Ending::Failed,
                wit::Ending::TimedOut => Ending::TimedOut,
                wit::Ending::OutOfMemory => Ending::OutOfMemory,
                wit::Ending::OutputLimit => Ending::OutputLimit,
                wit::Ending::Crashed => Ending::Crashed,
            },
            exit_code: ran.exit_code,
            stdout: ran.stdout,
            stderr: ran.stderr,
            cpu_ms: ran.cpu_ms,
            peak_memory_bytes: ran.peak_memory_bytes,
        }
    }

    pub(super) fn run(asked: &Program) -> Result<Ran, Error> {
        wit::run(&program(asked)).map(ran).map_err(crate::error)
    }

    pub(super) fn run_all(asked: &[Program]) -> Vec<Result<Ran, Error>> {
        let programs: Vec<_> = asked.iter().map(program).collect();
        let answers = wit::run_all(&programs).into_iter();
        answers
            .map(|one| one.map(ran).map_err(crate::error))
            .collect()
    }
}
