//! The list of a model's tensors: our names and shapes, and the HF tensors each is made of.
//!
//! Projections that read the same input are one tensor: `qkv` stacks the rows of q, k and v, `gate_up` those of
//! gate and up. The order (embedding, layers, final norm, head) is the order of everything that walks a model.

use crate::spec::{Attention, Ffn, LayerSpec, ModelSpec};

/// What a parameter does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ParamKind {
    /// `[vocab, hidden]`.
    Embedding,
    /// `[1, hidden]`, before attention.
    AttnNorm,
    /// `[(query + 2 kv) dim, hidden]`.
    Qkv,
    /// `[1, (query + 2 kv) dim]`.
    QkvBias,
    /// `[1, dim]`, on every query head.
    QueryNorm,
    /// `[1, dim]`, on every key head.
    KeyNorm,
    /// `[query rank, hidden]`, of latent attention.
    QueryDown,
    /// `[1, query rank]`.
    QueryDownNorm,
    /// `[heads (nope + rope), query rank or hidden]`.
    QueryUp,
    /// `[rank + rope, hidden]`.
    KvDown,
    /// `[1, rank]`.
    KvDownNorm,
    /// `[heads (nope + value), rank]`.
    KvUp,
    /// `[2 keys key_dim + 2 values value_dim, hidden]`, of a gated delta net: queries, keys, values and the output's gate.
    DeltaIn,
    /// `[2 values, hidden]`: β and decay.
    DeltaGates,
    /// `[2 keys key_dim + values value_dim, taps]`.
    DeltaConv,
    /// `[1, values]`.
    DeltaALog,
    /// `[1, values]`.
    DeltaDtBias,
    /// `[1, value_dim]`, of the rule's output, without one added.
    DeltaNorm,
    /// `[hidden, values value_dim]`.
    DeltaOut,
    /// `[hidden, query dim]`.
    AttnOut,
    /// `[1, hidden]`, of what attention adds to the stream.
    AttnPostNorm,
    /// `[1, hidden]`, before the feed-forward part.
    FfnNorm,
    /// `[2 ffn, hidden]`.
    GateUp,
    /// `[hidden, ffn]`.
    Down,
    /// `[experts, hidden]`.
    Router,
    /// `[1, experts]`; chooses, has no gradient.
    RouterBias,
    /// `[experts × 2 ffn, hidden]`.
    ExpertGateUp,
    /// `[experts × hidden, ffn]`.
    ExpertDown,
    /// `[2 ffn, hidden]`, of the MLP that every token passes.
    SharedGateUp,
    /// `[hidden, ffn]`.
    SharedDown,
    /// `[1, hidden]`: of what that MLP gives, one gate a token.
    SharedGate,
    /// `[1, hidden]`, of what the feed-forward part adds to the stream.
    FfnPostNorm,
    /// `[1, hidden]`, after the last layer.
    FinalNorm,
    /// `[vocab, hidden]`; absent where the head is tied.
    Head,
}

impl ParamKind {
    /// One-dimensional in HF's files, `[1, n]` here, and never decayed (Megatron's rule).
    pub fn is_vector(self) -> bool {
        self.is_norm()
            || matches!(
                self,
                Self::QkvBias | Self::RouterBias | Self::DeltaALog | Self::DeltaDtBias
            )
    }

    /// An RMSNorm's weight.
    pub fn is_norm(self) -> bool {
        matches!(
            self,
            Self::AttnNorm
                | Self::QueryNorm
                | Self::KeyNorm
                | Self::QueryDownNorm
                | Self::KvDownNorm
                | Self::DeltaNorm
                | Self::AttnPostNorm
                | Self::FfnNorm
                | Self::FfnPostNorm
                | Self::FinalNorm
        )
    }

    /// Kept in f32 by Hugging Face whatever the model's dtype, and so written.
    pub fn is_f32(self) -> bool {
        self == Self::RouterBias
    }

    /// Writes into the residual stream.
    pub fn is_residual(self) -> bool {
        matches!(
            self,
            Self::AttnOut | Self::DeltaOut | Self::Down | Self::ExpertDown | Self::SharedDown
        )
    }

