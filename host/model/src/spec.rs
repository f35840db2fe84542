//! A model as plain data: what its layers are and how large. [`crate::families`] makes it from a
//! `config.json`, [`crate::params`] lists its tensors, the network computes it.
//!
//! It holds no code for forward or backward and no weight. A new family adds variants here, not flags elsewhere.

use crate::families::Family;
use crate::layers::LatentWidths;
use slime_kernels::{DeltaHeads, Heads, RopeStyle};

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
    /// Norms multiply by one plus their weight.
    pub norm_plus_one: bool,
    /// Rotary embedding, one for all layers.
    pub rope: Rope,
    /// The head is the embedding, and has no tensor of its own.
    pub tied: bool,
    /// Longest sequence the model was made for.
    pub max_positions: usize,
    /// Standard deviation of fresh weights.
    pub init_std: f64,
    /// Beginnings of the names of tensors that the model's directory keeps and the network does not use: heads that
    /// predict several tokens.
    pub carried: Vec<String>,
}

/// One pre-norm layer: `x += attn(norm x)`, `x += ffn(norm x)`.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// How tokens look at each other.
    pub attn: Attention,
    /// What happens to each token.
    pub ffn: Ffn,
    /// What both parts add to the stream passes a norm of its own.
    pub sandwich: bool,
}

/// How tokens look at each other.
#[derive(Clone, Debug, PartialEq)]
pub enum Attention {
    /// Query heads in groups that share a key and value head.
    Grouped(GroupedAttention),
    /// Keys and values from one compressed row a token.
    Latent(LatentAttention),
    /// A memory of fixed size instead of keys and values.
    Delta(DeltaAttention),
}

/// Grouped-query causal attention, scaled by `1 / √dim`.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupedAttention {
    /// Number and width of the heads.
    pub heads: Heads,
    /// Whether q, k and v have biases.
    pub qkv_bias: bool,
    /// Whether every query and key head passes an RMSNorm before rotation.
    pub qk_norm: bool,
    /// Whether what comes out passes a sigmoid gate, which lies beside each query head.
    pub gated: bool,
}

/// A gated delta net: a short convolution, then a rule that corrects one matrix a head.
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaAttention {
    /// Heads and widths.
    pub heads: DeltaHeads,
    /// Tokens that the convolution spans.
    pub taps: usize,
    /// Projections are stored a key head at a time, `[q | k | v | z]` and `[b | a]`; else one after the other.
    pub by_key_head: bool,
}

/// What a layer leaves in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cached {
    /// Keys and values of each token.
    Keys(Heads),
    /// So many numbers, however many tokens there are; kept for every block of the cache.
    State(usize),
}

/// Multi-head latent attention.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentAttention {
    /// Number and widths of the heads, width of the compressed row.
    pub widths: LatentWidths,
    /// Width of the queries' bottleneck, where there is one.
    pub query_rank: Option<usize>,
    /// What scores are multiplied by before the softmax.
    pub scale: f64,
    /// Epsilon of the bottlenecks' norms, which is not the other norms'.
    pub bottleneck_eps: f64,
}

impl GroupedAttention {
    /// What scores are multiplied by before the softmax.
    pub fn scale(&self) -> f64 {
        1.0 / (self.heads.dim as f64).sqrt()
    }
}

impl Attention {
    /// What is cached when it serves.
    pub fn cached(&self) -> Cached {
        match self {
            Self::Grouped(attn) => Cached::Keys(attn.heads),
            Self::Latent(attn) => Cached::Keys(attn.widths.folded()),
            Self::Delta(attn) => Cached::State(attn.heads.state_len(attn.taps)),
        }
    }

    /// The heads of grouped-query attention, where it is that.
    pub fn grouped(&self) -> Option<&GroupedAttention> {
        match self {
            Self::Grouped(attn) => Some(attn),
            Self::Latent(_) | Self::Delta(_) => None,
        }
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
    /// The same, chosen among many by a router.
    Moe(MoeSpec),
}

/// A mixture of experts.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeSpec {
    /// How experts are chosen.
    pub routing: Routing,
    /// Width of an expert's gate and up.
    pub hidden: usize,
    /// Width of the MLP that every token passes besides, where there is one.
    pub shared: Option<usize>,
    /// Whether what that MLP gives passes a sigmoid gate, one a token.
    pub shared_gate: bool,
}

/// How a router chooses experts and weighs them. All of it in fp32 at least.
#[derive(Clone, Debug, PartialEq)]
pub struct Routing {
    /// Experts there are.
    pub experts: usize,
    /// Experts of each token.
    pub top_k: usize,
    /// What becomes of a logit.
    pub score: Score,
    /// A bias that chooses and does not weigh (DeepSeek's balancing without an auxiliary loss).
    pub bias: bool,
    /// The chosen scores are divided by their sum.
    pub renormalise: bool,
    /// Weights are multiplied by this.
    pub scale: f64,
    /// Experts come only from the best groups, where there are groups.
    pub groups: Option<ExpertGroups>,
}

/// A router's scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Score {
    /// Over all experts.
    Softmax,
    /// Of each expert alone.
    Sigmoid,
}

/// Groups of equally many experts; a group is as good as its best two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Groups there are.
    pub count: usize,
    /// Groups that experts are chosen from.
    pub kept: usize,
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
    /// YaRN (arXiv:2309.00071): pairs that turn often in the first context are kept, pairs that turn seldom are
    /// divided by `factor`, a ramp over the pairs lies between; cosines and sines are multiplied by `magnitude`.
    Yarn {
        /// Divisor of the slow frequencies.
        factor: f64,
        /// Turns in the first context from which a pair is kept.
        beta_fast: f64,
        /// Turns up to which a pair is divided.
        beta_slow: f64,
        /// The context the model was first trained on.
        original_max_positions: usize,
        /// The ramp begins and ends at whole pairs.
        truncate: bool,
        /// Of cosines and sines.
        magnitude: f64,
    },
}

