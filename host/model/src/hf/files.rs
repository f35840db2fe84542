//! The small files of a model directory, held in memory: `config.json`, tokenizer, template, generation settings.
//!
//! [`HfDir`] is a directory with its weights. Where files came from does not matter to whoever uses them: a directory, a GGUF file, or the built-in model.

use super::Weights;
use crate::families::{self, HfConfig};
use crate::spec::ModelSpec;
use crate::{Error, Result};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A model's files beside its weights.
#[derive(Clone, Debug, Default)]
pub struct ModelFiles {
    origin: String,
    /// The directory they were read from, whose weights may hold tensors that an export has to keep.
    dir: Option<PathBuf>,
    files: BTreeMap<String, Vec<u8>>,
}

impl ModelFiles {
    /// Files that belong to a model beside its weights, in the order they are looked for.
    pub(super) const NAMES: [&str; 12] = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "chat_template.jinja",
        "chat_template.json",
        "vocab.json",
        "merges.txt",
        "tokenizer.model",
        "LICENSE",
    ];

    /// None yet; `origin` names them in errors.
    pub fn new(origin: impl Into<String>) -> Self {
        Self {
            origin: origin.into(),
            dir: None,
            files: BTreeMap::new(),
        }
    }

    /// Those that lie in `dir`.
    ///
    /// # Errors
    /// `dir` is not a directory, or a file in it cannot be read.
    pub fn read(dir: &Path) -> Result<Self> {
        if !dir.is_dir() {
            let detail =
                "is not a directory; give the path of a model directory with config.json in it";
            return Err(Error::file(dir, detail));
        }
        let mut files = Self::new(dir.display().to_string());
        files.dir = Some(dir.to_owned());
        for name in Self::NAMES {
            let path = dir.join(name);
            match std::fs::read(&path) {
                Ok(bytes) => files.insert(name, bytes),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                Err(e) => return Err(Error::io(path)(e)),
            }
        }
        Ok(files)
    }

    /// Where they came from.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The weights of the directory they were read from, where `spec` keeps tensors of it that it does not use.
    ///
    /// # Errors
    /// The weights cannot be opened any more.
    pub(super) fn carried_weights(&self, spec: &ModelSpec) -> Result<Option<Weights>> {
        match &self.dir {
            Some(dir) if !spec.carried.is_empty() => Weights::open(dir).map(Some),
            _ => Ok(None),
        }
    }

    /// Add or replace a file.
    pub fn insert(&mut self, name: impl Into<String>, bytes: impl Into<Vec<u8>>) {
        self.files.insert(name.into(), bytes.into());
    }

    /// Add or replace a JSON file, written as transformers writes it.
    pub fn insert_json(&mut self, name: impl Into<String>, value: &Value) {
        self.insert(name, format!("{value:#}\n"));
    }

    /// A file's content.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.files.get(name).map(Vec::as_slice)
    }

    /// Name and content of every file, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.files
            .iter()
            .map(|(name, bytes)| (name.as_str(), bytes.as_slice()))
    }

    /// A file as text, if it is there.
    ///
    /// # Errors
    /// It is not UTF-8.
    pub fn text(&self, name: &str) -> Result<Option<&str>> {
        let Some(bytes) = self.get(name) else {
            return Ok(None);
        };
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Some(text)),
            Err(e) => Err(Error::File {
                file: self.path(name),
                detail: format!("is not UTF-8: {e}"),
            }),
        }
    }

    /// A file as JSON, if it is there.
    ///
    /// # Errors
    /// It is not JSON.
    pub fn json(&self, name: &str) -> Result<Option<Value>> {
        let Some(text) = self.text(name)? else {
            return Ok(None);
        };
        match serde_json::from_str(text) {
            Ok(value) => Ok(Some(value)),
            Err(e) => Err(Error::File {
                file: self.path(name),
                detail: format!("is not valid JSON: {e}"),
            }),
        }
    }

    /// The model's `config.json`.
    ///
    /// # Errors
    /// It is missing or not a JSON object.
    pub fn config(&self) -> Result<HfConfig> {
        let file = self.path("config.json");
        match self.json("config.json")? {
            Some(json) => HfConfig::new(file, json),
            None => {
                let detail = "is missing; a model directory holds config.json, tokenizer.json and *.safetensors";
                Err(Error::File {
                    file,
                    detail: detail.into(),
                })
            }
        }
    }

    /// What the model is.
    ///
    /// # Errors
    /// As [`Self::config`] and [`families::from_config`].
    pub fn spec(&self) -> Result<ModelSpec> {
        families::from_config(&self.config()?)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.origin)
    }
}

/// A model directory: its files, what it is, and its weights.
#[derive(Debug)]
pub struct HfDir {
    /// The files beside the weights.
    pub files: ModelFiles,
    /// What the model is.
    pub spec: ModelSpec,
    /// Its weights, not read yet.
    pub weights: Weights,
}

impl HfDir {
    /// Open `dir` and check everything but the tensors' shapes, which [`Weights::load_params`] does.
    ///
    /// # Errors
    /// A file is missing or damaged, or the model is not supported.
    pub fn open(dir: &Path) -> Result<Self> {
        let files = ModelFiles::read(dir)?;
        let spec = files.spec()?;
        let weights = Weights::open(dir)?;
        Ok(Self {
            files,
            spec,
            weights,
        })
    }
}