    fn short_name(self) -> &'static str {
        match self {
            Self::Embedding => "embed",
            Self::AttnNorm => "attn_norm",
            Self::Qkv => "attn.qkv",
            Self::QkvBias => "attn.qkv_bias",
            Self::QueryNorm => "attn.q_norm",
            Self::KeyNorm => "attn.k_norm",
            Self::QueryDown => "attn.q_down",
            Self::QueryDownNorm => "attn.q_down_norm",
            Self::QueryUp => "attn.q_up",
            Self::KvDown => "attn.kv_down",
            Self::KvDownNorm => "attn.kv_down_norm",
            Self::KvUp => "attn.kv_up",
            Self::DeltaIn => "delta.in",
            Self::DeltaGates => "delta.gates",
            Self::DeltaConv => "delta.conv",
            Self::DeltaALog => "delta.a_log",
            Self::DeltaDtBias => "delta.dt_bias",
            Self::DeltaNorm => "delta.norm",
            Self::DeltaOut => "delta.out",
            Self::AttnOut => "attn.out",
            Self::AttnPostNorm => "attn_post_norm",
            Self::FfnNorm => "ffn_norm",
            Self::GateUp => "ffn.gate_up",
            Self::Down => "ffn.down",
            Self::Router => "ffn.router",
            Self::RouterBias => "ffn.router_bias",
            Self::ExpertGateUp => "ffn.experts.gate_up",
            Self::ExpertDown => "ffn.experts.down",
            Self::SharedGateUp => "ffn.shared.gate_up",
            Self::SharedDown => "ffn.shared.down",
            Self::SharedGate => "ffn.shared.gate",
            Self::FfnPostNorm => "ffn_post_norm",
            Self::FinalNorm => "final_norm",
            Self::Head => "head",
        }
    }
}

/// One HF tensor that is a part of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// HF's name, e.g. `model.layers.3.self_attn.q_proj.weight`.
    pub name: String,
    /// HF's shape: `[rows, cols]`, or `[n]` for a vector.
    pub shape: Vec<usize>,
}

impl Part {
    /// Number of elements.
    #[allow(clippy::len_without_is_empty, reason = "no tensor is empty")]
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }
}

/// One parameter, `[rows, cols]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamSpec {
    /// Our name, e.g. `layers.3.attn.qkv`.
    pub name: String,
    /// What it does.
    pub kind: ParamKind,
    /// The layer it belongs to.
    pub layer: Option<usize>,
    /// Rows; 1 for a vector.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// The HF tensors whose elements, one after the other, are this parameter's.
    pub parts: Vec<Part>,
    /// Whether weight decay applies.
    pub decay: bool,
}

impl ParamSpec {
    /// Number of elements.
    #[allow(clippy::len_without_is_empty, reason = "no tensor is empty")]
    pub fn len(&self) -> usize {
        self.rows * self.cols
    }
}

/// Every parameter of a model, in canonical order.
pub fn params(spec: &ModelSpec) -> Vec<ParamSpec> {
    let mut all = vec![param(
        spec,
        ParamKind::Embedding,
        None,
        &[spec.vocab],
        spec.hidden,
    )];
    for (index, layer) in spec.layers.iter().enumerate() {
        push_layer(spec, index, layer, &mut all);
    }
    all.push(param(spec, ParamKind::FinalNorm, None, &[1], spec.hidden));
    if !spec.tied {
        all.push(param(
            spec,
            ParamKind::Head,
            None,
            &[spec.vocab],
            spec.hidden,
        ));
    }
    all
}

