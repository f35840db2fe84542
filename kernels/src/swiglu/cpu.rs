//! On the CPU, a row at a time.

use crate::cpu::parallel::{self, Disjoint};
use crate::cpu::simd::simd;
use crate::cpu::{Cpu, CpuTensor, Element};
use crate::{Result, check};

pub(crate) fn forward<T: Element>(cpu: &Cpu<T>, gate_up: &CpuTensor<T>) -> Result<CpuTensor<T>> {
    check::that(gate_up.cols.is_multiple_of(2), "swiglu", || {
        format!("{gate_up:?} should be gate and up side by side")
    })?;
    let (rows, f) = (gate_up.rows, gate_up.cols / 2);
    let mut out = cpu.take(rows * f);
    let to = Disjoint::new(&mut out);
    parallel::ranges(rows, parallel::grain_rows(4 * f), |range| {
        for i in range {
            let (gate, up) = gate_up.row(i).split_at(f);
            // SAFETY: every row is written by one task.
            row(gate, up, unsafe { to.slice(i * f..(i + 1) * f) });
        }
    });
    Ok(CpuTensor::new(rows, f, out))
}

simd! {
    fn row<T, V>(gate: &[T], up: &[T], out: &mut [T]) {
        let one = V::splat(T::ONE);
        let mut i = 0;
        while i < out.len() {
            let g = V::load_or(gate, i, T::ZERO);
            let silu = g.div(one.add(V::splat(T::ZERO).sub(g).exp()));
            silu.mul(V::load_or(up, i, T::ZERO)).store(out, i);
            i += V::LANES;
        }
    }
}

pub(crate) fn backward<T: Element>(
    cpu: &Cpu<T>,
    da: &CpuTensor<T>,
    gate_up: &CpuTensor<T>,
) -> Result<CpuTensor<T>> {
    let (rows, f) = (da.rows, da.cols);
    check::shape(
        "swiglu_backward",
        "gate_up",
        (gate_up.rows, gate_up.cols),
        (rows, 2 * f),
    )?;
    let mut out = cpu.take(rows * 2 * f);
    let to = Disjoint::new(&mut out);
    parallel::ranges(rows, parallel::grain_rows(6 * f), |range| {
        for i in range {
            let (gate, up) = gate_up.row(i).split_at(f);
            // SAFETY: every row is written by one task.
            let (dgate, dup) = unsafe { to.slice(i * 2 * f..(i + 1) * 2 * f) }.split_at_mut(f);
            row_backward(da.row(i), gate, up, dgate, dup);
        }
    });
    Ok(CpuTensor::new(rows, 2 * f, out))
}

simd! {
    fn row_backward<T, V>(da: &[T], gate: &[T], up: &[T], dgate: &mut [T], dup: &mut [T]) {
        let one = V::splat(T::ONE);
        let mut i = 0;
        while i < da.len() {
            let (da, g) = (V::load_or(da, i, T::ZERO), V::load_or(gate, i, T::ZERO));
            let s = one.div(one.add(V::splat(T::ZERO).sub(g).exp()));
            let slope = s.mul(g.fma(one.sub(s), one));
            da.mul(V::load_or(up, i, T::ZERO)).mul(slope).store(dgate, i);
            da.mul(g.mul(s)).store(dup, i);
            i += V::LANES;
        }
    }
}
