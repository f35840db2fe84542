//! The model families, one file each: HF configuration → [`ModelSpec`], the weight names, a tiny test configuration.
//!
//! A family holds no code for forward or backward; that is the network's, which reads the [`ModelSpec`]. To add
//! one, write its file and list it in [`ALL`].

mod config;
mod deepseek_v3;
pub mod demo;
mod glm4;
mod glm4_moe;
mod glm4_moe_lite;
mod glm_moe_dsa;
mod llama;
mod names;
mod parts;
mod qwen2;
mod qwen3;
mod qwen3_5;
mod qwen3_5_moe;
mod qwen3_moe;
mod qwen3_next;

pub use config::HfConfig;

use crate::params::ParamKind;
use crate::spec::ModelSpec;
use crate::{Error, ModelFiles, Result};
use serde_json::{Value, json};
use std::path::Path;

/// Families that can be loaded, trained and saved.
pub const ALL: [&Family; 14] = [
    &llama::FAMILY,
    &qwen2::FAMILY,
    &qwen3::FAMILY,
    &glm4::FAMILY,
    &qwen3_moe::FAMILY,
    &glm4_moe::FAMILY,
    &deepseek_v3::FAMILY,
    &glm4_moe_lite::FAMILY,
    &glm_moe_dsa::FAMILY,
    &qwen3_next::FAMILY,
    &qwen3_5::FAMILY,
    &qwen3_5_moe::FAMILY,
    &qwen3_5::PUBLISHED,
    &qwen3_5_moe::PUBLISHED,
];

/// A model family, as data.
pub struct Family {
    /// `model_type` in `config.json`.
    pub model_type: &'static str,
    /// Its class in transformers, `architectures` in `config.json`.
    pub architecture: &'static str,
    /// `general.architecture` in a GGUF file, of those that can be imported.
    pub gguf_architecture: Option<&'static str>,
    /// What the names of all tensors but the head's begin with, instead of the `model.` in the lists of names.
    pub prefix: &'static str,
    /// HF names of the tensors of each parameter, in order, where they are not the usual ones (`names.rs`);
    /// `{l}` is the layer's index, `{e}` the expert's.
    pub names: &'static [(ParamKind, &'static [&'static str])],
    from_hf: fn(&HfConfig) -> Result<ModelSpec>,
    tiny: fn() -> Value,
}

impl Family {
    /// HF names of the tensors a parameter is made of.
    pub fn names(&self, kind: ParamKind) -> Vec<String> {
        let own = self.names.iter().chain(names::COMMON);
        let found = own.clone().find(|(k, _)| *k == kind);
        let prefixed = |name: &&str| match name.strip_prefix("model.") {
            Some(rest) => format!("{}{rest}", self.prefix),
            None => (*name).to_owned(),
        };
        found.map_or_else(Vec::new, |(_, names)| names.iter().map(prefixed).collect())
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

/// A tiny configuration whose `text_config` is `text`.
fn around_text(family: &Family, text: Value) -> Value {
    json!({"architectures": [family.architecture], "model_type": family.model_type, "text_config": text})
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
