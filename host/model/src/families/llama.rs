//! Llama 2, 3 and 3.1, SmolLM2: grouped-query attention without biases, SwiGLU.

use super::{Family, HfConfig};
use crate::Result;
use crate::spec::{Attention, GroupedAttention, LayerSpec, ModelSpec};
use serde_json::{Value, json};

pub(super) static FAMILY: Family = Family {
    model_type: "llama",
    architecture: "LlamaForCausalLM",
    gguf_architecture: Some("llama"),
    prefix: "model.",
    names: &[],
    from_hf,
    tiny,
};

fn from_hf(c: &HfConfig) -> Result<ModelSpec> {
    c.refuse_common("llama")?;
    c.only("llama", "attention_bias", &[false.into()])?;
    let heads = c.heads(None)?;
    let layer = LayerSpec {
        attn: Attention::Grouped(GroupedAttention {
            heads,
            qkv_bias: false,
            qk_norm: false,
            gated: false,
        }),
        ffn: c.swiglu()?,
        sandwich: false,
    };
    let layers = vec![layer; c.count("num_hidden_layers")?];
    c.decoder(&FAMILY, layers, c.rope("llama", heads.dim)?, 2048)
}

fn tiny() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 67, "hidden_size": 32,
        "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "hidden_act": "silu",
        "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
    })
}
