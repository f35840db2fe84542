//! The whole decoder on one device: embedding, blocks, final norm, and the head's matrix.
//!
//! Two ways through it: [`Network::forward_paged`] serves rows of many sequences through a paged cache,
//! [`Network::forward_train`] and [`Network::backward`] train on packed sequences. Both run the same layers, and
//! the device's rows do not depend on each other, so a token's hidden row is the same bits either way.
//! It knows no loss, no sampler and no file. Read `network/paged.rs` for the first way, [`crate::layers::block`] next.

mod paged;

pub use paged::{PagedRows, Step};

use crate::layers::{
    Gradients, ParamId, Pass, Peers, Recompute, Replay, Routes, Rows, SavedBlock, Stream, Weights,
    Wiring, rope,
};
use crate::params::{ParamSpec, params};
use crate::spec::ModelSpec;
use crate::{Error, Result};
use slime_kernels::{Ops, RopeTable, Sequences};
use std::cell::RefCell;
use std::sync::Arc;

/// What a training forward keeps until its backward.
pub struct Activations<O: Ops> {
    ids: O::Ids,
    positions: O::Ids,
    sequences: Sequences,
    rows: Option<Rows<O>>,
    routes: Option<ForcedRoutes>,
    blocks: Vec<SavedBlock<O>>,
    /// Stream before the final norm, `[wanted rows, hidden]`.
    sum: O::Tensor,
    stat: O::Float,
}

/// Routes of a pass: the last layer sees the wanted rows alone.
struct ForcedRoutes {
    all: Routes,
    wanted: Routes,
}

impl ForcedRoutes {
    fn new(routes: &Routes, wanted: &[u32], num_rows: usize) -> Self {
        Self {
            all: routes.clone(),
            wanted: routes.select(wanted, num_rows),
        }
    }

    fn replay(this: Option<&Self>, last: bool) -> Replay<'_> {
        match this {
            None => Replay::Off,
            Some(forced) if last => Replay::Force(&forced.wanted),
            Some(forced) => Replay::Force(&forced.all),
        }
    }
}

/// Packed rows on the device.
struct Packed<O: Ops> {
    ids: O::Ids,
    positions: O::Ids,
    rows: Option<Rows<O>>,
}

/// A decoder-only transformer and its weights.
pub struct Network<O: Ops> {
    ops: Arc<O>,
    spec: Arc<ModelSpec>,
    params: Arc<[ParamSpec]>,
    wiring: Wiring,
    weights: Weights<O>,
    rope: RopeTable<O>,
    peers: Peers<O>,
}

impl<O: Ops> Network<O> {
    /// A network over `weights`, which are in the order of `spec`'s parameters.
    ///
    /// # Errors
    /// A tensor is missing or has another shape than the spec says.
    pub fn new(ops: Arc<O>, spec: Arc<ModelSpec>, weights: Vec<O::Tensor>) -> Result<Self> {
        let params: Arc<[ParamSpec]> = params(&spec).into();
        if weights.len() != params.len() {
            let (have, want) = (weights.len(), params.len());
            return Err(Error::Input(format!(
                "{have} tensors for a model of {want} parameters"
            )));
        }
        for (tensor, param) in weights.iter().zip(params.iter()) {
            let (rows, cols) = ops.shape(tensor);
            if (rows, cols) != (param.rows, param.cols) {
                let ParamSpec {
                    name,
                    rows: r,
                    cols: c,
                    ..
                } = param;
                let detail = format!("{name} is [{rows}, {cols}], the model wants [{r}, {c}]");
                return Err(Error::Input(detail));
            }
        }
        let wiring = Wiring::new(&spec, &params);
        let rope = rope::table(&*ops, &spec.rope, spec.max_positions)?;
        Ok(Self {
            ops,
            spec,
            params,
            wiring,
            weights: Weights(weights),
            rope,
            peers: Peers::alone(),
        })
    }

    /// The device.
    pub fn ops(&self) -> &Arc<O> {
        &self.ops
    }

    /// What the model is.
    pub fn spec(&self) -> &Arc<ModelSpec> {
        &self.spec
    }

    /// Names and shapes of the parameters, in order.
    pub fn params(&self) -> &Arc<[ParamSpec]> {
        &self.params
    }

    /// The parameters, in the order of [`Self::params`].
    pub fn weights(&self) -> &Weights<O> {
        &self.weights
    }

    /// The parameters, to be updated.
    pub fn weights_mut(&mut self) -> &mut Weights<O> {
        &mut self.weights
    }

