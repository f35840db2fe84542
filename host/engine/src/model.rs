//! The engine over a real network: [`Engine`] starts one, [`Served`] is the network behind the scheduler's trait.
//!
//! It computes nothing itself; layers are slime-model's, arithmetic the device's.

use crate::decode::Decoder;
use crate::engine::{self, EngineConfig, EngineHandle, SamplingDefaults};
use crate::forward::{Forward, Rows, Source};
use crate::inlet::Inlet;
use crate::weights::{self, Piece};
use crate::{Error, Result};
use slime_core::ports::TextCodec;
use slime_kernels::{Draw, Drawn, Ops};
use slime_model::layers::Routes;
use slime_model::text::Text;
use slime_model::{Cache, Ffn, HfDir, Network, PagedRows};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Starts engines.
pub struct Engine;

impl Engine {
    /// Serve the model in a Hugging Face directory: configuration, tokenizer, template and weights.
    ///
    /// # Errors
    /// The directory is not a model's, or as [`Self::start`].
    pub fn open<O: Ops>(ops: Arc<O>, dir: &Path, config: EngineConfig) -> Result<EngineHandle> {
        let HfDir {
            files,
            spec,
            weights,
        } = HfDir::open(dir)?;
        let text = Text::new(&files)?;
        text.check_vocab(spec.vocab)?;
        let mut tensors = Vec::new();
        weights.load_params::<Error>(&spec, |param, values| {
            tensors.push(ops.tensor(param.rows, param.cols, &values)?);
            Ok(())
        })?;
        let sampling_defaults = match files.json("generation_config.json")? {
            Some(json) => SamplingDefaults::from_generation_config(&json),
            None => SamplingDefaults::default(),
        };
        let network = Network::new(ops, Arc::new(spec), tensors)?;
        let config = EngineConfig {
            model_path: dir.to_owned(),
            sampling_defaults,
            ..config
        };
        Self::start(network, Arc::new(text), config)
    }

    /// Serve a network that is in memory.
    ///
    /// # Errors
    /// The configuration cannot work, or the device has no room for the cache.
    pub fn start<O: Ops>(
        network: Network<O>,
        codec: Arc<dyn TextCodec>,
        config: EngineConfig,
    ) -> Result<EngineHandle> {
        Ok(Self::start_with_inlet(network, codec, config)?.0)
    }

    /// The same, with a way for this process's tensors into the running engine.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with_inlet<O: Ops>(
        network: Network<O>,
        codec: Arc<dyn TextCodec>,
        config: EngineConfig,
    ) -> Result<(EngineHandle, Inlet<O>)> {
        let ops = network.ops().clone();
        let served = Served {
            decoder: Decoder::new(&*ops, config.cuda_graph_max_bs),
            network,
            cache: None,
            routes: Vec::new(),
        };
        let engine = engine::start(served, codec, config)?;
        let inlet = Inlet::new(engine.clone(), ops);
        Ok((engine, inlet))
    }
}

/// New weights, checked.
enum Checked<O: Ops> {
    /// Some of the model's tensors, on the host.
    Pieces(Vec<Piece>),
    /// All of its parameters, on the device.
    Whole(Vec<O::Tensor>),
}

impl<O: Ops> Served<O> {
    /// Logits of the `range` of rows, on the device.
    fn logits_of(&self, hidden: &O::Tensor, range: Range<usize>) -> Result<O::Float> {
        let ops = self.network.ops();
        if range == (0..ops.shape(hidden).0) {
            return Ok(self.network.logits(hidden)?);
        }
        let rows: Vec<u32> = range.map(|r| r as u32).collect();
        let rows = ops.gather_rows(hidden, &ops.ids(&rows)?)?;
        Ok(self.network.logits(&rows)?)
    }
}

/// A network and its cache.
struct Served<O: Ops> {
    /// Before what its recordings read.
    decoder: Decoder<O>,
    network: Network<O>,
    /// `None` until [`Forward::allocate`].
    cache: Option<Cache<O>>,
    /// The experts of the token in each slot, `[slots, layers, experts of a token]`; empty without experts.
    routes: Vec<u16>,
}

