//! Every kernel file, and how each is specialised for a shape.

use super::nvrtc::Source;
use crate::{Heads, RopeStyle};

/// Tokens in a cache block.
pub(super) const BLOCK_TOKENS: usize = 16;

macro_rules! text {
    ($op:literal) => {
        include_str!(concat!("../", $op, "/kernel.cu"))
    };
}

fn plain(name: &'static str, text: &'static str) -> Source {
    Source { name, text, defines: Vec::new() }
}

pub(super) fn rows() -> Source {
    plain("rows", text!("rows"))
}

pub(super) fn embedding() -> Source {
    plain("embedding", text!("embedding"))
}

pub(super) fn swiglu() -> Source {
    plain("swiglu", text!("swiglu"))
}

pub(super) fn head() -> Source {
    plain("head", text!("head"))
}

pub(super) fn adamw() -> Source {
    plain("adamw", text!("adamw"))
}

/// `per`: vectors of 8 a thread holds of a row.
pub(super) fn rmsnorm(per: usize) -> Source {
    Source { name: "rmsnorm", text: text!("rmsnorm"), defines: vec![format!("PER={per}")] }
}

pub(super) fn qk_norm_rope(heads: Heads, rotary: usize, style: RopeStyle) -> Source {
    let interleaved = u8::from(style == RopeStyle::Interleaved);
    Source {
        name: "qk_norm_rope",
        text: text!("qk_norm_rope"),
        defines: vec![format!("DIM={}", heads.dim), format!("ROT={rotary}"), format!("INTERLEAVED={interleaved}")],
    }
}

pub(super) fn attention(heads: Heads) -> Source {
    Source { name: "attention", text: text!("attention"), defines: vec![format!("DIM={}", heads.dim)] }
}

/// Head widths that [`tensor_core_attention`] is written for; others take the scalar kernels.
pub(super) fn has_tensor_core_attention(heads: Heads) -> bool {
    matches!(heads.dim, 64 | 128)
}

pub(super) fn tensor_core_attention(heads: Heads) -> Source {
    Source {
        name: "tensor_core_attention",
        text: include_str!("../attention/tensor_core.cu"),
        defines: vec![format!("DIM={}", heads.dim)],
    }
}

pub(super) fn paged_attention(heads: Heads) -> Source {
    Source {
        name: "paged_attention",
        text: text!("paged_attention"),
        defines: vec![format!("DIM={}", heads.dim), format!("BLOCK={BLOCK_TOKENS}")],
    }
}

/// Every file in the specialisations of head widths 64 and 128, for the compile gate.
pub fn all() -> Vec<Source> {
    let mut sources = vec![rows(), embedding(), swiglu(), head(), adamw(), rmsnorm(1), rmsnorm(2), rmsnorm(4)];
    for dim in [64, 128] {
        let heads = Heads { query: 8, kv: 2, dim };
        sources.push(attention(heads));
        sources.push(tensor_core_attention(heads));
        sources.push(paged_attention(heads));
        for style in [RopeStyle::Half, RopeStyle::Interleaved] {
            sources.push(qk_norm_rope(heads, dim, style));
            sources.push(qk_norm_rope(heads, dim / 2, style));
        }
    }
    sources
}
