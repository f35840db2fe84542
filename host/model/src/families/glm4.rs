//! GLM-4-0414 (9B, 32B), dense: norms before and after both halves of a layer, neighbouring pairs of half of each head
//! rotate, gate and up are one tensor.

use super::{Family, HfConfig};
use crate::Result;
use crate::params::ParamKind::*;
use crate::spec::{Attention, GroupedAttention, LayerSpec, ModelSpec};
use serde_json::{Value, json};
use slime_kernels::RopeStyle;

pub(super) static FAMILY: Family = Family {
    model_type: "glm4",
    architecture: "Glm4ForCausalLM",
    gguf_architecture: None,
    prefix: "model.",
    names: &[
        (
            AttnPostNorm,
            &["model.layers.{l}.post_self_attn_layernorm.weight"],
        ),
        (GateUp, &["model.layers.{l}.mlp.gate_up_proj.weight"]),
        (FfnPostNorm, &["model.layers.{l}.post_mlp_layernorm.weight"]),
    ],
    from_hf,
    tiny,
};

fn from_hf(c: &HfConfig) -> Result<ModelSpec> {
    c.refuse_common("glm4")?;
    let heads = c.heads(Some(128))?;
    let layer = LayerSpec {
        attn: Attention::Grouped(GroupedAttention {
            heads,
            qkv_bias: c.flag_or("attention_bias", true)?,
            qk_norm: false,
            gated: false,
        }),
        ffn: c.swiglu()?,
        sandwich: true,
    };
    let layers = vec![layer; c.count("num_hidden_layers")?];
    let rope = c.rope_with("glm4", heads.dim, Some(0.5), RopeStyle::Interleaved)?;
    let spec = c.decoder(&FAMILY, layers, rope, 131_072)?;
    let norm_eps = c.number_or("rms_norm_eps", 1.5625e-7)?;
    Ok(ModelSpec { norm_eps, ..spec })
}

fn tiny() -> Value {
    json!({
        "architectures": ["Glm4ForCausalLM"], "model_type": "glm4", "vocab_size": 67, "hidden_size": 32,
        "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2,
        "head_dim": 12, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "tie_word_embeddings": false,
        "hidden_act": "silu", "attention_bias": true, "partial_rotary_factor": 0.5, "rope_theta": 10000.0,
    })
}
