//! Accumulators. Setting one to zero writes nothing yet: the product that adds to it first writes it instead, so that a main
//! gradient is neither cleared nor read before its first product.

//!
//! States of the optimizer may be kept in 16 bits instead: moments in bf16, and of a master weight what its bf16 weight lacks.

use super::device::Arg::{Long, Ptr};
use super::ops::expect;
use super::pool::Block;
use super::{Cuda, Tensor, device::Device, sources};
use crate::{Error, Result};
use half::bf16;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// fp32, row-major.
pub struct Float {
    block: Block,
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// To be read as zeros, whatever the block holds.
    blank: AtomicBool,
    form: Form,
}

/// Which parameter a moment is of, and where in it it begins.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Of {
    pub(super) param: u32,
    pub(super) start: u64,
}

/// How its numbers are kept.
enum Form {
    Full,
    /// In bf16.
    Half(Of),
    /// As the 16 bits that this weight lacks: `fp32 bits = (weight bits << 16) + rest`, the rest signed.
    Rest(Arc<Block>),
}

/// The weight's bits and the rest's.
fn split(master: f32) -> (u16, u16) {
    let bits = master.to_bits();
    ((bits.wrapping_add(0x8000) >> 16) as u16, bits as u16)
}

impl Float {
    pub(super) fn new(block: Block, rows: usize, cols: usize) -> Self {
        Self {
            block,
            rows,
            cols,
            blank: AtomicBool::new(false),
            form: Form::Full,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.rows * self.cols
    }

    /// Where its numbers are, for whoever reads some or writes a part.
    pub(super) fn at(&self, device: &Device) -> Result<u64> {
        if !matches!(self.form, Form::Full) {
            let detail = "this accumulator is kept in 16 bits, which the operation does not read";
            return Err(Error::Shape {
                op: "float",
                detail: detail.into(),
            });
        }
        if self.blank.swap(false, Ordering::Relaxed) {
            device.zero(&self.block, self.len() * 4)?;
        }
        Ok(self.block.ptr)
    }

    /// Where its numbers are, for whoever writes all of them; true if they are to be added to what is there.
    pub(super) fn place_to_add(&mut self) -> (u64, bool) {
        let blank = std::mem::take(self.blank.get_mut());
        (self.block.ptr, !blank)
    }

    pub(super) fn clear(&mut self) {
        *self.blank.get_mut() = true;
    }

    /// Where its 16 bits a number are, if it is a moment in bf16, and of what it is one.
    pub(super) fn half(&self) -> Option<(u64, Of)> {
        match self.form {
            Form::Half(of) => Some((self.block.ptr, of)),
            _ => None,
        }
    }

    /// Where they are, if it is the rest of this weight.
    pub(super) fn rest_of(&self, weight: &Tensor) -> Option<u64> {
        match &self.form {
            Form::Rest(of) if Arc::ptr_eq(of, &weight.block) => Some(self.block.ptr),
            _ => None,
        }
    }

    /// Its memory, zeroed if it is to be.
    pub(super) fn block(&self, device: &Device) -> Result<&Block> {
        self.at(device)?;
        Ok(&self.block)
    }
}

impl Cuda {
    pub(super) fn new_float(&self, rows: usize, cols: usize, what: &str) -> Result<Float> {
        Ok(Float::new(
            self.device.pool.take(rows * cols * 4, what)?,
            rows,
            cols,
        ))
    }

    /// 16 bits a number, all zero.
    fn new_short(&self, rows: usize, cols: usize, form: Form) -> Result<Float> {
        let block = self
            .device
            .pool
            .take(rows * cols * 2, "an optimizer state")?;
        self.device.zero(&block, rows * cols * 2)?;
        let mut float = Float::new(block, rows, cols);
        float.form = form;
        Ok(float)
    }

    pub(super) fn new_moment(&self, rows: usize, cols: usize, of: Of) -> Result<Float> {
        self.new_short(rows, cols, Form::Half(of))
    }

    pub(super) fn new_rest(&self, weight: &Tensor) -> Result<Float> {
        let form = Form::Rest(weight.block.clone());
        self.new_short(weight.rows, weight.cols, form)
    }

    pub(super) fn read_any(&self, x: &Float) -> Result<Vec<f32>> {
        match &x.form {
            Form::Full => self
                .device
                .download_singles(x.block(&self.device)?, x.len()),
            Form::Half(_) => self.device.download_halves(&x.block, x.len()),
            Form::Rest(weight) => {
                let whole = self.new_float(x.rows, x.cols, "a master weight")?;
                let args = [
                    Ptr(weight.ptr),
                    Ptr(x.block.ptr),
                    Ptr(whole.at(&self.device)?),
                    Long(x.len() as i64),
                ];
                let (source, grid) = (sources::adamw(), self.grid(x.len()));
                self.device
                    .launch(&source, "whole_master", grid, 256, 0, &args)?;
                self.device.download_singles(&whole.block, x.len())
            }
        }
    }

    /// New numbers, kept as the old ones were; those of a rest are the weight's too.
    pub(super) fn put(&self, to: &mut Float, data: &[f32]) -> Result<()> {
        let (rows, cols) = (to.rows, to.cols);
        expect("assign", data.len() == rows * cols, || {
            format!("{} values for [{rows}, {cols}]", data.len())
        })?;
        to.blank = AtomicBool::new(false);
        match &to.form {
            Form::Full => self.device.write(&to.block, data),
            Form::Half(_) => {
                let half: Vec<bf16> = data.iter().map(|&v| bf16::from_f32(v)).collect();
                self.device.write(&to.block, &half)
            }
            Form::Rest(weight) => {
                let (high, low): (Vec<u16>, Vec<u16>) = data.iter().map(|&v| split(v)).unzip();
                self.device.write(weight, &high)?;
                self.device.write(&to.block, &low)
            }
        }
    }
}
