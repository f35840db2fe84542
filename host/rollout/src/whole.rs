//! A file that appears whole or not at all, where it is a file that is named.
//!
//! A rename puts what was written in the place of whatever had the name. That is right for a regular file; a device or
//! a pipe would be gone and a link would no longer lead anywhere, so links are followed and those are written straight
//! into.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Links that are followed, as many as Linux follows.
const MOST_LINKS: usize = 40;

/// Where bytes for a path go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// To a regular file, which may not be there yet; links are resolved.
    File(PathBuf),
    /// To a device, a pipe, or what a process has open.
    Stream,
}

impl Place {
    /// The place that `path` names.
    pub fn of(path: &Path) -> Self {
        let mut path = path.to_owned();
        for _ in 0..MOST_LINKS {
            let is_stream = fs::metadata(&path).is_ok_and(|m| !m.is_file() && !m.is_dir());
            let dir = path.parent().and_then(|dir| fs::canonicalize(dir).ok());
            // What stands there are names of open files: /dev/stdout leads to /proc/self/fd/1.
            if is_stream || dir.is_some_and(|dir| dir.starts_with("/proc")) {
                return Self::Stream;
            }
            let Ok(to) = fs::read_link(&path) else { break };
            path = path.with_file_name("").join(to);
        }
        Self::File(path)
    }
}

/// Writes `FILE.writing`, which is called `FILE` once it is whole; or straight into what is no regular file.
///
/// A process that is killed, or a disk that is full, leaves what was written so far in `FILE.writing`.
#[derive(Debug)]
pub struct WholeFile {
    out: BufWriter<File>,
    /// Its name until it is whole, and then.
    names: Option<(PathBuf, PathBuf)>,
}

impl WholeFile {
    /// Begin to write what `path` names.
    ///
    /// # Errors
    /// The system refuses.
    pub fn create(path: &Path) -> io::Result<Self> {
        let (file, names) = match Place::of(path) {
            Place::Stream => (OpenOptions::new().append(true).open(path)?, None),
            Place::File(path) => {
                // The whole name with its ending: a.json and a.txt are written at once.
                let mut half = path.clone().into_os_string();
                half.push(".writing");
                let half = PathBuf::from(half);
                (File::create(&half)?, Some((half, path)))
            }
        };
        Ok(Self {
            out: BufWriter::new(file),
            names,
        })
    }

    /// It is whole.
    ///
    /// # Errors
    /// The system refuses; what was written stays under its other name.
    pub fn finish(self) -> io::Result<()> {
        let file = self.out.into_inner().map_err(|e| e.into_error())?;
        let Some((half, path)) = self.names else {
            return Ok(());
        };
        file.sync_all()?;
        fs::rename(half, path)
    }
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileTypeExt, symlink};

    fn write(path: &Path, text: &str) -> io::Result<()> {
        let mut file = WholeFile::create(path)?;
        file.write_all(text.as_bytes())?;
        file.finish()
    }

    #[test]
    fn a_file_has_its_name_once_it_is_whole_and_two_that_differ_in_their_ending_do_not_meet() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let (mut json, mut text) = (
            WholeFile::create(&at("a.json")).unwrap(),
            WholeFile::create(&at("a.txt")).unwrap(),
        );
        json.write_all(b"json").unwrap();
        text.write_all(b"text").unwrap();
        assert!(!at("a.json").exists());
        json.finish().unwrap();
        text.finish().unwrap();
        assert_eq!(fs::read(at("a.json")).unwrap(), b"json");
        assert_eq!(fs::read(at("a.txt")).unwrap(), b"text");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn links_are_followed_to_a_file_that_is_there_and_to_one_that_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("far")).unwrap();
        fs::write(at("far/there"), "older").unwrap();
        for name in ["there", "new"] {
            symlink(Path::new("far").join(name), at(name)).unwrap();
            write(&at(name), "newer").unwrap();
            assert!(
                fs::symlink_metadata(at(name)).unwrap().is_symlink(),
                "{name}"
            );
            assert_eq!(fs::read(at("far").join(name)).unwrap(), b"newer", "{name}");
        }
    }

    #[test]
    fn a_device_and_a_pipe_are_written_into_and_stay_what_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        symlink("/dev/null", &link).unwrap();
        write(&link, "text").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        let null = fs::metadata("/dev/null").unwrap().file_type();
        assert!(null.is_char_device());
        let full = Path::new("/dev/full");
        assert_eq!(
            write(full, "text").unwrap_err().kind(),
            io::ErrorKind::StorageFull
        );
        assert!(fs::metadata(full).unwrap().file_type().is_char_device());

        let pipe = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read(pipe).unwrap()
        });
        write(&pipe, "text").unwrap();
        assert_eq!(reader.join().unwrap(), b"text");
        assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
        assert_eq!(Place::of(Path::new("/dev/stdout")), Place::Stream);
    }
}
