//! Plugins named by a registry's reference, pinned by digest: fetched once, checked, and kept in the user's cache.
//!
//! A tag moves, so a run never names one: what it trains with is in its recipe, to the byte.

use super::registry::{self, Reference};
use crate::error::{Failure, Result};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

const PIN: &str = "@sha256:";

/// The reference that `path` is, where it is one: `HOST:PORT/NAME@sha256:DIGEST`.
pub fn reference(path: &Path) -> Option<&str> {
    let text = path.to_str()?;
    let (name, digest) = text.split_once(PIN)?;
    let is_digest = digest.len() == 64 && digest.chars().all(|c| c.is_ascii_hexdigit());
    (is_digest && name.contains('/') && !path.exists()).then_some(text)
}

/// Whether `path` names a component of a registry and no file.
pub fn is_reference(path: &Path) -> bool {
    reference(path).is_some()
}

/// Whether `path` is a reference that names a tag.
pub fn is_tagged(path: &Path) -> bool {
    let text = path.to_str().unwrap_or_default();
    !text.contains('@')
        && text
            .split_once('/')
            .is_some_and(|(host, rest)| host.contains(':') && rest.contains(':'))
}

/// What a plugin of that reference is called: the last part of its name.
pub fn name(reference: &str) -> &str {
    let name = reference
        .split_once(PIN)
        .map_or(reference, |(name, _)| name);
    name.rsplit('/').next().unwrap_or(name)
}

/// The component's file: from the cache, else from the registry.
///
/// # Errors
/// The registry has none, or not that one.
pub fn component(reference: &str) -> Result<PathBuf> {
    let dir = cache_dir()?;
    let pin = reference.rsplit_once(':').map_or(reference, |(_, pin)| pin);
    let told = dir.join(format!("{pin}.digest"));
    if let Ok(digest) = std::fs::read_to_string(&told) {
        let path = dir.join(format!("{}.wasm", digest.trim()));
        if std::fs::read(&path).is_ok_and(|bytes| hex(&bytes) == digest.trim()) {
            return Ok(path);
        }
    }
    let from = Reference::parse(reference)?;
    // A thread of its own: the caller may be inside a runtime, where none may block.
    let pulled = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| Failure::run(format!("no threads: {e}")))?;
        runtime.block_on(registry::pull(&from))
    });
    let (bytes, _) = pulled
        .join()
        .map_err(|_| Failure::run("pull: the host failed"))??;
    let digest = hex(&bytes);
    let path = dir.join(format!("{digest}.wasm"));
    let put = |path: &Path, bytes: &[u8]| {
        let part = path.with_extension(format!("{}.part", std::process::id()));
        std::fs::write(&part, bytes).and_then(|()| std::fs::rename(&part, path))
    };
    std::fs::create_dir_all(&dir)
        .and_then(|()| put(&path, &bytes))
        .and_then(|()| put(&told, digest.as_bytes()))
        .map_err(crate::error::at_path(&dir))?;
    Ok(path)
}

fn cache_dir() -> Result<PathBuf> {
    let absolute = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    let base = base.ok_or_else(|| Failure::run("there is no home directory to keep plugins in"))?;
    Ok(base.join("slime-host").join("pulled"))
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_reference_pinned_by_digest_names_a_plugin() {
        let pinned = format!("127.0.0.1:5000/plugins/math@sha256:{}", "0a".repeat(32));
        assert_eq!(reference(Path::new(&pinned)), Some(pinned.as_str()));
        assert_eq!(name(&pinned), "math");
        for other in [
            "127.0.0.1:5000/plugins/math:0.1.0",
            "127.0.0.1:5000/plugins/math@sha256:12",
            "math@sha256:0a",
            "plugins/math",
            "math.wasm",
        ] {
            assert_eq!(reference(Path::new(other)), None, "{other}");
            let is_tagged = other == "127.0.0.1:5000/plugins/math:0.1.0";
            assert_eq!(super::is_tagged(Path::new(other)), is_tagged, "{other}");
        }
    }
}
