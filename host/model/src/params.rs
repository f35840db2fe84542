//! The list of a model's tensors: our names and shapes, and the HF tensors each is made of.
//!
//! Projections that read the same input are one tensor: `qkv` stacks the rows of q, k and v, `gate_up` those of
//! gate and up. The order (embedding, layers, final norm, head) is the order of everything that walks a model.

use crate::spec::{Ffn, LayerSpec, ModelSpec};

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
    /// `[hidden, query dim]`.
    AttnOut,
    /// `[1, hidden]`, before the feed-forward part.
    FfnNorm,
    /// `[2 ffn, hidden]`.
    GateUp,
    /// `[hidden, ffn]`.
    Down,
    /// `[1, hidden]`, after the last layer.
    FinalNorm,
    /// `[vocab, hidden]`; absent where the head is tied.
    Head,
}

impl ParamKind {
    /// One-dimensional in HF's files, `[1, n]` here, and never decayed (Megatron's rule).
    pub fn is_vector(self) -> bool {
        matches!(
            self,
            Self::AttnNorm
                | Self::QkvBias
                | Self::QueryNorm
                | Self::KeyNorm
                | Self::FfnNorm
                | Self::FinalNorm
        )
    }

    /// An RMSNorm's weight.
    pub fn is_norm(self) -> bool {
        self.is_vector() && self != Self::QkvBias
    }

    fn short_name(self) -> &'static str {
        match self {
            Self::Embedding => "embed",
            Self::AttnNorm => "attn_norm",
            Self::Qkv => "attn.qkv",
            Self::QkvBias => "attn.qkv_bias",
            Self::QueryNorm => "attn.q_norm",
            Self::KeyNorm => "attn.k_norm",
            Self::AttnOut => "attn.out",
            Self::FfnNorm => "ffn_norm",
            Self::GateUp => "ffn.gate_up",
            Self::Down => "ffn.down",
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
    let heads = layer.attn.heads;
    let (q, kv) = (heads.query * heads.dim, heads.kv * heads.dim);
    add(AttnNorm, &[1], spec.hidden);
    add(Qkv, &[q, kv, kv], spec.hidden);
    if layer.attn.qkv_bias {
        add(QkvBias, &[q, kv, kv], 1);
    }
    if layer.attn.qk_norm {
        add(QueryNorm, &[1], heads.dim);
        add(KeyNorm, &[1], heads.dim);
    }
    add(AttnOut, &[spec.hidden], q);
    add(FfnNorm, &[1], spec.hidden);
    let Ffn::SwiGlu { hidden: ffn } = layer.ffn;
    add(GateUp, &[ffn, ffn], spec.hidden);
    add(Down, &[spec.hidden], ffn);
}

/// `rows` has one entry a part. A vector's parts lie end to end in its one row.
fn param(
    spec: &ModelSpec,
    kind: ParamKind,
    layer: Option<usize>,
    rows: &[usize],
    cols: usize,
) -> ParamSpec {
    let parts: Vec<Part> = spec
        .family
        .names(kind)
        .iter()
        .zip(rows)
        .map(|(pattern, &rows)| Part {
            name: match layer {
                Some(layer) => pattern.replace("{l}", &layer.to_string()),
                None => (*pattern).into(),
            },
            shape: if kind.is_vector() {
                vec![rows * cols]
            } else {
                vec![rows, cols]
            },
        })
        .collect();
    debug_assert_eq!(
        parts.len(),
        rows.len(),
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
