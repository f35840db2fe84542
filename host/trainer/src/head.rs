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
        let mut all = TokenStats::default();
        let mut sum = DHidden {
            ops,
            rows,
            sum: None,
        };
        // A chunk's products are queued when the next one's statistics have been asked for, so that the device has work
        // while this waits for them and computes slopes.
        let mut last: Option<Chunk<O>> = None;
        for range in self.chunks(rows) {
            let (h, at) = self.rows_of(hidden, &range, rows)?;
            let ids = ops.ids(&targets[range.clone()])?;
            let inverse = 1.0 / self.temperature;
            let logits = ops.logits(&h, self.weight)?;
            let stats = ops.token_stats_later(&logits, &ids, inverse, self.vocab)?;
            if let Some(last) = last.take() {
                self.products(last, dweight, &mut sum)?;
            }
            let stats = stats()?;
            let (a, b) = slopes(range, &stats);
            if a.iter().chain(&b).any(|&x| x != 0.0) {
                let dz = ops.logits_backward(logits, &ids, inverse, self.vocab, &stats, &a, &b)?;
                last = Some(Chunk { dz, h, at });
            }
            extend(&mut all, stats);
        }
        if let Some(last) = last {
            self.products(last, dweight, &mut sum)?;
        }
        Ok((sum.sum, all))
    }

    fn products(
        &self,
        chunk: Chunk<O>,
        dweight: &mut O::Float,
        sum: &mut DHidden<'_, O>,
    ) -> Result<()> {
        let Chunk { dz, h, at } = chunk;
        self.ops.accumulate_tn(&dz, &h, dweight)?;
        sum.add(self.ops.matmul_nn(&dz, self.weight)?, at)
    }
}

/// A chunk whose logits' gradient is known.
struct Chunk<O: Ops> {
    dz: O::Tensor,
    h: O::Tensor,
    /// Which rows it has, if not all.
    at: Option<O::Ids>,
}

/// The gradient of hidden rows, chunk after chunk.
struct DHidden<'a, O: Ops> {
    ops: &'a O,
    rows: usize,
    sum: Option<O::Tensor>,
}

impl<O: Ops> DHidden<'_, O> {
    fn add(&mut self, dh: O::Tensor, at: Option<O::Ids>) -> Result<()> {
        let dh = match at {
            Some(at) => self.ops.scatter_rows(&dh, &at, self.rows)?,
            None => dh,
        };
        self.sum = Some(match &self.sum {
            Some(sum) => self.ops.add(sum, &dh)?,
            None => dh,
        });
        Ok(())
    }
}

fn extend(all: &mut TokenStats, more: TokenStats) {
    all.logprob.extend(more.logprob);
    all.entropy.extend(more.entropy);
    all.lse.extend(more.lse);
}
