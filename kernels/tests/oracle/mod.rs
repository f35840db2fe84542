//! What the operations are compared with: central differences, plain loops in f64, and repeatable numbers.

#![allow(dead_code, reason = "each test file uses its part")]

use slime_kernels::{Cpu, CpuFloat, CpuTensor, Ops, RopeStyle, RopeTable};

/// Numbers between −1 and 1 from a seed.
pub(crate) fn numbers(seed: u64, len: usize) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        })
        .collect()
}

pub(crate) fn floats(seed: u64, len: usize) -> Vec<f32> {
    numbers(seed, len).into_iter().map(|x| x as f32).collect()
}

pub(crate) fn ids(seed: u64, len: usize, below: u32) -> Vec<u32> {
    numbers(seed, len)
        .into_iter()
        .map(|x| (((x + 1.0) / 2.0 * f64::from(below)) as u32).min(below - 1))
        .collect()
}

pub(crate) fn f64s() -> Cpu<f64> {
    Cpu::poisoning()
}

pub(crate) fn f32s() -> Cpu<f32> {
    Cpu::poisoning()
}

pub(crate) fn tensor(cpu: &Cpu<f64>, rows: usize, cols: usize, data: &[f64]) -> CpuTensor<f64> {
    cpu.tensor_f64(rows, cols, data).unwrap()
}

pub(crate) fn float(cpu: &Cpu<f64>, rows: usize, cols: usize, data: &[f64]) -> CpuFloat<f64> {
    cpu.float_f64(rows, cols, data).unwrap()
}

pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// d f / d x by central differences.
pub(crate) fn differences(x: &[f64], f: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    const STEP: f64 = 1e-6;
    let mut x = x.to_vec();
    (0..x.len())
        .map(|i| {
            let old = x[i];
            x[i] = old + STEP;
            let above = f(&x);
            x[i] = old - STEP;
            let below = f(&x);
            x[i] = old;
            (above - below) / (2.0 * STEP)
        })
        .collect()
}

/// Largest difference over the largest number expected.
pub(crate) fn relative_error(is: &[f64], should: &[f64]) -> f64 {
    assert_eq!(is.len(), should.len());
    let scale = should.iter().fold(0.0f64, |m, x| m.max(x.abs())) + 1e-12;
    let worst = is
        .iter()
        .zip(should)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |m: f64, x| if x > m || x.is_nan() { x } else { m });
    worst / scale
}

#[track_caller]
pub(crate) fn assert_close(what: &str, is: &[f64], should: &[f64], tolerance: f64) {
    let error = relative_error(is, should);
    assert!(
        error < tolerance,
        "{what}: relative error {error:e}, allowed {tolerance:e}"
    );
}

/// Checks a gradient against differences of `f`: error below 2e-6.
#[track_caller]
pub(crate) fn assert_gradient(what: &str, gradient: &[f64], x: &[f64], f: impl Fn(&[f64]) -> f64) {
    assert_close(what, gradient, &differences(x, f), 2e-6);
}

pub(crate) fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

pub(crate) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Angles `position / base^(2 i / dims)`.
pub(crate) fn rope_angles(positions: usize, dims: usize, base: f64) -> (Vec<f64>, Vec<f64>) {
    let angles = (0..positions).flat_map(|p| {
        (0..dims / 2).map(move |i| p as f64 / base.powf(2.0 * i as f64 / dims as f64))
    });
    angles.map(|a| (a.cos(), a.sin())).unzip()
}

pub(crate) fn rope<O: Ops>(
    ops: &O,
    positions: usize,
    dims: usize,
    style: RopeStyle,
) -> RopeTable<O> {
    let (cos, sin) = rope_angles(positions, dims, 10_000.0);
    RopeTable {
        cos: ops.float_f64(positions, dims / 2, &cos).unwrap(),
        sin: ops.float_f64(positions, dims / 2, &sin).unwrap(),
        dims,
        style,
    }
}
