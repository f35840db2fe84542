//! Qwen3-MoE (30B-A3B, 235B-A22B): Qwen3's attention; experts chosen by a softmax over all of them.

use super::{Family, HfConfig};
use crate::Result;
use crate::spec::{Attention, GroupedAttention, LayerSpec, ModelSpec};
use serde_json::{Value, json};

pub(super) static FAMILY: Family = Family {
    model_type: "qwen3_moe",
    architecture: "Qwen3MoeForCausalLM",
    gguf_architecture: None,
    prefix: "model.",
    names: &[],
    from_hf,
    tiny,
};

fn from_hf(c: &HfConfig) -> Result<ModelSpec> {
    c.refuse_common("qwen3_moe")?;
    let num_layers = c.count("num_hidden_layers")?;
    c.refuse_sliding_window("qwen3_moe", num_layers)?;
    c.only("qwen3_moe", "attention_bias", &[false.into()])?;
    let heads = c.heads(None)?;
    let layer = |ffn| LayerSpec {
        attn: Attention::Grouped(GroupedAttention {
            heads,
            qkv_bias: false,
            qk_norm: true,
            gated: false,
        }),
        ffn,
        sandwich: false,
    };
    let layers = c.softmax_moe(false, None)?.into_iter().map(layer).collect();
    c.decoder(&FAMILY, layers, c.rope("qwen3_moe", heads.dim)?, 32_768)
}

fn tiny() -> Value {
    json!({
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 67, "hidden_size": 32,
        "intermediate_size": 24, "moe_intermediate_size": 12, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 12, "num_experts": 6, "num_experts_per_tok": 2, "norm_topk_prob": true,
        "mlp_only_layers": [1], "decoder_sparse_step": 1, "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": false, "hidden_act": "silu", "rope_theta": 1000000.0,
    })
}
