//! One rank's part of the network: some layers, some columns of each matrix, some rows of the vocabulary.
//!
//! ```text
//! first stage   ids ─► own rows of the embedding, summed over tp ─► layers ─► stream
//! others        stream of the stage before ─► layers ─► stream, or on the last stage: final norm ─► wanted rows
//! ```
//!
//! The layers are those of [`slime_model::layers`]; this file only says which run here and what goes in and out. The head
//! is [`super::head`], the order of micro-batches [`super::pipeline`].

use super::layout::{ParallelConfig, stage_layers};
use super::mesh::Mesh;
use super::shard::{Shard, cut, local_spec, shards, vocab_rows};
use super::slice::LocalMicro;
use crate::config::Problem;
use crate::{Error, Result};
use slime_kernels::{Ops, RopeTable};
use slime_model::layers::{
    Gradients, ParamId, Pass, Peers, Recompute, Replay, Routes, Rows, SavedBlock, Stream, Weights,
    Wiring, rope,
};
use slime_model::{ModelSpec, ParamSpec, params};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

/// Where whole parameters come from, one at a time, `[rows × cols]`.
pub type Source<'a> = dyn Fn(&ParamSpec) -> Result<Vec<f32>> + 'a;

/// Makes a rank's part of a parameter.
pub type Make<'a, O> = dyn Fn(&ParamSpec, &Shard) -> Result<<O as Ops>::Tensor> + 'a;

/// Cuts a rank's part from the whole parameters that `source` reads.
pub fn cut_from<'a, O: Ops>(
    ops: &'a O,
    source: &'a Source<'a>,
) -> impl Fn(&ParamSpec, &Shard) -> Result<O::Tensor> + 'a {
    move |param, shard| {
        let held = match shard.is_empty() {
            true => Vec::new(),
            false => cut(param, shard, &source(param)?),
        };
        Ok(ops.tensor(shard.rows, shard.cols, &held)?)
    }
}

/// Told which parameters' gradients a backward has finished with.
pub type Finished<'a, O> = dyn FnMut(&[usize], &Gradients<O>) -> Result<()> + 'a;

/// What a forward leaves.
pub struct Passed<O: Ops> {
    /// The stream for the next stage, or on the last the wanted rows after the final norm, `[rows, hidden]`.
    pub out: O::Tensor,
    /// What the backward needs, if it was asked for.
    pub saved: Option<Saved<O>>,
}

/// What a chunk of layers keeps of one micro-batch.
pub struct Saved<O: Ops> {
    positions: O::Ids,
    rows: Option<Rows<O>>,
    blocks: Vec<SavedBlock<O>>,
    /// On the last stage: the stream before the final norm, and its statistic.
    last: Option<(O::Tensor, O::Float)>,
}

/// A rank's part of the network.
pub struct Stage<O: Ops> {
    ops: Arc<O>,
    /// The whole model.
    pub spec: Arc<ModelSpec>,
    /// Its parameters.
    pub params: Arc<[ParamSpec]>,
    /// What this rank holds of each.
    pub shards: Arc<[Shard]>,
    /// That, as tensors.
    pub weights: Weights<O>,
    wiring: Wiring,
    rope: RopeTable<O>,
    peers: Peers<O>,
    /// Layers of each virtual stage, and which of these are this rank's.
    virtual_stages: Vec<Range<usize>>,
    own: Vec<usize>,
    /// Experts that a micro-batch names are taken; the policy's are no other model's.
    pub(super) replays: bool,
}

