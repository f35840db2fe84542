//! Norms of heads and rotary positions of packed queries and keys, both ways.

use super::device::Arg::{Float as F, Int, Ptr};
use super::ops::{THREADS, VECTOR, expect};
use super::{Cuda, Float, Ids, Tensor, sources};
use crate::{Heads, Norms, Result, RopeStyle, RopeTable};

/// Columns that a warp holds.
const OF_WARP: usize = 256;

fn rotation_fits(
    op: &'static str,
    x: &Tensor,
    heads: Heads,
    rope: &RopeTable<Cuda>,
    norms: bool,
) -> Result<()> {
    let whole = match rope.style {
        RopeStyle::Half => 2 * VECTOR,
        RopeStyle::Interleaved => VECTOR,
    };
    expect(
        op,
        x.cols == heads.qkv_cols() && heads.dim.is_multiple_of(VECTOR) && heads.dim <= 1024,
        || format!("{} columns for {heads:?}", x.cols),
    )?;
    let in_a_warp = rope.dims <= OF_WARP && (heads.dim <= OF_WARP || !norms);
    expect(op, in_a_warp, || {
        format!(
            "{heads:?} with {} rotating; CUDA norms and rotates at most {OF_WARP} columns of a head",
            rope.dims
        )
    })?;
    expect(op, rope.dims.is_multiple_of(whole), || {
        format!(
            "{} rotating dimensions; CUDA needs a multiple of {whole}",
            rope.dims
        )
    })
}

/// Tokens of a block, as in `qk_norm_rope/kernel.cu`.
fn tokens_of_rotation(heads: Heads) -> usize {
    let groups = THREADS as usize / sources::lanes_of_head(heads);
    groups / groups.min(4)
}

impl Cuda {
    pub(super) fn rotated(
        &self,
        qkv: &Tensor,
        heads: Heads,
        positions: &Ids,
        rope: &RopeTable<Self>,
        norms: Option<Norms<'_, Self>>,
    ) -> Result<(Tensor, Option<Float>)> {
        rotation_fits("qk_norm_rope", qkv, heads, rope, norms.is_some())?;
        let y = self.new_tensor(qkv.rows, qkv.cols, "rotated rows")?;
        let r = norms
            .as_ref()
            .map(|_| self.new_float(qkv.rows, heads.query + heads.kv, "norm statistics"))
            .transpose()?;
        let (wq, wk, eps) = norms
            .as_ref()
            .map_or((0, 0, 0.0), |n| (n.query.block.ptr, n.key.block.ptr, n.eps));
        let args = [
            Ptr(qkv.block.ptr),
            Ptr(y.block.ptr),
            Ptr(positions.block.ptr),
            Ptr(rope.cos.at(&self.device)?),
            Ptr(rope.sin.at(&self.device)?),
            Ptr(wq),
            Ptr(wk),
            Ptr(r.as_ref().map_or(Ok(0), |r| r.at(&self.device))?),
            Int(qkv.rows as i32),
            F(eps as f32),
        ];
        let source = sources::qk_norm_rope(heads, rope.dims, rope.style);
        let blocks = qkv.rows.div_ceil(tokens_of_rotation(heads));
        self.device.launch(
            &source,
            "qk_norm_rope",
            (blocks as u32, 1, 1),
            THREADS,
            0,
            &args,
        )?;
        Ok((y, r))
    }

    pub(super) fn rotated_gradient(
        &self,
        dqkv: &Tensor,
        heads: Heads,
        positions: &Ids,
        rope: &RopeTable<Self>,
        norms: Option<(Norms<'_, Self>, &Tensor, &Float)>,
        dnorms: Option<(&mut Float, &mut Float)>,
    ) -> Result<Tensor> {
        let op = "qk_norm_rope_backward";
        rotation_fits(op, dqkv, heads, rope, norms.is_some())?;
        let dx = self.new_tensor(dqkv.rows, dqkv.cols, "the gradient of rotated rows")?;
        let turns = dqkv.rows.div_ceil(tokens_of_rotation(heads));
        let at_once = self.device.num_sms as usize * 3;
        // As many as give every block the same number of turns.
        let blocks = turns.div_ceil(turns.div_ceil(at_once).max(1));
        let part = self.new_float(blocks, 2 * heads.dim, "norm partial sums")?;
        let part = part.at(&self.device)?;
        let (wq, wk, x, r) = match &norms {
            Some((n, x, r)) => (
                n.query.block.ptr,
                n.key.block.ptr,
                x.block.ptr,
                r.at(&self.device)?,
            ),
            None => (0, 0, 0, 0),
        };
        let args = [
            Ptr(dqkv.block.ptr),
            Ptr(x),
            Ptr(dx.block.ptr),
            Ptr(positions.block.ptr),
            Ptr(rope.cos.at(&self.device)?),
            Ptr(rope.sin.at(&self.device)?),
            Ptr(wq),
            Ptr(wk),
            Ptr(r),
            Ptr(part),
            Int(dqkv.rows as i32),
        ];
        let source = sources::qk_norm_rope(heads, rope.dims, rope.style);
        self.device.launch(
            &source,
            "qk_norm_rope_backward",
            (blocks as u32, 1, 1),
            THREADS,
            THREADS * 16 * 2 * sources::ROTATION_SLOTS as u32,
            &args,
        )?;
        if let (Some(_), Some((dq, dk))) = (&norms, dnorms) {
            let sums = (dq.at(&self.device)?, Some(dk.at(&self.device)?));
            self.add_parts(part, sums, blocks, heads.dim)?;
        }
        Ok(dx)
    }
}
