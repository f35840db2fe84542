//! Qwen3-Next: three gated delta nets, then one attention with a gate, and so on; norms around one; a quarter of each
//! head rotates; experts beside one that all share through a gate.

use super::{Family, HfConfig};
use crate::Result;
use crate::params::ParamKind::*;
use crate::spec::ModelSpec;
use serde_json::{Value, json};

pub(super) static FAMILY: Family = Family {
    model_type: "qwen3_next",
    architecture: "Qwen3NextForCausalLM",
    gguf_architecture: None,
    prefix: "model.",
    names: &[
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
    from_hf,
    tiny,
};

fn from_hf(c: &HfConfig) -> Result<ModelSpec> {
    let shared = c
        .count_if_any("shared_expert_intermediate_size")?
        .unwrap_or(512);
    c.hybrid(&FAMILY, c.softmax_moe(true, Some(shared))?, true)
}

fn tiny() -> Value {
    json!({
        "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "vocab_size": 67, "hidden_size": 32,
        "intermediate_size": 24, "moe_intermediate_size": 10, "shared_expert_intermediate_size": 14,
        "num_hidden_layers": 4, "full_attention_interval": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6,
        "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4, "num_experts": 5, "num_experts_per_tok": 2,
        "norm_topk_prob": true, "mlp_only_layers": [], "decoder_sparse_step": 1, "partial_rotary_factor": 0.25,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "hidden_act": "silu",
        "rope_theta": 10000000.0,
    })
}
