//! Compiled components on disk, keyed by the component's digest and everything that shapes the compiler's output.
//!
//! What lies here is native code that runs without further checks, so the directory must be the user's own and
//! closed to others; where it is not, nothing is cached. A compiled file from anywhere else is never loaded.

use sha2::{Digest, Sha256};
use std::fs;
use std::hash::{Hash, Hasher};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use wasmtime::component::Component;
use wasmtime::{Engine, Module};

pub(crate) struct Cache {
    dir: PathBuf,
    /// Of the engine: version, target, flags.
    engine_key: String,
}

impl Cache {
    /// `None`, with a line in the log, where the directory cannot be used.
    pub(crate) fn open(dir: &Path, engine: &Engine) -> Option<Self> {
        match prepare(dir) {
            Ok(()) => Some(Self {
                dir: dir.to_owned(),
                engine_key: engine_key(engine),
            }),
            Err(reason) => {
                tracing::warn!(dir = %dir.display(), reason, "compiled plugins are not cached");
                None
            }
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The compiled form of a component, where it is at hand.
    pub(crate) fn get(&self, engine: &Engine, digest: &str) -> Option<Component> {
        self.load(digest, |path| load(engine, path))
    }

    /// The compiled form of a core module, where it is at hand.
    pub(crate) fn module(&self, engine: &Engine, digest: &str) -> Option<Module> {
        self.load(digest, |path| load_module(engine, path))
    }

    fn load<T>(&self, digest: &str, load: impl FnOnce(&Path) -> wasmtime::Result<T>) -> Option<T> {
        let path = self.path(digest);
        if !path.exists() {
            return None;
        }
        match load(&path) {
            Ok(loaded) => Some(loaded),
            Err(error) => {
                // Torn or of another build: made anew.
                tracing::debug!(path = %path.display(), %error, "a compiled plugin is unusable");
                None
            }
        }
    }

    /// Keep a compiled form. Failing to is no more than slow.
    pub(crate) fn put(&self, component: &Component, digest: &str) {
        self.keep(component.serialize(), digest);
    }

    /// [`Self::put`] for a core module.
    pub(crate) fn put_module(&self, module: &Module, digest: &str) {
        self.keep(module.serialize(), digest);
    }

    fn keep(&self, compiled: wasmtime::Result<Vec<u8>>, digest: &str) {
        let path = self.path(digest);
        let written = compiled
            .map_err(|error| error.to_string())
            .and_then(|bytes| {
                // The name is the process's own, so two that compile the same component do not meet.
                let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
                let write = || {
                    let mut file = fs::File::create(&temporary)?;
                    file.write_all(&bytes)?;
                    file.sync_all()?;
                    fs::rename(&temporary, &path)
                };
                write().map_err(|error: std::io::Error| error.to_string())
            });
        if let Err(reason) = written {
            tracing::warn!(path = %path.display(), reason, "a compiled plugin is not cached");
        }
    }

    fn path(&self, digest: &str) -> PathBuf {
        self.dir.join(format!("{digest}-{}.cwasm", self.engine_key))
    }
}

#[allow(
    unsafe_code,
    reason = "loading compiled code is unsafe by nature; see the SAFETY comment"
)]
fn load(engine: &Engine, path: &Path) -> wasmtime::Result<Component> {
    // SAFETY: the file must be one that `Component::serialize` wrote. It lies in a directory that belongs to this
    // user and that nobody else may write (checked by `prepare`), under a name that only `Cache::put` makes, put
    // there by a rename of a complete file. The engine itself refuses files of another version or configuration.
    unsafe { Component::deserialize_file(engine, path) }
}

#[allow(
    unsafe_code,
    reason = "loading compiled code is unsafe by nature; see the SAFETY comment"
)]
fn load_module(engine: &Engine, path: &Path) -> wasmtime::Result<Module> {
    // SAFETY: as for `load`: the file is one that `Module::serialize` wrote, under a name that only
    // `Cache::put_module` makes, in a directory that is closed to others.
    unsafe { Module::deserialize_file(engine, path) }
}

/// Make the directory, or see to it that it is closed to others.
fn prepare(dir: &Path) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(text)?;
    let metadata = fs::symlink_metadata(dir).map_err(text)?;
    if !metadata.is_dir() {
        return Err("it is no directory".into());
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err("it belongs to another user".into());
    }
    if metadata.permissions().mode() & 0o077 != 0 {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).map_err(text)?;
    }
    Ok(())
}

fn engine_key(engine: &Engine) -> String {
    struct Sink(Sha256);
    impl Hasher for Sink {
        fn finish(&self) -> u64 {
            0
        }

        fn write(&mut self, bytes: &[u8]) {
            self.0.update(bytes);
        }
    }
    let mut sink = Sink(Sha256::new());
    engine.precompile_compatibility_hash().hash(&mut sink);
    hex(&sink.0.finalize())[..16].to_owned()
}

/// The digest that names a component everywhere.
pub(crate) fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
