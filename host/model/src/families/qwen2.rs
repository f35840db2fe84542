//! Qwen2 and Qwen2.5, dense: Llama with biases on q, k and v.

use super::{Family, HfConfig};
use crate::Result;
use crate::params::ParamKind::*;
use crate::spec::{Attention, Ffn, LayerSpec, ModelSpec};
use serde_json::{Value, json};
use slime_kernels::Heads;

pub(super) static FAMILY: Family = Family {
    model_type: "qwen2",
    architecture: "Qwen2ForCausalLM",
    gguf_architecture: "qwen2",
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
        (
            QkvBias,
            &[
                "model.layers.{l}.self_attn.q_proj.bias",
                "model.layers.{l}.self_attn.k_proj.bias",
                "model.layers.{l}.self_attn.v_proj.bias",
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
    c.refuse_common("qwen2")?;
    let num_layers = c.count("num_hidden_layers")?;
    c.refuse_sliding_window("qwen2", num_layers)?;
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
            qkv_bias: true,
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
        layers: vec![layer; num_layers],
        norm_eps: c.number_or("rms_norm_eps", 1e-6)?,
        rope: c.rope("qwen2", heads.dim)?,
        tied: c.flag_or("tie_word_embeddings", false)?,
        max_positions: c.count_if_any("max_position_embeddings")?.unwrap_or(32_768),
        init_std: c.number_or("initializer_range", 0.02)?,
    })
}

fn tiny() -> Value {
    json!({
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 67, "hidden_size": 32,
        "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "tie_word_embeddings": true, "hidden_act": "silu",
        "rope_theta": 1000000.0, "use_sliding_window": false,
    })
}
