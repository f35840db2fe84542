//! Which parameter each layer uses: the model's list of parameters turned into layers.

use super::{
    Attention, Block, Body, Bottleneck, Core, DeltaNet, DeltaParams, Gated, Grouped, Latent,
    Linear, Mlp, Moe, Norm, OutputGate, ParamId, PostNorm, QkNorm, Shared,
};
use crate::params::{ParamKind, ParamSpec};
use crate::spec::{self, Ffn, LayerSpec, ModelSpec};
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

/// The parameters by what they do.
struct Finder<'a> {
    spec: &'a ModelSpec,
    ids: BTreeMap<(Option<usize>, ParamKind), ParamId>,
}

/// The parameters of one layer, or those outside of all.
struct At<'a> {
    finder: &'a Finder<'a>,
    layer: Option<usize>,
}

impl Finder<'_> {
    fn at(&self, layer: Option<usize>) -> At<'_> {
        At {
            finder: self,
            layer,
        }
    }
}

impl At<'_> {
    fn find(&self, kind: ParamKind) -> Option<ParamId> {
        self.finder.ids.get(&(self.layer, kind)).copied()
    }

    fn get(&self, kind: ParamKind) -> ParamId {
        self.find(kind)
            .expect("params lists what the spec's layers use")
    }

    fn norm_with(&self, kind: ParamKind, eps: f64) -> Norm {
        Norm {
            weight: self.get(kind),
            eps,
            plus_one: false,
        }
    }

    fn norm(&self, kind: ParamKind) -> Norm {
        Norm {
            plus_one: self.finder.spec.norm_plus_one,
            ..self.norm_with(kind, self.finder.spec.norm_eps)
        }
    }

    fn post(&self, kind: ParamKind) -> Option<PostNorm> {
        self.find(kind).map(|_| PostNorm(self.norm(kind)))
    }

    fn linear(&self, kind: ParamKind) -> Linear {
        Linear {
            weight: self.get(kind),
            bias: None,
        }
    }

    fn core(&self, attn: &spec::Attention) -> Core {
        use ParamKind::*;
        match attn {
            spec::Attention::Grouped(attn) => Core::Grouped(Grouped {
                heads: attn.heads,
                scale: attn.scale(),
                qkv: Linear {
                    weight: self.get(Qkv),
                    bias: self.find(QkvBias),
                },
                qk_norm: attn.qk_norm.then(|| QkNorm {
                    query: self.get(QueryNorm),
                    key: self.get(KeyNorm),
                    eps: self.finder.spec.norm_eps,
                    plus_one: self.finder.spec.norm_plus_one,
                }),
                gate: attn.gated.then(|| OutputGate::new(attn.heads)),
            }),
            spec::Attention::Latent(attn) => {
                let query_down = attn.query_rank.map(|_| Bottleneck {
                    down: self.linear(QueryDown),
                    norm: self.norm_with(QueryDownNorm, attn.bottleneck_eps),
                });
                let kv_down = Bottleneck {
                    down: self.linear(KvDown),
                    norm: self.norm_with(KvDownNorm, attn.bottleneck_eps),
                };
                let (query_up, kv_up) = (self.linear(QueryUp), self.linear(KvUp));
                Core::Latent(Latent::new(
                    attn.widths,
                    attn.scale,
                    query_down,
                    query_up,
                    kv_down,
                    kv_up,
                ))
            }
            spec::Attention::Delta(attn) => Core::Delta(DeltaNet::new(
                attn.heads,
                attn.by_key_head,
                DeltaParams {
                    input: self.linear(DeltaIn),
                    gates: self.linear(DeltaGates),
                    conv: self.get(DeltaConv),
                    a_log: self.get(DeltaALog),
                    dt_bias: self.get(DeltaDtBias),
                    norm: self.norm_with(DeltaNorm, self.finder.spec.norm_eps),
                },
            )),
        }
    }

    fn body(&self, index: usize, ffn: &Ffn) -> Body {
        use ParamKind::*;
        match ffn {
            Ffn::SwiGlu { .. } => Body::Gated(Gated {
                gate_up: self.linear(GateUp),
                down: self.linear(Down),
            }),
            Ffn::Moe(moe) => Body::Moe(Moe {
                layer: index,
                routing: moe.routing.clone(),
                router: self.get(Router),
                bias: self.find(RouterBias),
                gate_up: self.get(ExpertGateUp),
                down: self.get(ExpertDown),
                shared: moe.shared.map(|_| Shared {
                    mlp: Gated {
                        gate_up: self.linear(SharedGateUp),
                        down: self.linear(SharedDown),
                    },
                    gate: self.find(SharedGate),
                }),
            }),
        }
    }

    fn block(&self, index: usize, layer: &LayerSpec) -> Block {
        Block {
            attention: Attention {
                norm: self.norm(ParamKind::AttnNorm),
                core: self.core(&layer.attn),
                out: self.linear(match layer.attn {
                    spec::Attention::Delta(_) => ParamKind::DeltaOut,
                    spec::Attention::Grouped(_) | spec::Attention::Latent(_) => ParamKind::AttnOut,
                }),
                post: self.post(ParamKind::AttnPostNorm),
            },
            mlp: Mlp {
                norm: self.norm(ParamKind::FfnNorm),
                body: self.body(index, &layer.ffn),
                post: self.post(ParamKind::FfnPostNorm),
            },
        }
    }
}

impl Wiring {
    /// The layers of `spec`, whose parameters are `params`.
    pub fn new(spec: &ModelSpec, params: &[ParamSpec]) -> Self {
        let ids = params
            .iter()
            .enumerate()
            .map(|(i, p)| ((p.layer, p.kind), ParamId(i)))
            .collect();
        let finder = Finder { spec, ids };
        let outside = finder.at(None);
        let block = |(index, layer)| finder.at(Some(index)).block(index, layer);
        let embedding = outside.get(ParamKind::Embedding);
        Self {
            embedding,
            blocks: spec.layers.iter().enumerate().map(block).collect(),
            norm: outside.norm(ParamKind::FinalNorm),
            head: outside.find(ParamKind::Head).unwrap_or(embedding),
        }
    }
}
