//! On the CPU, element by element.

use crate::cpu::parallel::{self, Disjoint};
use crate::cpu::{Cpu, CpuTensor, Element};
use crate::{Result, check};

fn sigmoid<T: Element>(x: T) -> T {
    T::ONE / (T::ONE + (T::ZERO - x).exp())
}

pub(crate) fn forward<T: Element>(
    cpu: &Cpu<T>,
    x: &CpuTensor<T>,
    gate: &CpuTensor<T>,
) -> Result<CpuTensor<T>> {
    check::same("gate", (x.rows, x.cols), (gate.rows, gate.cols))?;
    let mut y = cpu.take(x.data().len());
    let out = Disjoint::new(&mut y);
    parallel::ranges(x.data().len(), parallel::grain_rows(4), |range| {
        // SAFETY: ranges are disjoint.
        let to = unsafe { out.slice(range.clone()) };
        for (i, to) in range.zip(to) {
            *to = x.data()[i] * sigmoid(gate.data()[i]);
        }
    });
    Ok(CpuTensor::new(x.rows, x.cols, y))
}

/// `(dx, dgate)`.
pub(crate) fn backward<T: Element>(
    cpu: &Cpu<T>,
    dy: &CpuTensor<T>,
    x: &CpuTensor<T>,
    gate: &CpuTensor<T>,
) -> Result<(CpuTensor<T>, CpuTensor<T>)> {
    let shape = (x.rows, x.cols);
    check::same("gate_backward", shape, (gate.rows, gate.cols))?;
    check::same("gate_backward", shape, (dy.rows, dy.cols))?;
    let n = x.data().len();
    let (mut dx, mut dgate) = (cpu.take(n), cpu.take(n));
    {
        let (dx, dgate) = (Disjoint::new(&mut dx), Disjoint::new(&mut dgate));
        parallel::ranges(n, parallel::grain_rows(6), |range| {
            // SAFETY: ranges are disjoint.
            let (dx, dgate) = unsafe { (dx.slice(range.clone()), dgate.slice(range.clone())) };
            for (i, (dx, dgate)) in range.zip(dx.iter_mut().zip(dgate)) {
                let (dy, s) = (dy.data()[i], sigmoid(gate.data()[i]));
                *dx = dy * s;
                *dgate = dy * x.data()[i] * s * (T::ONE - s);
            }
        });
    }
    Ok((
        CpuTensor::new(x.rows, x.cols, dx),
        CpuTensor::new(x.rows, x.cols, dgate),
    ))
}