impl<O: Ops> Stage<O> {
    /// This rank's part of the model `spec`, made parameter by parameter by `make`.
    ///
    /// # Errors
    /// The layout does not fit the model, `make` failed, or the device has no room.
    pub fn new(
        ops: Arc<O>,
        spec: Arc<ModelSpec>,
        mesh: &Mesh<O>,
        config: &ParallelConfig,
        make: &Make<'_, O>,
    ) -> Result<Self> {
        let problems = config.problems(&spec);
        if !problems.is_empty() {
            return Err(Error::Config(problems));
        }
        let refuse = |detail| {
            Error::Config(vec![Problem {
                key: "pipeline_model_parallel_size",
                detail,
            }])
        };
        let all: Arc<[ParamSpec]> = params(&spec).into();
        let shards: Arc<[Shard]> = shards(&spec, &all, config, &mesh.place)
            .map_err(refuse)?
            .into();
        let mut weights = Vec::with_capacity(all.len());
        for (param, shard) in all.iter().zip(shards.iter()) {
            weights.push(make(param, shard)?);
        }
        let virtual_stages = stage_layers(config, spec.layers.len()).map_err(refuse)?;
        let own = (mesh.pp.rank()..virtual_stages.len())
            .step_by(mesh.pp.size())
            .collect();
        Ok(Self {
            wiring: Wiring::new(&local_spec(&spec, mesh.tp.size()), &all),
            rope: rope::table(&*ops, &spec.rope, spec.max_positions)?,
            peers: mesh.peers(config.sequence_parallel),
            weights: Weights(weights),
            ops,
            params: all,
            spec,
            shards,
            virtual_stages,
            own,
            replays: true,
        })
    }

    /// Chunks of layers here.
    pub fn num_chunks(&self) -> usize {
        self.own.len()
    }

    /// Virtual stages of the whole model.
    pub fn num_virtual(&self) -> usize {
        self.virtual_stages.len()
    }

    /// Which virtual stage a chunk is.
    pub fn virtual_stage(&self, chunk: usize) -> usize {
        self.own[chunk]
    }

    /// Another stage waits for what a backward of this rank gives.
    pub fn is_awaited(&self) -> bool {
        self.own.iter().any(|&virtual_stage| virtual_stage > 0)
    }

    /// The parameter that the head multiplies with.
    pub fn head(&self) -> ParamId {
        self.wiring.head
    }

    /// Fresh gradients of what is held here.
    ///
    /// # Errors
    /// The device has no room.
    pub fn gradients(&self) -> Result<Gradients<O>> {
        Ok(Gradients::zeros(&*self.ops, &self.weights)?)
    }

    /// Shape of the stream between stages.
    pub fn stream_shape(&self, micro: &LocalMicro) -> (usize, usize) {
        let rows = match self.splits_rows() {
            Some(tp) => micro.num_rows() / tp,
            None => micro.num_rows(),
        };
        (rows, self.spec.hidden)
    }

    /// Ranks that split the stream's rows.
    fn splits_rows(&self) -> Option<usize> {
        let tp = self.peers.tp.as_ref()?;
        self.peers.sequence_parallel.then(|| tp.size())
    }

