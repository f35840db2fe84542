//! Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): keys and values of all heads come from one
//! compressed row a token, beside one rotated key that all heads share.
//!
//! Training unfolds the compressed rows into packed heads, `[rotated | plain]` each, and uses the attention that every
//! family uses; values are as wide as keys, filled up with zeros. Serving never unfolds: queries move into the
//! compressed space instead, so the cache holds one compressed row and one rotated key a token, whatever the number
//! of heads. Both give the same numbers, not the same bits.

use super::{Gradients, Linear, Norm, Paged, Pass};
use slime_kernels::{ColumnMap, HeadParts, Heads, Ops, Result, Sequences};
use std::sync::Arc;

/// Widths of one head's parts and of the compressed row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentWidths {
    /// Heads.
    pub heads: usize,
    /// Of a query's or key's part without position.
    pub nope: usize,
    /// Of the part that rotates.
    pub rope: usize,
    /// Of a value.
    pub value: usize,
    /// Of the compressed keys and values of a token.
    pub rank: usize,
}

impl LatentWidths {
    /// Packed heads of training.
    pub fn unfolded(&self) -> Heads {
        Heads {
            query: self.heads,
            kv: self.heads,
            dim: (self.rope + self.nope).max(self.value),
        }
    }

    /// Packed heads of serving: every query head over one compressed key.
    pub fn folded(&self) -> Heads {
        Heads {
            query: self.heads,
            kv: 1,
            dim: self.rope + self.rank,
        }
    }
}

/// A projection through a normed bottleneck.
#[derive(Clone, Debug)]
pub struct Bottleneck {
    /// `[rank, hidden]`.
    pub down: Linear,
    /// `[1, rank]`.
    pub norm: Norm,
}

/// Keys and values from one compressed row a token.
#[derive(Clone, Debug)]
pub struct Latent {
    widths: LatentWidths,
    scale: f64,
    query_down: Option<Bottleneck>,
    query_up: Linear,
    kv_down: Bottleneck,
    kv_up: Linear,
    maps: Arc<Maps>,
}

/// Where columns go; see the functions that make them.
#[derive(Debug)]
struct Maps {
    compressed: ColumnMap,
    compressed_back: ColumnMap,
    unfold: ColumnMap,
    unfold_back: [ColumnMap; 3],
    fold: ColumnMap,
    values: ColumnMap,
    values_back: ColumnMap,
}

impl Maps {
    fn new(w: LatentWidths) -> Self {
        let compressed = ColumnMap::copies(w.rank + w.rope, (0..w.rank).map(Some));
        let unfold = unfold(w);
        let values = {
            let dim = w.unfolded().dim;
            let of_head = |h| (0..w.value).map(move |c| Some(h * dim + c));
            ColumnMap::copies(w.heads * dim, (0..w.heads).flat_map(of_head))
        };
        let whole = unfold.transposed();
        let ends = [
            w.heads * (w.nope + w.rope),
            w.heads * (w.nope + w.rope + w.nope + w.value),
            whole.num_outputs(),
        ];
        let part = |from: usize, to: usize| ColumnMap {
            starts: whole.starts[from..=to]
                .iter()
                .map(|s| s - whole.starts[from])
                .collect(),
            sources: whole.sources[whole.starts[from] as usize..whole.starts[to] as usize].to_vec(),
            num_inputs: whole.num_inputs,
        };
        Self {
            compressed_back: compressed.transposed(),
            compressed,
            unfold_back: [
                part(0, ends[0]),
                part(ends[0], ends[1]),
                part(ends[1], ends[2]),
            ],
            unfold,
            fold: fold(w),
            values_back: values.transposed(),
            values,
        }
    }
}

/// `[q | kv | compressed and shared key]` → packed heads. HF's q is `[plain | rotating]` a head, its kv
/// `[plain key | value]` a head.
fn unfold(w: LatentWidths) -> ColumnMap {
    let dim = w.unfolded().dim;
    let (q_width, kv_width) = (w.nope + w.rope, w.nope + w.value);
    let (kv_at, shared_at) = (w.heads * q_width, w.heads * (q_width + kv_width) + w.rank);
    let query = |h: usize, c: usize| match c {
        c if c < w.rope => Some(h * q_width + w.nope + c),
        c if c < w.rope + w.nope => Some(h * q_width + c - w.rope),
        _ => None,
    };
    let key = |h: usize, c: usize| match c {
        c if c < w.rope => Some(shared_at + c),
        c if c < w.rope + w.nope => Some(kv_at + h * kv_width + c - w.rope),
        _ => None,
    };
    let value = |h: usize, c: usize| (c < w.value).then_some(kv_at + h * kv_width + w.nope + c);
    let total = w.heads * (q_width + kv_width) + w.rank + w.rope;
    let all = |f: &dyn Fn(usize, usize) -> Option<usize>| -> Vec<Option<usize>> {
        (0..w.heads)
            .flat_map(|h| (0..dim).map(move |c| (h, c)))
            .map(|(h, c)| f(h, c))
            .collect()
    };
    ColumnMap::copies(total, [all(&query), all(&key), all(&value)].concat())
}

