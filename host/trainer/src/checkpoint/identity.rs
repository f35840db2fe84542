//! Which model a checkpoint is of.

use serde::{Deserialize, Serialize};
use slime_model::spec::Cached;
use slime_model::{ModelSpec, ParamSpec};
use std::fmt;

/// A model's identity: two models with the same one compute the same function of the same weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// In words, for people.
    pub description: String,
    /// Hash of every parameter's name and shape and of every number the arithmetic depends on.
    pub fingerprint: String,
}

impl Identity {
    /// Of a model.
    pub fn of(spec: &ModelSpec, params: &[ParamSpec]) -> Self {
        let num_params: usize = params.iter().map(ParamSpec::len).sum();
        let description = format!(
            "{} with {} layers, hidden size {}, vocabulary {}, {num_params} parameters",
            spec.family.model_type,
            spec.layers.len(),
            spec.hidden,
            spec.vocab
        );
        let mut text = format!("{:?} {:?} {}", spec.norm_eps, spec.rope, spec.tied);
        for layer in &spec.layers {
            text.push_str(&match layer.attn.cached() {
                Cached::Keys(heads) => format!("|{heads:?}"),
                Cached::State(numbers) => format!("|state of {numbers}"),
            });
        }
        for param in params {
            text.push_str(&format!("|{} {} {}", param.name, param.rows, param.cols));
        }
        // FNV-1a.
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        Self {
            description,
            fingerprint: format!("{hash:016x}"),
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, fingerprint {}", self.description, self.fingerprint)
    }
}
