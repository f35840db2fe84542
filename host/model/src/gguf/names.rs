//! llama.cpp's tensor names, and the order in which it keeps the rows of Llama's queries and keys.

use crate::params::{ParamKind, ParamSpec};
use crate::spec::ModelSpec;

pub(super) const EMBEDDING: &str = "token_embd.weight";
pub(super) const HEAD: &str = "output.weight";
/// Llama 3.1's frequency scaling, as one divisor a pair.
pub(super) const ROPE_FACTORS: &str = "rope_freqs.weight";

/// The name of a parameter's part.
pub(super) fn of(param: &ParamSpec, part: usize) -> String {
    use ParamKind::*;
    let qkv = ["attn_q", "attn_k", "attn_v"];
    let name = match param.kind {
        Embedding => return EMBEDDING.into(),
        Head => return HEAD.into(),
        FinalNorm => return "output_norm.weight".into(),
        AttnNorm => "attn_norm.weight".into(),
        Qkv => format!("{}.weight", qkv[part]),
        QkvBias => format!("{}.bias", qkv[part]),
        QueryNorm => "attn_q_norm.weight".into(),
        KeyNorm => "attn_k_norm.weight".into(),
        AttnOut => "attn_output.weight".into(),
        FfnNorm => "ffn_norm.weight".into(),
        GateUp => format!("{}.weight", ["ffn_gate", "ffn_up"][part]),
        Down => "ffn_down.weight".to_string(),
        // No family that has them is imported from GGUF.
        other => format!("{other:?}"),
    };
    format!("blk.{}.{name}", param.layer.unwrap_or_default())
}

/// How many heads of rows were permuted, if any: llama.cpp rotates neighbours `(2 i, 2 i + 1)` for the architecture
/// `llama`, so its converter moves the rows of q and k that HF rotates as `(i, i + dim / 2)`.
pub(super) fn permuted_heads(spec: &ModelSpec, param: &ParamSpec, part: usize) -> Option<usize> {
    if spec.family.gguf_architecture != Some("llama") || param.kind != ParamKind::Qkv {
        return None;
    }
    let heads = spec.layers[param.layer?].attn.grouped()?.heads;
    [Some(heads.query), Some(heads.kv), None][part]
}

/// Rows back to HF's order: row `j dim / 2 + i` of a head lies at `2 i + j`.
pub(super) fn undo_permutation(
    data: &[f32],
    num_heads: usize,
    dim: usize,
    cols: usize,
) -> Vec<f32> {
    let mut out = Vec::with_capacity(data.len());
    for head in 0..num_heads {
        for row in 0..dim {
            let (j, i) = (row / (dim / 2), row % (dim / 2));
            let at = (head * dim + 2 * i + j) * cols;
            out.extend_from_slice(&data[at..at + cols]);
        }
    }
    out
}
