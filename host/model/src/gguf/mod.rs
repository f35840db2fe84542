//! Import of GGUF files: one file becomes a model with its tokenizer, chat template and f32 weights.
//!
//! Quantised weights are dequantised; nothing is written in this format. A file is turned into the same
//! `config.json` and `tokenizer.json` that an HF directory has, so there is one way on from here. Read [`metadata`] and
//! [`tokenizer`] next.

mod metadata;
mod names;
mod tokenizer;

use crate::hf::{DEFAULT_SHARD_BYTES, Dtype, ModelFiles, save_dir};
use crate::params::{ParamSpec, params};
use crate::spec::ModelSpec;
use crate::{Error, Result};
use candle_core::Device;
use candle_core::quantized::gguf_file::Content;
use metadata::Metadata;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

/// A GGUF file, opened; its weights are not read yet.
pub struct Gguf {
    /// What an HF directory of this model would hold beside its weights.
    pub files: ModelFiles,
    /// What the model is.
    pub spec: ModelSpec,
    path: PathBuf,
    content: Content,
}

impl Gguf {
    /// Open and check everything but the weights' values.
    ///
    /// # Errors
    /// The file is damaged, or its model or tokenizer is not supported.
    pub fn open(path: &Path) -> Result<Self> {
        let mut file = File::open(path).map_err(Error::io(path))?;
        let mut content = Content::read(&mut file).map_err(|e| {
            Error::file(
                path,
                format!("is not a GGUF file that can be read: {}", words(&e)),
            )
        })?;
        let values = std::mem::take(&mut content.metadata);
        let metadata = Metadata::new(path, values.into_iter().collect());
        let rope_factors = match content.tensor_infos.contains_key(names::ROPE_FACTORS) {
            true => Some(read(path, &mut file, &content, names::ROPE_FACTORS)?),
            false => None,
        };
        let mut files = ModelFiles::new(path.display().to_string());
        let tied = !content.tensor_infos.contains_key(names::HEAD);
        let embedding_rows = content
            .tensor_infos
            .get(names::EMBEDDING)
            .and_then(|t| t.shape.dims().first().copied());
        let config = metadata.config(tied, embedding_rows, rope_factors.as_deref())?;
        files.insert_json("config.json", &config);
        tokenizer::add_files(&metadata, &mut files)?;
        let spec = files.spec()?;
        let gguf = Self {
            files,
            spec,
            path: path.to_owned(),
            content,
        };
        gguf.check()?;
        Ok(gguf)
    }

    /// Every parameter in canonical order, as [`crate::Weights::load_params`] gives them.
    ///
    /// # Errors
    /// A tensor cannot be read, or `each` fails.
    pub fn load_params<E: From<Error>>(
        &self,
        mut each: impl FnMut(&ParamSpec, Vec<f32>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut file = File::open(&self.path).map_err(Error::io(&self.path))?;
        for param in params(&self.spec) {
            let data = self.read_param(&mut file, &param)?;
            each(&param, data)?;
        }
        Ok(())
    }

    fn read_param(&self, file: &mut File, param: &ParamSpec) -> Result<Vec<f32>> {
        let mut data = Vec::with_capacity(param.len());
        for (index, part) in param.parts.iter().enumerate() {
            let name = names::of(param, index);
            let mut tensor = read(&self.path, file, &self.content, &name)?;
            if let Some(num_heads) = names::permuted_heads(&self.spec, param, index) {
                tensor = names::undo_permutation(
                    &tensor,
                    num_heads,
                    part.shape[0] / num_heads,
                    part.len() / part.shape[0],
                );
            }
            data.append(&mut tensor);
        }
        Ok(data)
    }

    /// All that does not fit, at once.
    fn check(&self) -> Result<()> {
        let mut left: BTreeMap<&str, Vec<usize>> = self
            .content
            .tensor_infos
            .iter()
            .map(|(name, t)| (name.as_str(), t.shape.dims().to_vec()))
            .collect();
        left.remove(names::ROPE_FACTORS);
        let mut problems = Vec::new();
        for param in params(&self.spec) {
            for (index, part) in param.parts.iter().enumerate() {
                let name = names::of(&param, index);
                match left.remove(name.as_str()) {
                    None => problems.push(format!("{name} is missing; expected {:?}", part.shape)),
                    Some(found) if found != part.shape => {
                        problems.push(format!(
                            "{name}: expected {:?}, found {found:?}",
                            part.shape
                        ));
                    }
                    Some(_) => {}
                }
            }
        }
        problems.extend(
            left.iter()
                .map(|(name, shape)| format!("{name} {shape:?} is not part of the model")),
        );
        if problems.is_empty() {
            Ok(())
        } else {
            Err(Error::Weights {
                dir: self.path.clone(),
                problems,
            })
        }
    }
}

/// Import `gguf` and write it as an HF directory.
///
/// # Errors
/// As [`Gguf::open`] and [`save_dir`].
pub fn to_hf_dir(gguf: &Path, dir: &Path, dtype: Dtype) -> Result<()> {
    let model = Gguf::open(gguf)?;
    let mut file = File::open(gguf).map_err(Error::io(gguf))?;
    save_dir(
        dir,
        &model.spec,
        &model.files,
        dtype,
        DEFAULT_SHARD_BYTES,
        |param| model.read_param(&mut file, param),
    )
}

fn read(path: &Path, file: &mut File, content: &Content, name: &str) -> Result<Vec<f32>> {
    content
        .tensor(file, name, &Device::Cpu)
        .and_then(|t| t.dequantize(&Device::Cpu))
        .and_then(|t| t.flatten_all())
        .and_then(|t| t.to_vec1::<f32>())
        .map_err(|e| Error::file(path, format!("{name} cannot be read: {}", words(&e))))
}

/// Without the backtrace that candle appends.
fn words(error: &candle_core::Error) -> String {
    let text = error.to_string();
    match text.lines().next().unwrap_or_default() {
        "failed to fill whole buffer" => "the file ends too early".into(),
        line => line.to_owned(),
    }
}
