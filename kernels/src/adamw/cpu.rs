//! On the CPU, one pass. Squares are summed in f64 over pieces of 16 384, and the pieces in order.

use rayon::prelude::*;

use crate::cpu::parallel::{self, Disjoint};
use crate::cpu::simd::simd;
use crate::cpu::{CpuFloat, CpuTensor, Element};
use crate::{AdamW, Result, check};

const PIECE: usize = 16 * 1024;

pub(crate) fn sum_squares<T: Element>(x: &CpuFloat<T>) -> f64 {
    let pieces: Vec<f64> = x
        .data
        .par_chunks(PIECE)
        .map(|piece| squares(piece))
        .collect();
    pieces.into_iter().sum()
}

simd! {
    fn squares<T, V>(x: &[T]) -> f64 {
        let mut sum = V::wide();
        let mut i = 0;
        while i < x.len() {
            let x = V::load_or(x, i, T::ZERO);
            sum = x.wide_fma(x, sum);
            i += V::LANES;
        }
        V::wide_sum(sum)
    }
}

pub(crate) fn step<T: Element>(
    step: &AdamW,
    grad: &CpuFloat<T>,
    m: &mut CpuFloat<T>,
    v: &mut CpuFloat<T>,
    master: Option<&mut CpuFloat<T>>,
    weight: &mut CpuTensor<T>,
) -> Result<()> {
    let shape = (weight.rows, weight.cols);
    check::shape("adamw", "the gradient", (grad.rows, grad.cols), shape)?;
    check::shape("adamw", "m", (m.rows, m.cols), shape)?;
    check::shape("adamw", "v", (v.rows, v.cols), shape)?;
    check::that(step.step > 0, "adamw", || "steps count from 1".into())?;
    let factors = Factors::new(step);
    let copy = match &master {
        Some(master) => {
            check::shape("adamw", "master", (master.rows, master.cols), shape)?;
            true
        }
        None => false,
    };
    let len = grad.data.len();
    let weight = Disjoint::new(weight.data_mut());
    let (m, v) = (Disjoint::new(&mut m.data), Disjoint::new(&mut v.data));
    let master = master.map(|master| Disjoint::new(&mut master.data));
    parallel::ranges(len, PIECE, |range| {
        let p = master.as_ref().unwrap_or(&weight);
        // SAFETY: ranges are disjoint.
        unsafe {
            update(
                &factors,
                &grad.data[range.clone()],
                m.slice(range.clone()),
                v.slice(range.clone()),
                p.slice(range.clone()),
            );
            if copy {
                weight.slice(range.clone()).copy_from_slice(p.slice(range));
            }
        }
    });
    Ok(())
}

/// The step's numbers, as the inner loop wants them.
struct Factors<T> {
    grad_scale: T,
    beta1: T,
    one_minus_beta1: T,
    beta2: T,
    one_minus_beta2: T,
    /// `1 / (1 - β₁^step)`.
    correction1: T,
    /// `1 / (1 - β₂^step)`.
    correction2: T,
    eps: T,
    lr: T,
    /// `lr × weight_decay`.
    decay: T,
}

impl<T: Element> Factors<T> {
    fn new(s: &AdamW) -> Self {
        let t = s.step as f64;
        Self {
            grad_scale: T::from_f64(s.grad_scale),
            beta1: T::from_f64(s.beta1),
            one_minus_beta1: T::from_f64(1.0 - s.beta1),
            beta2: T::from_f64(s.beta2),
            one_minus_beta2: T::from_f64(1.0 - s.beta2),
            correction1: T::from_f64(1.0 / (1.0 - s.beta1.powf(t))),
            correction2: T::from_f64(1.0 / (1.0 - s.beta2.powf(t))),
            eps: T::from_f64(s.eps),
            lr: T::from_f64(s.lr),
            decay: T::from_f64(s.lr * s.weight_decay),
        }
    }
}

simd! {
    fn update<T, V>(f: &Factors<T>, grad: &[T], m: &mut [T], v: &mut [T], p: &mut [T]) {
        let mut i = 0;
        while i < grad.len() {
            let g = V::load_or(grad, i, T::ZERO).mul(V::splat(f.grad_scale));
            let m_new = V::load_or(m, i, T::ZERO).mul(V::splat(f.beta1));
            let m_new = g.fma(V::splat(f.one_minus_beta1), m_new);
            m_new.store(m, i);
            let v_new = V::load_or(v, i, T::ZERO).mul(V::splat(f.beta2));
            let v_new = g.mul(g).fma(V::splat(f.one_minus_beta2), v_new);
            v_new.store(v, i);
            let root = v_new.mul(V::splat(f.correction2)).sqrt().add(V::splat(f.eps));
            let direction = m_new.mul(V::splat(f.correction1)).div(root);
            let old = V::load_or(p, i, T::ZERO);
            let change = direction.mul(V::splat(f.lr)).add(old.mul(V::splat(f.decay)));
            old.sub(change).store(p, i);
            i += V::LANES;
        }
    }
}