impl Rope {
    /// Radians a position, one a pair: `[dims / 2]`. The rotation of pair `i` at position `p` is `p × f[i]`.
    pub fn inverse_frequencies(&self) -> Vec<f64> {
        let plain = |i: usize| self.base.powf(-2.0 * i as f64 / self.dims as f64);
        let pairs = self.dims / 2;
        match self.scaling {
            RopeScaling::None => (0..pairs).map(plain).collect(),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_positions,
            } => {
                let context = original_max_positions as f64;
                let scaled = |frequency: f64| {
                    let period = 2.0 * std::f64::consts::PI / frequency;
                    if period < context / high {
                        frequency
                    } else if period > context / low {
                        frequency / factor
                    } else {
                        let keep = (context / period - low) / (high - low);
                        (1.0 - keep) * frequency / factor + keep * frequency
                    }
                };
                (0..pairs).map(plain).map(scaled).collect()
            }
            RopeScaling::Yarn {
                factor,
                beta_fast,
                beta_slow,
                original_max_positions,
                truncate,
                ..
            } => {
                let context = original_max_positions as f64;
                // The pair that turns so often within the first context.
                let pair = |turns: f64| {
                    let period = context / (turns * 2.0 * std::f64::consts::PI);
                    self.dims as f64 * period.ln() / (2.0 * self.base.ln())
                };
                let (mut low, mut high) = (pair(beta_fast), pair(beta_slow));
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                let (low, mut high) = (low.max(0.0), high.min(self.dims as f64 - 1.0));
                if low == high {
                    high += 0.001; // a step, not a division by zero
                }
                let scaled = |i: usize| {
                    let divide = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    plain(i) / factor * divide + plain(i) * (1.0 - divide)
                };
                (0..pairs).map(scaled).collect()
            }
        }
    }

    /// What cosines and sines are multiplied by.
    pub fn magnitude(&self) -> f64 {
        match self.scaling {
            RopeScaling::Yarn { magnitude, .. } => magnitude,
            RopeScaling::None | RopeScaling::Llama3 { .. } => 1.0,
        }
    }
}

impl ModelSpec {
    /// Whether a tensor of this name is kept and not used.
    pub fn carries(&self, name: &str) -> bool {
        self.carried.iter().any(|start| name.starts_with(start))
    }

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
            let wrong = layer.attn.contradiction(self.rope.dims);
            if let Some(wrong) = wrong.or_else(|| layer.ffn.contradiction()) {
                return Some(wrong);
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

impl Attention {
    fn contradiction(&self, rotating: usize) -> Option<String> {
        match self {
            Self::Grouped(attn) => {
                let Heads { query, kv, dim } = attn.heads;
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
                (rotating == 0 || !rotating.is_multiple_of(2) || rotating > dim).then(|| {
                    format!("{rotating} of {dim} dimensions rotate, which is no number of pairs; see partial_rotary_factor")
                })
            }
            Self::Latent(attn) => {
                let w = attn.widths;
                let sizes = [
                    ("num_attention_heads", w.heads),
                    ("qk_nope_head_dim", w.nope),
                    ("qk_rope_head_dim", w.rope),
                    ("v_head_dim", w.value),
                    ("kv_lora_rank", w.rank),
                    ("q_lora_rank", attn.query_rank.unwrap_or(1)),
                ];
                if let Some((key, _)) = sizes.iter().find(|(_, n)| *n == 0) {
                    return Some(format!("{key} is 0"));
                }
                (w.rope % 2 != 0).then(|| {
                    format!(
                        "qk_rope_head_dim {} is not even, so its dimensions cannot rotate in pairs",
                        w.rope
                    )
                })
            }
            Self::Delta(attn) => {
                let h = attn.heads;
                let sizes = [
                    ("linear_num_key_heads", h.keys),
                    ("linear_num_value_heads", h.values),
                    ("linear_key_head_dim", h.key_dim),
                    ("linear_value_head_dim", h.value_dim),
                    ("linear_conv_kernel_dim", attn.taps),
                ];
                if let Some((key, _)) = sizes.iter().find(|(_, n)| *n == 0) {
                    return Some(format!("{key} is 0"));
                }
                (h.values % h.keys != 0).then(|| {
                    format!(
                        "linear_num_value_heads {} is not a multiple of linear_num_key_heads {}",
                        h.values, h.keys
                    )
                })
            }
        }
    }
}

impl Ffn {
    fn contradiction(&self) -> Option<String> {
        let moe = match self {
            Self::SwiGlu { hidden } => {
                return (*hidden == 0).then(|| "intermediate_size is 0".into());
            }
            Self::Moe(moe) => moe,
        };
        let Routing {
            experts,
            top_k,
            groups,
            ..
        } = moe.routing;
        if moe.hidden == 0 {
            return Some("moe_intermediate_size is 0".into());
        }
        if top_k == 0 || top_k > experts {
            return Some(format!("num_experts_per_tok {top_k} of {experts} experts"));
        }
        let ExpertGroups { count, kept } = groups?;
        let fits = count > 0 && experts % count == 0 && experts / count >= 2;
        (!fits || kept == 0 || kept > count || kept * (experts / count) < top_k).then(|| {
            format!(
                "n_group {count} with topk_group {kept} does not divide {experts} experts into groups from which \
                 {top_k} can be chosen"
            )
        })
    }
}
