//! GLM-5: latent attention and experts as DeepSeek-V3 has them, and an indexer that lets each token see the
//! `index_topk` most interesting others.
//!
//! In a sequence of at most `index_topk` tokens the indexer chooses all of them, so there it changes nothing. That is
//! what is computed; longer sequences are refused. The indexer has no gradient and is kept as it is.

use super::{Family, HfConfig};
use crate::Result;
use crate::spec::{Attention, LayerSpec, ModelSpec};
use serde_json::{Value, json};
use slime_kernels::RopeStyle;

pub(super) static FAMILY: Family = Family {
    model_type: "glm_moe_dsa",
    architecture: "GlmMoeDsaForCausalLM",
    gguf_architecture: None,
    prefix: "model.",
    names: &[],
    from_hf,
    tiny,
};

fn from_hf(c: &HfConfig) -> Result<ModelSpec> {
    c.refuse_unknown("glm_moe_dsa")?;
    let (attn, rope) = c.latent("glm_moe_dsa", RopeStyle::Interleaved)?;
    c.count("q_lora_rank")?;
    let layer = |ffn| LayerSpec {
        attn: Attention::Latent(attn.clone()),
        ffn,
        sandwich: false,
    };
    let layers = c
        .sigmoid_moe("glm_moe_dsa", 3)?
        .into_iter()
        .map(layer)
        .collect();
    let mut spec = c.decoder(&FAMILY, layers, rope, 202_752)?;
    spec.norm_eps = c.number_or("rms_norm_eps", 1e-5)?;
    spec.max_positions = spec
        .max_positions
        .min(c.count_if_any("index_topk")?.unwrap_or(2048));
    let indexer = |layer| format!("model.layers.{layer}.self_attn.indexer.");
    spec.carried.extend((0..spec.layers.len()).map(indexer));
    Ok(spec)
}

fn tiny() -> Value {
    json!({
        "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "vocab_size": 67,
        "hidden_size": 32, "intermediate_size": 24, "moe_intermediate_size": 12, "num_hidden_layers": 2,
        "first_k_dense_replace": 1, "num_attention_heads": 3, "num_key_value_heads": 3, "q_lora_rank": 20,
        "kv_lora_rank": 16, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 16, "n_routed_experts": 6,
        "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": true,
        "routed_scaling_factor": 2.5, "index_topk": 128, "index_head_dim": 8, "index_n_heads": 2,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "hidden_act": "silu",
        "rope_theta": 1000000.0,
    })
}
