//! What several families read from `config.json` in the same way: heads, feed-forward parts, the whole decoder.

use super::{Family, HfConfig};
use crate::layers::LatentWidths;
use crate::spec::{
    Attention, DeltaAttention, ExpertGroups, Ffn, GroupedAttention, LatentAttention, LayerSpec,
    ModelSpec, MoeSpec, Rope, Routing, Score,
};
use crate::{Error, Result};
use slime_kernels::{DeltaHeads, Heads, RopeStyle};

impl HfConfig {
    /// Heads of grouped-query attention. Without `head_dim`, their width is `default`, else `hidden / heads`.
    pub(super) fn heads(&self, default: Option<usize>) -> Result<Heads> {
        let query = self.count("num_attention_heads")?;
        let dim = match (self.count_if_any("head_dim")?, default) {
            (Some(dim), _) | (None, Some(dim)) => dim,
            (None, None) => self.count("hidden_size")? / query.max(1),
        };
        Ok(Heads {
            query,
            kv: self.count_if_any("num_key_value_heads")?.unwrap_or(query),
            dim,
        })
    }

    /// A dense feed-forward part.
    pub(super) fn swiglu(&self) -> Result<Ffn> {
        Ok(Ffn::SwiGlu {
            hidden: self.count("intermediate_size")?,
        })
    }

    /// The feed-forward part of every layer of DeepSeek-V3's kind: `first_k_dense_replace` dense ones, then experts
    /// scored by sigmoids, beside a shared one.
    pub(super) fn sigmoid_moe(&self, family: &'static str, dense: usize) -> Result<Vec<Ffn>> {
        self.only(family, "scoring_func", &["sigmoid".into()])?;
        self.only(family, "topk_method", &["noaux_tc".into()])?;
        self.only(family, "moe_layer_freq", &[1.into()])?;
        let width = self.count("moe_intermediate_size")?;
        let shared = self.count_if_any("n_shared_experts")?.unwrap_or(1);
        let experts = match self.count_if_any("n_routed_experts")? {
            Some(n) => n,
            None => self.count("num_local_experts")?,
        };
        let moe = MoeSpec {
            routing: Routing {
                experts,
                top_k: self.count("num_experts_per_tok")?,
                score: Score::Sigmoid,
                bias: true,
                renormalise: self.flag_or("norm_topk_prob", true)?,
                scale: self.number_or("routed_scaling_factor", 1.0)?,
                groups: match self.count_if_any("n_group")?.unwrap_or(1) {
                    1 => None,
                    count => Some(ExpertGroups {
                        count,
                        kept: self.count("topk_group")?,
                    }),
                },
            },
            hidden: width,
            shared: (shared > 0).then_some(shared * width),
            shared_gate: false,
        };
        let dense = self.count_if_any("first_k_dense_replace")?.unwrap_or(dense);
        let kinds = self.texts("mlp_layer_types")?;
        (0..self.count("num_hidden_layers")?)
            .map(|layer| {
                let is_dense = match &kinds {
                    Some(kinds) => kinds.get(layer).is_some_and(|kind| kind == "dense"),
                    None => layer < dense,
                };
                if is_dense {
                    self.swiglu()
                } else {
                    Ok(Ffn::Moe(moe.clone()))
                }
            })
            .collect()
    }

    /// The feed-forward part of every layer of Qwen's kind: experts scored by a softmax over all of them, but for some
    /// dense layers. `shared` is the width of an MLP that all tokens pass through a gate.
    pub(super) fn softmax_moe(&self, renormalise: bool, shared: Option<usize>) -> Result<Vec<Ffn>> {
        let experts = match self.count_if_any("num_experts")? {
            Some(n) => n,
            None => self.count("num_local_experts")?,
        };
        let moe = MoeSpec {
            routing: Routing {
                experts,
                top_k: self.count("num_experts_per_tok")?,
                score: Score::Softmax,
                bias: false,
                renormalise: self.flag_or("norm_topk_prob", renormalise)?,
                scale: 1.0,
                groups: None,
            },
            hidden: self.count("moe_intermediate_size")?,
            shared,
            shared_gate: shared.is_some(),
        };
        let step = self
            .count_if_any("decoder_sparse_step")?
            .unwrap_or(1)
            .max(1);
        let dense = self.counts("mlp_only_layers")?;
        (0..self.count("num_hidden_layers")?)
            .map(|layer| {
                if experts > 0 && !dense.contains(&layer) && (layer + 1) % step == 0 {
                    Ok(Ffn::Moe(moe.clone()))
                } else {
                    self.swiglu()
                }
            })
            .collect()
    }

