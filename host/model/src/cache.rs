//! The paged cache of a whole model: each layer's keys and values, in the width that its attention caches, or its
//! memory after every block.
//!
//! Layers of one width share one device cache. Who owns which block is the engine's business.

use crate::spec::{Cached, ModelSpec};
use slime_kernels::{Error, Heads, Ops, Result};

/// What every layer caches, in blocks of [`Ops::kv_block_tokens`] tokens.
pub struct Cache<O: Ops> {
    keys: Vec<O::KvCache>,
    /// `[blocks, numbers]`.
    states: Vec<O::Float>,
    places: Vec<Place>,
}

/// Where a layer's part of the cache is.
#[derive(Clone, Copy)]
enum Place {
    /// Which of the keys, and which layer of it.
    Keys(usize, usize),
    State(usize),
}

impl<O: Ops> Cache<O> {
    /// Room for `num_blocks` blocks.
    ///
    /// # Errors
    /// The device has no room.
    pub fn new(ops: &O, spec: &ModelSpec, num_blocks: usize) -> Result<Self> {
        let mut widths: Vec<(Heads, usize)> = Vec::new();
        let mut places = Vec::with_capacity(spec.layers.len());
        let mut states = Vec::new();
        for layer in &spec.layers {
            let heads = match layer.attn.cached() {
                Cached::Keys(heads) => heads,
                Cached::State(numbers) => {
                    places.push(Place::State(states.len()));
                    states.push(ops.float_zeros(num_blocks, numbers)?);
                    continue;
                }
            };
            let found = widths.iter().position(|(known, _)| *known == heads);
            let at = found.unwrap_or_else(|| {
                widths.push((heads, 0));
                widths.len() - 1
            });
            places.push(Place::Keys(at, widths[at].1));
            widths[at].1 += 1;
        }
        let keys = widths
            .into_iter()
            .map(|(heads, layers)| ops.kv_cache(layers, num_blocks, heads))
            .collect::<Result<_>>()?;
        Ok(Self {
            keys,
            states,
            places,
        })
    }

    /// The device cache that holds a layer's keys and values, and its number in it.
    ///
    /// # Errors
    /// The layer keeps something else: the cache is another model's.
    pub fn keys(&mut self, layer: usize) -> Result<(&mut O::KvCache, usize)> {
        match self.places.get(layer) {
            Some(Place::Keys(at, layer)) => Ok((&mut self.keys[*at], *layer)),
            _ => Err(foreign(layer)),
        }
    }

    /// A layer's memory after every block.
    ///
    /// # Errors
    /// As [`Self::keys`].
    pub fn state(&mut self, layer: usize) -> Result<&mut O::Float> {
        match self.places.get(layer) {
            Some(Place::State(at)) => Ok(&mut self.states[*at]),
            _ => Err(foreign(layer)),
        }
    }
}

fn foreign(layer: usize) -> Error {
    Error::Shape {
        op: "cache",
        detail: format!("layer {layer} of another model"),
    }
}