    /// The parameter that the head multiplies with: `[vocab, hidden]`, the embedding's where they are tied.
    pub fn head(&self) -> ParamId {
        self.wiring.head
    }

    fn pass<'a>(&'a self, positions: &'a O::Ids) -> Pass<'a, O> {
        Pass {
            ops: &*self.ops,
            weights: &self.weights,
            rope: &self.rope,
            positions,
            peers: &self.peers,
            routes: Replay::Off,
        }
    }

    fn check_ids(&self, ids: &[u32], positions: &[u32]) -> Result<()> {
        let limit = self.spec.max_positions;
        if let Some(position) = positions.iter().find(|&&p| p as usize >= limit) {
            return Err(Error::Input(format!(
                "position {position} lies beyond the model's {limit} positions"
            )));
        }
        if let Some(id) = ids.iter().find(|&&id| id as usize >= self.spec.vocab) {
            let vocab = self.spec.vocab;
            return Err(Error::Input(format!(
                "token id {id} lies beyond the vocabulary of {vocab}"
            )));
        }
        Ok(())
    }

    fn upload(&self, ids: &[u32], positions: &[u32]) -> Result<(O::Ids, O::Ids)> {
        self.check_ids(ids, positions)?;
        Ok((self.ops.ids(ids)?, self.ops.ids(positions)?))
    }

    fn packed(&self, ids: &[u32], sequences: &Sequences, wanted: &[u32]) -> Result<Packed<O>> {
        if sequences.num_tokens() != ids.len() {
            let (have, want) = (ids.len(), sequences.num_tokens());
            return Err(Error::Input(format!(
                "{have} ids for sequences of {want} tokens"
            )));
        }
        let rows = Rows::select(&*self.ops, wanted, ids.len())?;
        let (ids, positions) = self.upload(ids, &sequences.positions())?;
        Ok(Packed {
            ids,
            positions,
            rows,
        })
    }

    fn embed(&self, ids: &O::Ids) -> Result<Stream<O>> {
        let base = self
            .ops
            .embed(self.weights.get(self.wiring.embedding), ids)?;
        Ok(Stream { base, delta: None })
    }

    /// Logits of hidden rows, in the accumulator's precision: `[rows, vocab]`.
    ///
    /// # Errors
    /// The device failed.
    pub fn logits(&self, hidden: &O::Tensor) -> Result<O::Float> {
        Ok(self
            .ops
            .logits(hidden, self.weights.get(self.wiring.head))?)
    }

    /// Run packed sequences and keep nothing → the wanted rows after the final norm, `[wanted, hidden]`.
    ///
    /// # Errors
    /// As [`Self::forward_train`].
    pub fn forward(&self, ids: &[u32], sequences: &Sequences, wanted: &[u32]) -> Result<O::Tensor> {
        self.forward_with(ids, sequences, wanted, Replay::Off)
    }

    /// The same, and the experts that rows went to: `[rows × top_k]` a layer, of every row up to the last layer and
    /// there of the wanted rows, the others left free.
    ///
    /// # Errors
    /// As [`Self::forward_train`].
    pub fn forward_recording(
        &self,
        ids: &[u32],
        sequences: &Sequences,
        wanted: &[u32],
    ) -> Result<(O::Tensor, Routes)> {
        let routes = RefCell::new(Routes {
            layers: vec![Vec::new(); self.spec.layers.len()],
        });
        let hidden = self.forward_with(ids, sequences, wanted, Replay::Record(&routes))?;
        let mut routes = routes.into_inner();
        if let Some(last) = routes.layers.last_mut() {
            *last = Routes::spread(last, wanted, ids.len());
        }
        Ok((hidden, routes))
    }

    /// The same with experts that another pass chose, as [`Self::forward_replaying`] takes them.
    ///
    /// # Errors
    /// As [`Self::forward_replaying`].
    pub fn forward_routed(
        &self,
        ids: &[u32],
        sequences: &Sequences,
        wanted: &[u32],
        routes: &Routes,
    ) -> Result<O::Tensor> {
        self.forward_with(ids, sequences, wanted, Replay::Force(routes))
    }

