//! Where published weights lie, and when they may go.
//!
//! A version becomes visible by one rename of a whole directory, so a reader never sees half of it. The
//! last two stay, and any that a member may still be reading.

use crate::RolloutError;
use slime_core::WeightVersion;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Versions kept whatever happens.
const KEEP: usize = 2;

/// The directory under which every version has one of its own.
#[derive(Clone, Debug)]
pub struct WeightDirs {
    root: PathBuf,
}

impl WeightDirs {
    /// Use `root`, and remove what an interrupted writer left there.
    ///
    /// # Errors
    /// The directory cannot be made or read.
    pub fn open(root: &Path) -> Result<Self, RolloutError> {
        let dirs = Self {
            root: root.to_path_buf(),
        };
        fs::create_dir_all(root).map_err(|e| dirs.bad(root, e))?;
        for entry in fs::read_dir(root).map_err(|e| dirs.bad(root, e))? {
            let path = entry.map_err(|e| dirs.bad(root, e))?.path();
            if path.extension().is_some_and(|e| e == "writing") {
                fs::remove_dir_all(&path).map_err(|e| dirs.bad(&path, e))?;
            }
        }
        Ok(dirs)
    }

    /// Where a version lies once it is whole.
    pub fn path(&self, version: WeightVersion) -> PathBuf {
        self.root.join(format!("v{version}"))
    }

    /// Let `write` fill a directory, then make it visible as `version`.
    ///
    /// # Errors
    /// What `write` returns, or that the directory cannot be made visible.
    pub fn write<E>(
        &self,
        version: WeightVersion,
        write: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<PathBuf, E>
    where
        E: From<RolloutError>,
    {
        let path = self.path(version);
        let half = self.root.join(format!("v{version}.writing"));
        let fresh = || {
            if half.exists() {
                fs::remove_dir_all(&half)?;
            }
            fs::create_dir_all(&half)
        };
        fresh().map_err(|e| self.bad(&half, e))?;
        write(&half)?;
        let show = || {
            for entry in fs::read_dir(&half)? {
                fs::File::open(entry?.path())?.sync_all()?;
            }
            // A resumed run publishes a version again; no server reads the earlier one any more.
            if path.exists() {
                fs::remove_dir_all(&path)?;
            }
            fs::rename(&half, &path)?;
            fs::File::open(&self.root)?.sync_all()
        };
        show().map_err(|e| self.bad(&path, e))?;
        Ok(path)
    }

    /// Remove what no member may read: all but the last two versions and those `in_use`.
    ///
    /// # Errors
    /// A directory cannot be read or removed.
    pub fn prune(&self, in_use: &[WeightVersion]) -> Result<Vec<WeightVersion>, RolloutError> {
        let mut versions: Vec<WeightVersion> = fs::read_dir(&self.root)
            .map_err(|e| self.bad(&self.root, e))?
            .filter_map(|entry| {
                entry
                    .ok()?
                    .file_name()
                    .to_str()?
                    .strip_prefix('v')?
                    .parse()
                    .ok()
                    .map(WeightVersion)
            })
            .collect();
        versions.sort_unstable();
        versions.truncate(versions.len().saturating_sub(KEEP));
        versions.retain(|v| !in_use.contains(v));
        for &version in &versions {
            let path = self.path(version);
            fs::remove_dir_all(&path).map_err(|e| self.bad(&path, e))?;
        }
        Ok(versions)
    }

    fn bad(&self, path: &Path, error: io::Error) -> RolloutError {
        RolloutError::File {
            path: path.to_path_buf(),
            reason: format!("weights cannot be kept here: {error}"),
        }
    }
}
