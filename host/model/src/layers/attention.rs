//! The first half of a block: norm, a core that lets tokens look at each other, output projection.
//!
//! The cores are [`Grouped`] queries over keys and values, [`Latent`] attention over compressed ones, and the memory of a
//! [`DeltaNet`]; each says what it keeps and what it caches. Positions and sequences come with the pass; whether keys and values lie in
//! packed rows (training) or in a paged cache (serving) is the only difference between [`Attention::forward`] and
//! [`Attention::infer_paged`].

use super::norm::{PostNorm, SavedPost};
use super::{
    DeltaNet, Gradients, Grouped, Latent, Linear, Norm, Pass, Rows, SavedDelta, SavedGrouped,
    SavedLatent, Stream,
};
use crate::cache::Cache;
use slime_kernels::{Ops, PagedSequence, Result, Sequences};

/// Norm, core and output projection of one block.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Norm of the stream before it.
    pub norm: Norm,
    /// How tokens look at each other.
    pub core: Core,
    /// `[hidden, width of the core]`.
    pub out: Linear,
    /// Norm of what is added to the stream, where the family has one.
    pub post: Option<PostNorm>,
}

/// How tokens look at each other: normed rows `[tokens, hidden]` in, rows for the output projection out.
#[derive(Clone, Debug)]
pub enum Core {
    /// Query heads in groups that share a key and value head.
    Grouped(Grouped),
    /// Keys and values from one compressed row a token.
    Latent(Latent),
    /// A memory of fixed size.
    Delta(DeltaNet),
}

/// What a core keeps for its backward.
pub enum SavedCore<O: Ops> {
    /// Of [`Grouped`].
    Grouped(SavedGrouped<O>),
    /// Of [`Latent`].
    Latent(SavedLatent<O>),
    /// Of [`DeltaNet`].
    Delta(SavedDelta<O>),
}

/// Where the keys and values of served rows go and come from.
pub struct Paged<'a, O: Ops> {
    /// The cache of every layer.
    pub cache: &'a mut Cache<O>,
    /// This layer's number.
    pub layer: usize,
    /// Where each row goes and what it sees.
    pub tables: &'a O::Tables,
    /// The same for layers that keep something else: each sequence's rows, context and blocks.
    pub sequences: &'a [PagedSequence<'a>],
}

/// What attention keeps for its backward. What is `None` is rebuilt.
pub struct SavedAttention<O: Ops> {
    /// The summed stream, `[tokens, hidden]`.
    sum: O::Tensor,
    /// `1 / rms` of each row.
    stat: O::Float,
    /// Normed rows.
    normed: Option<O::Tensor>,
    /// What the core keeps.
    core: SavedCore<O>,
    /// The wanted rows of what the core gave.
    projected: O::Tensor,
    /// With a norm after the projection.
    post: Option<SavedPost<O>>,
}

/// The stream after, and what the backward of the end needs.
struct Finished<O: Ops> {
    stream: Stream<O>,
    projected: O::Tensor,
    post: Option<SavedPost<O>>,
}

