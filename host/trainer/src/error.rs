//! What the trainer refuses, each with the name of what is wrong and the cure.

use crate::config::Problem;
use std::path::PathBuf;

/// An error of configuration, batch, checkpoint or device.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration contradicts itself. All problems at once.
    #[error("the training configuration cannot be used:{}", lines(.0))]
    Config(Vec<Problem>),
    /// A rollout record cannot be trained on.
    #[error("rollout record {index} (group {group}, rollout {rollout}): {detail}")]
    Record {
        /// Its place among the records given, from 0.
        index: usize,
        /// Its group id.
        group: u64,
        /// Its rollout id.
        rollout: u64,
        /// What is wrong with it.
        detail: String,
    },
    /// A sequence for supervised fine-tuning cannot be trained on.
    #[error("sequence {index}: {detail}")]
    Sequence {
        /// Its place among the sequences given, from 0.
        index: usize,
        /// What is wrong with it.
        detail: String,
    },
    /// There is nothing to train on.
    #[error("there are no rollout records to train on")]
    Empty,
    /// KL is asked for, but there is no reference model.
    #[error(
        "KL to a reference is asked for ({0}), but the trainer was given no reference weights; load them with with_reference"
    )]
    NoReference(&'static str),
    /// Distillation is asked for, but there is no teacher.
    #[error(
        "use_opd needs a teacher's log-probs, and there are none: load its weights with with_teacher (model.teacher_load), or let records carry teacher_log_probs"
    )]
    NoTeacher,
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A checkpoint is not whole, or not one.
    #[error("{}: {detail}", path.display())]
    Checkpoint {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// A checkpoint is of another model.
    #[error("{}: this checkpoint is of another model ({found}); the run's model is {wanted}. Resume with the model it was made from, or start a new run", path.display())]
    OtherModel {
        /// The checkpoint.
        path: PathBuf,
        /// What it says it is of.
        found: String,
        /// What the run trains.
        wanted: String,
    },
    /// A rank failed, panicked or stayed away, and with it the work of all.
    #[error("{0}")]
    Ranks(String),
    /// The model refused.
    #[error(transparent)]
    Model(#[from] slime_model::Error),
    /// A kernel or its device failed.
    #[error(transparent)]
    Kernels(#[from] slime_kernels::Error),
}

/// This crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(|p| format!("\n  {p}")).collect()
}