    fn pass<'a>(&'a self, positions: &'a O::Ids, routes: Replay<'a>) -> Pass<'a, O> {
        Pass {
            ops: &*self.ops,
            weights: &self.weights,
            rope: &self.rope,
            positions,
            peers: &self.peers,
            routes,
        }
    }

    /// Is this layer run here?
    pub fn holds(&self, layer: usize) -> bool {
        let mut own = self.own.iter().map(|&at| &self.virtual_stages[at]);
        own.any(|layers| layers.contains(&layer))
    }

    /// Rows of a micro-batch that a layer's experts see here.
    fn expert_rows(&self, layer: usize, micro: &LocalMicro) -> Vec<u32> {
        let rows = micro.num_rows() as u32;
        match &self.peers.tp {
            Some(tp) if self.peers.sequence_parallel => {
                let part = rows / tp.size() as u32;
                let start = tp.rank() as u32 * part;
                (start..start + part).collect()
            }
            _ if layer + 1 == self.spec.layers.len() => micro.wanted().to_vec(),
            _ => (0..rows).collect(),
        }
    }

    /// What the layers of a chunk are to see of a micro-batch's routes.
    fn forced(&self, chunk: usize, micro: &LocalMicro) -> Option<Routes> {
        let routes = micro.routes.as_ref().filter(|_| self.replays)?;
        let mut seen = Routes {
            layers: vec![Vec::new(); self.spec.layers.len()],
        };
        for layer in self.virtual_stages[self.own[chunk]].clone() {
            let rows = self.expert_rows(layer, micro);
            let all = &routes.layers[layer];
            seen.layers[layer] = Routes::picked(all, &rows, micro.num_rows());
        }
        Some(seen)
    }

    /// Experts that passes here have recorded, as those of all rows of the micro-batch.
    pub fn recorded(&self, seen: Routes, micro: &LocalMicro) -> Routes {
        let of_layer = |(layer, experts): (usize, Vec<u32>)| match experts.is_empty() {
            true => experts,
            false => Routes::spread(&experts, &self.expert_rows(layer, micro), micro.num_rows()),
        };
        Routes {
            layers: seen.layers.into_iter().enumerate().map(of_layer).collect(),
        }
    }

    /// Rows of a micro-batch whose ids this rank's part of the embedding has, and those ids counted from its first.
    fn own_ids(&self, micro: &LocalMicro) -> (Vec<u32>, Vec<u32>) {
        let tp = self.peers.tp.as_ref();
        let (size, rank) = tp.map_or((1, 0), |tp| (tp.size(), tp.rank()));
        let (start, each) = vocab_rows(self.spec.vocab, size, rank);
        micro
            .ids
            .iter()
            .enumerate()
            .filter(|(_, id)| (start..start + each).contains(&(**id as usize)))
            .map(|(row, id)| (row as u32, id - start as u32))
            .unzip()
    }

    fn embed(&self, micro: &LocalMicro) -> Result<O::Tensor> {
        let (rows, ids) = self.own_ids(micro);
        let table = self.weights.get(self.wiring.embedding);
        let (total, hidden) = (micro.num_rows(), self.spec.hidden);
        if rows.len() == total {
            let all = self.ops.embed(table, &self.ops.ids(&ids)?)?;
            return Ok(self.peers.leave(all)?);
        }
        let part = if rows.is_empty() {
            self.ops.tensor(total, hidden, &vec![0.0; total * hidden])?
        } else {
            let found = self.ops.embed(table, &self.ops.ids(&ids)?)?;
            self.ops
                .scatter_rows(&found, &self.ops.ids(&rows)?, total)?
        };
        Ok(self.peers.leave(part)?)
    }

    fn embed_backward(
        &self,
        dstream: &O::Tensor,
        micro: &LocalMicro,
        grads: &mut Gradients<O>,
    ) -> Result<()> {
        let dx = self.peers.leave_backward(dstream)?;
        let (rows, ids) = self.own_ids(micro);
        if rows.is_empty() {
            return Ok(());
        }
        let dx = self.ops.gather_rows(&dx, &self.ops.ids(&rows)?)?;
        let ids = self.ops.ids(&ids)?;
        let dtable = grads.get(self.wiring.embedding);
        Ok(self.ops.accumulate_embed(&dx, &ids, dtable)?)
    }

    fn is_last(&self, chunk: usize) -> bool {
        self.own[chunk] + 1 == self.virtual_stages.len()
    }

    /// Run a micro-batch through a chunk of layers. `input` is the stream of the virtual stage before, `None` for the
    /// first. With `keep`, what the backward needs is kept, as each layer's policy says. Experts that routers choose are
    /// noted in `record`.
    ///
    /// # Errors
    /// A peer or the device failed.
    pub fn forward(
        &self,
        chunk: usize,
        input: Option<O::Tensor>,
        micro: &LocalMicro,
        keep: Option<&[Recompute]>,
        record: Option<&RefCell<Routes>>,
    ) -> Result<Passed<O>> {
        let positions = self.ops.ids(&micro.positions)?;
        let forced = self.forced(chunk, micro);
        let routes = match (&forced, record) {
            (Some(forced), _) => Replay::Force(forced),
            (None, Some(record)) => Replay::Record(record),
            (None, None) => Replay::Off,
        };
        let pass = self.pass(&positions, routes);
        let base = match input {
            Some(input) => input,
            None => self.embed(micro)?,
        };
        let mut stream = Stream { base, delta: None };
        let is_last = self.is_last(chunk);
        let rows = match is_last {
            true => Rows::select(&*self.ops, micro.wanted(), micro.num_rows())?,
            false => None,
        };
        // Where rows are split over ranks, the wanted ones are picked after they have met again.
        let early = rows.as_ref().filter(|_| self.splits_rows().is_none());
        let layers = self.virtual_stages[self.own[chunk]].clone();
        let mut blocks = Vec::new();
        for layer in layers.clone() {
            let block = &self.wiring.blocks[layer];
            let rows = early.filter(|_| layer + 1 == layers.end);
            let sequences = &micro.sequences;
            stream = match keep {
                Some(recompute) => {
                    let policy = recompute.get(layer).or(recompute.last());
                    let policy = policy.copied().unwrap_or_default();
                    let (next, saved) = block.forward(stream, sequences, rows, pass, policy)?;
                    blocks.push(saved);
                    next
                }
                None => block.infer(stream, sequences, rows, pass)?,
            };
        }
        let (out, last) = if is_last {
            let normed = self.wiring.norm.forward(stream, pass.ops, pass.weights)?;
            let mut out = normed.out;
            if self.splits_rows().is_some() {
                out = self.peers.enter(&out)?;
                if let Some(rows) = &rows {
                    out = self.ops.gather_rows(&out, &rows.ids)?;
                }
            }
            (out, Some((normed.sum, normed.stat)))
        } else {
            let sum = match stream.delta {
                Some(delta) => self.ops.add(&stream.base, &delta)?,
                None => stream.base,
            };
            (sum, None)
        };
        let saved = keep.map(|_| Saved {
            positions,
            rows,
            blocks,
            last,
        });
        Ok(Passed { out, saved })
    }

    /// The gradient of what [`Self::forward`] gave → that of its input, `None` for the first virtual stage. On the last,
    /// `dout` is this rank's part of a sum over tp. A chunk's last backward tells `finished` as it goes.
    ///
    /// # Errors
    /// A peer or the device failed.
    pub fn backward(
        &self,
        chunk: usize,
        dout: O::Tensor,
        micro: &LocalMicro,
        saved: Saved<O>,
        grads: &mut Gradients<O>,
        mut finished: Option<&mut Finished<'_, O>>,
    ) -> Result<Option<O::Tensor>> {
        let mut finished = |params: &[usize], grads: &Gradients<O>| match &mut finished {
            Some(finished) => finished(params, grads),
            None => Ok(()),
        };
        let Saved {
            positions,
            rows,
            blocks,
            last,
        } = saved;
        let forced = self.forced(chunk, micro);
        let routes = forced.as_ref().map_or(Replay::Off, Replay::Force);
        let pass = self.pass(&positions, routes);
        let (ops, weights) = (pass.ops, pass.weights);
        let late = self.splits_rows().is_some();
        let mut dstream = match last {
            Some((sum, stat)) => {
                let dout = match &rows {
                    Some(rows) if late => ops.scatter_rows(&dout, &rows.ids, rows.of)?,
                    _ => dout,
                };
                let dout = self.peers.enter_backward(dout)?;
                let norm = &self.wiring.norm;
                let dsum = norm.backward(&dout, &sum, &stat, None, ops, weights, grads)?;
                finished(&self.params_after_layers(), grads)?;
                dsum
            }
            None => dout,
        };
        let layers = self.virtual_stages[self.own[chunk]].clone();
        for (layer, saved) in layers.clone().zip(blocks).rev() {
            let rows = rows.as_ref().filter(|_| layer + 1 == layers.end && !late);
            let block = &self.wiring.blocks[layer];
            dstream = block.backward(dstream, saved, &micro.sequences, rows, pass, grads)?;
            finished(&self.params_of(Some(layer)), grads)?;
        }
        if self.own[chunk] > 0 {
            return Ok(Some(dstream));
        }
        self.embed_backward(&dstream, micro, grads)?;
        finished(&[self.wiring.embedding.0], grads)?;
        Ok(None)
    }

    fn params_of(&self, layer: Option<usize>) -> Vec<usize> {
        let all = self.params.iter().enumerate();
        let of = all.filter(|(_, param)| param.layer == layer);
        of.map(|(i, _)| i).collect()
    }

    /// The final norm, and a head of its own: one that is the embedding, too, gets more from the first layer.
    fn params_after_layers(&self) -> Vec<usize> {
        let mut params = self.params_of(None);
        params.retain(|param| *param != self.wiring.embedding.0);
        params
    }
}
