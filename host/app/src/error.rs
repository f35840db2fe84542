//! Two of the three kinds of error: *config* (before anything starts, all at once) and *run* (stops, after a
//! checkpoint where there is something to save). The third, *trajectory*, is data and never gets here.

use crate::config::{Problem, Problems};
use miette::Diagnostic;

/// Why the program ends with a code other than 0.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum Failure {
    /// Nothing was started.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Config(#[from] Problems),
    /// It was started and stopped.
    #[error("{message}")]
    Run {
        /// What happened.
        message: String,
        /// What is safe, and what to do.
        #[help]
        help: Option<String>,
        /// Another process was at fault: it is lost, or has taken the run over.
        elsewhere: bool,
    },
}

/// Exit code of a run that ended because another of its processes was lost, or has taken it over.
pub const ELSEWHERE: u8 = 13;

/// This program's result.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// A run's error.
    pub fn run(message: impl Into<String>) -> Self {
        Self::Run {
            message: message.into(),
            help: None,
            elsewhere: false,
        }
    }

    /// A run's error that is not this process's.
    pub fn elsewhere(message: impl Into<String>) -> Self {
        Self::Run {
            message: message.into(),
            help: None,
            elsewhere: true,
        }
    }

    /// Name the cure.
    #[must_use]
    pub fn help(self, cure: impl Into<String>) -> Self {
        match self {
            Self::Run {
                message, elsewhere, ..
            } => Self::Run {
                message,
                help: Some(cure.into()),
                elsewhere,
            },
            other => other,
        }
    }

    /// Name one more cure, after those it has.
    #[must_use]
    pub fn and_help(self, cure: &str) -> Self {
        match self {
            Self::Run {
                message,
                help: Some(help),
                elsewhere,
            } => Self::Run {
                message,
                help: Some(format!("{help}\n{cure}")),
                elsewhere,
            },
            other => other.help(cure),
        }
    }

    /// Whether another process was at fault.
    pub fn is_elsewhere(&self) -> bool {
        matches!(
            self,
            Self::Run {
                elsewhere: true,
                ..
            }
        )
    }

    /// The process's exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::Config(_) => 2,
            Self::Run {
                elsewhere: true, ..
            } => ELSEWHERE,
            Self::Run { .. } => 1,
        }
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self::Config(problem.into())
    }
}

/// A run's error with the path it is about.
pub fn at_path(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Failure {
    move |e| {
        let help = (e.kind() == std::io::ErrorKind::StorageFull)
            .then(|| "the disk is full: free space, then continue with --resume".into());
        Failure::Run {
            message: format!("{}: {e}", path.display()),
            help,
            elsewhere: false,
        }
    }
}
