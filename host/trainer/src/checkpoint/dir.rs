//! Checkpoint directories on disk: written aside, renamed when whole, the oldest removed.

use crate::{Error, Result};
use slime_core::Step;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

/// A directory being written. Dropped before [`Staging::publish`], it leaves nothing.
pub(crate) struct Staging {
    target: PathBuf,
    path: PathBuf,
}

impl Staging {
    pub(crate) fn new(target: &Path) -> Result<Self> {
        let path = aside(target, "writing");
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(Error::io(parent))?;
        }
        if path.exists() {
            fs::remove_dir_all(&path).map_err(Error::io(&path))?;
        }
        fs::create_dir(&path).map_err(Error::io(&path))?;
        Ok(Self {
            target: target.to_owned(),
            path,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path.join(name);
        let mut file = File::create(&path).map_err(Error::io(&path))?;
        file.write_all(bytes)
            .and_then(|()| file.sync_all())
            .map_err(Error::io(&path))
    }

    /// Give the directory its name. The files in it are synced already.
    pub(crate) fn publish(self) -> Result<()> {
        sync_dir(&self.path)?;
        commit(&self.path, &self.target)
    }
}

/// Give the whole directory `path` the name `target`; what has that name goes.
///
/// # Errors
/// The disk refused; one of both is then still there.
pub fn commit(path: &Path, target: &Path) -> Result<()> {
    let old = aside(target, "replaced");
    if target.exists() {
        fs::rename(target, &old).map_err(Error::io(target))?;
    }
    fs::rename(path, target).map_err(Error::io(target))?;
    if let Some(parent) = target.parent() {
        sync_dir(parent)?;
    }
    if old.exists() {
        fs::remove_dir_all(&old).map_err(Error::io(&old))?;
    }
    Ok(())
}

impl Drop for Staging {
    fn drop(&mut self) {
        // After a publish the path no longer exists; after a failure nothing better can be done.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn aside(target: &Path, why: &str) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.{why}"))
}

fn sync_dir(path: &Path) -> Result<()> {
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    File::open(path)
        .and_then(|dir| dir.sync_all())
        .map_err(Error::io(path))
}

/// The checkpoints `step_<n>` in `root`, oldest first.
fn all(root: &Path) -> Result<Vec<(Step, PathBuf)>> {
    let entries = match fs::read_dir(root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io(root)(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(Error::io(root))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let step = name.strip_prefix("step_").and_then(|n| n.parse().ok());
        if let Some(step) = step
            && path.join(super::INDEX).is_file()
        {
            found.push((Step(step), path));
        }
    }
    found.sort();
    Ok(found)
}

/// The steps of which `root` holds a whole checkpoint, in order.
///
/// # Errors
/// The directory cannot be read; a missing one simply holds none.
pub fn steps(root: &Path) -> Result<Vec<Step>> {
    Ok(all(root)?.into_iter().map(|(step, _)| step).collect())
}

/// The newest checkpoint `step_<n>` in `root`.
///
/// # Errors
/// The directory cannot be read; a missing one simply holds none.
pub fn latest(root: &Path) -> Result<Option<(Step, PathBuf)>> {
    Ok(all(root)?.pop())
}

/// Remove all but the newest `keep` checkpoints in `root`, and what an interrupted save left. At least one stays.
///
/// # Errors
/// A directory cannot be removed.
pub fn keep_last(root: &Path, keep: usize) -> Result<()> {
    let found = all(root)?;
    for (_, path) in &found[..found.len().saturating_sub(keep.max(1))] {
        fs::remove_dir_all(path).map_err(Error::io(path))?;
    }
    for entry in fs::read_dir(root).map_err(Error::io(root))? {
        let path = entry.map_err(Error::io(root))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_aside = name.starts_with('.') && name.trim_start_matches('.').starts_with("step_");
        if is_aside && (name.ends_with(".writing") || name.ends_with(".replaced")) {
            fs::remove_dir_all(&path).map_err(Error::io(&path))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_checkpoints_count_and_the_oldest_go_first() {
        let root = tempfile::tempdir().unwrap();
        assert!(latest(&root.path().join("missing")).unwrap().is_none());
        for step in [9, 10, 100] {
            let staging = Staging::new(&root.path().join(format!("step_{step}"))).unwrap();
            staging.write("index.json", b"{}").unwrap();
            staging.publish().unwrap();
        }
        fs::create_dir(root.path().join("step_500")).unwrap();
        fs::create_dir(root.path().join(".step_101.writing")).unwrap();
        assert_eq!(latest(root.path()).unwrap().unwrap().0, Step(100));
        keep_last(root.path(), 2).unwrap();
        let left: Vec<u64> = all(root.path())
            .unwrap()
            .iter()
            .map(|(step, _)| step.0)
            .collect();
        assert_eq!(left, [10, 100]);
        assert!(!root.path().join(".step_101.writing").exists());
    }

    #[test]
    fn a_directory_that_was_not_published_leaves_the_old_one() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("step_1");
        let first = Staging::new(&target).unwrap();
        first.write("index.json", b"old").unwrap();
        first.publish().unwrap();
        let second = Staging::new(&target).unwrap();
        second.write("index.json", b"new").unwrap();
        drop(second);
        assert_eq!(fs::read(target.join("index.json")).unwrap(), b"old");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }
}
