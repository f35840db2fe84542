//! Which process a run belongs to, where several may think it is theirs.
//!
//! A node that was cut off from the others may live on after its run was continued elsewhere. Every process that begins or
//! continues a run therefore takes the next epoch: a file `epoch/N` in the run's directory, made atomically. From then on the
//! older ones are over: [`Fence::check`] fails, the Data Buffer takes no transaction of theirs, and an embedded engine that
//! has heard of a newer epoch answers them 409. Whoever changes something that others read checks just before. It refuses to
//! stop a process: that is the scheduler's, and nobody needs to succeed at it.

use crate::RolloutError;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The header by which servers learn of epochs: `<run>:<epoch>`.
pub const HEADER: &str = "x-slime-epoch";
/// Epochs of a run.
const DIRECTORY: &str = "epoch";

/// One process's hold on a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    dir: Arc<Path>,
    /// Tells this run from every other, also from one that had the same directory.
    run: Arc<str>,
    epoch: u64,
}

impl Fence {
    /// Take the next epoch of the run in `run`; every older one is over.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn claim(run: &Path) -> Result<Self, RolloutError> {
        let dir = run.join(DIRECTORY);
        fs::create_dir_all(&dir).map_err(bad(&dir))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |d| d.as_nanos());
        let own = format!("{:x}-{now:x}", std::process::id());
        loop {
            let epoch = newest(&dir)? + 1;
            let path = dir.join(epoch.to_string());
            let said = format!("{own} pid {} on {}\n", std::process::id(), machine());
            match create(&dir, &path, &said) {
                Ok(()) => {
                    let run = id(&dir)?.into();
                    let dir = dir.into();
                    return Ok(Self { dir, run, epoch });
                }
                // Somebody else was faster.
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                Err(e) => return Err(bad(&path)(e)),
            }
        }
    }

    /// Its number, from 1.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// What servers are told.
    pub fn header(&self) -> String {
        format!("{}:{}", self.run, self.epoch)
    }

    /// Whether the run is still this process's.
    ///
    /// # Errors
    /// A newer epoch has begun, or the directory cannot be read.
    pub fn check(&self) -> Result<(), RolloutError> {
        let by = newest(&self.dir)?;
        match by > self.epoch {
            true => Err(self.over(by)),
            false => Ok(()),
        }
    }

    /// The error of an epoch that is over.
    pub(crate) fn over(&self, by: u64) -> RolloutError {
        let who = fs::read_to_string(self.dir.join(by.to_string())).unwrap_or_default();
        let who = who
            .split_once(' ')
            .map_or("another process", |(_, who)| who.trim());
        RolloutError::TakenOver {
            epoch: self.epoch,
            by,
            who: who.into(),
        }
    }
}

fn bad(path: &Path) -> impl FnOnce(std::io::Error) -> RolloutError {
    let path: PathBuf = path.into();
    move |e| RolloutError::File {
        path,
        reason: format!("an epoch of the run cannot be kept here: {e}"),
    }
}

/// The newest epoch; 0 where none has begun.
fn newest(dir: &Path) -> Result<u64, RolloutError> {
    let mut newest = 0;
    for entry in fs::read_dir(dir).map_err(bad(dir))? {
        let name = entry.map_err(bad(dir))?.file_name();
        newest = newest.max(name.to_str().and_then(|n| n.parse().ok()).unwrap_or(0));
    }
    Ok(newest)
}

/// Make `path` with all that is in it, or fail because it is there.
fn create(dir: &Path, path: &Path, said: &str) -> std::io::Result<()> {
    let half = dir.join(format!(".{}", said.split(' ').next().unwrap_or_default()));
    let mut file = fs::File::create(&half)?;
    file.write_all(said.as_bytes())?;
    file.sync_all()?;
    // A link is made or is not, on network file systems too; where there are none, the file is made empty first.
    let linked = fs::hard_link(&half, path);
    fs::remove_file(&half)?;
    match linked {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => {
            let mut file = fs::File::create_new(path)?;
            file.write_all(said.as_bytes())?;
            file.sync_all()?;
        }
        other => other?,
    }
    fs::File::open(dir)?.sync_all()
}

/// The run's own name: who made its first epoch, and when.
fn id(dir: &Path) -> Result<String, RolloutError> {
    let first = dir.join("1");
    for _ in 0..50 {
        let said = fs::read_to_string(&first).map_err(bad(&first))?;
        if let Some((id, _)) = said.split_once(' ') {
            return Ok(id.into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err(bad(&first)(ErrorKind::InvalidData.into()))
}

/// This machine's name, for people.
fn machine() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname");
    name.map_or_else(|_| "an unnamed machine".into(), |name| name.trim().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_epoch_holds_and_every_older_one_is_over_and_told_by_whom() {
        let run = tempfile::tempdir().unwrap();
        let first = Fence::claim(run.path()).unwrap();
        assert_eq!(first.epoch(), 1);
        first.check().unwrap();
        let second = Fence::claim(run.path()).unwrap();
        assert_eq!(second.epoch(), 2);
        second.check().unwrap();
        let over = first.check().unwrap_err().to_string();
        let pid = format!("pid {} on", std::process::id());
        assert!(
            over.contains("epoch 1") && over.contains("epoch 2") && over.contains(&pid),
            "{over}"
        );
        let (a, b) = (first.header(), second.header());
        assert_eq!(a.strip_suffix(":1"), b.strip_suffix(":2"), "one run");
        let other = tempfile::tempdir().unwrap();
        let other = Fence::claim(other.path()).unwrap();
        assert_ne!(other.header(), a, "another run");
    }

    #[test]
    fn of_many_that_claim_at_once_each_gets_an_epoch_of_its_own() {
        let run = tempfile::tempdir().unwrap();
        let mut epochs: Vec<u64> = std::thread::scope(|scope| {
            let claim = |_| scope.spawn(|| Fence::claim(run.path()).unwrap().epoch());
            let all: Vec<_> = (0..16).map(claim).collect();
            all.into_iter().map(|c| c.join().unwrap()).collect()
        });
        epochs.sort_unstable();
        assert_eq!(epochs, (1..=16).collect::<Vec<_>>());
        let left = fs::read_dir(run.path().join(DIRECTORY)).unwrap().count();
        assert_eq!(left, 16, "nothing half made is left");
    }
}
