//! Every kernel file, and how each is specialised for a shape.

use super::nvrtc::{Header, Source};
use crate::{DeltaHeads, Heads, RopeStyle};

/// Tokens in a cache block.
pub(super) const BLOCK_TOKENS: usize = 16;

/// Heads that a thread of the rotation's backward has in shared memory: the one it computes, and others on their way.
pub(super) const ROTATION_SLOTS: usize = 2;

/// Copy engine and wgmma, for kernels that are written for Hopper (sm_90a).
const HOPPER: Header = Header {
    file: "cuda/hopper.cuh",
    text: include_str!("hopper.cuh"),
};
/// Tensor cores of every card since Ampere.
const MMA: Header = Header {
    file: "cuda/mma.cuh",
    text: include_str!("mma.cuh"),
};
/// Tiles of a delta rule's chunks.
const TILES: Header = Header {
    file: "gated_delta/tiles.cuh",
    text: include_str!("../gated_delta/tiles.cuh"),
};

macro_rules! source {
    ($file:literal $(, $define:expr)* $(,)?) => {
        Source { name: $file, text: include_str!(concat!("../", $file, ".cu")), headers: &[], defines: vec![$($define),*] }
    };
}

pub(super) fn rows() -> Source {
    source!("rows/kernel")
}

pub(super) fn embedding() -> Source {
    source!("embedding/kernel")
}

pub(super) fn swiglu() -> Source {
    source!("swiglu/kernel")
}

pub(super) fn head() -> Source {
    source!("head/kernel")
}

pub(super) fn draw() -> Source {
    source!("draw/kernel")
}

pub(super) fn adamw() -> Source {
    source!("adamw/kernel")
}

/// `lanes` threads hold a row, `per` vectors of 8 each.
pub(super) fn rmsnorm(lanes: usize, per: usize) -> Source {
    source!(
        "rmsnorm/kernel",
        format!("LANES={lanes}"),
        format!("PER={per}")
    )
}

/// Threads that share a head, 8 elements each.
pub(super) fn lanes_of_head(heads: Heads) -> usize {
    (heads.dim / 8).next_power_of_two()
}

pub(super) fn qk_norm_rope(heads: Heads, rotary: usize, style: RopeStyle) -> Source {
    let interleaved = u8::from(style == RopeStyle::Interleaved);
    let source = source!(
        "qk_norm_rope/kernel",
        format!("DIM={}", heads.dim),
        format!("ROT={rotary}"),
        format!("INTERLEAVED={interleaved}"),
        format!("LANES={}", lanes_of_head(heads)),
        format!("NQ={}", heads.query),
        format!("NKV={}", heads.kv),
        format!("SLOTS={ROTATION_SLOTS}"),
    );
    Source {
        headers: &[MMA],
        ..source
    }
}

pub(super) fn attention(heads: Heads) -> Source {
    source!("attention/kernel", format!("DIM={}", heads.dim))
}

/// Head widths that the tensor-core kernels are written for; others take the scalar ones.
pub(super) fn has_tensor_core_attention(heads: Heads) -> bool {
    matches!(heads.dim, 64 | 128 | 192 | 256)
}

/// The same of the kernels for Hopper; wider heads take those of before.
pub(super) fn has_hopper_attention(heads: Heads) -> bool {
    matches!(heads.dim, 64 | 128)
}

/// The same kernels, made for queries and keys that lie in different matrices.
pub(super) fn of_rectangles(attention: Source) -> Source {
    let mut source = attention;
    source.defines.push("RECTANGLE=1".into());
    source
}

pub(super) fn tensor_core_attention(heads: Heads) -> Source {
    Source {
        headers: &[MMA],
        ..source!("attention/tensor_core", format!("DIM={}", heads.dim))
    }
}

pub(super) fn hopper_attention(heads: Heads) -> Source {
    Source {
        headers: &[HOPPER],
        ..source!("attention/hopper", format!("DIM={}", heads.dim))
    }
}

/// A convolution over so many tokens.
pub(super) fn causal_conv(taps: usize) -> Source {
    source!(
        "causal_conv/kernel",
        format!("TAPS={taps}"),
        format!("BLOCK={BLOCK_TOKENS}")
    )
}

pub(super) fn gated_delta(heads: DeltaHeads) -> Source {
    source!(
        "gated_delta/kernel",
        format!("KD={}", heads.key_dim),
        format!("VD={}", heads.value_dim),
        format!("BLOCK={BLOCK_TOKENS}")
    )
}

/// The rule over chunks of tokens, by blocks of `threads`.
pub(super) fn delta_chunks(heads: DeltaHeads, threads: u32) -> Source {
    of_chunks(source!("gated_delta/chunks"), heads, threads)
}

/// The rest of its gradients.
pub(super) fn delta_gradients(heads: DeltaHeads, threads: u32) -> Source {
    of_chunks(source!("gated_delta/gradients"), heads, threads)
}

