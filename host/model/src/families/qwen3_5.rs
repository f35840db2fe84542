//! Qwen3.5 and 3.6, dense: Qwen3-Next's layers with plain MLPs, projections one after the other.
//!
//! Published directories hold a vision model too; its tensors are kept, and only text is computed.

use super::{Family, HfConfig};
use crate::Result;
use crate::params::ParamKind::*;
use crate::spec::ModelSpec;
use serde_json::{Value, json};

const TEXT: Family = Family {
    model_type: "qwen3_5_text",
    architecture: "Qwen3_5ForCausalLM",
    gguf_architecture: None,
    prefix: "model.",
    names: &[
        (
            DeltaIn,
            &[
                "model.layers.{l}.linear_attn.in_proj_qkv.weight",
                "model.layers.{l}.linear_attn.in_proj_z.weight",
            ],
        ),
        (
            DeltaGates,
            &[
                "model.layers.{l}.linear_attn.in_proj_b.weight",
                "model.layers.{l}.linear_attn.in_proj_a.weight",
            ],
        ),
    ],
    from_hf: |c| spec(c, &FAMILY),
    tiny,
};

pub(super) static FAMILY: Family = TEXT;

/// The text model inside a published directory.
pub(super) static PUBLISHED: Family = Family {
    model_type: "qwen3_5",
    architecture: "Qwen3_5ForConditionalGeneration",
    prefix: "model.language_model.",
    from_hf: |c| c.text_of(&PUBLISHED, spec),
    tiny: || super::around_text(&PUBLISHED, tiny()),
    ..TEXT
};

fn spec(c: &HfConfig, family: &'static Family) -> Result<ModelSpec> {
    let ffn = c.swiglu()?;
    c.hybrid(family, vec![ffn; c.count("num_hidden_layers")?], false)
}

fn tiny() -> Value {
    json!({
        "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "vocab_size": 67, "hidden_size": 32,
        "intermediate_size": 24,
        "num_hidden_layers": 4, "full_attention_interval": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6,
        "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4, "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": false, "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25},
    })
}
