//! A GGUF file's metadata, and the `config.json` that says the same.

use crate::families;
use crate::spec::RopeScaling;
use crate::{Error, Result};
use candle_core::quantized::gguf_file::Value;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;

pub(super) struct Metadata {
    file: String,
    values: BTreeMap<String, Value>,
}

impl Metadata {
    pub(super) fn new(path: &Path, values: BTreeMap<String, Value>) -> Self {
        Self {
            file: path.display().to_string(),
            values,
        }
    }

    /// The `config.json` of the same model.
    pub(super) fn config(
        &self,
        tied: bool,
        embedding_rows: Option<usize>,
        rope_factors: Option<&[f32]>,
    ) -> Result<serde_json::Value> {
        let architecture = self
            .text("general.architecture")?
            .ok_or_else(|| self.missing("general.architecture"))?;
        let family = families::ALL
            .iter()
            .find(|f| f.gguf_architecture == Some(architecture))
            .ok_or_else(|| {
                let known = families::ALL.iter().filter_map(|f| f.gguf_architecture);
                let supported = known.collect::<Vec<_>>().join(", ");
                Error::UnknownFamily {
                    file: self.file.clone(),
                    found: architecture.into(),
                    supported,
                }
            })?;
        let key = |name: &str| format!("{architecture}.{name}");
        let count = |name: &str| self.count(&key(name));
        let need = |name: &str| count(name)?.ok_or_else(|| self.missing(&key(name)));
        let hidden = need("embedding_length")?;
        let heads = need("attention.head_count")?;
        let head_dim = match count("attention.key_length")? {
            Some(dim) => dim,
            None => hidden / heads.max(1),
        };
        let base = self.number(&key("rope.freq_base"))?.unwrap_or(10_000.0);
        for (name, expected) in [
            ("rope.dimension_count", head_dim),
            ("attention.value_length", head_dim),
        ] {
            if let Some(found) = count(name)?.filter(|n| *n != expected) {
                return Err(self.unsupported(
                    &key(name),
                    found.into(),
                    family.model_type,
                    format!("supported: {expected}, the head's width"),
                ));
            }
        }
        if let Some(kind) = self
            .text(&key("rope.scaling.type"))?
            .filter(|kind| *kind != "none")
        {
            let cure = "supported: \"none\", and Llama 3.1's factors".into();
            return Err(self.unsupported(
                &key("rope.scaling.type"),
                kind.into(),
                family.model_type,
                cure,
            ));
        }
        let mut config = json!({
            "architectures": [family.architecture],
            "model_type": family.model_type,
            "vocab_size": embedding_rows,
            "hidden_size": hidden,
            "intermediate_size": need("feed_forward_length")?,
            "num_hidden_layers": need("block_count")?,
            "num_attention_heads": heads,
            "num_key_value_heads": count("attention.head_count_kv")?.unwrap_or(heads),
            "head_dim": head_dim,
            "max_position_embeddings": need("context_length")?,
            "rms_norm_eps": self.number(&key("attention.layer_norm_rms_epsilon"))?
                .ok_or_else(|| self.missing(&key("attention.layer_norm_rms_epsilon")))?,
            "rope_theta": base,
            "tie_word_embeddings": tied,
            "hidden_act": "silu",
            "initializer_range": 0.02,
            "bos_token_id": self.count("tokenizer.ggml.bos_token_id")?,
            "eos_token_id": self.count("tokenizer.ggml.eos_token_id")?,
            "dtype": "float32",
            "torch_dtype": "float32",
            "use_cache": true,
        });
        if let Some(factors) = rope_factors {
            config["rope_scaling"] = self.llama3_scaling(base, factors)?;
        }
        Ok(config)
    }

    /// Only the divisors are stored. Published models use low 1, high 4 and 8192 positions; the largest divisor is the
    /// factor. If those do not give the stored divisors back, the file is refused.
    fn llama3_scaling(&self, base: f64, stored: &[f32]) -> Result<serde_json::Value> {
        let factor = f64::from(stored.iter().copied().fold(1.0, f32::max)).round();
        let scaling = RopeScaling::Llama3 {
            factor,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_positions: 8192,
        };
        let rope = |scaling| crate::Rope {
            base,
            dims: 2 * stored.len(),
            style: slime_kernels::RopeStyle::Half,
            scaling,
        };
        let plain = rope(RopeScaling::None).inverse_frequencies();
        let scaled = rope(scaling).inverse_frequencies();
        let fits = plain
            .iter()
            .zip(&scaled)
            .zip(stored)
            .all(|((p, s), f)| (p / s / f64::from(*f) - 1.0).abs() < 1e-4);
        if !fits {
            let detail = "rope_freqs.weight is not Llama 3.1's scaling; import the model's HF directory instead";
            return Err(Error::Config {
                file: self.file.clone(),
                detail: detail.into(),
            });
        }
        Ok(
            json!({"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192}),
        )
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a string", |v| match v {
            Value::String(s) => Some(s.as_str()),
            _ => None,
        })
    }

    pub(super) fn count(&self, key: &str) -> Result<Option<usize>> {
        self.typed(key, "a whole number", |v| {
            whole(v).and_then(|n| usize::try_from(n).ok())
        })
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a number", |v| match v {
            Value::F32(x) => Some(f64::from(*x)),
            Value::F64(x) => Some(*x),
            other => whole(other).map(|n| n as f64),
        })
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "true or false", |v| match v {
            Value::Bool(b) => Some(*b),
            _ => None,
        })
    }

    pub(super) fn texts(&self, key: &str) -> Result<Option<Vec<&str>>> {
        self.typed(key, "a list of strings", |v| match v {
            Value::Array(items) => items
                .iter()
                .map(|item| match item {
                    Value::String(s) => Some(s.as_str()),
                    _ => None,
                })
                .collect(),
            _ => None,
        })
    }

    pub(super) fn numbers(&self, key: &str) -> Result<Option<Vec<i64>>> {
        self.typed(key, "a list of whole numbers", |v| match v {
            Value::Array(items) => items.iter().map(whole).collect(),
            _ => None,
        })
    }

    pub(super) fn missing(&self, key: &str) -> Error {
        Error::Config {
            file: self.file.clone(),
            detail: format!("{key} is missing"),
        }
    }

    pub(super) fn unsupported(
        &self,
        key: &str,
        value: serde_json::Value,
        family: &'static str,
        cure: String,
    ) -> Error {
        Error::Unsupported {
            file: self.file.clone(),
            key: key.into(),
            value: value.to_string(),
            family,
            cure,
        }
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.values.get(key) else {
            return Ok(None);
        };
        match read(value) {
            Some(x) => Ok(Some(x)),
            None => {
                let detail = format!(
                    "{key} must be {wanted}, but is of type {:?}",
                    value.value_type()
                );
                Err(Error::Config {
                    file: self.file.clone(),
                    detail,
                })
            }
        }
    }
}

fn whole(value: &Value) -> Option<i64> {
    match value {
        Value::U8(n) => Some((*n).into()),
        Value::I8(n) => Some((*n).into()),
        Value::U16(n) => Some((*n).into()),
        Value::I16(n) => Some((*n).into()),
        Value::U32(n) => Some((*n).into()),
        Value::I32(n) => Some((*n).into()),
        Value::U64(n) => i64::try_from(*n).ok(),
        Value::I64(n) => Some(*n),
        _ => None,
    }
}
