//! The fused head over a vocabulary split between ranks: [`crate::head`] with three small sums a chunk of rows.
//!
//! ```text
//! lse = log Σ_r e^(lse_r)      E₁ = Σ_r e^(lse_r - lse) E₁_r      u_y from the rank that owns y      H = lse - E₁
//! ```
//!
//! Each rank knows lse, E₁ and maybe u_y of its own columns; columns that pad the vocabulary are −inf everywhere. With
//! these numbers of the whole vocabulary the gradient of a rank's columns is what one rank would compute. Every rank of the
//! group takes part for every chunk; the rows are the same on all of them.

use super::mesh::Group;
use super::shard::vocab_rows;
use crate::head::Slopes;
use slime_kernels::{NO_TARGET, Ops, Reduce, Result, TokenStats};
use std::ops::Range;

/// A rank's part of the head.
pub struct SplitHead<'a, O: Ops> {
    /// The device.
    pub ops: &'a O,
    /// This rank's rows of the matrix: `[vocabulary / tp, hidden]`.
    pub weight: &'a O::Tensor,
    /// Logits are divided by it.
    pub temperature: f64,
    /// Rows of the model's vocabulary, on all ranks together.
    pub model_vocab: usize,
    /// Rows from here on are no tokens: −inf.
    pub vocab: usize,
    /// Rows whose logits exist at once; the device's choice when not given.
    pub chunk_rows: Option<usize>,
    /// Who holds the other rows.
    pub tp: &'a Group<O>,
}

impl<O: Ops> SplitHead<'_, O> {
    /// First column of this rank's, and how many of them are tokens.
    fn columns(&self) -> (usize, usize) {
        let (start, each) = vocab_rows(self.model_vocab, self.tp.size(), self.tp.rank());
        (start, self.vocab.saturating_sub(start).min(each))
    }

    fn chunks(&self, rows: usize) -> impl Iterator<Item = Range<usize>> + use<O> {
        let columns = self.model_vocab.div_ceil(self.tp.size()).max(1);
        let by_size = (self.ops.logits_chunk_bytes() / (4 * columns)).max(64);
        let count = rows.div_ceil(self.chunk_rows.unwrap_or(by_size)).max(1);
        (0..count)
            .map(move |i| rows * i / count..rows * (i + 1) / count)
            .filter(|r| !r.is_empty())
    }

    fn rows_of(&self, hidden: &O::Tensor, chunk: &Range<usize>) -> Result<(O::Tensor, O::Ids)> {
        let numbers: Vec<u32> = (chunk.start as u32..chunk.end as u32).collect();
        let ids = self.ops.ids(&numbers)?;
        Ok((self.ops.gather_rows(hidden, &ids)?, ids))
    }

    /// Statistics of a chunk over the whole vocabulary, from the logits of this rank's columns.
    fn merged(&self, logits: &O::Float, targets: &[u32]) -> Result<TokenStats> {
        let (start, here) = self.columns();
        let rows = targets.len();
        let own = |&y: &u32| (start..start + here).contains(&(y as usize));
        let stats = if here > 0 {
            let local: Vec<u32> = targets
                .iter()
                .map(|y| if own(y) { y - start as u32 } else { 0 })
                .collect();
            let ids = self.ops.ids(&local)?;
            self.ops
                .token_stats(logits, &ids, 1.0 / self.temperature, here)?
        } else {
            TokenStats {
                logprob: vec![0.0; rows],
                entropy: vec![0.0; rows],
                lse: vec![f64::NEG_INFINITY; rows],
            }
        };
        let mut greatest = stats.lse.clone();
        self.tp.all_reduce_host(&mut greatest, Reduce::Max)?;
        // Σ e^(lse_r - m), Σ e^(lse_r - m) E₁_r, u_y: one list, one call.
        let mut sums = vec![0.0; 3 * rows];
        for row in 0..rows {
            let weight = (stats.lse[row] - greatest[row]).exp();
            if weight > 0.0 {
                sums[row] = weight;
                sums[rows + row] = weight * (stats.lse[row] - stats.entropy[row]);
            }
            if own(&targets[row]) {
                sums[2 * rows + row] = stats.logprob[row] + stats.lse[row];
            }
        }
        self.tp.all_reduce_host(&mut sums, Reduce::Sum)?;
        let mut whole = TokenStats::default();
        for row in 0..rows {
            let lse = greatest[row] + sums[row].ln();
            whole.lse.push(lse);
            whole.logprob.push(sums[2 * rows + row] - lse);
            whole.entropy.push(lse - sums[rows + row] / sums[row]);
        }
        Ok(whole)
    }

    /// What the head knows of each target, `hidden: [rows, hidden]`, the same on all ranks.
    ///
    /// # Errors
    /// A rank or the device failed.
    pub fn stats(&self, hidden: &O::Tensor, targets: &[u32]) -> Result<TokenStats> {
        let mut all = TokenStats::default();
        for chunk in self.chunks(targets.len()) {
            let (h, _) = self.rows_of(hidden, &chunk)?;
            let logits = self.ops.logits(&h, self.weight)?;
            extend(&mut all, self.merged(&logits, &targets[chunk])?);
        }
        Ok(all)
    }

    /// The same, and this rank's part of the gradient of `hidden`; that of its rows of the matrix is added to `dweight`.
    ///
    /// # Errors
    /// A rank or the device failed.
    pub fn backward(
        &self,
        hidden: &O::Tensor,
        targets: &[u32],
        dweight: &mut O::Float,
        mut slopes: impl FnMut(Range<usize>, &TokenStats) -> Slopes,
    ) -> Result<(O::Tensor, TokenStats)> {
        let ops = self.ops;
        let (rows, cols) = ops.shape(hidden);
        let (start, here) = self.columns();
        let mut all = TokenStats::default();
        let mut dhidden: Option<O::Tensor> = None;
        for chunk in self.chunks(targets.len()) {
            let (h, at) = self.rows_of(hidden, &chunk)?;
            let logits = ops.logits(&h, self.weight)?;
            let stats = self.merged(&logits, &targets[chunk.clone()])?;
            let (a, b) = slopes(chunk.clone(), &stats);
            if here > 0 && a.iter().chain(&b).any(|&x| x != 0.0) {
                let local: Vec<u32> = targets[chunk]
                    .iter()
                    .map(|&y| match (y as usize).checked_sub(start) {
                        Some(column) if column < here => column as u32,
                        _ => NO_TARGET,
                    })
                    .collect();
                let ids = ops.ids(&local)?;
                let inv = 1.0 / self.temperature;
                let dz = ops.logits_backward(logits, &ids, inv, here, &stats, &a, &b)?;
                ops.accumulate_tn(&dz, &h, dweight)?;
                let dh = ops.matmul_nn(&dz, self.weight)?;
                let dh = ops.scatter_rows(&dh, &at, rows)?;
                dhidden = Some(match dhidden {
                    Some(sum) => ops.add(&sum, &dh)?,
                    None => dh,
                });
            }
            extend(&mut all, stats);
        }
        let dhidden = match dhidden {
            Some(dhidden) => dhidden,
            None => ops.tensor(rows, cols, &vec![0.0; rows * cols])?,
        };
        Ok((dhidden, all))
    }
}

fn extend(all: &mut TokenStats, more: TokenStats) {
    all.logprob.extend(more.logprob);
    all.entropy.extend(more.entropy);
    all.lse.extend(more.lse);
}
