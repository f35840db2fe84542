//! Grouped-query attention: qkv, per-head norm and rotation, causal attention, a gate where the family has one.

use super::norm::factor;
use super::{Gradients, Linear, Paged, ParamId, Pass};
use slime_kernels::{ColumnMap, Heads, Norms, Ops, Result, Sequences};
use std::sync::Arc;

/// RMSNorm of each head's queries and keys, before rotation.
#[derive(Clone, Debug)]
pub struct QkNorm {
    /// `[1, dim]`.
    pub query: ParamId,
    /// `[1, dim]`.
    pub key: ParamId,
    /// Added to the mean square.
    pub eps: f64,
    /// Heads are multiplied by one plus the weight.
    pub plus_one: bool,
}

/// A gate beside each query head: the projection gives `[query | gate]` a head, then keys and values.
#[derive(Clone, Debug)]
pub struct OutputGate {
    packed: Arc<ColumnMap>,
    gate: Arc<ColumnMap>,
    /// `[packed | gate]` → the projection's columns.
    back: Arc<ColumnMap>,
}

impl OutputGate {
    /// For these heads.
    pub fn new(heads: Heads) -> Self {
        let (dim, query) = (heads.dim, heads.out_cols());
        let total = heads.qkv_cols() + query;
        let of_queries =
            |offset: usize| (0..query).map(move |c| Some(c / dim * 2 * dim + offset + c % dim));
        let rest = (2 * query..total).map(Some);
        let packed = ColumnMap::copies(total, of_queries(0).chain(rest));
        let gate = ColumnMap::copies(total, of_queries(dim));
        let back = (0..total).map(|c| match c {
            c if c >= 2 * query => c - query,
            c if c % (2 * dim) < dim => c / (2 * dim) * dim + c % dim,
            c => heads.qkv_cols() + c / (2 * dim) * dim + c % dim,
        });
        let back = ColumnMap::copies(total, back.map(Some));
        Self {
            packed: Arc::new(packed),
            gate: Arc::new(gate),
            back: Arc::new(back),
        }
    }
}

/// Query heads in groups that share a key and value head.
#[derive(Clone, Debug)]
pub struct Grouped {
    /// Head counts and width.
    pub heads: Heads,
    /// Of the scores; `1 / √dim` for every family so far.
    pub scale: f64,
    /// `[(query + 2 kv) × dim, hidden]`: rows of all queries, keys, values.
    pub qkv: Linear,
    /// Per-head norms, where the family has them.
    pub qk_norm: Option<QkNorm>,
    /// A sigmoid gate of what comes out, where the family has one.
    pub gate: Option<OutputGate>,
}

/// What it keeps for its backward. What is `None` is rebuilt.
pub struct SavedGrouped<O: Ops> {
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
    /// `[tokens, query × dim]`, with a gate.
    gate: Option<O::Tensor>,
}

/// The weights of per-head norms, as heads are multiplied by them.
struct Factors<O: Ops> {
    query: O::Tensor,
    key: O::Tensor,
    eps: f64,
}

impl<O: Ops> Factors<O> {
    fn norms(this: Option<&Self>) -> Option<Norms<'_, O>> {
        this.map(|f| Norms {
            query: &f.query,
            key: &f.key,
            eps: f.eps,
        })
    }
}

impl Grouped {
    fn factors<O: Ops>(&self, pass: Pass<'_, O>) -> Result<Option<Factors<O>>> {
        let Some(norm) = &self.qk_norm else {
            return Ok(None);
        };
        let factor = |weight| factor(weight, norm.plus_one, pass.ops, pass.weights);
        Ok(Some(Factors {
            query: factor(norm.query)?,
            key: factor(norm.key)?,
            eps: norm.eps,
        }))
    }

    fn rotate<O: Ops>(
        &self,
        qkv: &O::Tensor,
        pass: Pass<'_, O>,
    ) -> Result<(O::Tensor, Option<O::Float>)> {
        let factors = self.factors(pass)?;
        let norms = Factors::norms(factors.as_ref());
        pass.ops
            .qk_norm_rope(qkv, self.heads, pass.positions, pass.rope, norms)
    }