impl<O: Ops> Served<O> {
    /// Experts of a token in one layer; 0 for a model without experts.
    fn top_k(&self) -> usize {
        let layers = self.network.spec().layers.iter();
        let of_layer = layers.map(|layer| match &layer.ffn {
            Ffn::Moe(moe) => moe.routing.top_k,
            Ffn::SwiGlu { .. } => 0,
        });
        of_layer.max().unwrap_or(0)
    }

    /// Parameters in the place of the old ones, where recorded steps find them.
    fn replace(&mut self, tensors: impl Iterator<Item = (usize, O::Tensor)>) -> Result<()> {
        let ops = self.network.ops().clone();
        let weights = self.network.weights_mut();
        for (index, tensor) in tensors {
            ops.assign_tensor(&mut weights.0[index], &tensor)?;
        }
        Ok(())
    }

    fn remember(&mut self, slots: &[usize], routes: &Routes) {
        let (layers, top_k) = (routes.layers.len(), self.top_k());
        for (layer, experts) in routes.layers.iter().enumerate() {
            for (slot, experts) in slots.iter().zip(experts.chunks_exact(top_k.max(1))) {
                let at = (slot * layers + layer) * top_k;
                for (to, expert) in self.routes[at..at + top_k].iter_mut().zip(experts) {
                    *to = *expert as u16;
                }
            }
        }
    }
}

impl From<slime_model::Error> for Error {
    fn from(e: slime_model::Error) -> Self {
        Self::Model(e.to_string())
    }
}

impl<O: Ops> Forward for Served<O> {
    type Hidden = O::Tensor;
    type Weights = Checked<O>;

    fn model_type(&self) -> String {
        self.network.spec().family.model_type.to_owned()
    }

    fn block_tokens(&self) -> usize {
        self.network.ops().kv_block_tokens()
    }

    fn vocab_size(&self) -> usize {
        self.network.spec().vocab
    }

    fn max_positions(&self) -> usize {
        self.network.spec().max_positions
    }

    fn allocate(&mut self, num_blocks: usize) -> Result<()> {
        let spare = self.decoder.reserve(num_blocks);
        self.cache = Some(self.network.cache(num_blocks + spare)?);
        let slots = num_blocks * self.block_tokens();
        self.routes = vec![0; slots * self.network.spec().layers.len() * self.top_k()];
        Ok(())
    }

    fn forward(&mut self, rows: &Rows<'_>, wanted: &[u32]) -> Result<O::Tensor> {
        let Some(cache) = &mut self.cache else {
            return Err(Error::Model("the cache has not been allocated".into()));
        };
        // A step of prompt chunks alone wants no row; one costs less than a tensor without rows is worth.
        let last = [rows.tokens.len() as u32 - 1];
        let rows = PagedRows {
            ids: rows.tokens,
            positions: rows.positions,
            slots: rows.slots,
            sequences: rows.sequences,
            wanted: if wanted.is_empty() { &last } else { wanted },
        };
        if self.routes.is_empty() {
            return match self.decoder.forward(&self.network, cache, &rows)? {
                Some(hidden) => Ok(hidden),
                None => Ok(self.network.forward_paged(&rows, cache)?),
            };
        }
        let (hidden, routes) = self.network.forward_paged_recording(&rows, cache)?;
        self.remember(rows.slots, &routes);
        Ok(hidden)
    }

    fn replays(&self) -> u64 {
        self.decoder.replays()
    }

    fn has_experts(&self) -> bool {
        self.top_k() > 0
    }

    fn routes(&self, slots: &[usize]) -> Option<Vec<i32>> {
        if self.routes.is_empty() {
            return None;
        }
        let width = self.network.spec().layers.len() * self.top_k();
        let of_slot = |slot: &usize| &self.routes[slot * width..(slot + 1) * width];
        let experts = slots.iter().flat_map(of_slot);
        Some(experts.map(|e| i32::from(*e)).collect())
    }

