//! On the CPU, a row at a time; sums over a row in f64. `dw` sums blocks of 64 rows, then the blocks in order.

use crate::cpu::buffer::Buffer;
use crate::cpu::parallel::{self, Disjoint};
use crate::cpu::simd::simd;
use crate::cpu::{Cpu, CpuFloat, CpuTensor, Element};
use crate::rows::cpu::add_to;
use crate::{Result, check};

/// Rows whose part of `dw` is summed from 0.
const BLOCK_ROWS: usize = 64;

/// `(y, r)`.
pub(crate) fn forward<T: Element>(
    cpu: &Cpu<T>,
    x: &CpuTensor<T>,
    w: &CpuTensor<T>,
    eps: f64,
) -> Result<(CpuTensor<T>, CpuFloat<T>)> {
    check::shape("rmsnorm", "the weight", (w.rows, w.cols), (1, x.cols))?;
    let (rows, cols) = (x.rows, x.cols);
    let (mut y, mut r) = (cpu.take(rows * cols), cpu.take(rows));
    {
        let (y, r) = (Disjoint::new(&mut y), Disjoint::new(&mut r));
        parallel::ranges(rows, parallel::grain_rows(cols), |range| {
            for i in range {
                // SAFETY: every row is written by one task.
                unsafe {
                    r.slice(i..i + 1)[0] =
                        norm(x.row(i), w.data(), eps, y.slice(i * cols..(i + 1) * cols))
                };
            }
        });
    }
    Ok((CpuTensor::new(rows, cols, y), CpuFloat::new(rows, 1, r)))
}

/// `(s, y, r)`.
pub(crate) fn add_forward<T: Element>(
    cpu: &Cpu<T>,
    x: &CpuTensor<T>,
    delta: &CpuTensor<T>,
    w: &CpuTensor<T>,
    eps: f64,
) -> Result<(CpuTensor<T>, CpuTensor<T>, CpuFloat<T>)> {
    check::same("add_rmsnorm", (x.rows, x.cols), (delta.rows, delta.cols))?;
    check::shape("add_rmsnorm", "the weight", (w.rows, w.cols), (1, x.cols))?;
    let (rows, cols) = (x.rows, x.cols);
    let (mut s, mut y, mut r) = (cpu.take(rows * cols), cpu.take(rows * cols), cpu.take(rows));
    {
        let (s, y, r) = (
            Disjoint::new(&mut s),
            Disjoint::new(&mut y),
            Disjoint::new(&mut r),
        );
        parallel::ranges(rows, parallel::grain_rows(cols), |range| {
            for i in range {
                let at = i * cols..(i + 1) * cols;
                // SAFETY: every row is written by one task.
                unsafe {
                    let s = s.slice(at.clone());
                    s.copy_from_slice(x.row(i));
                    add_to(s, delta.row(i));
                    r.slice(i..i + 1)[0] = norm(s, w.data(), eps, y.slice(at));
                }
            }
        });
    }
    Ok((
        CpuTensor::new(rows, cols, s),
        CpuTensor::new(rows, cols, y),
        CpuFloat::new(rows, 1, r),
    ))
}

simd! {
    /// `y = x r w`; returns `r`.
    pub(crate) fn norm<T, V>(x: &[T], w: &[T], eps: f64, y: &mut [T]) -> T {
        let mut squares = V::wide();
        let mut i = 0;
        while i < x.len() {
            let x = V::load_or(x, i, T::ZERO);
            squares = x.wide_fma(x, squares);
            i += V::LANES;
        }
        let r = T::from_f64(1.0 / (V::wide_sum(squares) / x.len() as f64 + eps).sqrt());
        let mut i = 0;
        while i < x.len() {
            let normed = V::load_or(x, i, T::ZERO).mul(V::splat(r));
            normed.mul(V::load_or(w, i, T::ZERO)).store(y, i);
            i += V::LANES;
        }
        r
    }
}

pub(crate) fn backward<T: Element>(
    cpu: &Cpu<T>,
    dy: &CpuTensor<T>,
    x: &CpuTensor<T>,
    r: &CpuFloat<T>,
    w: &CpuTensor<T>,
    residual: Option<&CpuTensor<T>>,
    dw: &mut CpuFloat<T>,
) -> Result<CpuTensor<T>> {
    let op = "rmsnorm_backward";
    let (rows, cols) = (x.rows, x.cols);
    check::same(op, (dy.rows, dy.cols), (rows, cols))?;
    check::shape(op, "r", (r.rows, r.cols), (rows, 1))?;
    check::shape(op, "the weight", (w.rows, w.cols), (1, cols))?;
    check::shape(op, "dw", (dw.rows, dw.cols), (1, cols))?;
    if let Some(residual) = residual {
        check::same(op, (residual.rows, residual.cols), (rows, cols))?;
    }
    let blocks = rows.div_ceil(BLOCK_ROWS);
    let (mut dx, mut partial) = (cpu.take(rows * cols), cpu.zeros(blocks * cols));
    {
        let (dx, partial) = (Disjoint::new(&mut dx), Disjoint::new(&mut partial));
        parallel::ranges(blocks, 1, |block| {
            // SAFETY: a task owns its blocks and their rows.
            let partial = unsafe { partial.slice(block.start * cols..block.end * cols) };
            for i in block.start * BLOCK_ROWS..(block.end * BLOCK_ROWS).min(rows) {
                let at = i * cols..(i + 1) * cols;
                let partial = &mut partial[(i / BLOCK_ROWS - block.start) * cols..][..cols];
                // SAFETY: as above.
                let dx = unsafe { dx.slice(at.clone()) };
                norm_backward(
                    dy.row(i),
                    x.row(i),
                    r.data[i],
                    w.data(),
                    residual.map(|r| r.row(i)),
                    dx,
                    partial,
                );
            }
        });
    }
    add_blocks(&partial, &mut dw.data);
    Ok(CpuTensor::new(rows, cols, dx))
}

/// Adds each block of `partial` to `dw`, in order.
pub(crate) fn add_blocks<T: Element>(partial: &Buffer<T>, dw: &mut [T]) {
    for block in partial.chunks_exact(dw.len().max(1)) {
        add_to(dw, block);
    }
}

simd! {
    /// One row's `dx`; its part of `dw` is added to `dw`.
    pub(crate) fn norm_backward<T, V>(dy: &[T], x: &[T], r: T, w: &[T], residual: Option<&[T]>, dx: &mut [T], dw: &mut [T]) {
        let (scale, mut dots) = (V::splat(r), V::wide());
        let mut i = 0;
        while i < x.len() {
            let dy = V::load_or(dy, i, T::ZERO);
            let normed = V::load_or(x, i, T::ZERO).mul(scale);
            dots = dy.mul(V::load_or(w, i, T::ZERO)).wide_fma(normed, dots);
            dy.fma(normed, V::load_or(dw, i, T::ZERO)).store(dw, i);
            i += V::LANES;
        }
        let mean = V::splat(T::from_f64(V::wide_sum(dots) / x.len() as f64));
        let mut i = 0;
        while i < x.len() {
            let g = V::load_or(dy, i, T::ZERO).mul(V::load_or(w, i, T::ZERO));
            let normed = V::load_or(x, i, T::ZERO).mul(scale);
            let d = g.sub(normed.mul(mean)).mul(scale);
            let d = match residual {
                Some(residual) => d.add(V::load_or(residual, i, T::ZERO)),
                None => d,
            };
            d.store(dx, i);
            i += V::LANES;
        }
    }
}
