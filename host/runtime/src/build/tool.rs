//! Running a language's own tool: found on the path, or named with the command that gets it.

use super::{Job, end_of};
use crate::RuntimeError;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What builds the plugins of a language other than Rust.
#[derive(Clone, Copy, Debug)]
pub struct LanguageTool {
    /// The language.
    pub language: &'static str,
    /// What it may be called; the first is its name.
    pub names: &'static [&'static str],
    /// The command that gets it.
    pub cure: &'static str,
}

impl LanguageTool {
    /// The tool on the path.
    pub fn find(&self) -> Option<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut candidates = self
            .names
            .iter()
            .flat_map(|name| std::env::split_paths(&path).map(move |dir| dir.join(name)));
        candidates.find(|candidate| candidate.is_file())
    }

    /// The tool on the path, else what to do about it.
    pub(super) fn find_for(&self, job: &Job<'_>) -> Result<PathBuf, RuntimeError> {
        self.find().ok_or_else(|| RuntimeError::ToolMissing {
            folder: job.folder.into(),
            missing: self.names[0].into(),
            cure: self.cure.into(),
        })
    }
}

/// Run it in the plugin's folder; its output becomes the error where it fails.
pub(super) fn run<S: AsRef<OsStr>>(
    job: &Job<'_>,
    tool: &Path,
    arguments: impl IntoIterator<Item = S>,
) -> Result<(), RuntimeError> {
    let mut command = Command::new(tool);
    command.current_dir(job.folder).args(arguments);
    // A tool's own backtrace says nothing of the plugin, and pushes out what does.
    command.env("RUST_BACKTRACE", "0");
    let output = command.output().map_err(|source| RuntimeError::Read {
        path: tool.into(),
        source,
    })?;
    if output.status.success() {
        return Ok(());
    }
    let mut said = output.stdout;
    said.extend_from_slice(&output.stderr);
    Err(RuntimeError::BuildFailed {
        folder: job.folder.into(),
        output: end_of(&said),
    })
}

/// A path that holds wherever the tool runs.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}
