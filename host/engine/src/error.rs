//! What the engine refuses, with the cure. How an error looks on the wire is `server/error.rs`'s business.

use std::path::PathBuf;

/// The engine's error.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration cannot work.
    #[error("{0}")]
    Config(String),
    /// The request is wrong; sending it again cannot help.
    #[error("{0}")]
    Invalid(String),
    /// New weights were refused; the old ones are still served.
    #[error("{0}")]
    Weights(String),
    /// The model's files or arithmetic failed.
    #[error("{0}")]
    Model(String),
    /// The address is taken.
    #[error(
        "port {port} of {host} is in use: stop the other server, give another port, or port 0 for a free one"
    )]
    PortInUse {
        /// Where it was to listen.
        host: String,
        /// The port asked for.
        port: u16,
    },
    /// Anything else the system said.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's words.
        source: std::io::Error,
    },
    /// A file does not hold what it should.
    #[error("{}: {reason}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The scheduler has ended.
    #[error("the engine has stopped")]
    Stopped,
}

impl From<slime_kernels::Error> for Error {
    fn from(e: slime_kernels::Error) -> Self {
        Self::Model(e.to_string())
    }
}

/// The engine's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;