    fn logits(&self, hidden: &O::Tensor, range: Range<usize>) -> Result<Vec<f32>> {
        let logits = self.logits_of(hidden, range)?;
        Ok(self.network.ops().read_float(&logits)?)
    }

    fn draw(
        &self,
        hidden: &O::Tensor,
        range: Range<usize>,
        draws: &[Draw],
        vocab: usize,
    ) -> Result<Option<Vec<Drawn>>> {
        let logits = self.logits_of(hidden, range)?;
        Ok(self.network.ops().draw(&logits, draws, vocab)?)
    }

    fn logit_rows(&self) -> usize {
        let row = 4 * self.network.spec().vocab;
        (self.network.ops().logits_chunk_bytes() / row).clamp(64, 1024)
    }

    fn read_weights(&self, source: Source) -> Result<Checked<O>> {
        match source {
            Source::Directory(dir) => {
                weights::read(&dir, self.network.params(), self.network.spec()).map(Checked::Pieces)
            }
            Source::Device(tensors) => {
                let tensors = tensors
                    .downcast::<Vec<O::Tensor>>()
                    .map_err(|_| Error::Weights("the tensors are of another device".into()))?;
                weights::check(&**self.network.ops(), self.network.params(), &tensors)?;
                Ok(Checked::Whole(*tensors))
            }
        }
    }

    fn install(&mut self, weights: Checked<O>) -> Result<()> {
        let pieces = match weights {
            Checked::Pieces(pieces) => pieces,
            Checked::Whole(tensors) => return self.replace(tensors.into_iter().enumerate()),
        };
        let mut by_param: BTreeMap<usize, Vec<Piece>> = BTreeMap::new();
        for piece in pieces {
            by_param.entry(piece.param).or_default().push(piece);
        }
        let (params, ops) = (self.network.params().clone(), self.network.ops().clone());
        // Upload everything before replacing anything: the device may run out of room half way.
        let mut uploaded = Vec::with_capacity(by_param.len());
        for (index, mut pieces) in by_param {
            let param = &params[index];
            let whole = pieces.iter().map(|p| p.values.len()).sum::<usize>() == param.len();
            let values = match pieces.as_mut_slice() {
                [only] if whole => std::mem::take(&mut only.values),
                pieces => {
                    let mut values = if whole {
                        vec![0.0; param.len()]
                    } else {
                        ops.read(&self.network.weights().0[index])?
                    };
                    for piece in pieces {
                        values[piece.start..piece.start + piece.values.len()]
                            .copy_from_slice(&piece.values);
                    }
                    values
                }
            };
            uploaded.push((index, ops.tensor(param.rows, param.cols, &values)?));
        }
        self.replace(uploaded.into_iter())
    }

    fn checksums(&self) -> Result<Vec<(String, u64)>> {
        let mut sums = Vec::new();
        for (param, tensor) in self.network.params().iter().zip(&self.network.weights().0) {
            let values = self.network.ops().read(tensor)?;
            let mut rest = values.as_slice();
            for part in &param.parts {
                let (values, after) = rest.split_at(part.len());
                sums.push((part.name.clone(), weights::checksum(values)));
                rest = after;
            }
        }
        sums.sort();
        Ok(sums)
    }

    fn tensor(&self, name: &str, rows: usize) -> Result<Option<(Vec<f32>, usize)>> {
        for (param, tensor) in self.network.params().iter().zip(&self.network.weights().0) {
            let mut start = 0;
            for part in &param.parts {
                if part.name == name {
                    let width = part.shape.iter().skip(1).product();
                    let len = part.len().min(rows.saturating_mul(width));
                    let values = self.network.ops().read(tensor)?;
                    return Ok(Some((values[start..start + len].to_vec(), width)));
                }
                start += part.len();
            }
        }
        Ok(None)
    }
}
