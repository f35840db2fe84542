//! Llama 2, 3 and 3.1, SmolLM2: grouped-query attention without biases, SwiGLU.

use super::{Family, HfConfig};
use crate::Result;
use crate::params::ParamKind::*;
use crate::spec::{Attention, Ffn, LayerSpec, ModelSpec};
use serde_json::{Value, json};
use slime_kernels::Heads;

pub(super) static FAMILY: Family = Family {
    model_type: "llama",
    architecture: "LlamaForCausalLM",
    gguf_architecture: "llama",
    names: &[
        (Embedding, &["model.embed_tokens.weight"]),
        (AttnNorm, &["model.layers.{l}.input_layernorm.weight"]),
        (
            Qkv,
            &[
                "model.layers.{l}.self_attn.q_proj.weight",
                "model.layers.{l}.self_attn.k_proj.weight",
                "model.layers.{l}.self_attn.v_proj.weight",
            ],
        ),
        (AttnOut, &["model.layers.{l}.self_attn.o_proj.weight"]),
        (
            FfnNorm,
            &["model.layers.{l}.post_attention_layernorm.weight"],
        ),
        (
            GateUp,
            &[
                "model.layers.{l}.mlp.gate_proj.weight",
                "model.layers.{l}.mlp.up_proj.weight",
            ],
        ),
        (Down, &["model.layers.{l}.mlp.down_proj.weight"]),
        (FinalNorm, &["model.norm.weight"]),
        (Head, &["lm_head.weight"]),
    ],
    from_hf,
    tiny,
};

fn from_hf(c: &HfConfig) -> Result<ModelSpec> {
    c.refuse_common("llama")?;
    c.only("llama", "attention_bias", &[false.into()])?;
    let hidden = c.count("hidden_size")?;
    let query = c.count("num_attention_heads")?;
    let heads = Heads {
        query,
        kv: c.count_if_any("num_key_value_heads")?.unwrap_or(query),
        dim: c.count_if_any("head_dim")?.unwrap_or(hidden / query.max(1)),
    };
    let layer = LayerSpec {
        attn: Attention {
            heads,
            qkv_bias: false,
            qk_norm: false,
        },
        ffn: Ffn::SwiGlu {
            hidden: c.count("intermediate_size")?,
        },
    };
    Ok(ModelSpec {
        family: &FAMILY,
        vocab: c.count("vocab_size")?,
        hidden,
        layers: vec![layer; c.count("num_hidden_layers")?],
        norm_eps: c.number_or("rms_norm_eps", 1e-6)?,
        rope: c.rope("llama", heads.dim)?,
        tied: c.flag_or("tie_word_embeddings", false)?,
        max_positions: c.count_if_any("max_position_embeddings")?.unwrap_or(2048),
        init_std: c.number_or("initializer_range", 0.02)?,
    })
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