    /// Packed rows of all ranks' `x`, and the gate.
    fn project<O: Ops>(
        &self,
        x: &O::Tensor,
        pass: Pass<'_, O>,
    ) -> Result<(O::Tensor, Option<O::Tensor>)> {
        let on = (pass.ops, pass.weights);
        let all = pass.peers.entered(&self.qkv, x, on)?;
        match &self.gate {
            None => Ok((all, None)),
            Some(gate) => Ok((
                pass.ops.map_columns(&[&all], &gate.packed)?,
                Some(pass.ops.map_columns(&[&all], &gate.gate)?),
            )),
        }
    }

    fn gated<O: Ops>(
        &self,
        out: O::Tensor,
        gate: Option<&O::Tensor>,
        pass: Pass<'_, O>,
    ) -> Result<O::Tensor> {
        match gate {
            Some(gate) => pass.ops.gate(&out, gate),
            None => Ok(out),
        }
    }

    /// `x: [tokens, hidden]`, or this rank's of these rows → `[tokens, query × dim]`.
    ///
    /// # Errors
    /// The device failed.
    pub fn forward<O: Ops>(
        &self,
        x: &O::Tensor,
        sequences: &Sequences,
        pass: Pass<'_, O>,
        keep_all: bool,
    ) -> Result<(O::Tensor, SavedGrouped<O>)> {
        let (qkv, gate) = self.project(x, pass)?;
        let (rotated, qk_stat) = self.rotate(&qkv, pass)?;
        let (out, lse) = pass
            .peers
            .attention(pass.ops, &rotated, self.heads, sequences, self.scale)?;
        let normed_heads = self.qk_norm.is_some();
        let saved = SavedGrouped {
            // Rotation alone can be undone without the rows before it, so only norms keep them.
            qkv: normed_heads.then_some(qkv),
            qk_stat,
            rotated: (keep_all || !normed_heads).then_some(rotated),
            out: out.clone(),
            lse,
            gate,
        };
        let out = self.gated(out, saved.gate.as_ref(), pass)?;
        Ok((out, saved))
    }

    /// The same without keeping anything.
    ///
    /// # Errors
    /// The device failed.
    pub fn infer<O: Ops>(
        &self,
        x: &O::Tensor,
        sequences: &Sequences,
        pass: Pass<'_, O>,
    ) -> Result<O::Tensor> {
        let (qkv, gate) = self.project(x, pass)?;
        let (rotated, _) = self.rotate(&qkv, pass)?;
        let (out, _) = pass
            .peers
            .attention(pass.ops, &rotated, self.heads, sequences, self.scale)?;
        self.gated(out, gate.as_ref(), pass)
    }

    /// The same through a paged cache, into which the rows' keys and values are written first.
    ///
    /// # Errors
    /// The device failed, or a slot lies outside the cache.
    pub fn infer_paged<O: Ops>(
        &self,
        x: &O::Tensor,
        paged: Paged<'_, O>,
        pass: Pass<'_, O>,
    ) -> Result<O::Tensor> {
        let (qkv, gate) = self.project(x, pass)?;
        let (rotated, _) = self.rotate(&qkv, pass)?;
        let Paged {
            cache,
            layer,
            tables,
            ..
        } = paged;
        let (ops, heads) = (pass.ops, self.heads);
        let (cache, layer) = cache.keys(layer)?;
        ops.kv_write(cache, layer, &rotated, heads, tables)?;
        let out = ops.attention_paged(cache, layer, &rotated, heads, tables, self.scale)?;
        self.gated(out, gate.as_ref(), pass)
    }

    /// Gradient of what forward gave → that of the projection's rows.
    pub(super) fn backward_to_rows<O: Ops>(
        &self,
        dout: O::Tensor,
        saved: SavedGrouped<O>,
        sequences: &Sequences,
        pass: Pass<'_, O>,
        grads: &mut Gradients<O>,
    ) -> Result<O::Tensor> {
        let ops = pass.ops;
        let (dout, dgate) = match &saved.gate {
            Some(gate) => {
                let (dout, dgate) = ops.gate_backward(&dout, &saved.out, gate)?;
                (dout, Some(dgate))
            }
            None => (dout, None),
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
        let factors = self.factors(pass)?;
        let norms = match (Factors::norms(factors.as_ref()), &saved.qkv, &saved.qk_stat) {
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
        match (&self.gate, dgate) {
            (Some(gate), Some(dgate)) => ops.map_columns(&[&dqkv, &dgate], &gate.back),
            _ => Ok(dqkv),
        }
    }
}