fn of_chunks(source: Source, heads: DeltaHeads, threads: u32) -> Source {
    Source {
        headers: &[MMA, TILES],
        defines: vec![
            format!("KD={}", heads.key_dim),
            format!("VD={}", heads.value_dim),
            format!("THREADS={threads}"),
        ],
        ..source
    }
}

/// Between so many GPUs.
pub(super) fn exchange(members: usize) -> Source {
    source!("exchange/kernel", format!("MEMBERS={members}"))
}

/// Each lane of a warp holds `PER` experts.
pub(super) fn routing(experts: usize) -> Source {
    let per = experts.div_ceil(32).next_power_of_two();
    source!("routing/kernel", format!("PER={per}"))
}

pub(super) fn grouped_matmul() -> Source {
    Source {
        headers: &[HOPPER],
        ..source!("grouped_matmul/hopper")
    }
}

/// Keys that one thread block of paged attention reads, as in its kernels.
pub(super) const SPLIT: usize = 32 * BLOCK_TOKENS;

/// Query heads that a thread block serves together: as many of those sharing a key head as a product has rows for, or
/// without tensor cores registers.
pub(super) fn shared_heads(heads: Heads) -> usize {
    let sharing = heads.query / heads.kv;
    let most = match heads.dim {
        _ if has_tensor_core_attention(heads) => 16,
        257.. => 2,
        _ => 4,
    };
    (1..=most)
        .rev()
        .find(|n| sharing.is_multiple_of(*n))
        .unwrap_or(1)
}

/// What writes to the cache, and what adds up the parts of long rows.
pub(super) fn paged_cache(heads: Heads) -> Source {
    source!(
        "paged_attention/kernel",
        format!("DIM={}", heads.dim),
        format!("BLOCK={BLOCK_TOKENS}")
    )
}

/// Attention to the cache, row by row.
pub(super) fn paged_rows(heads: Heads) -> Source {
    source!(
        "paged_attention/scalar",
        format!("DIM={}", heads.dim),
        format!("BLOCK={BLOCK_TOKENS}"),
        format!("LANES={}", lanes_of_head(heads).min(32)),
        format!("HG={}", shared_heads(heads))
    )
}

/// Warps of a block that takes rows of one sequence together, and cache blocks that each has room for.
pub(super) fn tiles_at_once(heads: Heads) -> (usize, usize) {
    if heads.dim > 128 { (2, 2) } else { (4, 3) }
}

/// The same of heads that tiles fit, rows of one sequence together.
pub(super) fn paged_tiles(heads: Heads) -> Source {
    let (warps, stages) = tiles_at_once(heads);
    Source {
        headers: &[MMA],
        ..source!(
            "paged_attention/tensor_core",
            format!("DIM={}", heads.dim),
            format!("BLOCK={BLOCK_TOKENS}"),
            format!("HG={}", shared_heads(heads)),
            format!("WARPS={warps}"),
            format!("STAGES={stages}")
        )
    }
}

/// Every file for an architecture, in the specialisations of the head widths that have their own: what the compile gate compiles.
pub fn all(arch: &str) -> Vec<Source> {
    let mut sources = vec![rows(), embedding(), swiglu(), head(), draw(), adamw()];
    sources.extend([8, 128, 256].map(routing));
    sources.extend([2, 4, 8].map(exchange));
    sources.push(causal_conv(4));
    let compressed = Heads {
        query: 16,
        kv: 1,
        dim: 576,
    };
    sources.extend([paged_cache(compressed), paged_rows(compressed)]);
    let heads = DeltaHeads {
        keys: 16,
        values: 32,
        key_dim: 128,
        value_dim: 128,
    };
    sources.extend([
        gated_delta(heads),
        delta_chunks(heads, 128),
        delta_gradients(heads, 256),
    ]);
    if arch == "sm_90a" {
        sources.push(grouped_matmul());
    }
    sources.extend([(32, 2), (64, 2), (256, 2), (512, 4)].map(|(lanes, per)| rmsnorm(lanes, per)));
    for dim in [64, 128, 192, 256] {
        let heads = Heads {
            query: 8,
            kv: 2,
            dim,
        };
        sources.extend([paged_cache(heads), paged_tiles(heads)]);
        let mut attentions = vec![attention(heads), tensor_core_attention(heads)];
        if arch == "sm_90a" && has_hopper_attention(heads) {
            attentions.push(hopper_attention(heads));
        }
        sources.extend(attentions.iter().cloned().map(of_rectangles));
        sources.extend(attentions);
        for style in [RopeStyle::Half, RopeStyle::Interleaved] {
            sources.push(qk_norm_rope(heads, dim, style));
            sources.push(qk_norm_rope(heads, dim / 2, style));
        }
    }
    sources
}
