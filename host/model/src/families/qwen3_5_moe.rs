//! Qwen3.5 and 3.6 with experts: Qwen3-Next's layers, projections one after the other.
//!
//! Published directories hold a vision model too; its tensors are kept, and only text is computed.

use super::{Family, HfConfig};
use crate::Result;
use crate::params::ParamKind::*;
use crate::spec::ModelSpec;
use serde_json::{Value, json};

const TEXT: Family = Family {
    model_type: "qwen3_5_moe_text",
    architecture: "Qwen3_5MoeForCausalLM",
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
        (
            SharedGateUp,
            &[
                "model.layers.{l}.mlp.shared_expert.gate_proj.weight",
                "model.layers.{l}.mlp.shared_expert.up_proj.weight",
            ],
        ),
        (
            SharedDown,
            &["model.layers.{l}.mlp.shared_expert.down_proj.weight"],
        ),
    ],
    from_hf: |c| spec(c, &FAMILY),
    tiny,
};

pub(super) static FAMILY: Family = TEXT;

/// The text model inside a published directory, whose experts are one tensor a layer.
pub(super) static PUBLISHED: Family = Family {
    model_type: "qwen3_5_moe",
    architecture: "Qwen3_5MoeForConditionalGeneration",
    prefix: "model.language_model.",
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
        (
            SharedGateUp,
            &[
                "model.layers.{l}.mlp.shared_expert.gate_proj.weight",
                "model.layers.{l}.mlp.shared_expert.up_proj.weight",
            ],
        ),
        (
            SharedDown,
            &["model.layers.{l}.mlp.shared_expert.down_proj.weight"],
        ),
        (ExpertGateUp, &["model.layers.{l}.mlp.experts.gate_up_proj"]),
        (ExpertDown, &["model.layers.{l}.mlp.experts.down_proj"]),
    ],
    from_hf: |c| c.text_of(&PUBLISHED, spec),
    tiny: || super::around_text(&PUBLISHED, tiny()),
    ..TEXT
};

fn spec(c: &HfConfig, family: &'static Family) -> Result<ModelSpec> {
    // Its router always renormalises, whatever the configuration says.
    c.only(family.model_type, "norm_topk_prob", &[true.into()])?;
    let shared = c
        .count_if_any("shared_expert_intermediate_size")?
        .unwrap_or(512);
    c.hybrid(family, c.softmax_moe(true, Some(shared))?, false)
}

fn tiny() -> Value {
    json!({
        "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", "vocab_size": 67,
        "hidden_size": 32, "moe_intermediate_size": 10, "shared_expert_intermediate_size": 14, "num_experts": 5,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 4, "full_attention_interval": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6,
        "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4, "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": false, "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25},
    })
}
