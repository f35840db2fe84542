//! Reading `config.json`: typed keys, the two ways rope is written, and refusals by name.
//!
//! An absent key and `null` are the same, as in transformers. A key that would change the arithmetic is never ignored.

use crate::hf::fp8;
use crate::spec::{Rope, RopeScaling};
use crate::{Error, Result};
use serde_json::{Map, Value};
use slime_kernels::RopeStyle;

/// A model's `config.json`.
#[derive(Clone, Debug)]
pub struct HfConfig {
    file: String,
    values: Map<String, Value>,
}

impl HfConfig {
    /// From parsed JSON; `file` names it in errors.
    ///
    /// # Errors
    /// JSON that is not an object.
    pub fn new(file: impl Into<String>, json: Value) -> Result<Self> {
        let file = file.into();
        match json {
            Value::Object(values) => Ok(Self { file, values }),
            _ => Err(Error::Config {
                file,
                detail: "is not a JSON object".into(),
            }),
        }
    }

    /// The file's name for errors.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The value of `key`; `null` counts as absent.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key).filter(|v| !v.is_null())
    }

    /// A string that must be there.
    ///
    /// # Errors
    /// It is missing or not a string.
    pub fn text(&self, key: &str) -> Result<String> {
        self.typed(key, "a string", |v| v.as_str().map(str::to_owned))?
            .ok_or_else(|| self.missing(key))
    }

    pub(crate) fn count(&self, key: &str) -> Result<usize> {
        self.count_if_any(key)?.ok_or_else(|| self.missing(key))
    }

    pub(crate) fn count_if_any(&self, key: &str) -> Result<Option<usize>> {
        self.typed(key, "a whole number", |v| {
            v.as_u64().and_then(|n| usize::try_from(n).ok())
        })
    }

    /// A list of whole numbers; none where it is absent.
    pub(crate) fn counts(&self, key: &str) -> Result<Vec<usize>> {
        let read = |v: &Value| -> Option<Vec<usize>> {
            let numbers = v
                .as_array()?
                .iter()
                .map(|x| usize::try_from(x.as_u64()?).ok());
            numbers.collect()
        };
        Ok(self
            .typed(key, "a list of whole numbers", read)?
            .unwrap_or_default())
    }

    /// A list of strings, where it is there.
    pub(crate) fn texts(&self, key: &str) -> Result<Option<Vec<String>>> {
        self.typed(key, "a list of strings", |v| {
            let texts = v.as_array()?.iter().map(|x| x.as_str().map(str::to_owned));
            texts.collect()
        })
    }

    pub(crate) fn number_or(&self, key: &str, default: f64) -> Result<f64> {
        Ok(self
            .typed(key, "a number", Value::as_f64)?
            .unwrap_or(default))
    }

    pub(crate) fn flag_or(&self, key: &str, default: bool) -> Result<bool> {
        Ok(self
            .typed(key, "true or false", Value::as_bool)?
            .unwrap_or(default))
    }

    /// Refuse `key` unless it is absent or one of the values that leave the arithmetic as it is.
    pub(crate) fn only(&self, family: &'static str, key: &str, allowed: &[Value]) -> Result<()> {
        match self.get(key) {
            Some(value) if !allowed.iter().any(|a| same(a, value)) => {
                let list: Vec<String> = allowed.iter().map(Value::to_string).collect();
                Err(self.unsupported(
                    family,
                    key,
                    value,
                    format!("supported: {}", list.join(", ")),
                ))
            }
            _ => Ok(()),
        }
    }

    /// Refuse what no family here computes, and layers of more than one kind.
    pub(crate) fn refuse_common(&self, family: &'static str) -> Result<()> {
        self.refuse_unknown(family)?;
        let sliding = |v: &Value| v.as_str() != Some("full_attention");
        match self.get("layer_types") {
            Some(value)
                if value
                    .as_array()
                    .is_none_or(|kinds| kinds.iter().any(sliding)) =>
            {
                Err(self.unsupported(
                    family,
                    "layer_types",
                    value,
                    "supported: \"full_attention\" in every layer".into(),
                ))
            }
            _ => Ok(()),
        }
    }

    /// Refuse what no family here computes.
    pub(crate) fn refuse_unknown(&self, family: &'static str) -> Result<()> {
        self.only(family, "hidden_act", &["silu".into()])?;
        self.only(family, "mlp_bias", &[false.into()])?;
        self.only(family, "attention_dropout", &[0.into()])?;
        let quantised = self.get("quantization_config");
        if let Some(value) = quantised.filter(|value| !fp8::is_known(value)) {
            let cure = "supported: fp8 in blocks of 128 x 128. Give the unquantised model otherwise: training needs its full weights".into();
            return Err(self.unsupported(family, "quantization_config", value, cure));
        }
        Ok(())
    }

    /// Which layers attend linearly: those that `layer_types` says, else all but every fourth (or whatever
    /// `full_attention_interval` is).
    pub(crate) fn linear_layers(
        &self,
        family: &'static str,
        num_layers: usize,
    ) -> Result<Vec<bool>> {
        let Some(value) = self.get("layer_types") else {
            let every = self
                .count_if_any("full_attention_interval")?
                .unwrap_or(4)
                .max(1);
            return Ok((0..num_layers)
                .map(|layer| (layer + 1) % every != 0)
                .collect());
        };
        let kind = |v: &Value| match v.as_str() {
            Some("linear_attention") => Some(true),
            Some("full_attention") => Some(false),
            _ => None,
        };
        let kinds: Option<Vec<bool>> = value
            .as_array()
            .and_then(|all| all.iter().map(kind).collect());
        kinds.filter(|all| all.len() == num_layers).ok_or_else(|| {
            let cure = format!(
                "supported: \"linear_attention\" or \"full_attention\" for each of the {num_layers} layers"
            );
            self.unsupported(family, "layer_types", value, cure)
        })
    }

    /// Refuse attention windows that some layer would use.
    pub(crate) fn refuse_sliding_window(
        &self,
        family: &'static str,
        num_layers: usize,
    ) -> Result<()> {
        let first = self.count_if_any("max_window_layers")?.unwrap_or(0);
        let used =
            self.flag_or("use_sliding_window", false)? && self.get("sliding_window").is_some();
        if used && first < num_layers {
            let window = self.get("sliding_window").cloned().unwrap_or_default();
            return Err(self.unsupported(
                family,
                "sliding_window",
                &window,
                "attention windows are not implemented; set use_sliding_window to false if the sequences are shorter".into(),
            ));
        }
        Ok(())
    }

    /// Rope over whole heads.
    pub(crate) fn rope(&self, family: &'static str, dims: usize) -> Result<Rope> {
        self.rope_with(family, dims, None, RopeStyle::Half)
    }

    /// Rope from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling`. A family of which a part of
    /// each head rotates says which part by default.
    pub(crate) fn rope_with(
        &self,
        family: &'static str,
        dim: usize,
        part: Option<f64>,
        style: RopeStyle,
    ) -> Result<Rope> {
        let (key, inner) = self.rope_parameters()?;
        let base = match inner.get("rope_theta") {
            Some(_) => inner.number_or("rope_theta", 0.0)?,
            None => self.number_or("rope_theta", 10_000.0)?,
        };
        let dims = match part {
            None => {
                self.only(family, "partial_rotary_factor", &[1.into()])?;
                inner.only(family, "partial_rotary_factor", &[1.into()])?;
                dim
            }
            Some(part) => {
                let outer = self.number_or("partial_rotary_factor", part)?;
                (dim as f64 * inner.number_or("partial_rotary_factor", outer)?) as usize
            }
        };
        let kind = inner.get("rope_type").or_else(|| inner.get("type"));
        let scaling = match kind.map(|k| k.as_str().unwrap_or_default()) {
            None | Some("default") => RopeScaling::None,
            Some("llama3") => RopeScaling::Llama3 {
                factor: inner.factor("factor")?,
                low_freq_factor: inner.factor("low_freq_factor")?,
                high_freq_factor: inner.factor("high_freq_factor")?,
                original_max_positions: inner.count("original_max_position_embeddings")?,
            },
            Some("yarn") => self.yarn(&inner)?,
            Some(_) => {
                let value = kind.cloned().unwrap_or_default();
                let key = format!("{key}.rope_type");
                return Err(self.unsupported(
                    family,
                    &key,
                    &value,
                    "supported: \"default\", \"llama3\", \"yarn\"".into(),
                ));
            }
        };
        Ok(Rope {
            base,
            dims,
            style,
            scaling,
        })
    }

    /// The object that holds rope's parameters, and the key it lies under.
    fn rope_parameters(&self) -> Result<(&'static str, Self)> {
        let (key, parameters) = match (
            self.object("rope_parameters")?,
            self.object("rope_scaling")?,
        ) {
            (Some(p), _) => ("rope_parameters", Some(p)),
            (None, p) => ("rope_scaling", p),
        };
        let empty = || Self {
            file: self.file.clone(),
            values: Map::new(),
        };
        Ok((key, parameters.unwrap_or_else(empty)))
    }

    fn yarn(&self, inner: &Self) -> Result<RopeScaling> {
        let factor = inner.factor("factor")?;
        let original = inner.count_if_any("original_max_position_embeddings")?;
        let magnitude = match inner.get("attention_factor") {
            Some(_) => inner.factor("attention_factor")?,
            None => {
                let (m, all) = (
                    inner.number_or("mscale", 0.0)?,
                    inner.number_or("mscale_all_dim", 0.0)?,
                );
                if m != 0.0 && all != 0.0 {
                    yarn_magnitude(factor, m) / yarn_magnitude(factor, all)
                } else {
                    yarn_magnitude(factor, 1.0)
                }
            }
        };
        Ok(RopeScaling::Yarn {
            factor,
            beta_fast: inner.number_or("beta_fast", 32.0)?,
            beta_slow: inner.number_or("beta_slow", 1.0)?,
            original_max_positions: match original {
                Some(n) => n,
                None => self.count("max_position_embeddings")?,
            },
            truncate: inner.flag_or("truncate", true)?,
            magnitude,
        })
    }

    /// What DeepSeek's softmax is sharpened by when rope is scaled.
    pub(crate) fn yarn_softmax_factor(&self) -> Result<f64> {
        let (_, inner) = self.rope_parameters()?;
        let kind = inner.get("rope_type").or_else(|| inner.get("type"));
        let all = inner.number_or("mscale_all_dim", 0.0)?;
        if all == 0.0 || kind.is_none_or(|k| k == "default") {
            return Ok(1.0);
        }
        Ok(yarn_magnitude(inner.factor("factor")?, all).powi(2))
    }

    fn factor(&self, key: &str) -> Result<f64> {
        self.typed(key, "a positive number", |v| {
            v.as_f64().filter(|x| *x > 0.0)
        })?
        .ok_or_else(|| self.missing(key))
    }

    /// An object that must be there, as a configuration of its own.
    pub(super) fn inner(&self, key: &str) -> Result<Self> {
        self.object(key)?.ok_or_else(|| self.missing(key))
    }

    fn object(&self, key: &str) -> Result<Option<Self>> {
        let values = self.typed(key, "an object", |v| v.as_object().cloned())?;
        Ok(values.map(|values| Self {
            file: self.file.clone(),
            values,
        }))
    }

    fn typed<T>(
        &self,
        key: &str,
        wanted: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => match read(value) {
                Some(x) => Ok(Some(x)),
                None => Err(Error::Config {
                    file: self.file.clone(),
                    detail: format!("{key} must be {wanted}, but is {value}"),
                }),
            },
        }
    }

    fn missing(&self, key: &str) -> Error {
        Error::Config {
            file: self.file.clone(),
            detail: format!("{key} is missing"),
        }
    }

    pub(super) fn unsupported(
        &self,
        family: &'static str,
        key: &str,
        value: &Value,
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
}

/// YaRN's `0.1 c ln s + 1`.
fn yarn_magnitude(factor: f64, c: f64) -> f64 {
    if factor <= 1.0 {
        1.0
    } else {
        0.1 * c * factor.ln() + 1.0
    }
}

/// 0 and 0.0 are the same setting.
fn same(a: &Value, b: &Value) -> bool {
    a == b || a.as_f64().is_some_and(|a| b.as_f64() == Some(a))
}
