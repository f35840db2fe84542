//! This host's copy of the served version, kept in step by deltas.
//!
//! The copy lies in memory. The first version comes whole, and so does one whose delta cannot be used: what is applied
//! is checked tensor by tensor, so a copy that drifted is found and replaced, never served.

use super::check::Manifest;
use super::delta::{apply, encode};
use super::dirs::WeightDirs;
use crate::{RolloutError, lock};
use slime_core::WeightVersion;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The delta's name beside the whole version.
const DELTA: &str = "delta.bin";

/// A copy of one version.
pub(super) struct Local {
    root: PathBuf,
    dirs: WeightDirs,
    held: Mutex<Option<Manifest>>,
}

/// Where servers find a version, and the bytes that went there.
pub(super) struct Moved {
    pub(super) dir: PathBuf,
    pub(super) num_bytes: u64,
}

impl Local {
    pub(super) fn open(root: &Path) -> Result<Self, RolloutError> {
        Ok(Self {
            root: root.to_path_buf(),
            dirs: WeightDirs::open(root)?,
            held: Mutex::default(),
        })
    }

    /// Bring the copy to the version in `dir`.
    pub(super) fn follow(
        &self,
        dir: &Path,
        manifest: &Manifest,
        version: WeightVersion,
        in_use: &[WeightVersion],
    ) -> Result<Moved, RolloutError> {
        let mut held = lock(&self.held);
        let (mut moved, mut path) = (manifest.num_bytes(), None);
        if let Some(base) = held.as_ref() {
            let delta = dir.join(DELTA);
            let applied = encode(base, manifest, &delta).and_then(|size| {
                let path = self.dirs.write(version, |half| apply(base, &delta, half))?;
                Ok((size, path))
            });
            match applied {
                Ok((size, there)) => (moved, path) = (size.packed_bytes, Some(there)),
                Err(error) => {
                    tracing::warn!(%version, %error, "no delta could be used; the whole version is copied");
                }
            }
        }
        let path = match path {
            Some(path) => path,
            None => self.dirs.write(version, |half| copy(manifest, half))?,
        };
        *held = Some(Manifest::read(&path)?);
        self.dirs.prune(in_use)?;
        Ok(Moved {
            dir: path,
            num_bytes: moved,
        })
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        // Memory that nobody reads any more: servers have loaded what they serve.
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

fn copy(manifest: &Manifest, into: &Path) -> Result<(), RolloutError> {
    let mut files: Vec<&PathBuf> = manifest.in_order().iter().map(|t| &t.file).collect();
    files.dedup();
    for file in files {
        let name = file.file_name().unwrap_or_default();
        std::fs::copy(file, into.join(name)).map_err(|e| RolloutError::File {
            path: file.clone(),
            reason: format!("weights cannot be copied: {e}"),
        })?;
    }
    Ok(())
}