/// `[q | queries in the compressed space | shared key | compressed row]` → packed heads over one compressed key. The
/// value is the compressed row, at the place that it has in the key.
fn fold(w: LatentWidths) -> ColumnMap {
    let q_width = w.nope + w.rope;
    let folded_at = w.heads * q_width;
    let down_at = folded_at + w.heads * w.rank;
    let normed_at = down_at + w.rank + w.rope;
    let mut columns = Vec::new();
    for h in 0..w.heads {
        columns.extend((0..w.rope).map(|c| Some(h * q_width + w.nope + c)));
        columns.extend((0..w.rank).map(|c| Some(folded_at + h * w.rank + c)));
    }
    columns.extend((0..w.rope).map(|c| Some(down_at + w.rank + c)));
    columns.extend((0..w.rank).map(|c| Some(normed_at + c)));
    columns.extend((0..w.rope).map(|_| None));
    columns.extend((0..w.rank).map(|c| Some(normed_at + c)));
    ColumnMap::copies(normed_at + w.rank, columns)
}

/// What it keeps for its backward. What is `None` is rebuilt.
pub struct SavedLatent<O: Ops> {
    /// With a bottleneck of queries: its rows before the norm and their `1 / rms`.
    query_down: Option<(O::Tensor, O::Float)>,
    /// `[tokens, rank + rope]`.
    kv_down: O::Tensor,
    /// `1 / rms` of the compressed rows.
    kv_stat: O::Float,
    /// Packed heads after rotation.
    rotated: Option<O::Tensor>,
    /// `[tokens, heads × dim]`.
    out: O::Tensor,
    /// `[heads, tokens]`.
    lse: O::Float,
}

/// Rows on the way to packed heads.
struct Projected<O: Ops> {
    query_down: Option<(O::Tensor, O::Float)>,
    query: O::Tensor,
    kv_down: O::Tensor,
    /// Compressed rows, normed.
    compressed: O::Tensor,
    kv_stat: O::Float,
}

impl Latent {
    /// From its parts: queries through a bottleneck or straight from the stream.
    pub fn new(
        widths: LatentWidths,
        scale: f64,
        query_down: Option<Bottleneck>,
        query_up: Linear,
        kv_down: Bottleneck,
        kv_up: Linear,
    ) -> Self {
        Self {
            widths,
            scale,
            query_down,
            query_up,
            kv_down,
            kv_up,
            maps: Arc::new(Maps::new(widths)),
        }
    }

    fn project<O: Ops>(&self, x: &O::Tensor, pass: Pass<'_, O>) -> Result<Projected<O>> {
        let (ops, weights) = (pass.ops, pass.weights);
        let (query_down, query) = match &self.query_down {
            Some(b) => {
                let down = b.down.forward(x, ops, weights)?;
                let (normed, stat) =
                    ops.rmsnorm(&down, &b.norm.factor(ops, weights)?, b.norm.eps)?;
                let query = self.query_up.forward(&normed, ops, weights)?;
                (Some((down, stat)), query)
            }
            None => (None, self.query_up.forward(x, ops, weights)?),
        };
        let kv_down = self.kv_down.down.forward(x, ops, weights)?;
        let plain = ops.map_columns(&[&kv_down], &self.maps.compressed)?;
        let norm = &self.kv_down.norm;
        let (compressed, kv_stat) = ops.rmsnorm(&plain, &norm.factor(ops, weights)?, norm.eps)?;
        Ok(Projected {
            query_down,
            query,
            kv_down,
            compressed,
            kv_stat,
        })
    }

    fn unfolded<O: Ops>(&self, p: &Projected<O>, pass: Pass<'_, O>) -> Result<O::Tensor> {
        let ops = pass.ops;
        let kv = self.kv_up.forward(&p.compressed, ops, pass.weights)?;
        let packed = ops.map_columns(&[&p.query, &kv, &p.kv_down], &self.maps.unfold)?;
        let heads = self.widths.unfolded();
        Ok(ops
            .qk_norm_rope(&packed, heads, pass.positions, pass.rope, None)?
            .0)
    }

    /// `x: [tokens, hidden]` → `[tokens, heads × value]`.
    ///
    /// # Errors
    /// The device failed.
    pub fn forward<O: Ops>(
        &self,
        x: &O::Tensor,
        sequences: &Sequences,
        pass: Pass<'_, O>,
        keep_all: bool,
    ) -> Result<(O::Tensor, SavedLatent<O>)> {
        let p = self.project(x, pass)?;
        let rotated = self.unfolded(&p, pass)?;
        let heads = self.widths.unfolded();
        let (out, lse) = pass
            .peers
            .attention(pass.ops, &rotated, heads, sequences, self.scale)?;
        let values = pass.ops.map_columns(&[&out], &self.maps.values)?;
        let saved = SavedLatent {
            query_down: p.query_down,
            kv_down: p.kv_down,
            kv_stat: p.kv_stat,
            rotated: keep_all.then_some(rotated),
            out,
            lse,
        };
        Ok((values, saved))
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
        Ok(self.forward(x, sequences, pass, false)?.0)
    }

