//! `plugin.toml`: what a plugin folder says of itself.

use crate::RuntimeError;
use serde::Deserialize;
use std::path::{Path, PathBuf};

pub(super) const FILE: &str = "plugin.toml";

/// Worlds that a component may export, by name.
const WORLDS: [&str; 9] = [
    "verifier",
    "group-verifier",
    "judge",
    "generator",
    "generator-async",
    "tool",
    "source",
    "filter",
    "shaper",
];
/// What a plugin may ask for, and the interface that stands behind it.
pub(super) const ASKS: [(&str, &str); 4] = [
    ("code_exec", "code-exec"),
    ("kv", "kv"),
    ("http", "http"),
    ("models", "models"),
];

/// A language that is built from a manifest. Rust needs none: Cargo.toml is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// CPython in the component, by componentize-py.
    Python,
    /// QuickJS in the component, by componentize-qjs.
    JavaScript,
    /// Compiled by zig.
    C,
}

/// What a plugin folder says of itself.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// What metrics call it: lower-case letters, digits and `-`.
    pub name: String,
    /// Semver.
    pub version: String,
    /// Worlds that it exports.
    pub worlds: Vec<String>,
    /// The file that holds it.
    pub source: PathBuf,
    /// By the source's ending.
    pub language: Language,
    /// Capabilities that it asks for, by the name of their grant.
    pub asks: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    version: String,
    world: OneOrMany,
    source: PathBuf,
    #[serde(default)]
    asks: Vec<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl Manifest {
    /// Read `plugin.toml` in `folder`.
    ///
    /// # Errors
    /// There is none, or it says what cannot be.
    pub fn read(folder: &Path) -> Result<Self, RuntimeError> {
        let path = folder.join(FILE);
        let text = std::fs::read_to_string(&path).map_err(|source| RuntimeError::Read {
            path: path.clone(),
            source,
        })?;
        Self::parse(&text, folder).map_err(|reason| RuntimeError::NotAPlugin {
            folder: folder.into(),
            reason: format!("{FILE}: {reason}"),
        })
    }

    fn parse(text: &str, folder: &Path) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if file.name.is_empty() || file.name.len() > 64 || !file.name.chars().all(is_name) {
            return Err(format!(
                "name = {:?}: use lower-case letters, digits and `-`",
                file.name
            ));
        }
        let worlds = match file.world {
            OneOrMany::One(world) => vec![world],
            OneOrMany::Many(worlds) => worlds,
        };
        for world in &worlds {
            if !WORLDS.contains(&world.as_str()) {
                return Err(format!(
                    "world = {world:?}: known are {}",
                    WORLDS.join(", ")
                ));
            }
        }
        if worlds.is_empty() {
            return Err("world is empty: name at least one".into());
        }
        for ask in &file.asks {
            if !ASKS.iter().any(|(name, _)| name == ask) {
                let known: Vec<_> = ASKS.iter().map(|(name, _)| *name).collect();
                return Err(format!("asks = {ask:?}: known are {}", known.join(", ")));
            }
        }
        let ending = file.source.extension().and_then(|e| e.to_str());
        let language = match ending {
            Some("py") => Language::Python,
            Some("js" | "mjs") => Language::JavaScript,
            Some("c") => Language::C,
            _ => {
                return Err(format!(
                    "source = {:?}: give a .py, .js or .c file; Rust plugins have a Cargo.toml instead",
                    file.source.display().to_string()
                ));
            }
        };
        if !folder.join(&file.source).is_file() {
            return Err(format!(
                "source = {:?}: there is no such file",
                file.source.display().to_string()
            ));
        }
        Ok(Self {
            name: file.name,
            version: file.version,
            worlds,
            source: file.source,
            language,
            asks: file.asks,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Language, Manifest};

    fn parse(text: &str) -> Result<Manifest, String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("plugin.py"), "").unwrap();
        Manifest::parse(text, folder.path())
    }

    const GOOD: &str =
        "name = \"mine\"\nversion = \"0.1.0\"\nworld = \"verifier\"\nsource = \"plugin.py\"\n";

    #[test]
    fn a_manifest_names_worlds_language_and_what_is_asked_for() {
        let manifest = parse(&format!("{GOOD}asks = [\"code_exec\"]")).unwrap();
        assert_eq!(manifest.language, Language::Python);
        assert_eq!((manifest.worlds.len(), manifest.asks.len()), (1, 1));
    }

    #[test]
    fn every_mistake_is_one_sentence_with_its_cure() {
        for (from, to, reason) in [
            ("\"mine\"", "\"My Plugin\"", "use lower-case letters"),
            (
                "\"verifier\"",
                "\"verifer\"",
                "known are verifier, group-verifier",
            ),
            ("\"verifier\"", "[]", "name at least one"),
            ("plugin.py", "plugin.rb", "give a .py, .js or .c file"),
            ("plugin.py", "other.py", "there is no such file"),
            ("version", "verson", "verson"),
        ] {
            let error = parse(&GOOD.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        let error = parse(&format!("{GOOD}asks = [\"root\"]")).unwrap_err();
        assert!(
            error.contains("known are code_exec, kv, http, models"),
            "{error}"
        );
    }
}
