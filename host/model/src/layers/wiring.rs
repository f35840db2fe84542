//! Which parameter each layer uses: the model's list of parameters turned into layers.

use super::{Attention, Block, Linear, Mlp, Norm, ParamId, QkNorm};
use crate::params::{ParamKind, ParamSpec};
use crate::spec::ModelSpec;
use std::collections::BTreeMap;

/// The layers of a model, holding the ids of their parameters.
#[derive(Clone, Debug)]
pub struct Wiring {
    /// `[vocab, hidden]`.
    pub embedding: ParamId,
    /// In order.
    pub blocks: Vec<Block>,
    /// After the last block.
    pub norm: Norm,
    /// `[vocab, hidden]`: the embedding where they are tied.
    pub head: ParamId,
}

impl Wiring {
    /// The layers of `spec`, whose parameters are `params`.
    pub fn new(spec: &ModelSpec, params: &[ParamSpec]) -> Self {
        let ids: BTreeMap<(Option<usize>, ParamKind), ParamId> = params
            .iter()
            .enumerate()
            .map(|(i, p)| ((p.layer, p.kind), ParamId(i)))
            .collect();
        let find = |layer, kind| ids.get(&(layer, kind)).copied();
        let get = |layer, kind| find(layer, kind).expect("params lists what the spec's layers use");
        let norm = |layer, kind| Norm {
            weight: get(layer, kind),
            eps: spec.norm_eps,
        };
        let block = |(index, layer): (usize, &crate::spec::LayerSpec)| {
            let at = Some(index);
            let plain = |kind| Linear {
                weight: get(at, kind),
                bias: None,
            };
            let qk_norm = layer.attn.qk_norm.then(|| QkNorm {
                query: get(at, ParamKind::QueryNorm),
                key: get(at, ParamKind::KeyNorm),
                eps: spec.norm_eps,
            });
            Block {
                attention: Attention {
                    norm: norm(at, ParamKind::AttnNorm),
                    heads: layer.attn.heads,
                    scale: layer.attn.scale(),
                    qkv: Linear {
                        weight: get(at, ParamKind::Qkv),
                        bias: find(at, ParamKind::QkvBias),
                    },
                    qk_norm,
                    out: plain(ParamKind::AttnOut),
                },
                mlp: Mlp {
                    norm: norm(at, ParamKind::FfnNorm),
                    gate_up: plain(ParamKind::GateUp),
                    down: plain(ParamKind::Down),
                },
            }
        };
        let embedding = get(None, ParamKind::Embedding);
        Self {
            embedding,
            blocks: spec.layers.iter().enumerate().map(block).collect(),
            norm: norm(None, ParamKind::FinalNorm),
            head: find(None, ParamKind::Head).unwrap_or(embedding),
        }
    }
}