    fn forward_with(
        &self,
        ids: &[u32],
        sequences: &Sequences,
        wanted: &[u32],
        routes: Replay<'_>,
    ) -> Result<O::Tensor> {
        let of_wanted = match routes {
            Replay::Force(routes) => Some(routes.select(wanted, ids.len())),
            Replay::Off | Replay::Record(_) => None,
        };
        let Packed {
            ids,
            positions,
            rows,
        } = self.packed(ids, sequences, wanted)?;
        let mut pass = Pass {
            routes,
            ..self.pass(&positions)
        };
        let mut stream = self.embed(&ids)?;
        let last = self.wiring.blocks.len() - 1;
        for (layer, block) in self.wiring.blocks.iter().enumerate() {
            let rows = rows.as_ref().filter(|_| layer == last);
            if layer == last
                && let Some(of_wanted) = &of_wanted
            {
                pass.routes = Replay::Force(of_wanted);
            }
            stream = block.infer(stream, sequences, rows, pass)?;
        }
        Ok(self
            .wiring
            .norm
            .forward(stream, pass.ops, pass.weights)?
            .out)
    }

    /// Run packed sequences for training → the wanted rows after the final norm, `[wanted, hidden]`, and what the
    /// backward needs. `recompute` says for each layer what is kept; a list shorter than the model repeats its last.
    ///
    /// # Errors
    /// An id outside the vocabulary, a sequence longer than the model's positions, or the device failed.
    pub fn forward_train(
        &self,
        ids: &[u32],
        sequences: &Sequences,
        wanted: &[u32],
        recompute: &[Recompute],
    ) -> Result<(O::Tensor, Activations<O>)> {
        self.forward_replaying(ids, sequences, wanted, recompute, None)
    }

    /// The same with experts that another pass chose: of every row of every layer, as
    /// [`Self::forward_recording`] or an engine gave them. The backward takes the same.
    ///
    /// # Errors
    /// As [`Self::forward_train`], or the routes do not fit the model.
    pub fn forward_replaying(
        &self,
        ids: &[u32],
        sequences: &Sequences,
        wanted: &[u32],
        recompute: &[Recompute],
        routes: Option<&Routes>,
    ) -> Result<(O::Tensor, Activations<O>)> {
        let routes = routes.map(|routes| ForcedRoutes::new(routes, wanted, ids.len()));
        let Packed {
            ids,
            positions,
            rows,
        } = self.packed(ids, sequences, wanted)?;
        let mut pass = self.pass(&positions);
        let mut stream = self.embed(&ids)?;
        let mut blocks = Vec::with_capacity(self.wiring.blocks.len());
        let last = self.wiring.blocks.len() - 1;
        for (layer, block) in self.wiring.blocks.iter().enumerate() {
            let rows = rows.as_ref().filter(|_| layer == last);
            let policy = recompute
                .get(layer)
                .or(recompute.last())
                .copied()
                .unwrap_or_default();
            pass.routes = ForcedRoutes::replay(routes.as_ref(), layer == last);
            let (next, saved) = block.forward(stream, sequences, rows, pass, policy)?;
            stream = next;
            blocks.push(saved);
        }
        let normed = self.wiring.norm.forward(stream, pass.ops, pass.weights)?;
        let (sum, stat) = (normed.sum, normed.stat);
        let sequences = sequences.clone();
        Ok((
            normed.out,
            Activations {
                ids,
                positions,
                sequences,
                rows,
                routes,
                blocks,
                sum,
                stat,
            },
        ))
    }

    /// Gradient of the wanted hidden rows, `[wanted, hidden]` → added to every parameter's gradient.
    /// The head's own gradient is the caller's.
    ///
    /// # Errors
    /// The device failed; the gradients are then of no use.
    pub fn backward(
        &self,
        dhidden: &O::Tensor,
        activations: Activations<O>,
        grads: &mut Gradients<O>,
    ) -> Result<()> {
        let Activations {
            ids,
            positions,
            sequences,
            rows,
            routes,
            blocks,
            sum,
            stat,
        } = activations;
        let mut pass = self.pass(&positions);
        let (ops, weights) = (pass.ops, pass.weights);
        let mut dstream = self
            .wiring
            .norm
            .backward(dhidden, &sum, &stat, None, ops, weights, grads)?;
        drop((sum, stat));
        let last = self.wiring.blocks.len() - 1;
        for (layer, (block, saved)) in self.wiring.blocks.iter().zip(blocks).enumerate().rev() {
            let rows = rows.as_ref().filter(|_| layer == last);
            pass.routes = ForcedRoutes::replay(routes.as_ref(), layer == last);
            dstream = block.backward(dstream, saved, &sequences, rows, pass, grads)?;
        }
        Ok(ops.accumulate_embed(&dstream, &ids, grads.get(self.wiring.embedding))?)
    }
}