    /// Multi-head latent attention and its rope, for families that say it as DeepSeek-V3 does.
    pub(super) fn latent(
        &self,
        family: &'static str,
        style: RopeStyle,
    ) -> Result<(LatentAttention, Rope)> {
        self.only(family, "attention_bias", &[false.into()])?;
        let widths = LatentWidths {
            heads: self.count("num_attention_heads")?,
            nope: self.count("qk_nope_head_dim")?,
            rope: self.count("qk_rope_head_dim")?,
            value: self.count("v_head_dim")?,
            rank: self.count("kv_lora_rank")?,
        };
        let rope = self.rope_with(family, widths.rope, None, style)?;
        let attn = LatentAttention {
            widths,
            query_rank: self.count_if_any("q_lora_rank")?,
            scale: self.yarn_softmax_factor()? / ((widths.nope + widths.rope) as f64).sqrt(),
            bottleneck_eps: 1e-6,
        };
        Ok((attn, rope))
    }

    /// A decoder of Qwen3-Next's kind: gated delta nets, now and then one attention with a gate; norms around one; a
    /// quarter of each head rotates.
    pub(super) fn hybrid(
        &self,
        family: &'static Family,
        ffns: Vec<Ffn>,
        by_key_head: bool,
    ) -> Result<ModelSpec> {
        let name = family.model_type;
        self.refuse_unknown(name)?;
        self.only(name, "attention_bias", &[false.into()])?;
        let heads = self.heads(Some(256))?;
        let full = Attention::Grouped(GroupedAttention {
            heads,
            qkv_bias: false,
            qk_norm: true,
            gated: true,
        });
        let count = |key: &str, default| Ok::<_, Error>(self.count_if_any(key)?.unwrap_or(default));
        let linear = Attention::Delta(DeltaAttention {
            heads: DeltaHeads {
                keys: count("linear_num_key_heads", 16)?,
                values: count("linear_num_value_heads", 32)?,
                key_dim: count("linear_key_head_dim", 128)?,
                value_dim: count("linear_value_head_dim", 128)?,
            },
            taps: count("linear_conv_kernel_dim", 4)?,
            by_key_head,
        });
        let kinds = self.linear_layers(name, ffns.len())?;
        let layer = |(ffn, is_linear)| LayerSpec {
            attn: if is_linear { &linear } else { &full }.clone(),
            ffn,
            sandwich: false,
        };
        let layers = ffns.into_iter().zip(kinds).map(layer).collect();
        let rope = self.rope_with(name, heads.dim, Some(0.25), RopeStyle::Half)?;
        Ok(ModelSpec {
            norm_plus_one: true,
            carried: vec!["mtp.".into()],
            ..self.decoder(family, layers, rope, 32_768)?
        })
    }

    /// The text model that a configuration of several models describes as its `text_config`. Tensors of the others are
    /// kept.
    pub(super) fn text_of(
        &self,
        family: &'static Family,
        spec: fn(&Self, &'static Family) -> Result<ModelSpec>,
    ) -> Result<ModelSpec> {
        let text = self.inner("text_config")?;
        let mut spec = spec(&text, family)?;
        if text.get("tie_word_embeddings").is_none() {
            spec.tied = self.flag_or("tie_word_embeddings", false)?;
        }
        spec.carried.push("model.visual.".into());
        Ok(spec)
    }

    /// A decoder of these layers; the rest is said in the same way everywhere.
    pub(super) fn decoder(
        &self,
        family: &'static Family,
        layers: Vec<LayerSpec>,
        rope: Rope,
        max_positions: usize,
    ) -> Result<ModelSpec> {
        let positions = self.count_if_any("max_position_embeddings")?;
        let predictors = self.count_if_any("num_nextn_predict_layers")?.unwrap_or(0);
        let first = layers.len();
        Ok(ModelSpec {
            family,
            vocab: self.count("vocab_size")?,
            hidden: self.count("hidden_size")?,
            layers,
            norm_eps: self.number_or("rms_norm_eps", 1e-6)?,
            norm_plus_one: false,
            rope,
            tied: self.flag_or("tie_word_embeddings", false)?,
            max_positions: positions.unwrap_or(max_positions),
            init_std: self.number_or("initializer_range", 0.02)?,
            carried: (first..first + predictors)
                .map(|layer| format!("model.layers.{layer}."))
                .collect(),
        })
    }
}
