//! `code-exec`: programs that a model wrote, each in a sandbox of its own, apart from whoever judges them.

use crate::bindings::code_exec::{self as wit, Host};
use crate::bindings::types::{Error, ErrorCode};
use crate::code::{CodeExec, Ending, Program, Ran};
use crate::context::Context;
use crate::host::outside;
use std::sync::Arc;
use std::time::Duration;

impl Context {
    /// The program within the granted budgets.
    fn program(&self, asked: wit::Program) -> Program {
        let granted = self.plugin.grants.code_exec.clone().unwrap_or_default();
        let cut = |asked: u64, most: u64| if asked == 0 { most } else { asked.min(most) };
        let most_ms = u64::try_from(granted.cpu.as_millis()).unwrap_or(u64::MAX);
        Program {
            source: asked.source,
            stdin: asked.stdin,
            cpu: Duration::from_millis(cut(asked.time_limit_ms.into(), most_ms)),
            memory_bytes: cut(asked.memory_limit_bytes, granted.memory_bytes),
            output_bytes: cut(asked.output_limit_bytes.into(), granted.output_bytes),
        }
    }

    /// Whoever runs programs, if `count` more may run.
    fn runner(&mut self, count: u64) -> Result<Arc<dyn CodeExec>, Error> {
        if self.plugin.grants.code_exec.is_none() {
            return self.refuse(ErrorCode::Denied, "code-exec is not granted");
        }
        if !self.programs.take(count) {
            let message = format!("more than {} programs in one call", self.programs.limit);
            return self.refuse(ErrorCode::LimitExceeded, message);
        }
        match self.services.code.clone() {
            Some(code) => Ok(code),
            None => self.refuse(ErrorCode::Unavailable, "this host runs no programs"),
        }
    }

    fn ran(&mut self, ran: Result<Ran, String>) -> wasmtime::Result<Result<wit::Ran, Error>> {
        let ran = match ran {
            Ok(ran) => ran,
            Err(reason) => return Ok(self.refuse(ErrorCode::Unavailable, reason)),
        };
        self.check_outgoing(ran.stdout.len() + ran.stderr.len())?;
        Ok(Ok(wit::Ran {
            ending: match ran.ending {
                Ending::Finished => wit::Ending::Finished,
                Ending::Failed => wit::Ending::Failed,
                Ending::TimedOut => wit::Ending::TimedOut,
                Ending::OutOfMemory => wit::Ending::OutOfMemory,
                Ending::OutputLimit => wit::Ending::OutputLimit,
                Ending::Crashed => wit::Ending::Crashed,
            },
            exit_code: ran.exit_code,
            stdout: ran.stdout,
            stderr: ran.stderr,
            cpu_ms: ran.cpu.as_secs_f64() * 1e3,
            peak_memory_bytes: ran.peak_memory_bytes,
        }))
    }
}

impl Host for Context {
    async fn run(&mut self, program: wit::Program) -> wasmtime::Result<Result<wit::Ran, Error>> {
        self.count_host_call()?;
        let code = match self.runner(1) {
            Ok(code) => code,
            Err(error) => return Ok(Err(error)),
        };
        let program = self.program(program);
        let run = outside(
            self.caller.clone(),
            async move { Ok(code.run(program).await) },
        );
        match run.await {
            Ok(ran) => self.ran(ran),
            Err(failure) => Ok(self.refuse_live(&failure)),
        }
    }

    async fn run_all(
        &mut self,
        programs: Vec<wit::Program>,
    ) -> wasmtime::Result<Vec<Result<wit::Ran, Error>>> {
        self.count_host_call()?;
        let code = match self.runner(programs.len() as u64) {
            Ok(code) => code,
            Err(error) => return Ok(programs.iter().map(|_| Err(error.clone())).collect()),
        };
        let runs = programs.into_iter().map(|program| {
            let (program, code) = (self.program(program), Arc::clone(&code));
            outside(
                self.caller.clone(),
                async move { Ok(code.run(program).await) },
            )
        });
        let mut answers = Vec::new();
        for run in futures::future::join_all(runs).await {
            answers.push(match run {
                Ok(ran) => self.ran(ran)?,
                Err(failure) => self.refuse_live(&failure),
            });
        }
        Ok(answers)
    }
}
