//! GLM-4.7-Flash: DeepSeek-V3's attention and experts without YaRN and groups.

use super::{Family, HfConfig};
use crate::Result;
use crate::spec::{Attention, LayerSpec, ModelSpec};
use serde_json::{Value, json};
use slime_kernels::RopeStyle;

pub(super) static FAMILY: Family = Family {
    model_type: "glm4_moe_lite",
    architecture: "Glm4MoeLiteForCausalLM",
    gguf_architecture: None,
    prefix: "model.",
    names: &[],
    from_hf,
    tiny,
};

fn from_hf(c: &HfConfig) -> Result<ModelSpec> {
    c.refuse_common("glm4_moe_lite")?;
    let style = match c.flag_or("rope_interleave", true)? {
        true => RopeStyle::Interleaved,
        false => RopeStyle::Half,
    };
    let (attn, rope) = c.latent("glm4_moe_lite", style)?;
    c.count("q_lora_rank")?;
    let layer = |ffn| LayerSpec {
        attn: Attention::Latent(attn.clone()),
        ffn,
        sandwich: false,
    };
    let layers = c
        .sigmoid_moe("glm4_moe_lite", 1)?
        .into_iter()
        .map(layer)
        .collect();
    let spec = c.decoder(&FAMILY, layers, rope, 202_752)?;
    let norm_eps = c.number_or("rms_norm_eps", 1e-5)?;
    Ok(ModelSpec { norm_eps, ..spec })
}

fn tiny() -> Value {
    json!({
        "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite", "vocab_size": 67,
        "hidden_size": 32, "intermediate_size": 24, "moe_intermediate_size": 12, "num_hidden_layers": 2,
        "num_attention_heads": 3, "num_key_value_heads": 3, "q_lora_rank": 20, "kv_lora_rank": 16,
        "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 18, "n_routed_experts": 6,
        "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": true,
        "routed_scaling_factor": 1.8, "num_nextn_predict_layers": 0, "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "hidden_act": "silu", "rope_theta": 1000000.0,
    })
}
