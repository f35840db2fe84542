//! GLM-4.5, 4.6 and 4.7: the first layers dense, then experts chosen by sigmoids and a bias, and one that all share;
//! half of each head rotates; norms on query and key heads in the large ones.

use super::{Family, HfConfig};
use crate::Result;
use crate::spec::{Attention, GroupedAttention, LayerSpec, ModelSpec};
use serde_json::{Value, json};
use slime_kernels::RopeStyle;

pub(super) static FAMILY: Family = Family {
    model_type: "glm4_moe",
    architecture: "Glm4MoeForCausalLM",
    gguf_architecture: None,
    prefix: "model.",
    names: &[],
    from_hf,
    tiny,
};

fn from_hf(c: &HfConfig) -> Result<ModelSpec> {
    c.refuse_common("glm4_moe")?;
    let heads = c.heads(None)?;
    let attn = GroupedAttention {
        heads,
        qkv_bias: c.flag_or("attention_bias", false)?,
        qk_norm: c.flag_or("use_qk_norm", false)?,
        gated: false,
    };
    let layer = |ffn| LayerSpec {
        attn: Attention::Grouped(attn.clone()),
        ffn,
        sandwich: false,
    };
    let layers = c
        .sigmoid_moe("glm4_moe", 1)?
        .into_iter()
        .map(layer)
        .collect();
    let rope = c.rope_with("glm4_moe", heads.dim, Some(0.5), RopeStyle::Half)?;
    let spec = c.decoder(&FAMILY, layers, rope, 131_072)?;
    let norm_eps = c.number_or("rms_norm_eps", 1e-5)?;
    Ok(ModelSpec { norm_eps, ..spec })
}

fn tiny() -> Value {
    json!({
        "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "vocab_size": 67, "hidden_size": 32,
        "intermediate_size": 24, "moe_intermediate_size": 12, "num_hidden_layers": 2, "first_k_dense_replace": 1,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 12, "attention_bias": true, "use_qk_norm": true,
        "partial_rotary_factor": 0.5, "rope_theta": 1000000.0, "n_routed_experts": 6, "num_experts_per_tok": 2,
        "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": true, "routed_scaling_factor": 2.5,
        "num_nextn_predict_layers": 0, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": false, "hidden_act": "silu",
    })
}
