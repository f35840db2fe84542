//! The fused head: log-prob, entropy and policy gradient of the rows that need them, a chunk of rows at a time.
//!
//! ```text
//! z = h Wᵀ        u = z / temperature        logp = u_y - lse u        H = lse u - Σ p u
//! ```
//!
//! Logits exist for one chunk only. The gradient of a token's loss depends on that token's own log-prob, so its
//! slopes are asked for while the chunk's logits are still there, and forward and backward are one pass.

use slime_kernels::{Ops, Result, TokenStats};
use std::ops::Range;

/// The head's matrix and how its logits are read.
pub struct Head<'a, O: Ops> {
    /// The device.
    pub ops: &'a O,
    /// `[vocab rows, hidden]`.
    pub weight: &'a O::Tensor,
    /// Logits are divided by it.
    pub temperature: f64,
    /// Rows of the matrix from here on are no tokens: −inf.
    pub vocab: usize,
    /// Rows whose logits exist at once; the device's choice when not given.
    pub chunk_rows: Option<usize>,
}

/// Slopes of a chunk's rows: of the objective by each log-prob, and by each entropy.
pub type Slopes = (Vec<f64>, Vec<f64>);

impl<O: Ops> Head<'_, O> {
    /// Row ranges of nearly equal size.
    fn chunks(&self, rows: usize) -> impl Iterator<Item = Range<usize>> + use<O> {
        let by_size = (self.ops.logits_chunk_bytes() / (4 * self.vocab.max(1))).max(64);
        let count = rows.div_ceil(self.chunk_rows.unwrap_or(by_size)).max(1);
        (0..count)
            .map(move |i| rows * i / count..rows * (i + 1) / count)
            .filter(|r| !r.is_empty())
    }

    fn rows_of(
        &self,
        hidden: &O::Tensor,
        chunk: &Range<usize>,
        rows: usize,
    ) -> Result<(O::Tensor, Option<O::Ids>)> {
        if chunk.len() == rows {
            return Ok((hidden.clone(), None));
        }
        let ids = self
            .ops
            .ids(&(chunk.start as u32..chunk.end as u32).collect::<Vec<_>>())?;
        Ok((self.ops.gather_rows(hidden, &ids)?, Some(ids)))
    }

    /// What the head knows of each target, `hidden: [rows, hidden]`.
    ///
    /// # Errors
    /// The device failed.
    pub fn stats(&self, hidden: &O::Tensor, targets: &[u32]) -> Result<TokenStats> {
        let mut all = TokenStats::default();
        for chunk in self.chunks(targets.len()) {
            let (h, _) = self.rows_of(hidden, &chunk, targets.len())?;
            let logits = self.ops.logits(&h, self.weight)?;
            let ids = self.ops.ids(&targets[chunk])?;
            extend(
                &mut all,
                self.ops
                    .token_stats(&logits, &ids, 1.0 / self.temperature, self.vocab)?,
            );
        }
        Ok(all)
    }

    /// The same, and the gradient: of `hidden` returned (`None` where every slope is 0), of the matrix added to
    /// `dweight`. `slopes` is asked once for each chunk of rows.
    ///
    /// # Errors
    /// The device failed.
    pub fn backward(
        &self,
        hidden: &O::Tensor,
        targets: &[u32],
        dweight: &mut O::Float,
        mut slopes: impl FnMut(Range<usize>, &TokenStats) -> Slopes,
    ) -> Result<(Option<O::Tensor>, TokenStats)> {
        let (ops, rows) = (self.ops, targets.len());
        let inv_temperature = 1.0 / self.temperature;
        let mut all = TokenStats::default();
        let mut dhidden: Option<O::Tensor> = None;
        for chunk in self.chunks(rows) {
            let (h, at) = self.rows_of(hidden, &chunk, rows)?;
            let logits = ops.logits(&h, self.weight)?;
            let ids = ops.ids(&targets[chunk.clone()])?;
            let stats = ops.token_stats(&logits, &ids, inv_temperature, self.vocab)?;
            let (a, b) = slopes(chunk, &stats);
            if a.iter().chain(&b).any(|&x| x != 0.0) {
                let dz =
                    ops.logits_backward(logits, &ids, inv_temperature, self.vocab, &stats, &a, &b)?;
                ops.accumulate_tn(&dz, &h, dweight)?;
                let dh = ops.matmul_nn(&dz, self.weight)?;
                let dh = match at {
                    Some(at) => ops.scatter_rows(&dh, &at, rows)?,
                    None => dh,
                };
                dhidden = Some(match dhidden {
                    Some(sum) => ops.add(&sum, &dh)?,
                    None => dh,
                });
            }
            extend(&mut all, stats);
        }
        Ok((dhidden, all))
    }
}

fn extend(all: &mut TokenStats, more: TokenStats) {
    all.logprob.extend(more.logprob);
    all.entropy.extend(more.entropy);
    all.lse.extend(more.lse);
}
