//! The names that most families share, as transformers writes them. A family lists only what it calls otherwise.

use crate::params::ParamKind::{self, *};

/// `{l}` is the layer's index, `{e}` the expert's.
pub(super) const COMMON: &[(ParamKind, &[&str])] = &[
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
    (QueryNorm, &["model.layers.{l}.self_attn.q_norm.weight"]),
    (KeyNorm, &["model.layers.{l}.self_attn.k_norm.weight"]),
    (QueryDown, &["model.layers.{l}.self_attn.q_a_proj.weight"]),
    (
        QueryDownNorm,
        &["model.layers.{l}.self_attn.q_a_layernorm.weight"],
    ),
    (QueryUp, &["model.layers.{l}.self_attn.q_b_proj.weight"]),
    (
        KvDown,
        &["model.layers.{l}.self_attn.kv_a_proj_with_mqa.weight"],
    ),
    (
        KvDownNorm,
        &["model.layers.{l}.self_attn.kv_a_layernorm.weight"],
    ),
    (KvUp, &["model.layers.{l}.self_attn.kv_b_proj.weight"]),
    (
        DeltaIn,
        &["model.layers.{l}.linear_attn.in_proj_qkvz.weight"],
    ),
    (
        DeltaGates,
        &["model.layers.{l}.linear_attn.in_proj_ba.weight"],
    ),
    (DeltaConv, &["model.layers.{l}.linear_attn.conv1d.weight"]),
    (DeltaALog, &["model.layers.{l}.linear_attn.A_log"]),
    (DeltaDtBias, &["model.layers.{l}.linear_attn.dt_bias"]),
    (DeltaNorm, &["model.layers.{l}.linear_attn.norm.weight"]),
    (DeltaOut, &["model.layers.{l}.linear_attn.out_proj.weight"]),
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
    (Router, &["model.layers.{l}.mlp.gate.weight"]),
    (
        RouterBias,
        &["model.layers.{l}.mlp.gate.e_score_correction_bias"],
    ),
    (
        ExpertGateUp,
        &[
            "model.layers.{l}.mlp.experts.{e}.gate_proj.weight",
            "model.layers.{l}.mlp.experts.{e}.up_proj.weight",
        ],
    ),
    (
        ExpertDown,
        &["model.layers.{l}.mlp.experts.{e}.down_proj.weight"],
    ),
    (
        SharedGateUp,
        &[
            "model.layers.{l}.mlp.shared_experts.gate_proj.weight",
            "model.layers.{l}.mlp.shared_experts.up_proj.weight",
        ],
    ),
    (
        SharedDown,
        &["model.layers.{l}.mlp.shared_experts.down_proj.weight"],
    ),
    (
        SharedGate,
        &["model.layers.{l}.mlp.shared_expert_gate.weight"],
    ),
    (FinalNorm, &["model.norm.weight"]),
    (Head, &["lm_head.weight"]),
];
