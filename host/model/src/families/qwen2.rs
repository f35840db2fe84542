//! Qwen2 and Qwen2.5, dense: Llama with biases on q, k and v.

use super::{Family, HfConfig};
use crate::Result;
use crate::spec::{Attention, GroupedAttention, LayerSpec, ModelSpec};
use serde_json::{Value, json};

pub(super) static FAMILY: Family = Family {
    model_type: "qwen2",
    architecture: "Qwen2ForCausalLM",
    gguf_architecture: Some("qwen2"),
    prefix: "model.",
    names: &[],
    from_hf,
    tiny,
};

fn from_hf(c: &HfConfig) -> Result<ModelSpec> {
    c.refuse_common("qwen2")?;
    let num_layers = c.count("num_hidden_layers")?;
    c.refuse_sliding_window("qwen2", num_layers)?;
    let heads = c.heads(None)?;
    let layer = LayerSpec {
        attn: Attention::Grouped(GroupedAttention {
            heads,
            qkv_bias: true,
            qk_norm: false,
            gated: false,
        }),
        ffn: c.swiglu()?,
        sandwich: false,
    };
    let rope = c.rope("qwen2", heads.dim)?;
    c.decoder(&FAMILY, vec![layer; num_layers], rope, 32_768)
}

fn tiny() -> Value {
    json!({
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 67, "hidden_size": 32,
        "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "tie_word_embeddings": true, "hidden_act": "silu",
        "rope_theta": 1000000.0, "use_sliding_window": false,
    })
}
