//! Attention over keys and values that lie elsewhere, merged by log-sum-exp: what context parallelism adds to
//! [`crate::attention`].
//!
//! ```text
//! s_j = scale q·k_j      L₂ = lse_j s_j      O₂ = Σ_j e^(s_j - L₂) v_j
//! L = logaddexp(L₁, L₂)  O = e^(L₁ - L) O₁ + e^(L₂ - L) O₂
//! backward, with the last L and D = dO·O:  P = e^(s - L)  dS = P (dO·v - D)  dq = scale dS k  dk = scale dS q  dv = P dO
//! ```
//!
//! Shapes are in [`crate::ops`]. FLOPs: 4 dim a pair of rows and head forward, 10 dim backward. On the host in f64, for
//! any backend: the definition of correct, not a fast one. On CUDA the kernels of [`crate::attention`], made for rectangles,
//! do it; there a merge rounds the output to bf16, once a call.

use crate::{Heads, KeySpan, Ops, Result, check};

/// Do the spans lie in packed rows and in keys and values of these shapes?
pub(crate) fn fit(
    (rows, cols): (usize, usize),
    (others, kv_cols): (usize, usize),
    heads: Heads,
    spans: &[KeySpan],
) -> Result<()> {
    let op = "attend_keys";
    check::qkv(op, cols, heads)?;
    check::that(kv_cols == 2 * heads.kv * heads.dim, op, || {
        format!("{kv_cols} columns of keys and values for {heads:?}")
    })?;
    for KeySpan { queries, keys } in spans {
        check::that(queries.end <= rows && keys.end <= others, op, || {
            format!("rows {queries:?} of {rows} over rows {keys:?} of {others}")
        })?;
    }
    Ok(())
}

/// Everything on the host.
struct Operands {
    heads: Heads,
    scale: f64,
    qkv: Vec<f64>,
    kv: Vec<f64>,
    rows: usize,
}

impl Operands {
    fn new<O: Ops + ?Sized>(
        ops: &O,
        qkv: &O::Tensor,
        kv: &O::Tensor,
        heads: Heads,
        spans: &[KeySpan],
        scale: f64,
    ) -> Result<Self> {
        let (shape, others) = (ops.shape(qkv), ops.shape(kv));
        let rows = shape.0;
        fit(shape, others, heads, spans)?;
        Ok(Self {
            heads,
            scale,
            qkv: ops.read_f64(qkv)?,
            kv: ops.read_f64(kv)?,
            rows,
        })
    }

    fn query(&self, row: usize, head: usize) -> &[f64] {
        let dim = self.heads.dim;
        &self.qkv[row * self.heads.qkv_cols() + head * dim..][..dim]
    }

    /// Where a key head's key begins in `kv`; its value lies `kv dim` further.
    fn key_at(&self, row: usize, head: usize) -> usize {
        let Heads { query, kv, dim } = self.heads;
        row * 2 * kv * dim + head / (query / kv) * dim
    }

    fn key(&self, at: usize) -> &[f64] {
        &self.kv[at..][..self.heads.dim]
    }

    fn value(&self, at: usize) -> &[f64] {
        &self.kv[at + self.heads.kv * self.heads.dim..][..self.heads.dim]
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add_scaled(to: &mut [f64], by: f64, x: &[f64]) {
    for (to, x) in to.iter_mut().zip(x) {
        *to += by * x;
    }
}

#[allow(clippy::too_many_arguments, reason = "the operands of one merge")]
pub(crate) fn forward<O: Ops + ?Sized>(
    ops: &O,
    qkv: &O::Tensor,
    kv: &O::Tensor,
    heads: Heads,
    spans: &[KeySpan],
    scale: f64,
    out: &O::Tensor,
    lse: &O::Float,
) -> Result<(O::Tensor, O::Float)> {
    let on = Operands::new(ops, qkv, kv, heads, spans, scale)?;
    let (rows, dim, cols) = (on.rows, heads.dim, heads.out_cols());
    let (mut out, mut lse) = (ops.read_f64(out)?, ops.read_float_f64(lse)?);
    for KeySpan { queries, keys } in spans.iter().filter(|span| !span.keys.is_empty()) {
        for row in queries.clone() {
            for head in 0..heads.query {
                let q = on.query(row, head);
                let scores: Vec<f64> = keys
                    .clone()
                    .map(|j| scale * dot(q, on.key(on.key_at(j, head))))
                    .collect();
                let greatest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = scores.iter().map(|s| (s - greatest).exp()).sum();
                let theirs = greatest + sum.ln();
                let ours = &mut lse[head * rows + row];
                let high = ours.max(theirs);
                let merged = high + ((*ours - high).exp() + (theirs - high).exp()).ln();
                let o = &mut out[row * cols + head * dim..][..dim];
                let keep = (*ours - merged).exp();
                o.iter_mut().for_each(|o| *o *= keep);
                for (score, j) in scores.iter().zip(keys.clone()) {
                    add_scaled(o, (score - merged).exp(), on.value(on.key_at(j, head)));
                }
                *ours = merged;
            }
        }
    }
    Ok((
        ops.tensor_f64(rows, cols, &out)?,
        ops.float_f64(heads.query, rows, &lse)?,
    ))
}

#[allow(
    clippy::too_many_arguments,
    reason = "the operands of one fused backward"
)]
pub(crate) fn backward<O: Ops + ?Sized>(
    ops: &O,
    dout: &O::Tensor,
    qkv: &O::Tensor,
    kv: &O::Tensor,
    heads: Heads,
    spans: &[KeySpan],
    scale: f64,
    out: &O::Tensor,
    lse: &O::Float,
) -> Result<(O::Tensor, O::Tensor)> {
    let on = Operands::new(ops, qkv, kv, heads, spans, scale)?;
    let (rows, dim, cols) = (on.rows, heads.dim, heads.out_cols());
    let (others, kv_cols) = ops.shape(kv);
    let (dout, out) = (ops.read_f64(dout)?, ops.read_f64(out)?);
    let lse = ops.read_float_f64(lse)?;
    let mut dqkv = vec![0.0; rows * heads.qkv_cols()];
    let mut dkv = vec![0.0; others * kv_cols];
    for KeySpan { queries, keys } in spans {
        for row in queries.clone() {
            for head in 0..heads.query {
                let at = row * cols + head * dim;
                let (dout, out) = (&dout[at..][..dim], &out[at..][..dim]);
                let (d, lse) = (dot(dout, out), lse[head * rows + row]);
                let q = on.query(row, head);
                let dq = &mut dqkv[row * heads.qkv_cols() + head * dim..][..dim];
                for j in keys.clone() {
                    let at = on.key_at(j, head);
                    let p = (on.scale * dot(q, on.key(at)) - lse).exp();
                    let ds = on.scale * p * (dot(dout, on.value(at)) - d);
                    add_scaled(dq, ds, on.key(at));
                    add_scaled(&mut dkv[at..][..dim], ds, q);
                    add_scaled(&mut dkv[at + heads.kv * dim..][..dim], p, dout);
                }
            }
        }
    }
    Ok((
        ops.tensor_f64(rows, heads.qkv_cols(), &dqkv)?,
        ops.tensor_f64(others, kv_cols, &dkv)?,
    ))
}
