//! What can go wrong before a plugin's first call. Afterwards there are only outcomes.

use std::fmt;
use std::path::PathBuf;

/// What helps against a component that does not compile.
pub const MAKE_WHOLE: &str = "build it again, or copy it again from where it is whole";

/// Why a plugin cannot be built, loaded or used.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    // The engine.
    /// wasmtime refuses to start here.
    #[error("the sandbox cannot start: {0}")]
    Engine(String),

    // Loading.
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not a component.
    #[error("{name}: {found}; {cure}")]
    NotAComponent {
        /// The plugin.
        name: String,
        /// What it is instead.
        found: String,
        /// What to do.
        cure: String,
    },
    /// The component does not compile.
    #[error("{name}: the component is broken: {reason}; {}", MAKE_WHOLE)]
    Invalid {
        /// The plugin.
        name: String,
        /// What the compiler says.
        reason: String,
    },
    /// The component is sound, but does not fit this host; every problem at once.
    #[error("{name} cannot be loaded:{}", list(problems))]
    Refused {
        /// The plugin.
        name: String,
        /// All of them.
        problems: Vec<Problem>,
    },
    /// Only signed components may run, and nobody trusted signed this one.
    #[error("{}: {reason}", path.display())]
    Untrusted {
        /// The component.
        path: PathBuf,
        /// What was found, and the cure.
        reason: String,
    },
    /// The trial start ended badly.
    #[error("{name}: the trial start failed: {reason}")]
    Trial {
        /// The plugin.
        name: String,
        /// How it ended, with the cure where there is one.
        reason: String,
    },
    /// A limit that this host cannot keep.
    #[error("{name}: {reason}")]
    Limits {
        /// The plugin.
        name: String,
        /// Which limit, and what would do.
        reason: String,
    },
    /// The plugin is asked for a world that it does not export.
    #[error("{name} is no {wanted}: it exports {}", worlds(exported))]
    NoWorld {
        /// The plugin.
        name: String,
        /// The world asked for.
        wanted: &'static str,
        /// Its worlds.
        exported: Vec<&'static str>,
    },

    // Building.
    /// A folder is not a plugin.
    #[error("{} is no plugin folder: {reason}", folder.display())]
    NotAPlugin {
        /// The folder.
        folder: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// A tool is missing; the cure is one command.
    #[error("cannot build {}: {missing} is missing; run: {cure}", folder.display())]
    ToolMissing {
        /// The plugin's folder.
        folder: PathBuf,
        /// The tool.
        missing: String,
        /// The command that installs it.
        cure: String,
    },
    /// The plugin does not compile.
    #[error("{} does not compile:\n{output}", folder.display())]
    BuildFailed {
        /// The plugin's folder.
        folder: PathBuf,
        /// The end of the compiler's output.
        output: String,
    },

    // Running programs.
    /// No interpreter is installed for `code-exec`.
    #[error("no Python is installed in {}; run: {cure}", dir.display())]
    NoPython {
        /// Where it was looked for.
        dir: PathBuf,
        /// The commands that install it.
        cure: String,
    },
    /// Installing the interpreter failed.
    #[error("Python cannot be installed: {reason}")]
    Python {
        /// Why.
        reason: String,
    },

    // Offline scoring.
    /// A row that cannot be scored; nothing was scored.
    #[error("line {line}: {reason}")]
    BadRow {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// Reading or writing rows failed.
    #[error("cannot {action} rows: {source}")]
    Rows {
        /// `read` or `write`.
        action: &'static str,
        /// Why.
        source: std::io::Error,
    },
}

/// One reason why a component does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub cure: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.cure)
    }
}

fn list(problems: &[Problem]) -> String {
    match problems {
        [one] => format!(" {one}"),
        many => many
            .iter()
            .map(|problem| format!("\n - {problem}"))
            .collect(),
    }
}

fn worlds(exported: &[&str]) -> String {
    match exported {
        [] => "no world of slime:plugin".into(),
        names => names.join(" and "),
    }
}
