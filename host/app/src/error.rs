//! Two of the three kinds of error: *config* (before anything starts, all at once) and *run* (stops, after a
//! checkpoint where there is something to save). The third, *trajectory*, is data and never gets here.

use crate::config::{Problem, Problems};
use miette::Diagnostic;
use std::io::{Error, ErrorKind};
use std::path::Path;

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

const NO_SPACE: &str = "(os error 28)";
const FULL: &str = "the disk is full: free space, then do it again; a run goes on with --resume";

/// This program's result.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// A run's error.
    pub fn run(message: impl Into<String>) -> Self {
        let message = message.into();
        // What a library says of the system's refusal arrives as text, with the system's number for it.
        let full = message.contains(NO_SPACE).then(|| FULL.to_owned());
        Self::Run {
            message,
            help: full,
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

/// A run's error with the path it is about, and the cure where the system's word for it has one.
pub fn at_path(path: &Path) -> impl FnOnce(Error) -> Failure {
    move |e| Failure::Run {
        message: format!("{}: {e}", path.display()),
        help: cure(path, &e),
        elsewhere: false,
    }
}

/// As [`at_path`], of a file that is read before anything starts.
pub fn input(path: &Path) -> impl FnOnce(Error) -> Failure {
    move |e| {
        let problem = Problem::new(format!("{}: {e}", path.display()));
        match cure(path, &e) {
            Some(cure) => problem.help(cure).into(),
            None => problem.into(),
        }
    }
}

/// What helps against the system's refusal to use `path`.
pub fn cure(path: &Path, error: &Error) -> Option<String> {
    let missing = || {
        let parents = path
            .ancestors()
            .skip(1)
            .filter(|p| !p.as_os_str().is_empty());
        let missing = parents.take_while(|parent| !parent.exists()).last();
        match missing {
            Some(parent) => format!(
                "there is no directory {}: make it, or name another path",
                parent.display()
            ),
            None => "look for a typing error in the path, or name another".into(),
        }
    };
    Some(match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => FULL.into(),
        ErrorKind::NotFound => missing(),
        ErrorKind::PermissionDenied => {
            "this user may not: change the rights, or name another path".into()
        }
        ErrorKind::ReadOnlyFilesystem => {
            "that file system is read-only: name a path on another".into()
        }
        ErrorKind::AlreadyExists => "something is there: move it, or name another path".into(),
        ErrorKind::IsADirectory => "name a file".into(),
        ErrorKind::NotADirectory => "a part of the path is a file: name another path".into(),
        ErrorKind::InvalidData => "it is no text in UTF-8".into(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_has_its_cure_whoever_met_it() {
        let met = Error::from_raw_os_error(28);
        let help = |failure| match failure {
            Failure::Run { help, .. } => help,
            Failure::Config(_) => None,
        };
        let told = format!("model.safetensors: {met}");
        assert_eq!(help(Failure::run(told)).as_deref(), Some(FULL));
        let path = Path::new("metrics.jsonl");
        assert_eq!(help(at_path(path)(met)).as_deref(), Some(FULL));
        assert_eq!(help(Failure::run("something else")), None);
    }

    #[test]
    fn what_the_system_refuses_is_told_with_a_cure() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, [0xff]).unwrap();
        let told = |path: &Path, error: Error| cure(path, &error).unwrap();
        let deep = dir.path().join("a/b/c");
        let missing = told(&deep, std::fs::write(&deep, "").unwrap_err());
        assert!(
            missing.starts_with(&format!(
                "there is no directory {}/a:",
                dir.path().display()
            )),
            "{missing}"
        );
        let gone = dir.path().join("gone");
        let typo = told(&gone, std::fs::read(&gone).unwrap_err());
        assert!(typo.contains("typing error"), "{typo}");
        let below = file.join("x");
        let below = told(&below, std::fs::write(&below, "").unwrap_err());
        assert!(below.contains("is a file"), "{below}");
        let taken = told(&file, std::fs::create_dir(&file).unwrap_err());
        assert!(taken.starts_with("something is there"), "{taken}");
        let folder = told(dir.path(), std::fs::read(dir.path()).unwrap_err());
        assert_eq!(folder, "name a file");
        let binary = told(&file, std::fs::read_to_string(&file).unwrap_err());
        assert!(binary.contains("UTF-8"), "{binary}");
    }
}