impl Attention {
    /// Output projection of the wanted rows, and the stream cut to them.
    fn finish<O: Ops>(
        &self,
        sum: &O::Tensor,
        out: O::Tensor,
        rows: Option<&Rows<O>>,
        pass: Pass<'_, O>,
    ) -> Result<Finished<O>> {
        let (base, projected) = match rows {
            Some(rows) => (
                pass.ops.gather_rows(sum, &rows.ids)?,
                pass.ops.gather_rows(&out, &rows.ids)?,
            ),
            None => (sum.clone(), out),
        };
        let on = (pass.ops, pass.weights);
        let delta = pass.peers.left(&self.out, &projected, on)?;
        let (delta, post) = PostNorm::apply(self.post.as_ref(), delta, pass)?;
        Ok(Finished {
            stream: Stream {
                base,
                delta: Some(delta),
            },
            projected,
            post,
        })
    }

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
        keep_all: bool,
    ) -> Result<(Stream<O>, SavedAttention<O>)> {
        let x = self.norm.forward(stream, pass.ops, pass.weights)?;
        let input = || pass.peers.enter(&x.out);
        let (out, core) = match &self.core {
            Core::Grouped(core) => {
                let (out, saved) = core.forward(&x.out, sequences, pass, keep_all)?;
                (out, SavedCore::Grouped(saved))
            }
            Core::Latent(core) => {
                let (out, saved) = core.forward(&input()?, sequences, pass, keep_all)?;
                (out, SavedCore::Latent(saved))
            }
            Core::Delta(core) => {
                let (out, saved) = core.forward(&input()?, sequences, pass)?;
                (out, SavedCore::Delta(saved))
            }
        };
        let end = self.finish(&x.sum, out, rows, pass)?;
        let saved = SavedAttention {
            sum: x.sum,
            stat: x.stat,
            normed: keep_all.then_some(x.out),
            core,
            projected: end.projected,
            post: end.post,
        };
        Ok((end.stream, saved))
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
        let x = self.norm.forward(stream, pass.ops, pass.weights)?;
        let input = || pass.peers.enter(&x.out);
        let out = match &self.core {
            Core::Grouped(core) => core.infer(&x.out, sequences, pass)?,
            Core::Latent(core) => core.infer(&input()?, sequences, pass)?,
            Core::Delta(core) => core.forward(&input()?, sequences, pass)?.0,
        };
        Ok(self.finish(&x.sum, out, rows, pass)?.stream)
    }

    /// The same through a paged cache, into which the rows' keys and values are written first.
    ///
    /// # Errors
    /// The device failed, or a slot lies outside the cache.
    pub fn infer_paged<O: Ops>(
        &self,
        stream: Stream<O>,
        paged: Paged<'_, O>,
        rows: Option<&Rows<O>>,
        pass: Pass<'_, O>,
    ) -> Result<Stream<O>> {
        let x = self.norm.forward(stream, pass.ops, pass.weights)?;
        let input = || pass.peers.enter(&x.out);
        let out = match &self.core {
            Core::Grouped(core) => core.infer_paged(&x.out, paged, pass)?,
            Core::Latent(core) => core.infer_paged(&input()?, paged, pass)?,
            Core::Delta(core) => core.infer_paged(&input()?, paged, pass)?,
        };
        Ok(self.finish(&x.sum, out, rows, pass)?.stream)
    }

    /// `dstream: [rows, hidden]`, the gradient of the stream after → that of the stream before,
    /// `[tokens, hidden]`.
    ///
    /// # Errors
    /// The device failed.
    pub fn backward<O: Ops>(
        &self,
        dstream: O::Tensor,
        saved: SavedAttention<O>,
        sequences: &Sequences,
        rows: Option<&Rows<O>>,
        pass: Pass<'_, O>,
        grads: &mut Gradients<O>,
    ) -> Result<O::Tensor> {
        let (ops, weights) = (pass.ops, pass.weights);
        let ddelta = PostNorm::backward(self.post.as_ref(), &dstream, saved.post, pass, grads)?;
        let on = (ops, weights);
        let (dout, ddelta) = pass.peers.left_backward(&self.out, &ddelta, on)?;
        self.out.accumulate(&ddelta, &saved.projected, ops, grads)?;
        drop((ddelta, saved.projected));
        let (dout, dstream) = match rows {
            Some(rows) => (
                ops.scatter_rows(&dout, &rows.ids, rows.of)?,
                ops.scatter_rows(&dstream, &rows.ids, rows.of)?,
            ),
            None => (dout, dstream),
        };
        let (sum, stat, kept) = (&saved.sum, &saved.stat, saved.normed);
        // Alone, rows are rebuilt only when they are needed, after the attention's own memory is free again.
        let rebuilds_late = kept.is_none() && pass.peers.tp.is_none();
        let normed = || kept.map_or_else(|| self.norm.again(sum, ops, weights), Ok);
        let dy = match (&self.core, saved.core) {
            // The norm's backward, which reads the stream, gives the normed rows too; the projection's gradient waits.
            (Core::Grouped(core), SavedCore::Grouped(saved)) if rebuilds_late => {
                let dqkv = core.backward_to_rows(dout, saved, sequences, pass, grads)?;
                let dx = core.qkv.input_gradient(&dqkv, ops, weights)?;
                let past = Some(&dstream);
                let (dsum, normed) = self
                    .norm
                    .backward_again(&dx, sum, stat, past, ops, weights, grads)?;
                drop((dx, dstream));
                core.qkv.accumulate(&dqkv, &normed, ops, grads)?;
                return Ok(dsum);
            }
            (Core::Grouped(core), SavedCore::Grouped(saved)) => {
                let rows = pass.peers.begin_enter(normed()?)?;
                let dqkv = core.backward_to_rows(dout, saved, sequences, pass, grads)?;
                let dx = pass
                    .peers
                    .entered_backward(&core.qkv, &dqkv, rows, on, grads)?;
                return self
                    .norm
                    .backward(&dx, sum, stat, Some(&dstream), ops, weights, grads);
            }
            (Core::Latent(core), SavedCore::Latent(saved)) => {
                let rows = || pass.peers.enter(&normed()?);
                core.backward(dout, rows, saved, sequences, pass, grads)?
            }
            (Core::Delta(core), SavedCore::Delta(saved)) => {
                let rows = || pass.peers.enter(&normed()?);
                core.backward(dout, rows, saved, sequences, pass, grads)?
            }
            _ => unreachable!("a core's backward takes what its own forward kept"),
        };
        let dy = pass.peers.enter_backward(dy)?;
        self.norm
            .backward(&dy, sum, stat, Some(&dstream), ops, weights, grads)
    }
}
