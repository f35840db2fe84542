//! What the scheduler asks of a model: rows in, logits of some rows out, weights replaced in one piece.
//!
//! It knows no layer. The real one is [`crate::model::Served`]; tests of the scheduler use one whose logits are
//! a hash of the whole context as the cache holds it, so that a wrong block cannot go unnoticed.

use crate::Result;
use slime_kernels::{Draw, Drawn, PagedSequence};
use std::any::Any;
use std::ops::Range;
use std::path::PathBuf;

/// Where new weights come from.
pub(crate) enum Source {
    /// A directory of `*.safetensors`: any subset of the model's tensors.
    Directory(PathBuf),
    /// All parameters in the model's order, as a list of its device's tensors.
    Device(Box<dyn Any + Send>),
}

/// What a step computes: new tokens of many sequences, prefill and decode alike.
pub(crate) struct Rows<'a> {
    /// Token of each row.
    pub(crate) tokens: &'a [u32],
    /// Its place in its sequence.
    pub(crate) positions: &'a [u32],
    /// Where its key and value go: `block × block_tokens + offset`.
    pub(crate) slots: &'a [usize],
    /// Which rows belong together and which blocks they see.
    pub(crate) sequences: &'a [PagedSequence<'a>],
}

/// A model with a paged cache.
///
/// A row's logits must depend on its sequence's tokens alone, bit for bit, never on the other rows.
pub(crate) trait Forward: Send + 'static {
    /// Activations of a step, from which logits are asked.
    type Hidden;
    /// New weights, read and checked, not yet served.
    type Weights;

    /// HF's name of its family.
    fn model_type(&self) -> String;
    /// Tokens a cache block holds.
    fn block_tokens(&self) -> usize;
    /// Rows of the embedding: ids from here on cannot be fed.
    fn vocab_size(&self) -> usize;
    /// Positions the model was built for.
    fn max_positions(&self) -> usize;
    /// Make room for `num_blocks` blocks; called once, before anything else.
    ///
    /// # Errors
    /// The device has no room.
    fn allocate(&mut self, num_blocks: usize) -> Result<()>;
    /// Run the rows through the layers and write their keys and values; keep the hidden state of `wanted` rows.
    ///
    /// # Errors
    /// The device failed; the cache may then hold part of the rows.
    fn forward(&mut self, rows: &Rows<'_>, wanted: &[u32]) -> Result<Self::Hidden>;
    /// Calls of [`Self::forward`] so far that were done as a CUDA graph.
    fn replays(&self) -> u64 {
        0
    }
    /// Whether routers choose experts, which [`Self::routes`] can tell.
    fn has_experts(&self) -> bool {
        false
    }
    /// The experts that the tokens in these slots of the cache went to, `[slots, layers, experts of a token]`, 0 in layers
    /// without experts. `None` for a model that has none.
    fn routes(&self, slots: &[usize]) -> Option<Vec<i32>> {
        let _ = slots;
        None
    }
    /// Logits of the `range` of wanted rows: `[range.len(), vocab_size]`.
    ///
    /// # Errors
    /// The device failed.
    fn logits(&self, hidden: &Self::Hidden, range: Range<usize>) -> Result<Vec<f32>>;
    /// Draw a token for each of the `range` of wanted rows on the device; `None` leaves it to the host.
    ///
    /// # Errors
    /// The device failed.
    fn draw(
        &self,
        _hidden: &Self::Hidden,
        _range: Range<usize>,
        _draws: &[Draw],
        _vocab: usize,
    ) -> Result<Option<Vec<Drawn>>> {
        Ok(None)
    }
    /// Rows of logits that exist at once: prompt scoring would otherwise hold `[prompt, vocab]`.
    fn logit_rows(&self) -> usize {
        64
    }
    /// Read new weights and check every name, shape and number. Changes nothing.
    ///
    /// # Errors
    /// Whatever is wrong with them.
    fn read_weights(&self, source: Source) -> Result<Self::Weights>;
    /// Serve them from now on.
    ///
    /// # Errors
    /// The device failed.
    fn install(&mut self, weights: Self::Weights) -> Result<()>;
    /// A checksum of every tensor, sorted by name.
    ///
    /// # Errors
    /// The device failed.
    fn checksums(&self) -> Result<Vec<(String, u64)>>;
    /// The first `rows` of a tensor's first axis, and its width; `None` where there is no such tensor.
    ///
    /// # Errors
    /// The device failed.
    fn tensor(&self, name: &str, rows: usize) -> Result<Option<(Vec<f32>, usize)>>;
}
