//! Grouped-query attention: norm, qkv, per-head norm and rotation, causal attention, output.
//!
//! Positions and sequences come with the pass; whether keys and values lie in packed rows (training) or in a
//! paged cache (serving) is the only difference between [`Attention::forward`] and [`Attention::infer_paged`].

use super::{Gradients, Linear, Norm, ParamId, Pass, Rows, Stream};
use slime_kernels::{Heads, Norms, Ops, PagedSequence, Result, Sequences};

/// RMSNorm of each head's queries and keys, before rotation.
#[derive(Clone, Debug)]
pub struct QkNorm {
    /// `[1, dim]`.
    pub query: ParamId,
    /// `[1, dim]`.
    pub key: ParamId,
    /// Added to the mean square.
    pub eps: f64,
}

/// Norm, projections and attention of one block.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Norm of the stream before it.
    pub norm: Norm,
    /// Head counts and width.
    pub heads: Heads,
    /// Of the scores; `1 / √dim` for every family so far.
    pub scale: f64,
    /// `[(query + 2 kv) × dim, hidden]`: rows of all queries, keys, values.
    pub qkv: Linear,
    /// Per-head norms, where the family has them.
    pub qk_norm: Option<QkNorm>,
    /// `[hidden, query × dim]`.
    pub out: Linear,
}

/// Where the keys and values of served rows go and come from.
pub struct Paged<'a, O: Ops> {
    /// The cache of every layer.
    pub cache: &'a mut O::KvCache,
    /// This layer's number.
    pub layer: usize,
    /// `block × block_tokens + offset` of each row.
    pub slots: &'a [usize],
    /// Each sequence's rows, context and blocks.
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
    /// Packed rows before norm and rotation; kept only where per-head norms need them.
    qkv: Option<O::Tensor>,
    /// `1 / rms` of each head, with per-head norms.
    qk_stat: Option<O::Float>,
    /// Packed rows after norm and rotation.
    rotated: Option<O::Tensor>,
    /// `[tokens, query × dim]`.
    out: O::Tensor,
    /// `[query, tokens]`.
    lse: O::Float,
    /// Rows of `out` that were wanted, if not all.
    wanted: Option<O::Tensor>,
}

