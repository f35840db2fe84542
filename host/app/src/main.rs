//! The program: reads what is wanted (`cli`, `config`), builds the concrete types (`wire`), runs the loop (`job`)
//! and tells about it (`telemetry`).
//!
//! It alone knows every wing; the wings know only `slime_core`'s ports. Read `cli` first, then `job`.
#![forbid(unsafe_code)]
#![allow(
    unreachable_pub,
    reason = "a program exports nothing; pub marks what other modules may use"
)]

mod cli;
mod config;
mod error;
mod job;
mod launch;
mod telemetry;
mod wire;

use std::process::ExitCode;

fn main() -> ExitCode {
    let argv: Vec<String> = std::env::args_os()
        .map(|arg| arg.to_string_lossy().into_owned())
        .collect();
    match cli::main(argv) {
        Ok(Ok(outcome)) => ExitCode::from(outcome.code()),
        Ok(Err(failure)) => {
            let code = failure.code();
            telemetry::console::above_bars(told(failure).as_bytes());
            ExitCode::from(code)
        }
        Err(code) => ExitCode::from(code),
    }
}

/// What a person reads of a failure; several problems are counted below the last.
fn told(failure: error::Failure) -> String {
    let error::Failure::Config(config::Problems(problems)) = failure else {
        return format!("{:?}\n", miette::Report::new(failure));
    };
    let count = problems.len();
    let mut text: String = problems
        .into_iter()
        .map(|problem| format!("{:?}\n", miette::Report::new(problem)))
        .collect();
    if count > 1 {
        text.push_str(&format!("{count} problems; nothing was started\n"));
    }
    text
}
