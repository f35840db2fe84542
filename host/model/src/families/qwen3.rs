//! Qwen3, dense: an RMSNorm on every query and key head, heads whose width is not `hidden / heads`.

use super::{Family, HfConfig};
use crate::Result;
use crate::spec::{Attention, GroupedAttention, LayerSpec, ModelSpec};
use serde_json::{Value, json};

pub(super) static FAMILY: Family = Family {
    model_type: "qwen3",
    architecture: "Qwen3ForCausalLM",
    gguf_architecture: Some("qwen3"),
    prefix: "model.",
    names: &[],
    from_hf,
    tiny,
};

fn from_hf(c: &HfConfig) -> Result<ModelSpec> {
    c.refuse_common("qwen3")?;
    c.only("qwen3", "attention_bias", &[false.into()])?;
    let num_layers = c.count("num_hidden_layers")?;
    c.refuse_sliding_window("qwen3", num_layers)?;
    let heads = c.heads(Some(128))?;
    let layer = LayerSpec {
        attn: Attention::Grouped(GroupedAttention {
            heads,
            qkv_bias: false,
            qk_norm: true,
            gated: false,
        }),
        ffn: c.swiglu()?,
        sandwich: false,
    };
    let rope = c.rope("qwen3", heads.dim)?;
    c.decoder(&FAMILY, vec![layer; num_layers], rope, 32_768)
}

fn tiny() -> Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 67, "hidden_size": 32,
        "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 12, "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "tie_word_embeddings": false,
        "hidden_act": "silu", "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        "use_sliding_window": false,
    })
}
