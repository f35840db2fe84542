//! The command line: one file a verb, stdout for data, stderr for people.
//!
//! A verb reads its arguments, makes a plan and hands it to `job`; nothing is computed here. Read `recipe` for what
//! verbs share and `unknown` for flags that do not exist.

mod config;
mod convert;
mod doctor;
mod eval;
mod import;
mod inspect;
mod launch;
mod logprobs;
mod mask;
mod plan;
mod plugin;
mod ranked;
mod recipe;
mod replay;
mod rollout;
mod run;
mod score;
mod serve;
mod sft;
mod train;
mod unknown;

use crate::config::{Problem, Problems, flags};
use crate::error::{Failure, Result, at_path};
use crate::telemetry::Trace;
use crate::telemetry::console::{Console, Voice};
use crate::telemetry::logs::{self, LogFormat};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use slime_rollout::whole::Place;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// Post-train language models with reinforcement learning; prompts, rollouts and rewards are plugins.
#[derive(Debug, Parser)]
#[command(
    name = "slime-host",
    version,
    propagate_version = false,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Cli {
    /// How the log is written; RUST_LOG chooses what
    #[arg(long, value_enum, default_value_t, global = true)]
    log: LogFormat,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Train a policy by reinforcement: sample, score, train, publish, repeat
    Run(run::Args),
    /// Start this node's ranks of a run on several machines, under Ray, Slurm, torchrun, mpirun or alone
    Launch(launch::Args),
    /// One rank of a node, tied to its agent
    #[command(hide = true)]
    LaunchRank(launch::Rank),
    /// Supervised fine-tuning on the same trainer
    Sft(sft::Args),
    /// Rollouts only, as records
    Rollout(rollout::Args),
    /// Train only, on recorded rollouts
    Train(train::Args),
    /// Evaluation only
    Eval(eval::Args),
    /// Serve a model with the embedded engine, behind SGLang's API
    Serve(serve::Args),
    /// Log-probs and entropies of token sequences
    Logprobs(logprobs::Args),
    /// Run a verifier offline, with budgets and accounting
    Score(score::Args),
    /// Build, check and look at plugins
    #[command(subcommand)]
    Plugin(plugin::Args),
    /// What a model costs, and its layouts over GPUs: parameters, FLOPs, memory, time of a step
    Plan(plan::Args),
    /// A GGUF file as an HF directory
    Convert(convert::Args),
    /// A slime launch script as a recipe, and what could not be carried over
    Import(import::Args),
    /// Show a run, or compare two
    Inspect(inspect::Args),
    /// Run stored rollouts once more and compare
    Replay(replay::Args),
    /// Show what is here and what is missing
    Doctor(doctor::Args),
    /// Show or check a recipe
    #[command(subcommand)]
    Config(config::Args),
}

/// What a verb works with.
pub struct Context {
    /// Talks to the person.
    pub console: Console,
    /// Takes the spans.
    pub trace: Trace,
}

/// How a verb ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As asked.
    Done,
    /// It did its work, and what it found is not well.
    NotWell,
    /// The person stopped it; everything is saved.
    Stopped,
    /// As the processes it started ended.
    Code(u8),
}

impl Outcome {
    /// The process's exit code.
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::NotWell => 1,
            Self::Stopped => 130,
            Self::Code(code) => code,
        }
    }
}

/// Parse the command line, start the log, do what is asked. `Err(code)` after clap has spoken.
///
/// # Errors
/// What the verb says.
pub fn main(argv: Vec<String>) -> std::result::Result<Result<Outcome>, u8> {
    let command = Cli::command();
    let argv = flags::sglang::gather(argv);
    if let Err(problems) = unknown::check(&command, &argv) {
        return Ok(Err(problems.into()));
    }
    let cli = command
        .try_get_matches_from(argv)
        .and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = cli.map_err(|e| {
        // clap writes help to stdout and errors to stderr; neither can be reported elsewhere.
        let _ = e.print();
        e.exit_code() as u8
    })?;
    let trace = logs::start(cli.log);
    let voice = if cli.log == LogFormat::Json {
        Voice::Silent
    } else {
        Voice::People
    };
    let context = Context {
        console: Console::new(voice),
        trace,
    };
    Ok(dispatch(cli.verb, &context))
}

fn dispatch(verb: Verb, context: &Context) -> Result<Outcome> {
    match verb {
        Verb::Run(args) => run::run(args, context),
        Verb::Launch(args) => launch::run(args, context),
        Verb::LaunchRank(args) => launch::rank(args),
        Verb::Sft(args) => sft::run(args, context),
        Verb::Rollout(args) => rollout::run(args, context),
        Verb::Train(args) => train::run(args, context),
        Verb::Eval(args) => eval::run(args, context),
        Verb::Serve(args) => serve::run(args, context),
        Verb::Logprobs(args) => logprobs::run(args, context),
        Verb::Score(args) => score::run(args, context),
        Verb::Plugin(args) => plugin::run(args, context),
        Verb::Plan(args) => plan::run(args, context),
        Verb::Convert(args) => convert::run(args, context),
        Verb::Import(args) => import::run(args, context),
        Verb::Inspect(args) => inspect::run(args, context),
        Verb::Replay(args) => replay::run(args, context),
        Verb::Doctor(args) => doctor::run(args),
        Verb::Config(args) => config::run(args),
    }
}

