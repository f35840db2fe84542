//! On the CPU. Tasks split the columns, so that a column's sums run in the order of tokens.

use crate::cpu::parallel::{self, Disjoint};
use crate::cpu::{Cpu, CpuFloat, CpuTensor, Element};
use crate::{Result, Sequences, check};

/// `Σ_j w_j x_j`: the newest input last.
pub(crate) fn tap<T: Element>(w: &[T], inputs: impl Iterator<Item = T>) -> T {
    w.iter()
        .zip(inputs)
        .fold(T::ZERO, |sum, (w, x)| x.fma(*w, sum))
}

pub(crate) fn silu<T: Element>(z: T) -> T {
    z / (T::ONE + (T::ZERO - z).exp())
}

fn check_shapes<T: Element>(
    op: &'static str,
    x: &CpuTensor<T>,
    w: &CpuTensor<T>,
    sequences: &Sequences,
) -> Result<()> {
    check::that(w.rows == x.cols && w.cols > 0, op, || {
        format!("{w:?} for {x:?}")
    })?;
    check::sequences(op, sequences, x.rows)
}

/// Column `c` of token `t` in a sequence that begins at row `start`, before the activation.
fn at<T: Element>(x: &CpuTensor<T>, w: &[T], start: usize, t: usize, c: usize) -> T {
    let taps = w.len();
    let inputs = (0..taps).map(|j| {
        if t + j + 1 < start + taps {
            T::ZERO
        } else {
            x.row(t + j + 1 - taps)[c]
        }
    });
    tap(w, inputs)
}

pub(crate) fn forward<T: Element>(
    cpu: &Cpu<T>,
    x: &CpuTensor<T>,
    w: &CpuTensor<T>,
    sequences: &Sequences,
) -> Result<CpuTensor<T>> {
    check_shapes("causal_conv", x, w, sequences)?;
    let cols = x.cols;
    let mut y = cpu.take(x.data().len());
    let out = Disjoint::new(&mut y);
    for range in sequences.ranges() {
        let start = range.start;
        parallel::ranges(range.len(), parallel::grain_rows(8 * cols), |tokens| {
            for t in tokens {
                let row = start + t;
                // SAFETY: every row is written by one task.
                let to = unsafe { out.slice(row * cols..(row + 1) * cols) };
                for (c, to) in to.iter_mut().enumerate() {
                    *to = silu(at(x, w.row(c), start, row, c));
                }
            }
        });
    }
    Ok(CpuTensor::new(x.rows, cols, y))
}

pub(crate) fn backward<T: Element>(
    cpu: &Cpu<T>,
    dy: &CpuTensor<T>,
    x: &CpuTensor<T>,
    w: &CpuTensor<T>,
    sequences: &Sequences,
    dw: &mut CpuFloat<T>,
) -> Result<CpuTensor<T>> {
    let op = "causal_conv_backward";
    check_shapes(op, x, w, sequences)?;
    check::same(op, (dy.rows, dy.cols), (x.rows, x.cols))?;
    check::shape(op, "dw", (dw.rows, dw.cols), (w.rows, w.cols))?;
    let (cols, taps) = (x.cols, w.cols);
    let mut dx = cpu.zeros(x.data().len());
    {
        let (out, dw) = (Disjoint::new(&mut dx), Disjoint::new(&mut dw.data));
        parallel::ranges(cols, parallel::grain_rows(8 * x.rows * taps), |columns| {
            for c in columns {
                // SAFETY: a task owns its columns, of weights and of rows.
                let dw = unsafe { dw.slice(c * taps..(c + 1) * taps) };
                let w = w.row(c);
                for range in sequences.ranges() {
                    for t in range.clone() {
                        let z = at(x, w, range.start, t, c);
                        let s = T::ONE / (T::ONE + (T::ZERO - z).exp());
                        let dz = dy.row(t)[c] * s * z.fma(T::ONE - s, T::ONE);
                        for j in 0..taps {
                            if t + j + 1 < range.start + taps {
                                continue;
                            }
                            let from = t + j + 1 - taps;
                            dw[j] += dz * x.row(from)[c];
                            // SAFETY: as above.
                            let dx = unsafe { out.slice(from * cols + c..from * cols + c + 1) };
                            dx[0] += dz * w[j];
                        }
                    }
                }
            }
        });
    }
    Ok(CpuTensor::new(x.rows, cols, dx))
}
