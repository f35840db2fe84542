//! Files whose digest is known without reading them again.
//!
//! A Python component has 18 MiB, and hashing it takes longer than mapping its machine code. What was hashed is
//! remembered by everything the system says of a file, its last change of state (ctime) included, which nobody can
//! set. A file that changed a moment ago is not remembered: another change could fall into the same instant.

use crate::cache::Cache;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long a file must have been left alone.
const SETTLED: Duration = Duration::from_secs(2);

/// What a file was found to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) digest: String,
    pub(crate) size_bytes: u64,
    /// Whether it is for asynchronous guests.
    pub(crate) concurrent: bool,
}

/// A file's content, and what the system said of it around the reading.
pub(crate) struct Content {
    pub(crate) bytes: Vec<u8>,
    stamp: Option<Stamp>,
}

/// Which state of which file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    text: String,
    changed: Duration,
}

impl Stamp {
    fn of(metadata: &Metadata) -> Option<Self> {
        let changed = Duration::new(
            u64::try_from(metadata.ctime()).ok()?,
            u32::try_from(metadata.ctime_nsec()).ok()?,
        );
        Some(Self {
            file: (metadata.dev(), metadata.ino()),
            text: format!(
                "{} {}.{:09} {}.{:09}",
                metadata.size(),
                metadata.mtime(),
                metadata.mtime_nsec(),
                metadata.ctime(),
                metadata.ctime_nsec()
            ),
            changed,
        })
    }
}

/// Read a file.
pub(crate) fn read(path: &Path) -> io::Result<Content> {
    let mut file = File::open(path)?;
    let before = Stamp::of(&file.metadata()?);
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let after = Stamp::of(&file.metadata()?);
    Ok(Content {
        bytes,
        stamp: before.filter(|before| after.as_ref() == Some(before)),
    })
}

impl Cache {
    /// What `path` was found to be, if nothing about it has changed since.
    pub(crate) fn recall(&self, path: &Path) -> Option<Seen> {
        let stamp = Stamp::of(&fs::metadata(path).ok()?)?;
        let text = fs::read_to_string(self.note(&stamp)).ok()?;
        let rest = text.trim_end().strip_prefix(&stamp.text)?;
        let mut parts = rest.split_ascii_whitespace();
        let (digest, kind) = (parts.next()?, parts.next()?);
        (digest.len() == 64).then(|| Seen {
            digest: digest.into(),
            size_bytes: stamp
                .text
                .split(' ')
                .next()
                .and_then(|n| n.parse().ok())
                .unwrap_or(0),
            concurrent: kind == "async",
        })
    }

    /// Remember what a file was found to be.
    pub(crate) fn remember(&self, content: &Content, digest: &str, concurrent: bool) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let Some(stamp) = content
            .stamp
            .as_ref()
            .filter(|stamp| now.is_ok_and(|now| now.saturating_sub(stamp.changed) >= SETTLED))
        else {
            return;
        };
        let kind = if concurrent { "async" } else { "sync" };
        let path = self.note(stamp);
        let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
        let written = fs::write(&temporary, format!("{} {digest} {kind}\n", stamp.text))
            .and_then(|()| fs::rename(&temporary, &path));
        if let Err(error) = written {
            tracing::debug!(path = %path.display(), %error, "a digest is not remembered");
        }
    }

    fn note(&self, stamp: &Stamp) -> PathBuf {
        let (device, inode) = stamp.file;
        self.dir().join(format!("{device:x}-{inode:x}.seen"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wasmtime::Engine;

    fn cache(dir: &Path) -> Cache {
        Cache::open(dir, &Engine::default()).unwrap()
    }

    fn settle(path: &Path) {
        let changed = Stamp::of(&fs::metadata(path).unwrap()).unwrap().changed;
        while SystemTime::now().duration_since(UNIX_EPOCH).unwrap() < changed + SETTLED {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn a_file_left_alone_is_known_until_anything_about_it_changes() {
        let dir = tempfile::tempdir().unwrap();
        let (cache, file) = (cache(&dir.path().join("cache")), dir.path().join("a"));
        let digest = "0".repeat(64);
        fs::write(&file, "one").unwrap();
        let fresh = read(&file).unwrap();
        cache.remember(&fresh, &digest, true);
        assert_eq!(cache.recall(&file), None, "it may still be written to");
        settle(&file);
        cache.remember(&fresh, &digest, true);
        let seen = Seen {
            digest,
            size_bytes: 3,
            concurrent: true,
        };
        assert_eq!(cache.recall(&file), Some(seen));

        // Same name, size and time of change: what `touch -d` and a copy over it can do.
        let modified = fs::metadata(&file).unwrap().modified().unwrap();
        fs::write(&file, "two").unwrap();
        File::options()
            .write(true)
            .open(&file)
            .unwrap()
            .set_modified(modified)
            .unwrap();
        assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), modified);
        assert_eq!(cache.recall(&file), None);
    }

    #[test]
    fn a_note_that_is_none_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (cache, file) = (cache(&dir.path().join("cache")), dir.path().join("a"));
        fs::write(&file, "one").unwrap();
        let stamp = read(&file).unwrap().stamp.unwrap();
        for text in ["", "junk", &stamp.text, &format!("{} abc sync", stamp.text)] {
            fs::write(cache.note(&stamp), text).unwrap();
            assert_eq!(cache.recall(&file), None, "{text}");
        }
    }
}
