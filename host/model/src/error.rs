//! What this crate refuses, each with the name of what is wrong and the cure.

use std::path::{Path, PathBuf};

/// An error of files, configurations, tokenizers, templates or the network.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not what its name says.
    #[error("{file}: {detail}")]
    File {
        /// The file.
        file: String,
        /// What is wrong with it.
        detail: String,
    },
    /// No family is registered for a `model_type`.
    #[error("{file}: model_type \"{found}\" is not supported; supported are: {supported}")]
    UnknownFamily {
        /// The configuration file.
        file: String,
        /// Its `model_type`.
        found: String,
        /// The families there are.
        supported: String,
    },
    /// A configuration lacks a key, holds a wrong type, or contradicts itself.
    #[error("{file}: {detail}")]
    Config {
        /// The configuration file.
        file: String,
        /// The key and what is wrong with it.
        detail: String,
    },
    /// A configuration asks for something that would change the arithmetic and is not implemented.
    #[error("{file}: {key} = {value} is not supported for {family}; {cure}")]
    Unsupported {
        /// The configuration file.
        file: String,
        /// The key.
        key: String,
        /// Its value, as JSON.
        value: String,
        /// The family.
        family: &'static str,
        /// What is supported.
        cure: String,
    },
    /// Weights and configuration disagree, or a weight file is damaged. All problems at once.
    #[error("{}: the weights do not fit the model:{}", dir.display(), lines(problems))]
    Weights {
        /// The model directory.
        dir: PathBuf,
        /// One line each.
        problems: Vec<String>,
    },
    /// There is no tokenizer.
    #[error(
        "{origin}: tokenizer.json is missing; copy it from the model this one was made from, or write it with \
         transformers: AutoTokenizer.from_pretrained(MODEL).save_pretrained(DIR)"
    )]
    NoTokenizer {
        /// The model directory.
        origin: String,
    },
    /// A tokenizer or a chat template cannot be used.
    #[error("{file}: {detail}")]
    Text {
        /// The file it came from.
        file: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The input of the network does not fit it.
    #[error("{0}")]
    Input(String),
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

    pub(crate) fn file(path: &Path, detail: impl Into<String>) -> Self {
        Self::File {
            file: path.display().to_string(),
            detail: detail.into(),
        }
    }
}

/// At most 12 problems, one a line: a wrong directory can have thousands.
fn lines(problems: &[String]) -> String {
    const SHOWN: usize = 12;
    let mut text: String = problems
        .iter()
        .take(SHOWN)
        .map(|p| format!("\n  {p}"))
        .collect();
    if problems.len() > SHOWN {
        text.push_str(&format!("\n  … and {} more", problems.len() - SHOWN));
    }
    text
}
