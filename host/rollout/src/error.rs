//! The crate's one error type. Variants are named for what their reader can do about them.

use slime_core::ports::SourceError;
use slime_core::{Step, WeightVersion};
use std::path::PathBuf;

/// What went wrong between a prompt file and a trained batch.
#[derive(Debug, thiserror::Error)]
pub enum RolloutError {
    /// A file cannot be read or written.
    #[error("{}: {reason}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What happened, and the cure.
        reason: String,
    },
    /// A prompt file's row is unusable.
    #[error("{}: row {row}{}: {reason}", path.display(), line.map(|l| format!(" (line {l})")).unwrap_or_default())]
    Row {
        /// Which file.
        path: PathBuf,
        /// Counted from 0 over the whole file, blank lines left out.
        row: u64,
        /// Line of a text file, counted from 1.
        line: Option<u64>,
        /// What is wrong, and the cure.
        reason: String,
    },
    /// There is nothing to draw from.
    #[error("{}: no rows{detail}; give a file with at least one {what}", path.display())]
    NoRows {
        /// Which file.
        path: PathBuf,
        /// The slice, where one was given.
        detail: String,
        /// What a row of it is.
        what: &'static str,
    },
    /// A value of the configuration cannot be used.
    #[error("{what}: {reason}")]
    Config {
        /// The option.
        what: String,
        /// What is wrong, and the cure.
        reason: String,
    },
    /// A source gave no prompt.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// No prompt of this run can be rendered.
    #[error("prompt {prompt}: {reason}")]
    Render {
        /// Source and row.
        prompt: String,
        /// What happened, and the cure.
        reason: String,
    },
    /// No engine can sample.
    #[error("no engine could answer: {reason}. The run can be resumed once an engine is back")]
    NoEngine {
        /// What each member said last.
        reason: String,
    },
    /// Sampling was given up; what was sampled is kept.
    #[error("sampling was given up; what was sampled is kept, and --resume goes on from it")]
    Halted,
    /// A server of this program's own does not come up.
    #[error("{server}: {reason}")]
    Launch {
        /// Which one.
        server: String,
        /// What happened, in the server's words where it had any.
        reason: String,
    },
    /// The filters dropped more than the configuration allows.
    #[error(
        "step {step}: {kept} of {wanted} groups after {refills} refills; dropped: {dropped}. \
         Make the task easier or harder, loosen the filter, or raise max_refills"
    )]
    Starved {
        /// The step that wanted them.
        step: Step,
        /// Groups kept.
        kept: usize,
        /// Groups wanted.
        wanted: usize,
        /// How often prompts were drawn again.
        refills: u32,
        /// Dropped groups by reason.
        dropped: String,
    },
    /// The database refused.
    #[error("{}: {source}", path.display())]
    Database {
        /// The database file.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
    /// The directory holds another run.
    #[error("{}: this is another run's database ({detail}). Choose another run.dir, or resume with the configuration it was started with", path.display())]
    AnotherRun {
        /// The database file.
        path: PathBuf,
        /// What differs.
        detail: String,
    },
    /// The directory holds a run already, and a fresh one was asked for.
    #[error("{}: a run is recorded here already; resume it (--resume), or choose another run.dir", path.display())]
    RunExists {
        /// The database file.
        path: PathBuf,
    },
    /// Another process works on this run.
    #[error("{}: another process has this run open; wait for it or end it", path.display())]
    InUse {
        /// The lock file.
        path: PathBuf,
    },
    /// The run was continued elsewhere.
    #[error(
        "this run was taken over: here is its epoch {epoch}, and epoch {by} has begun ({who}). Nothing more is written here; \
         follow the run there"
    )]
    TakenOver {
        /// This process's.
        epoch: u64,
        /// The newest.
        by: u64,
        /// Its process and machine.
        who: String,
    },
    /// A batch was asked for before its groups were sampled.
    #[error("step {step}: {have} of {want} groups are ready; sample the missing ones first")]
    NotEnough {
        /// The step that asked.
        step: Step,
        /// Groups ready.
        have: usize,
        /// Groups wanted.
        want: usize,
    },
    /// No server took the new weights.
    #[error("version {version} reached no server: {reason}")]
    Publish {
        /// The version.
        version: WeightVersion,
        /// Every member's reason.
        reason: String,
    },
}
