//! What a model costs, from its [`ModelSpec`] alone: parameters, FLOPs and bytes a token.
//!
//! Pure arithmetic; nothing is loaded. Conventions are said where numbers are: a multiply-add is two FLOPs, causal
//! attention counts once (half of the square), the embedding's lookup is free.

use crate::layers::Recompute;
use crate::params::{ParamKind, params};
use crate::spec::{Attention, Cached, Ffn, LayerSpec, ModelSpec};

/// Parameters by how they are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamCounts {
    /// All of them; a tied head counts once.
    pub total: u64,
    /// Those that one token passes: everything but the experts that it does not go to.
    pub active: u64,
    /// Those that one token is multiplied with: the active ones without the embedding's lookup; a tied head counts.
    pub multiplied: u64,
}

/// Numbers kept for the backward, for each token of a micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// In the model's dtype.
    pub numbers: usize,
    /// In the accumulator's.
    pub floats: usize,
}

impl ModelSpec {
    /// Parameters.
    pub fn param_counts(&self) -> ParamCounts {
        let mut counts = ParamCounts {
            total: 0,
            active: 0,
            multiplied: 0,
        };
        for param in params(self) {
            let len = param.len() as u64;
            counts.total += len;
            let active = match (param.kind, param.layer.map(|l| &self.layers[l].ffn)) {
                (ParamKind::ExpertGateUp | ParamKind::ExpertDown, Some(Ffn::Moe(moe))) => {
                    len / moe.routing.experts as u64 * moe.routing.top_k as u64
                }
                _ => len,
            };
            counts.active += active;
            let looked_up = param.kind == ParamKind::Embedding && !self.tied;
            counts.multiplied += if looked_up || param.kind.is_vector() {
                0
            } else {
                active
            };
        }
        counts
    }

    /// FLOPs of one token's forward in sequences whose tokens see `length / 2` others on average.
    pub fn forward_flops(&self, length: usize) -> f64 {
        let of_attention: f64 = self
            .layers
            .iter()
            .map(|layer| layer.attn.pair_flops() * length as f64 / 2.0 + layer.attn.scan_flops())
            .sum();
        2.0 * self.param_counts().multiplied as f64 + of_attention
    }

    /// FLOPs of one token's forward and backward, nothing computed twice.
    pub fn train_flops(&self, length: usize) -> f64 {
        3.0 * self.forward_flops(length)
    }

    /// Numbers that a token leaves in the cache of every layer together, of blocks of `block_tokens` tokens.
    pub fn cached_numbers(&self, block_tokens: usize) -> usize {
        let of_layer = |layer: &LayerSpec| match layer.attn.cached() {
            Cached::Keys(heads) => 2 * heads.kv * heads.dim,
            Cached::State(numbers) => numbers.div_ceil(block_tokens),
        };
        self.layers.iter().map(of_layer).sum()
    }

    /// What a forward keeps of each token in all layers.
    pub fn kept(&self, recompute: Recompute) -> Kept {
        self.layers.iter().fold(Kept::default(), |sum, layer| {
            let kept = layer.kept(self.hidden, recompute);
            Kept {
                numbers: sum.numbers + kept.numbers,
                floats: sum.floats + kept.floats,
            }
        })
    }
}

impl Attention {
    /// FLOPs of one query that sees one key, all heads together.
    pub fn pair_flops(&self) -> f64 {
        let widths = match self {
            Self::Grouped(attn) => attn.heads.query * 2 * attn.heads.dim,
            Self::Latent(attn) => {
                let w = attn.widths;
                w.heads * (w.nope + w.rope + w.value)
            }
            Self::Delta(_) => 0,
        };
        2.0 * widths as f64
    }

    /// FLOPs of one token that do not depend on the others.
    pub fn scan_flops(&self) -> f64 {
        match self {
            Self::Grouped(_) | Self::Latent(_) => 0.0,
            Self::Delta(attn) => {
                let h = attn.heads;
                (8 * h.values * h.key_dim * h.value_dim) as f64
            }
        }
    }
}

impl LayerSpec {
    /// What this layer keeps of each token, of a stream `hidden` wide.
    pub fn kept(&self, hidden: usize, recompute: Recompute) -> Kept {
        if recompute == Recompute::Full {
            return Kept {
                numbers: hidden,
                floats: 0,
            };
        }
        let all = recompute == Recompute::None;
        let only = |condition: bool, numbers: usize| if condition { numbers } else { 0 };
        // Both halves: the summed stream, its norm and statistic; with norms behind them, what those read.
        let mut kept = Kept {
            numbers: 2 * hidden + only(all, 2 * hidden) + only(self.sandwich, 2 * hidden),
            floats: 2 + only(self.sandwich, 2),
        };
        match &self.attn {
            Attention::Grouped(attn) => {
                let heads = attn.heads;
                kept.numbers += heads.out_cols()
                    + only(attn.qk_norm, heads.qkv_cols())
                    + only(all || !attn.qk_norm, heads.qkv_cols())
                    + only(attn.gated, 2 * heads.out_cols());
                kept.floats += heads.query + only(attn.qk_norm, heads.query + heads.kv);
            }
            Attention::Latent(attn) => {
                let (w, heads) = (attn.widths, attn.widths.unfolded());
                kept.numbers += attn.query_rank.unwrap_or(0)
                    + w.rank
                    + w.rope
                    + heads.out_cols()
                    + w.heads * w.value
                    + only(all, heads.qkv_cols());
                kept.floats += heads.query + 1 + only(attn.query_rank.is_some(), 1);
            }
            Attention::Delta(attn) => {
                let (h, out) = (attn.heads, attn.heads.values * attn.heads.value_dim);
                // Projections, the convolution's output, the rule's, and what is projected back.
                kept.numbers += h.cols() + out + 2 * h.values + h.cols() + 2 * out;
                kept.floats += h.values;
            }
        }
        let gated = |width: usize| 2 * width + only(all, width);
        kept.numbers += match &self.ffn {
            Ffn::SwiGlu { .. } if recompute == Recompute::Mlp => 0,
            Ffn::SwiGlu { hidden } => gated(*hidden),
            Ffn::Moe(moe) => 2 * moe.routing.top_k * moe.hidden + moe.shared.map_or(0, gated),
        };
        kept
    }
}