    /// The same through a paged cache of compressed rows.
    ///
    /// # Errors
    /// The device failed, or a slot lies outside the cache.
    pub fn infer_paged<O: Ops>(
        &self,
        x: &O::Tensor,
        paged: Paged<'_, O>,
        pass: Pass<'_, O>,
    ) -> Result<O::Tensor> {
        let (ops, w, heads) = (pass.ops, self.widths, self.widths.folded());
        let p = self.project(x, pass)?;
        let up = pass.weights.get(self.kv_up.weight);
        let keys = HeadParts {
            heads: w.heads,
            x_start: 0,
            w_start: 0,
            len: w.nope,
        };
        let folded = ops.heads_nn(&p.query, up, keys)?;
        let inputs = [&p.query, &folded, &p.kv_down, &p.compressed];
        let packed = ops.map_columns(&inputs, &self.maps.fold)?;
        let (rotated, _) = ops.qk_norm_rope(&packed, heads, pass.positions, pass.rope, None)?;
        let (cache, layer) = paged.cache.keys(paged.layer)?;
        ops.kv_write(cache, layer, &rotated, heads, paged.tables)?;
        let out = ops.attention_paged(cache, layer, &rotated, heads, paged.tables, self.scale)?;
        let values = HeadParts {
            heads: w.heads,
            x_start: w.rope,
            w_start: w.nope,
            len: w.value,
        };
        ops.heads_nt(&out, up, values)
    }

    /// Gradient of what forward gave → that of `x`, which `normed` gives again.
    ///
    /// # Errors
    /// The device failed.
    pub fn backward<O: Ops>(
        &self,
        dout: O::Tensor,
        normed: impl FnOnce() -> Result<O::Tensor>,
        saved: SavedLatent<O>,
        sequences: &Sequences,
        pass: Pass<'_, O>,
        grads: &mut Gradients<O>,
    ) -> Result<O::Tensor> {
        let (ops, weights, heads) = (pass.ops, pass.weights, self.widths.unfolded());
        let x = normed()?;
        let norm = &self.kv_down.norm;
        let plain = ops.map_columns(&[&saved.kv_down], &self.maps.compressed)?;
        let compressed = norm.again(&plain, ops, weights)?;
        let query_in = match (&self.query_down, &saved.query_down) {
            (Some(b), Some((down, _))) => b.norm.again(down, ops, weights)?,
            _ => x.clone(),
        };
        let rotated = match saved.rotated {
            Some(rotated) => rotated,
            None => {
                let query = self.query_up.forward(&query_in, ops, weights)?;
                let kv = self.kv_up.forward(&compressed, ops, weights)?;
                let inputs = [&query, &kv, &saved.kv_down];
                let packed = ops.map_columns(&inputs, &self.maps.unfold)?;
                ops.qk_norm_rope(&packed, heads, pass.positions, pass.rope, None)?
                    .0
            }
        };
        let dvalues = ops.map_columns(&[&dout], &self.maps.values_back)?;
        let drotated = pass.peers.attention_backward(
            ops, &dvalues, &rotated, &saved.out, &saved.lse, heads, sequences, self.scale,
        )?;
        drop((dvalues, rotated, saved.out, saved.lse));
        let dpacked =
            ops.qk_norm_rope_backward(&drotated, heads, pass.positions, pass.rope, None, None)?;
        drop(drotated);
        let [q_back, kv_back, shared_back] = &self.maps.unfold_back;
        let dquery = ops.map_columns(&[&dpacked], q_back)?;
        let dkv = ops.map_columns(&[&dpacked], kv_back)?;
        let dshared = ops.map_columns(&[&dpacked], shared_back)?;
        drop(dpacked);

        let dcompressed = self
            .kv_up
            .backward(&dkv, &compressed, ops, weights, grads)?;
        let stat = &saved.kv_stat;
        let dplain = norm.backward(&dcompressed, &plain, stat, None, ops, weights, grads)?;
        let dplain = ops.map_columns(&[&dplain], &self.maps.compressed_back)?;
        let ddown = ops.add(&dplain, &dshared)?;
        let dx = self
            .kv_down
            .down
            .backward(&ddown, &x, ops, weights, grads)?;

        let dquery_in = self
            .query_up
            .backward(&dquery, &query_in, ops, weights, grads)?;
        let dx_query = match (&self.query_down, &saved.query_down) {
            (Some(b), Some((down, stat))) => {
                let ddown = b
                    .norm
                    .backward(&dquery_in, down, stat, None, ops, weights, grads)?;
                b.down.backward(&ddown, &x, ops, weights, grads)?
            }
            _ => dquery_in,
        };
        ops.add(&dx, &dx_query)
    }
}
