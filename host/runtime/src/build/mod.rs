//! From a plugin's folder to its component, with the language's own tools.
//!
//! | found in the folder | language | tool |
//! |---|---|---|
//! | `Cargo.toml` | Rust | cargo, target `wasm32-wasip2` |
//! | `plugin.toml`, source `.py` | Python | `componentize-py` |
//! | `plugin.toml`, source `.js` | JavaScript | `componentize-qjs` |
//! | `plugin.toml`, source `.c` | C | `zig cc` |
//!
//! A missing tool is named together with the command that gets it. Read `manifest` next.

mod c;
mod js;
mod manifest;
mod python;
mod rust;
mod tool;
mod wit;

pub use manifest::{Language, Manifest};
pub use tool::LanguageTool;
pub use wit::FILES as WIT_FILES;

use crate::{RuntimeError, cache};
use std::path::{Path, PathBuf};

/// Bytes of a compiler's output that an error shows.
const OUTPUT_BYTES: usize = 8192;

/// The tools of every language but Rust.
pub const LANGUAGE_TOOLS: [LanguageTool; 3] = [python::TOOL, js::TOOL, c::TOOL];

/// Build the plugin in `folder` and return the path of its component.
///
/// # Errors
/// The folder is no plugin; a tool is missing (with the command that installs it); the code does not compile.
pub fn build_plugin(folder: &Path) -> Result<PathBuf, RuntimeError> {
    let not_a_plugin = |reason: &str| RuntimeError::NotAPlugin {
        folder: folder.into(),
        reason: reason.into(),
    };
    if !folder.is_dir() {
        return Err(not_a_plugin("there is no such folder"));
    }
    if folder.join("Cargo.toml").is_file() {
        return rust::build(folder);
    }
    if !folder.join(manifest::FILE).is_file() {
        return Err(not_a_plugin(
            "it has neither Cargo.toml nor plugin.toml; start one with: slime-host plugin new NAME",
        ));
    }
    let manifest = Manifest::read(folder)?;
    let place = folder.join("build");
    std::fs::create_dir_all(&place).map_err(|source| RuntimeError::Read {
        path: place.clone(),
        source,
    })?;
    let component = place.join(format!("{}.wasm", manifest.name));
    let stamp_file = place.join("stamp");
    let stamp = stamp(folder, &manifest)?;
    if component.is_file() && std::fs::read_to_string(&stamp_file).is_ok_and(|old| old == stamp) {
        return Ok(component);
    }
    wit::write(&place.join("wit"), &manifest)?;
    let job = Job {
        folder,
        place: &place,
        manifest: &manifest,
        component: &component,
    };
    match manifest.language {
        Language::Python => python::build(&job)?,
        Language::JavaScript => js::build(&job)?,
        Language::C => c::build(&job)?,
    }
    // Without the stamp the next build starts anew, which is slow and not wrong.
    let _ = std::fs::write(&stamp_file, stamp);
    Ok(component)
}

/// What is built, and where.
struct Job<'a> {
    folder: &'a Path,
    /// The folder's `build/`.
    place: &'a Path,
    manifest: &'a Manifest,
    component: &'a Path,
}

impl Job<'_> {
    /// Write a file that the tools read, below `build/`.
    fn put(&self, name: &str, text: &str) -> Result<PathBuf, RuntimeError> {
        let path = self.place.join(name);
        let written = path
            .parent()
            .map_or(Ok(()), std::fs::create_dir_all)
            .and_then(|()| std::fs::write(&path, text));
        written.map_err(|source| RuntimeError::Read {
            path: path.clone(),
            source,
        })?;
        Ok(path)
    }
}

/// A digest of everything that shapes the component: the folder's own files, the SDK, the contract and this version.
fn stamp(folder: &Path, manifest: &Manifest) -> Result<String, RuntimeError> {
    let mut files = Vec::new();
    collect(folder, &mut files).map_err(|source| RuntimeError::Read {
        path: folder.into(),
        source,
    })?;
    files.sort();
    let mut text = format!("{} {manifest:?}\n", env!("CARGO_PKG_VERSION"));
    let sdk = match manifest.language {
        Language::Python => python::SDK,
        Language::JavaScript => js::SDK,
        Language::C => c::VERIFIER,
    };
    for part in wit::FILES.iter().map(|(_, text)| *text).chain([sdk]) {
        text.push_str(&cache::digest(part.as_bytes()));
    }
    for file in files {
        let bytes = std::fs::read(&file).map_err(|source| RuntimeError::Read {
            path: file.clone(),
            source,
        })?;
        text.push_str(&format!("{} {}\n", file.display(), cache::digest(&bytes)));
    }
    Ok(cache::digest(text.as_bytes()))
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with('.') || matches!(&*name, "build" | "node_modules" | "__pycache__") {
            continue;
        }
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}

fn end_of(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim_end();
    let mut start = text.len().saturating_sub(OUTPUT_BYTES);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    text[start..].to_owned()
}
