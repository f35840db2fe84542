//! The optimizer's launches: all parameters in one, found by a table on the device.

use super::device::Arg::{Float as F, Int, Ptr};
use super::float::Of;
use super::ops::{THREADS, expect};
use super::{Cuda, Float, sources};
use crate::{AdamW, Error, Result, Update};

/// Elements of a thread block, as in `adamw/kernel.cu`.
const FEW: usize = 2048;
const CHUNK: usize = 16_384;

/// A parameter of a step, as in `adamw/kernel.cu`.
#[repr(C)]
struct Param {
    grad: u64,
    m: u64,
    v: u64,
    master: u64,
    weight: u64,
    count: u64,
    first: u64,
    decay: f32,
    number: u32,
    start: u64,
}

/// A part of a sum of squares.
#[repr(C)]
struct Summand {
    x: u64,
    count: u64,
    first: u64,
}

/// The grid of blocks so far, and those of another `count` elements.
fn more_blocks(blocks: &mut usize, count: usize, chunk: usize) -> u64 {
    let first = *blocks;
    *blocks += count.div_ceil(chunk);
    first as u64
}

impl Cuda {
    pub(super) fn update_all(&self, step: &AdamW, updates: Vec<Update<'_, Self>>) -> Result<()> {
        let mut blocks = 0;
        let mut table = Vec::with_capacity(updates.len());
        let compact = updates.first().is_some_and(|u| u.m.half().is_some());
        let chunk = if compact { CHUNK } else { FEW };
        for update in &updates {
            let master = update.master.as_ref().ok_or_else(|| Error::Shape {
                op: "adamw",
                detail: "bf16 weights need a master".into(),
            })?;
            let (rows, cols) = (update.weight.rows, update.weight.cols);
            let count = rows * cols;
            let sizes = [&**master, &*update.m, &*update.v, update.grad].map(Float::len);
            expect("adamw", sizes == [count; 4], || {
                format!("weights [{rows}, {cols}]; master, moments and gradient of {sizes:?}")
            })?;
            let (m, v, master, of) = match compact {
                false => (
                    update.m.at(&self.device)?,
                    update.v.at(&self.device)?,
                    master.at(&self.device)?,
                    Of::default(),
                ),
                true => {
                    let rest = master.rest_of(update.weight);
                    let states = update.m.half().zip(update.v.half()).zip(rest);
                    let (((m, of), (v, _)), rest) = states.ok_or_else(|| Error::Shape {
                        op: "adamw",
                        detail: "some states are kept in 16 bits, others are not, or they are of another weight"
                            .into(),
                    })?;
                    (m, v, rest, of)
                }
            };
            if count > 0 {
                table.push(Param {
                    grad: update.grad.at(&self.device)?,
                    m,
                    v,
                    master,
                    weight: update.weight.block.ptr,
                    count: count as u64,
                    first: more_blocks(&mut blocks, count, chunk),
                    decay: update.weight_decay as f32,
                    number: of.param,
                    start: of.start,
                });
            }
        }
        let on_device = self.device.upload(&table, "the optimizer's table")?;
        let correction = |beta: f64| (1.0 / (1.0 - beta.powf(step.step as f64))) as f32;
        let mut args = vec![
            Ptr(on_device.ptr),
            Int(table.len() as i32),
            F(step.lr as f32),
            F(step.beta1 as f32),
            F(step.beta2 as f32),
            F(step.eps as f32),
            F(correction(step.beta1)),
            F(correction(step.beta2)),
            F(step.grad_scale as f32),
        ];
        let name = if compact {
            args.push(Int(step.step as i32));
            "adamw_compact"
        } else {
            "adamw"
        };
        let (source, grid) = (sources::adamw(), (blocks as u32, 1, 1));
        self.device.launch(&source, name, grid, THREADS, 0, &args)
    }

    /// Added in f64: first inside a block, then block after block on the host.
    pub(super) fn squares_of_all(&self, all: &[&Float]) -> Result<f64> {
        let mut blocks = 0;
        let mut table = Vec::with_capacity(all.len());
        for x in all.iter().filter(|x| x.len() > 0) {
            table.push(Summand {
                x: x.at(&self.device)?,
                count: x.len() as u64,
                first: more_blocks(&mut blocks, x.len(), CHUNK),
            });
        }
        let on_device = self.device.upload(&table, "the norm's table")?;
        let part = self.device.pool.take(blocks * 8, "norm partial sums")?;
        let args = [Ptr(on_device.ptr), Int(table.len() as i32), Ptr(part.ptr)];
        let (source, grid) = (sources::adamw(), (blocks as u32, 1, 1));
        self.device
            .launch(&source, "sum_squares_part", grid, THREADS, 0, &args)?;
        Ok(self.device.download::<f64>(&part, blocks)?.iter().sum())
    }
}
