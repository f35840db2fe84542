//! The model families, one file each: HF configuration → [`ModelSpec`], the weight names, a tiny test configuration.
//!
//! A family holds no code for forward or backward; that is the network's, which reads the [`ModelSpec`]. To add
//! one, write its file and list it in [`ALL`].

mod config;
pub mod demo;
mod llama;
mod qwen2;
mod qwen3;

pub use config::HfConfig;

use crate::params::ParamKind;
use crate::spec::ModelSpec;
use crate::{Error, ModelFiles, Result};
use serde_json::Value;
use std::path::Path;

/// Families that can be loaded, trained and saved.
pub const ALL: [&Family; 3] = [&llama::FAMILY, &qwen2::FAMILY, &qwen3::FAMILY];

/// A model family, as data.
pub struct Family {
    /// `model_type` in `config.json`.
    pub model_type: &'static str,
    /// Its class in transformers, `architectures` in `config.json`.
    pub architecture: &'static str,
    /// `general.architecture` in a GGUF file.
    pub gguf_architecture: &'static str,
    /// HF names of the tensors of each parameter, in order; `{l}` is the layer's index.
    pub names: &'static [(ParamKind, &'static [&'static str])],
    from_hf: fn(&HfConfig) -> Result<ModelSpec>,
    tiny: fn() -> Value,
}

impl Family {
    /// HF names of the tensors a parameter is made of.
    pub fn names(&self, kind: ParamKind) -> &'static [&'static str] {
        self.names
            .iter()
            .find(|(k, _)| *k == kind)
            .map_or(&[], |(_, names)| names)
    }

    /// A `config.json` of a few thousand parameters, for tests.
    pub fn tiny_config(&self) -> Value {
        (self.tiny)()
    }
}

impl PartialEq for Family {
    fn eq(&self, other: &Self) -> bool {
        self.model_type == other.model_type
    }
}

impl std::fmt::Debug for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.model_type)
    }
}

/// The model a `config.json` describes.
///
/// # Errors
/// A family that is not in [`ALL`], a missing or contradictory key, or a feature that is not implemented.
pub fn from_config(config: &HfConfig) -> Result<ModelSpec> {
    let model_type = config.text("model_type")?;
    let family = ALL
        .iter()
        .find(|f| f.model_type == model_type)
        .ok_or_else(|| Error::UnknownFamily {
            file: config.file().into(),
            found: model_type.clone(),
            supported: ALL.map(|f| f.model_type).join(", "),
        })?;
    let spec = (family.from_hf)(config)?;
    match spec.contradiction() {
        Some(detail) => Err(Error::Config {
            file: config.file().into(),
            detail,
        }),
        None => Ok(spec),
    }
}

/// The model whose `config.json` lies in `dir`.
///
/// # Errors
/// As [`from_config`], or the file cannot be read.
pub fn from_hf_dir(dir: &Path) -> Result<ModelSpec> {
    ModelFiles::read(dir)?.spec()
}
