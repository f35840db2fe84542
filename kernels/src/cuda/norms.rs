//! Norms and activations of rows, both ways.

use super::device::Arg::{self, Float as F, Int, Ptr};
use super::ops::{VECTOR, expect, whole_vectors};
use super::{Cuda, Float, Tensor, sources};
use crate::Result;

impl Cuda {
    /// `(lanes, vectors a lane)` of a row; see `rmsnorm/kernel.cu`.
    fn norm_shape(&self, cols: usize) -> Result<(usize, usize)> {
        whole_vectors("rmsnorm", cols)?;
        let vectors = cols / VECTOR;
        let lanes = (vectors / 2).next_power_of_two().clamp(32, 512);
        let per = vectors.div_ceil(lanes);
        expect("rmsnorm", per <= 8, || {
            format!(
                "rows of {cols} columns; at most {} fit a block",
                8 * 512 * VECTOR
            )
        })?;
        Ok((lanes, per))
    }

    fn norm_launch(
        &self,
        name: &'static str,
        blocks: Option<usize>,
        rows: usize,
        cols: usize,
        args: &[Arg],
    ) -> Result<()> {
        let (lanes, per) = self.norm_shape(cols)?;
        let rows_per_block = (256 / lanes).max(1);
        let blocks = blocks.unwrap_or(rows.div_ceil(rows_per_block));
        let threads = (lanes * rows_per_block) as u32;
        self.device.launch(
            &sources::rmsnorm(lanes, per),
            name,
            (blocks as u32, 1, 1),
            threads,
            0,
            args,
        )
    }

    /// With `again`, what forward gave is written there.
    pub(super) fn norm_gradient(
        &self,
        dy: &Tensor,
        x: &Tensor,
        (r, w): (&Float, &Tensor),
        residual: Option<&Tensor>,
        dw: &mut Float,
        again: Option<&Tensor>,
    ) -> Result<Tensor> {
        let dx = self.new_tensor(x.rows, x.cols, "a norm's gradient")?;
        let blocks = x.rows.min(self.device.num_sms as usize * 3);
        let part = self.new_float(blocks, x.cols, "norm partial sums")?;
        let part = part.at(&self.device)?;
        let args = [
            Ptr(dy.block.ptr),
            Ptr(x.block.ptr),
            Ptr(r.at(&self.device)?),
            Ptr(w.block.ptr),
            Ptr(residual.map_or(0, |t| t.block.ptr)),
            Ptr(dx.block.ptr),
            Ptr(again.map_or(0, |t| t.block.ptr)),
            Ptr(part),
            Int(x.rows as i32),
            Int(x.cols as i32),
        ];
        self.norm_launch("rmsnorm_backward", Some(blocks), x.rows, x.cols, &args)?;
        self.add_parts(part, (dw.at(&self.device)?, None), blocks, x.cols)?;
        Ok(dx)
    }

    /// With `again`, what forward gave is written there.
    pub(super) fn swiglu_gradient(
        &self,
        da: &Tensor,
        gate_up: &Tensor,
        again: Option<&Tensor>,
    ) -> Result<Tensor> {
        let dx = self.new_tensor(gate_up.rows, gate_up.cols, "swiglu's gradient")?;
        let (grid, threads) = Self::by_row(da.rows, da.cols);
        let args = [
            Ptr(da.block.ptr),
            Ptr(gate_up.block.ptr),
            Ptr(dx.block.ptr),
            Ptr(again.map_or(0, |t| t.block.ptr)),
            Int(da.cols as i32),
        ];
        let source = sources::swiglu();
        self.device
            .launch(&source, "swiglu_backward", grid, threads, 0, &args)?;
        Ok(dx)
    }

    pub(super) fn normed(&self, x: &Tensor, w: &Tensor, eps: f64) -> Result<(Tensor, Float)> {
        let y = self.new_tensor(x.rows, x.cols, "a norm")?;
        let r = self.new_float(x.rows, 1, "norm statistics")?;
        let args = [
            Ptr(x.block.ptr),
            Ptr(w.block.ptr),
            Ptr(y.block.ptr),
            Ptr(r.at(&self.device)?),
            Int(x.rows as i32),
            Int(x.cols as i32),
            F(eps as f32),
        ];
        self.norm_launch("rmsnorm", None, x.rows, x.cols, &args)?;
        Ok((y, r))
    }

    pub(super) fn sum_normed(
        &self,
        x: &Tensor,
        delta: &Tensor,
        w: &Tensor,
        eps: f64,
    ) -> Result<(Tensor, Tensor, Float)> {
        let s = self.new_tensor(x.rows, x.cols, "a residual")?;
        let y = self.new_tensor(x.rows, x.cols, "a norm")?;
        let r = self.new_float(x.rows, 1, "norm statistics")?;
        let args = [
            Ptr(x.block.ptr),
            Ptr(delta.block.ptr),
            Ptr(w.block.ptr),
            Ptr(s.block.ptr),
            Ptr(y.block.ptr),
            Ptr(r.at(&self.device)?),
            Int(x.rows as i32),
            Int(x.cols as i32),
            F(eps as f32),
        ];
        self.norm_launch("add_rmsnorm", None, x.rows, x.cols, &args)?;
        Ok((s, y, r))
    }

    pub(super) fn activated(&self, gate_up: &Tensor) -> Result<Tensor> {
        let cols = gate_up.cols / 2;
        whole_vectors("swiglu", cols)?;
        let y = self.new_tensor(gate_up.rows, cols, "swiglu")?;
        let (grid, threads) = Self::by_row(y.rows, cols);
        let args = [Ptr(gate_up.block.ptr), Ptr(y.block.ptr), Int(cols as i32)];
        self.device
            .launch(&sources::swiglu(), "swiglu", grid, threads, 0, &args)?;
        Ok(y)
    }
}