impl Attention {
    fn norms<'a, O: Ops>(&self, pass: Pass<'a, O>) -> Option<Norms<'a, O>> {
        self.qk_norm.as_ref().map(|norm| Norms {
            query: pass.weights.get(norm.query),
            key: pass.weights.get(norm.key),
            eps: norm.eps,
        })
    }

    fn rotate<O: Ops>(
        &self,
        qkv: &O::Tensor,
        pass: Pass<'_, O>,
    ) -> Result<(O::Tensor, Option<O::Float>)> {
        pass.ops
            .qk_norm_rope(qkv, self.heads, pass.positions, pass.rope, self.norms(pass))
    }

    /// Output projection of the wanted rows, and the stream cut to them.
    fn finish<O: Ops>(
        &self,
        sum: &O::Tensor,
        out: &O::Tensor,
        rows: Option<&Rows<O>>,
        pass: Pass<'_, O>,
    ) -> Result<(Stream<O>, Option<O::Tensor>)> {
        let (base, wanted) = match rows {
            Some(rows) => {
                let base = pass.ops.gather_rows(sum, &rows.ids)?;
                (base, Some(pass.ops.gather_rows(out, &rows.ids)?))
            }
            None => (sum.clone(), None),
        };
        let delta = self
            .out
            .forward(wanted.as_ref().unwrap_or(out), pass.ops, pass.weights)?;
        Ok((
            Stream {
                base,
                delta: Some(pass.peers.leave(delta)?),
            },
            wanted,
        ))
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
        let input = pass.peers.enter(&x.out)?;
        let qkv = self.qkv.forward(&input, pass.ops, pass.weights)?;
        drop(input);
        let (rotated, qk_stat) = self.rotate(&qkv, pass)?;
        let (peers, heads) = (pass.peers, self.heads);
        let (out, lse) = peers.attention(pass.ops, &rotated, heads, sequences, self.scale)?;
        let (next, wanted) = self.finish(&x.sum, &out, rows, pass)?;
        let normed_heads = self.qk_norm.is_some();
        let saved = SavedAttention {
            sum: x.sum,
            stat: x.stat,
            normed: keep_all.then_some(x.out),
            // Rotation alone can be undone without the rows before it, so only norms keep them.
            qkv: normed_heads.then_some(qkv),
            qk_stat,
            rotated: (keep_all || !normed_heads).then_some(rotated),
            out,
            lse,
            wanted,
        };
        Ok((next, saved))
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
        let input = pass.peers.enter(&x.out)?;
        let qkv = self.qkv.forward(&input, pass.ops, pass.weights)?;
        drop(input);
        let (rotated, _) = self.rotate(&qkv, pass)?;
        let (peers, heads) = (pass.peers, self.heads);
        let (out, _) = peers.attention(pass.ops, &rotated, heads, sequences, self.scale)?;
        Ok(self.finish(&x.sum, &out, rows, pass)?.0)
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
        let input = pass.peers.enter(&x.out)?;
        let qkv = self.qkv.forward(&input, pass.ops, pass.weights)?;
        drop(input);
        let (rotated, _) = self.rotate(&qkv, pass)?;
        let Paged {
            cache,
            layer,
            slots,
            sequences,
        } = paged;
        pass.ops
            .kv_write(cache, layer, &rotated, self.heads, slots)?;
        let (ops, heads) = (pass.ops, self.heads);
        let out = ops.attention_paged(cache, layer, &rotated, heads, sequences, self.scale)?;
        Ok(self.finish(&x.sum, &out, rows, pass)?.0)
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
        let projected = saved.wanted.as_ref().unwrap_or(&saved.out);
        let dy = pass.peers.leave_backward(&dstream)?;
        let dout = self.out.backward(&dy, projected, ops, weights, grads)?;
        drop(dy);
        let (dout, dstream) = match rows {
            Some(rows) => (
                ops.scatter_rows(&dout, &rows.ids, rows.of)?,
                ops.scatter_rows(&dstream, &rows.ids, rows.of)?,
            ),
            None => (dout, dstream),
        };
        let rotated = match (saved.rotated, &saved.qkv) {
            (Some(rotated), _) => rotated,
            (None, Some(qkv)) => self.rotate(qkv, pass)?.0,
            (None, None) => unreachable!("forward keeps rows before or after rotation"),
        };
        let drotated = pass.peers.attention_backward(
            ops, &dout, &rotated, &saved.out, &saved.lse, self.heads, sequences, self.scale,
        )?;
        drop((dout, rotated, saved.out, saved.lse));
        let norms = match (self.norms(pass), &saved.qkv, &saved.qk_stat) {
            (Some(norms), Some(qkv), Some(stat)) => Some((norms, qkv, stat)),
            _ => None,
        };
        let dnorms = self
            .qk_norm
            .as_ref()
            .map(|norm| grads.pair(norm.query, norm.key));
        let dqkv = ops.qk_norm_rope_backward(
            &drotated,
            self.heads,
            pass.positions,
            pass.rope,
            norms,
            dnorms,
        )?;
        drop((drotated, saved.qkv));
        let normed = match saved.normed {
            Some(normed) => normed,
            None => self.norm.again(&saved.sum, ops, weights)?,
        };
        let input = pass.peers.enter(&normed)?;
        let dy = self.qkv.backward(&dqkv, &input, ops, weights, grads)?;
        drop((dqkv, normed, input));
        let dy = pass.peers.enter_backward(dy)?;
        self.norm.backward(
            &dy,
            &saved.sum,
            &saved.stat,
            Some(&dstream),
            ops,
            weights,
            grads,
        )
    }
}
