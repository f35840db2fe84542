//! A model as plain data: what its layers are and how large. [`crate::families`] makes it from a
//! `config.json`, [`crate::params`] lists its tensors, the network computes it.
//!
//! It holds no code for forward or backward and no weight. A new family adds variants here, not flags elsewhere.

use crate::families::Family;
use slime_kernels::{Heads, RopeStyle};

/// One decoder-only language model: embedding, layers, final norm, head.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// Whose weight names and configuration it has.
    pub family: &'static Family,
    /// Rows of the embedding. May exceed what the tokenizer knows.
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// The layers, in order.
    pub layers: Vec<LayerSpec>,
    /// Every RMSNorm's epsilon, added to the mean square.
    pub norm_eps: f64,
    /// Rotary embedding, one for all layers.
    pub rope: Rope,
    /// The head is the embedding, and has no tensor of its own.
    pub tied: bool,
    /// Longest sequence the model was made for.
    pub max_positions: usize,
    /// Standard deviation of fresh weights.
    pub init_std: f64,
}

/// One pre-norm layer: `x += attn(norm x)`, `x += ffn(norm x)`.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// How tokens look at each other.
    pub attn: Attention,
    /// What happens to each token.
    pub ffn: Ffn,
}

/// Grouped-query causal attention, scaled by `1 / √dim`.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Number and width of the heads.
    pub heads: Heads,
    /// Whether q, k and v have biases.
    pub qkv_bias: bool,
    /// Whether every query and key head passes an RMSNorm before rotation.
    pub qk_norm: bool,
}

impl Attention {
    /// What scores are multiplied by before the softmax.
    pub fn scale(&self) -> f64 {
        1.0 / (self.heads.dim as f64).sqrt()
    }
}

/// The feed-forward part of a layer.
#[derive(Clone, Debug, PartialEq)]
pub enum Ffn {
    /// `down (silu(gate x) ⊙ up x)`.
    SwiGlu {
        /// Width of gate and up.
        hidden: usize,
    },
}

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// θ of the slowest pair's period.
    pub base: f64,
    /// Leading dimensions of each head that rotate.
    pub dims: usize,
    /// Which pairs rotate.
    pub style: RopeStyle,
    /// How frequencies are changed for contexts longer than the model was first trained on.
    pub scaling: RopeScaling,
}

/// Changes of the rotary frequencies.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// As they are.
    None,
    /// Llama 3.1: slow frequencies are divided by `factor`, fast ones kept, and those between interpolated.
    Llama3 {
        /// Divisor of the slow frequencies.
        factor: f64,
        /// Periods longer than `original_max_positions / low_freq_factor` are slow.
        low_freq_factor: f64,
        /// Periods shorter than `original_max_positions / high_freq_factor` are fast.
        high_freq_factor: f64,
        /// The context the model was first trained on.
        original_max_positions: usize,
    },
}

impl Rope {
    /// Radians a position, one a pair: `[dims / 2]`. The rotation of pair `i` at position `p` is `p × f[i]`.
    pub fn inverse_frequencies(&self) -> Vec<f64> {
        (0..self.dims / 2)
            .map(|i| {
                let plain = self.base.powf(-2.0 * i as f64 / self.dims as f64);
                self.scaling.apply(plain)
            })
            .collect()
    }
}

impl RopeScaling {
    fn apply(&self, frequency: f64) -> f64 {
        match *self {
            Self::None => frequency,
            Self::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_positions,
            } => {
                let context = original_max_positions as f64;
                let period = 2.0 * std::f64::consts::PI / frequency;
                if period < context / high_freq_factor {
                    frequency
                } else if period > context / low_freq_factor {
                    frequency / factor
                } else {
                    let keep =
                        (context / period - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    (1.0 - keep) * frequency / factor + keep * frequency
                }
            }
        }
    }
}

impl ModelSpec {
    /// Number of parameters; a tied head counts once.
    pub fn num_params(&self) -> u64 {
        crate::params(self).iter().map(|p| p.len() as u64).sum()
    }

    /// What is contradictory, in words, or nothing.
    pub(crate) fn contradiction(&self) -> Option<String> {
        let sizes = [
            ("vocab_size", self.vocab),
            ("hidden_size", self.hidden),
            ("num_hidden_layers", self.layers.len()),
        ];
        if let Some((key, _)) = sizes.iter().find(|(_, n)| *n == 0) {
            return Some(format!("{key} is 0"));
        }
        for layer in &self.layers {
            let Heads { query, kv, dim } = layer.attn.heads;
            if query == 0 || kv == 0 || query % kv != 0 {
                return Some(format!(
                    "num_attention_heads {query} is not a multiple of num_key_value_heads {kv}"
                ));
            }
            if dim == 0 || dim % 2 != 0 {
                return Some(format!(
                    "head_dim {dim} is not even and positive, so its dimensions cannot rotate in pairs"
                ));
            }
            let Ffn::SwiGlu { hidden } = layer.ffn;
            if hidden == 0 {
                return Some("intermediate_size is 0".into());
            }
        }
        if !(self.norm_eps.is_finite() && self.norm_eps >= 0.0) {
            return Some(format!(
                "rms_norm_eps {} is not a non-negative number",
                self.norm_eps
            ));
        }
        if !(self.rope.base.is_finite() && self.rope.base > 0.0) {
            return Some(format!(
                "rope_theta {} is not a positive number",
                self.rope.base
            ));
        }
        None
    }
}
