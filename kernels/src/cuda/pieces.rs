//! Pieces of parameters as copies on the device. Read [`crate::pieces`] for what they are.

use super::device::Arg::{Int, Ptr};
use super::ops::THREADS;
use super::pool::Block;
use super::{Cuda, Float, Tensor, driver, sources};
use crate::{Error, Patch, Result, pieces};
use cudarc::driver::{result, sys};
use std::ops::Range;

impl Cuda {
    /// `bytes` from one place to another, in stream order.
    pub(super) fn copy_piece(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let _order = self.device.bind()?;
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
        let _order = self.device.bind()?;
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
        pieces::inside("columns", &cols, x.cols)?;
        let y = self.new_tensor(x.rows, cols.len(), "columns")?;
        if x.rows == 0 || cols.is_empty() {
            return Ok(y);
        }
        let from = Lines {
            ptr: x.block.ptr + 2 * cols.start as u64,
            stride: x.cols,
        };
        let to = Lines {
            ptr: y.block.ptr,
            stride: cols.len(),
        };
        // Rows of `cols.len()` elements lie inside both blocks, checked above.
        self.copy_lines(from, to, cols.len(), x.rows)?;
        Ok(y)
    }

    pub(super) fn with_columns(&self, x: &Tensor, y: &Tensor, at: usize) -> Result<Tensor> {
        pieces::check_added((x.rows, x.cols), (y.rows, y.cols), at)?;
        let z = self.new_tensor(x.rows, x.cols, "added columns")?;
        let args = [
            Ptr(x.block.ptr),
            Ptr(y.block.ptr),
            Ptr(z.block.ptr),
            Int(x.cols as i32),
            Int(at as i32),
            Int(y.cols as i32),
        ];
        let grid = (x.rows as u32, 1, 1);
        self.device
            .launch(&sources::rows(), "add_columns", grid, THREADS, 0, &args)?;
        Ok(z)
    }

    pub(super) fn laid_out(
        &self,
        patches: &[Patch<'_, Tensor>],
        rows: usize,
        cols: usize,
    ) -> Result<Tensor> {
        pieces::check_patches(patches, |x| x.rows * x.cols, rows * cols)?;
        let y = self.new_tensor(rows, cols, "patches laid together")?;
        for patch in patches {
            let (n, width) = (patch.elements.len(), patch.width);
            let from = patch.from.block.ptr + 2 * patch.elements.start as u64;
            let to = y.block.ptr + 2 * patch.to as u64;
            if n <= width || patch.stride == width {
                self.copy_piece(from, to, 2 * n)?;
                continue;
            }
            let (from, to) = (
                Lines {
                    ptr: from,
                    stride: width,
                },
                Lines {
                    ptr: to,
                    stride: patch.stride,
                },
            );
            self.copy_lines(from, to, width, n / width)?;
        }
        Ok(y)
    }

    /// Lines of `width` elements from one place to another, in stream order.
    fn copy_lines(&self, from: Lines, to: Lines, width: usize, lines: usize) -> Result<()> {
        let _order = self.device.bind()?;
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: std::ptr::null(),
            srcDevice: from.ptr,
            srcArray: std::ptr::null_mut(),
            srcPitch: from.stride * 2,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: std::ptr::null_mut(),
            dstDevice: to.ptr,
            dstArray: std::ptr::null_mut(),
            dstPitch: to.stride * 2,
            WidthInBytes: width * 2,
            Height: lines,
        };
        // SAFETY: the callers check that the lines lie inside both blocks.
        unsafe { sys::cuMemcpy2DAsync_v2(&copy, self.device.stream.cu_stream()) }
            .result()
            .map_err(driver)
    }
}

/// Where lines begin, and how many elements apart.
struct Lines {
    ptr: u64,
    stride: usize,
}

fn fits(op: &'static str, range: &Range<usize>, rows: usize, cols: usize) -> Result<()> {
    if range.len() == rows * cols {
        return Ok(());
    }
    let detail = format!("elements {range:?} for [{rows}, {cols}]");
    Err(Error::Shape { op, detail })
}
