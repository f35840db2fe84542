//! DeepSeek-V3, V3.1 and R1, Moonlight, Kimi-K2: multi-head latent attention; the first layers dense, then experts
//! chosen by sigmoids and a bias from the best groups, and one that all share; YaRN.

use super::{Family, HfConfig};
use crate::Result;
use crate::params::ParamKind::*;
use crate::spec::{Attention, LayerSpec, ModelSpec};
use serde_json::{Value, json};
use slime_kernels::RopeStyle;

const BASE: Family = Family {
    model_type: "deepseek_v3",
    architecture: "DeepseekV3ForCausalLM",
    gguf_architecture: None,
    prefix: "model.",
    names: &[],
    from_hf,
    tiny,
};

pub(super) static FAMILY: Family = BASE;

/// Without a bottleneck of queries, their projection has the plain name.
static PLAIN_QUERY: Family = Family {
    names: &[(QueryUp, &["model.layers.{l}.self_attn.q_proj.weight"])],
    ..BASE
};

fn from_hf(c: &HfConfig) -> Result<ModelSpec> {
    c.refuse_common("deepseek_v3")?;
    let style = match c.flag_or("rope_interleave", true)? {
        true => RopeStyle::Interleaved,
        false => RopeStyle::Half,
    };
    let (attn, rope) = c.latent("deepseek_v3", style)?;
    let family = match attn.query_rank {
        Some(_) => &FAMILY,
        None => &PLAIN_QUERY,
    };
    let layer = |ffn| LayerSpec {
        attn: Attention::Latent(attn.clone()),
        ffn,
        sandwich: false,
    };
    let ffns = c.sigmoid_moe("deepseek_v3", 3)?;
    c.decoder(family, ffns.into_iter().map(layer).collect(), rope, 4096)
}

fn tiny() -> Value {
    json!({
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 67, "hidden_size": 32,
        "intermediate_size": 24, "moe_intermediate_size": 12, "num_hidden_layers": 2, "first_k_dense_replace": 1,
        "num_attention_heads": 3, "num_key_value_heads": 3, "q_lora_rank": 20, "kv_lora_rank": 16,
        "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 12, "n_routed_experts": 8,
        "num_experts_per_tok": 3, "n_shared_experts": 1, "n_group": 4, "topk_group": 2, "norm_topk_prob": true,
        "routed_scaling_factor": 2.5, "num_nextn_predict_layers": 0, "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "hidden_act": "silu", "rope_theta": 10000.0,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
            "mscale_all_dim": 0.7, "original_max_position_embeddings": 32},
    })
}
