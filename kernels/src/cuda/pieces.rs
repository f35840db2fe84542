//! Pieces of parameters as copies on the device. Read [`crate::pieces`] for what they are.

use super::pool::Block;
use super::{Cuda, Float, Tensor, driver};
use crate::{Error, Result};
use cudarc::driver::{result, sys};
use std::ops::Range;

impl Cuda {
    /// `bytes` from one place to another, in stream order.
    fn copy_piece(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.device.bind()?;
        // SAFETY: the callers check both ranges against their blocks.
        unsafe { result::memcpy_dtod_async(to, from, bytes, self.device.stream.cu_stream()) }
            .map_err(driver)
    }

    fn join_blocks(
        &self,
        op: &'static str,
        parts: &[(&Block, usize, Range<usize>)],
        to: &Block,
        len: usize,
        size: usize,
    ) -> Result<()> {
        let mut at = 0;
        for (block, has, range) in parts {
            if range.start > range.end || range.end > *has || at + range.len() > len {
                let detail = format!("elements {range:?} of {has} at {at} of {len}");
                return Err(Error::Shape { op, detail });
            }
            let from = block.ptr + (range.start * size) as u64;
            self.copy_piece(from, to.ptr + (at * size) as u64, range.len() * size)?;
            at += range.len();
        }
        self.device.bind()?;
        let (rest, bytes) = (to.ptr + (at * size) as u64, (len - at) * size);
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: what lies between `at` and `len` elements of the block.
        unsafe { result::memset_d8_async(rest, 0, bytes, self.device.stream.cu_stream()) }
            .map_err(driver)
    }

    pub(super) fn join_tensors(
        &self,
        parts: &[(&Tensor, Range<usize>)],
        len: usize,
    ) -> Result<Tensor> {
        let y = self.new_tensor(1, len, "joined pieces")?;
        let parts: Vec<_> = parts
            .iter()
            .map(|(x, range)| (&*x.block, x.rows * x.cols, range.clone()))
            .collect();
        self.join_blocks("join", &parts, &y.block, len, 2)?;
        Ok(y)
    }

    pub(super) fn join_floats(
        &self,
        parts: &[(&Float, Range<usize>)],
        len: usize,
    ) -> Result<Float> {
        let y = self.new_float(1, len, "joined pieces")?;
        let mut from = Vec::with_capacity(parts.len());
        for (x, range) in parts {
            from.push((x.block(&self.device)?, x.len(), range.clone()));
        }
        self.join_blocks("join_float", &from, y.block(&self.device)?, len, 4)?;
        Ok(y)
    }

    pub(super) fn cut_tensor(
        &self,
        x: &Tensor,
        range: Range<usize>,
        rows: usize,
        cols: usize,
    ) -> Result<Tensor> {
        fits("cut", &range, rows, cols)?;
        let y = self.new_tensor(rows, cols, "a piece")?;
        let parts = [(&*x.block, x.rows * x.cols, range)];
        self.join_blocks("cut", &parts, &y.block, rows * cols, 2)?;
        Ok(y)
    }

    pub(super) fn cut_of_float(
        &self,
        x: &Float,
        range: Range<usize>,
        rows: usize,
        cols: usize,
    ) -> Result<Float> {
        fits("cut_float", &range, rows, cols)?;
        let y = self.new_float(rows, cols, "a piece")?;
        let parts = [(x.block(&self.device)?, x.len(), range)];
        self.join_blocks("cut_float", &parts, y.block(&self.device)?, rows * cols, 4)?;
        Ok(y)
    }

    pub(super) fn columns_of(&self, x: &Tensor, cols: Range<usize>) -> Result<Tensor> {
        if cols.start > cols.end || cols.end > x.cols {
            let detail = format!("columns {cols:?} of {}", x.cols);
            return Err(Error::Shape {
                op: "columns",
                detail,
            });
        }
        let y = self.new_tensor(x.rows, cols.len(), "columns")?;
        if x.rows == 0 || cols.is_empty() {
            return Ok(y);
        }
        self.device.bind()?;
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: cols.start * 2,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: std::ptr::null(),
            srcDevice: x.block.ptr,
            srcArray: std::ptr::null_mut(),
            srcPitch: x.cols * 2,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: std::ptr::null_mut(),
            dstDevice: y.block.ptr,
            dstArray: std::ptr::null_mut(),
            dstPitch: cols.len() * 2,
            WidthInBytes: cols.len() * 2,
            Height: x.rows,
        };
        // SAFETY: rows of `cols.len()` elements inside both blocks, checked above.
        unsafe { sys::cuMemcpy2DAsync_v2(&copy, self.device.stream.cu_stream()) }
            .result()
            .map_err(driver)?;
        Ok(y)
    }
}

fn fits(op: &'static str, range: &Range<usize>, rows: usize, cols: usize) -> Result<()> {
    if range.len() == rows * cols {
        return Ok(());
    }
    let detail = format!("elements {range:?} for [{rows}, {cols}]");
    Err(Error::Shape { op, detail })
}