/// How long a program that has done its work waits for threads that libraries of others hold.
const PATIENCE: Duration = Duration::from_secs(10);

/// Run async work on a runtime of its own. A thread that hangs in a driver or a library does not keep the program alive.
///
/// # Errors
/// The system gives no threads.
fn block_on<T>(work: impl Future<Output = T>) -> Result<T> {
    block_on_for(PATIENCE, work)
}

fn block_on_for<T>(patience: Duration, work: impl Future<Output = T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|e| Failure::run(format!("no threads: {e}")))?;
    let result = runtime.block_on(work);
    runtime.shutdown_timeout(patience);
    Ok(result)
}

/// Write data to stdout.
///
/// # Errors
/// stdout is closed.
pub fn data(text: &str) -> Result<Outcome> {
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(|e| Failure::run(format!("stdout: {e}")))?;
    Ok(Outcome::Done)
}

/// Several problems, or none.
pub fn collected(problems: Vec<Problem>) -> Result<()> {
    if problems.is_empty() {
        Ok(())
    } else {
        Err(Problems(problems).into())
    }
}

/// Refuse to write over what is read.
///
/// # Errors
/// Both flags name one file.
pub fn two_files(read: (&str, &Path), written: (&str, &Path)) -> Result<()> {
    let same = std::fs::canonicalize(read.1).is_ok_and(|read| {
        std::fs::canonicalize(written.1).is_ok_and(|written| written.is_file() && read == written)
    });
    if !same {
        return Ok(());
    }
    let ((read, path), (written, _)) = (read, written);
    let path = path.display();
    Err(Problem::new(format!(
        "{read} and {written} are both {path}, which would be lost"
    ))
    .help(format!("give {written} another name"))
    .into())
}

/// As [`writable`], and its directory is made.
///
/// # Errors
/// It cannot.
pub fn room_for(path: &Path) -> Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(at_path(parent))?;
    }
    writable(path)
}

/// Whether a file that is written at the end can be written at all. One that is there stays as it is.
///
/// # Errors
/// It cannot.
pub fn writable(path: &Path) -> Result<()> {
    // To open a pipe is to wait for its reader, and to close it to send the reader home.
    let Place::File(file) = Place::of(path) else {
        return Ok(());
    };
    let is_there = file.exists();
    let mut options = std::fs::OpenOptions::new();
    options
        .append(true)
        .create(true)
        .open(&file)
        .map_err(at_path(&file))?;
    if !is_there {
        std::fs::remove_file(&file).map_err(at_path(&file))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;
    use std::sync::mpsc;

    /// A broadcast that NCCL never returns from was seen to keep a finished run alive.
    #[test]
    fn a_thread_that_hangs_does_not_keep_the_program_alive() {
        let (_kept, never) = mpsc::channel::<()>();
        let work = async {
            tokio::task::spawn_blocking(move || never.recv());
            tokio::task::yield_now().await;
            7
        };
        assert_eq!(block_on_for(Duration::from_millis(50), work).unwrap(), 7);
    }

    /// Scripts depend on it: a flag that vanishes or changes its shape is a decision, not an accident.
    #[test]
    fn the_command_line_has_these_verbs_and_flags() {
        let mut text = String::new();
        list(&Cli::command(), "", &mut text);
        insta::assert_snapshot!(text);
    }

    fn list(command: &clap::Command, path: &str, text: &mut String) {
        for verb in command.get_subcommands() {
            let name = format!("{path}{}", verb.get_name());
            let _ = writeln!(text, "{name}");
            for arg in verb.get_arguments() {
                let values: Vec<String> = arg
                    .get_value_names()
                    .unwrap_or_default()
                    .iter()
                    .map(ToString::to_string)
                    .collect();
                let values = if arg.get_action().takes_values() {
                    format!(" {}", values.join(" "))
                } else {
                    String::new()
                };
                let required = if arg.is_required_set() {
                    "  (required)"
                } else {
                    ""
                };
                match (arg.get_long(), arg.get_short()) {
                    (Some(long), Some(short)) => {
                        writeln!(text, "    -{short}, --{long}{values}{required}")
                    }
                    (Some(long), None) => writeln!(text, "    --{long}{values}{required}"),
                    _ => writeln!(text, "    {}{required}", values.trim()),
                }
                .unwrap();
            }
            list(verb, &format!("{name} "), text);
        }
    }

    #[test]
    fn clap_finds_nothing_wrong_with_the_definition() {
        Cli::command().debug_assert();
    }
}