fn push_layer(spec: &ModelSpec, index: usize, layer: &LayerSpec, all: &mut Vec<ParamSpec>) {
    use ParamKind::*;
    let mut add = |kind, rows: &[usize], cols| all.push(param(spec, kind, Some(index), rows, cols));
    let hidden = spec.hidden;
    add(AttnNorm, &[1], hidden);
    match &layer.attn {
        Attention::Grouped(attn) => {
            let heads = attn.heads;
            let (q, kv) = (heads.query * heads.dim, heads.kv * heads.dim);
            let gate = if attn.gated { q } else { 0 };
            add(Qkv, &[q + gate, kv, kv], hidden);
            if attn.qkv_bias {
                add(QkvBias, &[q, kv, kv], 1);
            }
            if attn.qk_norm {
                add(QueryNorm, &[1], heads.dim);
                add(KeyNorm, &[1], heads.dim);
            }
            add(AttnOut, &[hidden], q);
        }
        Attention::Latent(attn) => {
            let w = attn.widths;
            if let Some(rank) = attn.query_rank {
                add(QueryDown, &[rank], hidden);
                add(QueryDownNorm, &[1], rank);
            }
            let query_in = attn.query_rank.unwrap_or(hidden);
            add(QueryUp, &[w.heads * (w.nope + w.rope)], query_in);
            add(KvDown, &[w.rank + w.rope], hidden);
            add(KvDownNorm, &[1], w.rank);
            add(KvUp, &[w.heads * (w.nope + w.value)], w.rank);
            add(AttnOut, &[hidden], w.heads * w.value);
        }
        Attention::Delta(attn) => {
            let h = attn.heads;
            let (keys, values) = (h.keys * h.key_dim, h.values * h.value_dim);
            add(DeltaIn, &[2 * keys + values, values], hidden);
            add(DeltaGates, &[h.values, h.values], hidden);
            add(DeltaConv, &[h.cols()], attn.taps);
            add(DeltaALog, &[1], h.values);
            add(DeltaDtBias, &[1], h.values);
            add(DeltaNorm, &[1], h.value_dim);
            add(DeltaOut, &[hidden], values);
        }
    }
    if layer.sandwich {
        add(AttnPostNorm, &[1], hidden);
    }
    add(FfnNorm, &[1], hidden);
    match &layer.ffn {
        Ffn::SwiGlu { hidden: ffn } => {
            add(GateUp, &[*ffn, *ffn], hidden);
            add(Down, &[hidden], *ffn);
        }
        Ffn::Moe(moe) => {
            let (experts, ffn) = (moe.routing.experts, moe.hidden);
            add(Router, &[experts], hidden);
            if moe.routing.bias {
                add(RouterBias, &[1], experts);
            }
            add(ExpertGateUp, &[ffn, ffn].repeat(experts), hidden);
            add(ExpertDown, &vec![hidden; experts], ffn);
            if let Some(ffn) = moe.shared {
                add(SharedGateUp, &[ffn, ffn], hidden);
                add(SharedDown, &[hidden], ffn);
                if moe.shared_gate {
                    add(SharedGate, &[1], hidden);
                }
            }
        }
    }
    if layer.sandwich {
        add(FfnPostNorm, &[1], hidden);
    }
}

/// `rows` has one entry a part, parts of experts one expert after the other. Where the family stores them as one
/// tensor, they are one part. A vector's parts lie end to end in its one row.
fn param(
    spec: &ModelSpec,
    kind: ParamKind,
    layer: Option<usize>,
    rows: &[usize],
    cols: usize,
) -> ParamSpec {
    let num_parts = rows.len();
    let patterns = spec.family.names(kind);
    let whole = [rows.iter().sum()];
    let joined = patterns.len() == 1 && !patterns[0].contains("{e}");
    let each = if joined { &whole } else { rows };
    let parts: Vec<Part> = each
        .iter()
        .enumerate()
        .filter_map(|(i, &rows)| {
            let (expert, pattern) = (
                i / patterns.len().max(1),
                patterns.get(i % patterns.len().max(1))?,
            );
            let mut name = pattern.replace("{e}", &expert.to_string());
            if let Some(layer) = layer {
                name = name.replace("{l}", &layer.to_string());
            }
            let shape = match kind {
                // All experts as one tensor.
                ParamKind::ExpertGateUp | ParamKind::ExpertDown if joined => {
                    let halves = if kind == ParamKind::ExpertGateUp {
                        2
                    } else {
                        1
                    };
                    let experts = num_parts / halves;
                    vec![experts, rows / experts, cols]
                }
                ParamKind::DeltaConv => vec![rows, 1, cols],
                kind if kind.is_vector() => vec![rows * cols],
                _ => vec![rows, cols],
            };
            Some(Part { name, shape })
        })
        .collect();
    debug_assert_eq!(
        parts.len(),
        each.len(),
        "{kind:?} of {}",
        spec.family.model_type
    );
    let total = rows.iter().sum::<usize>();
    let (rows, cols) = if kind.is_vector() {
        (1, total * cols)
    } else {
        (total, cols)
    };
    ParamSpec {
        name: match layer {
            Some(layer) => format!("layers.{layer}.{}", kind.short_name()),
            None => kind.short_name().into(),
        },
        kind,
        layer,
        rows,
        cols,
        parts,
        decay: !kind.is_vector(),
    }
}
