//! One transformer block: attention, then MLP, each added to the residual stream.

use super::attention::SavedAttention;
use super::mlp::SavedMlp;
use super::{Attention, Gradients, Mlp, Paged, Pass, Rows, Stream};
use serde::{Deserialize, Serialize};
use slime_kernels::{Ops, Result, Sequences};

/// How much of a block is computed again in its backward instead of being kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    /// Keep everything.
    None,
    /// Rebuild what is elementwise: norm outputs, rotated rows, the activation.
    #[default]
    Selective,
    /// Also the first product of a gated MLP, which is most of what such a block keeps: Megatron's modules `layernorm mlp`. Of
    /// experts no more than `Selective`.
    Mlp,
    /// Keep only the block's input.
    Full,
}

/// Attention and MLP.
#[derive(Clone, Debug)]
pub struct Block {
    /// First half.
    pub attention: Attention,
    /// Second half.
    pub mlp: Mlp,
}

/// What a block keeps for its backward.
#[allow(clippy::large_enum_variant, reason = "there is one a layer")]
pub enum SavedBlock<O: Ops> {
    /// What its halves keep.
    Parts(SavedAttention<O>, SavedMlp<O>),
    /// The stream at its start, summed.
    Input(O::Tensor),
}

impl Block {
    /// The stream before → the stream after, cut to `rows` where given.
    ///
    /// # Errors
    /// The device failed.
    pub fn forward<O: Ops>(
        &self,
        stream: Stream<O>,
        sequences: &Sequences,
        rows: Option<&Rows<O>>,
        pass: Pass<'_, O>,
        recompute: Recompute,
    ) -> Result<(Stream<O>, SavedBlock<O>)> {
        let keep_all = recompute == Recompute::None;
        if recompute == Recompute::Full {
            let sum = match stream.delta {
                Some(delta) => pass.ops.add(&stream.base, &delta)?,
                None => stream.base,
            };
            let stream = Stream {
                base: sum.clone(),
                delta: None,
            };
            let after = self.infer(stream, sequences, rows, pass)?;
            return Ok((after, SavedBlock::Input(sum)));
        }
        let (middle, attention) = self
            .attention
            .forward(stream, sequences, rows, pass, keep_all)?;
        let (after, mlp) = self.mlp.forward(middle, pass, recompute)?;
        Ok((after, SavedBlock::Parts(attention, mlp)))
    }

    /// The same without keeping anything.
    ///
    /// # Errors
    /// The device failed.
    pub fn infer<O: Ops>(
        &self,
        stream: Stream<O>,
        sequences: &Sequences,
        rows: Option<&Rows<O>>,
        pass: Pass<'_, O>,
    ) -> Result<Stream<O>> {
        let middle = self.attention.infer(stream, sequences, rows, pass)?;
        self.mlp.infer(middle, pass)
    }

    /// The same through a paged cache.
    ///
    /// # Errors
    /// The device failed.
    pub fn infer_paged<O: Ops>(
        &self,
        stream: Stream<O>,
        paged: Paged<'_, O>,
        rows: Option<&Rows<O>>,
        pass: Pass<'_, O>,
    ) -> Result<Stream<O>> {
        let middle = self.attention.infer_paged(stream, paged, rows, pass)?;
        self.mlp.infer(middle, pass)
    }

    /// Gradient of the stream after → that of the stream before; adds the block's parameter gradients.
    ///
    /// # Errors
    /// The device failed.
    pub fn backward<O: Ops>(
        &self,
        dstream: O::Tensor,
        saved: SavedBlock<O>,
        sequences: &Sequences,
        rows: Option<&Rows<O>>,
        pass: Pass<'_, O>,
        grads: &mut Gradients<O>,
    ) -> Result<O::Tensor> {
        let (attention, mlp) = match saved {
            SavedBlock::Parts(attention, mlp) => (attention, mlp),
            SavedBlock::Input(sum) => {
                let stream = Stream {
                    base: sum,
                    delta: None,
                };
                let (middle, attention) = self
                    .attention
                    .forward(stream, sequences, rows, pass, true)?;
                let mlp = self.mlp.keep(middle, pass)?;
                (attention, mlp)
            }
        };
        let dmiddle = self.mlp.backward(&dstream, mlp, pass, grads)?;
        drop(dstream);
        self.attention
            .backward(dmiddle, attention, sequences, rows, pass, grads)
    }
}
