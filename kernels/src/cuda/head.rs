//! The head's launches. Statistics of tokens come to the host by way of page-locked memory, so that whoever asked may queue
//! more work before waiting for them.

use super::device::Arg::{Float as F, Int, Long, Ptr};
use super::device::Pinned;
use super::gemm::Shape;
use super::ops::expect;
use super::{Cuda, Float, Ids, Tensor, sources};
use crate::{Draw, Drawn, Result, TokenStats};

/// Numbers that `token_stats` gives a row.
const STATS: usize = 4;

impl Cuda {
    pub(super) fn logits_of(&self, h: &Tensor, w: &Tensor) -> Result<Float> {
        let z = self.new_float(h.rows, w.rows, "logits")?;
        let shape = Shape {
            m: w.rows,
            n: h.rows,
            k: h.cols,
            transpose_a: true,
            transpose_b: false,
            float_out: true,
            accumulate: false,
        };
        let out = z.at(&self.device)?;
        self.product("logits", (w, w.cols), (h, h.cols), shape, out)?;
        Ok(z)
    }

    /// Queue the statistics and their way to the host.
    pub(super) fn queue_stats(
        &self,
        logits: &Float,
        targets: &Ids,
        inv_temperature: f64,
        vocab: usize,
    ) -> Result<Pinned> {
        let wrong = targets.host.iter().find(|&&id| id as usize >= vocab);
        expect("token_stats", wrong.is_none(), || {
            let id = wrong.copied().unwrap_or_default();
            format!("target {id}, but the vocabulary has {vocab} tokens")
        })?;
        let out = self.new_float(logits.rows, STATS, "token statistics")?;
        let args = [
            Ptr(logits.at(&self.device)?),
            Ptr(targets.block.ptr),
            Ptr(out.at(&self.device)?),
            Long(logits.cols as i64),
            Int(vocab as i32),
            F(inv_temperature as f32),
        ];
        let grid = (logits.rows as u32, 1, 1);
        self.device
            .launch(&sources::head(), "token_stats", grid, 512, 0, &args)?;
        self.device
            .fetch(out.at(&self.device)?, logits.rows * STATS)
    }

    /// Wait for what [`Self::queue_stats`] queued.
    pub(super) fn stats_of(&self, pinned: Pinned) -> Result<TokenStats> {
        let values = self.device.arrived(pinned)?;
        let column = |c: usize| {
            values
                .chunks_exact(STATS)
                .map(|row| f64::from(row[c]))
                .collect()
        };
        Ok(TokenStats {
            logprob: column(0),
            entropy: column(1),
            lse: column(2),
        })
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "the operands of one fused backward"
    )]
    pub(super) fn logits_gradient(
        &self,
        logits: &Float,
        targets: &Ids,
        inv_temperature: f64,
        vocab: usize,
        stats: &TokenStats,
        a: &[f64],
        b: &[f64],
    ) -> Result<Tensor> {
        let dz = self.new_tensor(logits.rows, logits.cols, "the logits' gradient")?;
        let packed: Vec<f32> = (0..logits.rows)
            .flat_map(|row| {
                let (entropy, lse) = (stats.entropy[row], stats.lse[row]);
                [a[row] as f32, b[row] as f32, entropy as f32, lse as f32]
            })
            .collect();
        let packed = self.device.upload(&packed, "token weights")?;
        let args = [
            Ptr(logits.at(&self.device)?),
            Ptr(targets.block.ptr),
            Ptr(packed.ptr),
            Ptr(dz.block.ptr),
            Long(logits.cols as i64),
            Int(vocab as i32),
            F(inv_temperature as f32),
        ];
        let grid = (logits.rows as u32, 1, 1);
        self.device
            .launch(&sources::head(), "logits_backward", grid, 512, 0, &args)?;
        Ok(dz)
    }

    pub(super) fn draw_tokens(
        &self,
        logits: &Float,
        draws: &[Draw],
        vocab: usize,
    ) -> Result<Option<Vec<Drawn>>> {
        let fits = draws.len() == logits.rows && vocab <= logits.cols;
        expect("draw", fits, || {
            let (rows, cols) = (logits.rows, logits.cols);
            format!(
                "{} draws from {vocab} tokens for [{rows}, {cols}]",
                draws.len()
            )
        })?;
        // As many tiles as the kernel keeps sums of.
        if logits.rows == 0 || vocab > 256 * 4096 {
            return Ok(logits.rows.eq(&0).then(Vec::new));
        }
        let how = |d: &Draw| {
            let uniform = d.uniform.map_or(-1.0, |u| u as f32);
            [d.inv_temperature as f32, uniform]
        };
        let how: Vec<f32> = draws.iter().flat_map(how).collect();
        let how = self.device.upload(&how, "how tokens are drawn")?;
        let out = self.new_float(logits.rows, 2, "drawn tokens")?;
        let args = [
            Ptr(logits.at(&self.device)?),
            Ptr(how.ptr),
            Ptr(out.at(&self.device)?),
            Long(logits.cols as i64),
            Int(vocab as i32),
        ];
        let grid = (logits.rows as u32, 1, 1);
        self.device
            .launch(&sources::draw(), "draw", grid, 1024, 0, &args)?;
        let drawn: Vec<f32> = self.device.download(out.block(&self.device)?, out.len())?;
        let drawn = drawn.chunks_exact(2).map(|row| Drawn {
            token: row[0].to_bits(),
            logprob: f64::from(row[1]),
        });
        Ok(Some(drawn.collect()))
    }
}
