//! On the CPU. A bias's gradient sums blocks of 256 rows, each from 0, and adds the blocks in order.

use crate::cpu::parallel::{self, Disjoint};
use crate::cpu::simd::simd;
use crate::cpu::{Cpu, CpuFloat, CpuIds, CpuTensor, Element};
use crate::{Result, check};

/// Rows whose sum starts from 0: bounds the error of a long sum.
const BLOCK_ROWS: usize = 256;

pub(crate) fn gather<T: Element>(
    cpu: &Cpu<T>,
    op: &'static str,
    x: &CpuTensor<T>,
    rows: &CpuIds,
) -> Result<CpuTensor<T>> {
    if let Some(bad) = rows.0.iter().find(|r| **r as usize >= x.rows) {
        check::that(false, op, || {
            format!("row {bad} of {x:?}, which ends at {}", x.rows)
        })?;
    }
    let cols = x.cols;
    let mut y = cpu.take(rows.0.len() * cols);
    let out = Disjoint::new(&mut y);
    parallel::ranges(rows.0.len(), parallel::grain_rows(cols), |range| {
        for i in range {
            // SAFETY: every row is written by one task.
            unsafe { out.slice(i * cols..(i + 1) * cols) }
                .copy_from_slice(x.row(rows.0[i] as usize));
        }
    });
    Ok(CpuTensor::new(rows.0.len(), cols, y))
}

pub(crate) fn scatter<T: Element>(
    cpu: &Cpu<T>,
    x: &CpuTensor<T>,
    rows: &CpuIds,
    num_rows: usize,
) -> Result<CpuTensor<T>> {
    check::ids("scatter_rows", "places", rows.0.len(), x.rows)?;
    let cols = x.cols;
    let mut y = cpu.zeros(num_rows * cols);
    let mut taken = vec![false; num_rows];
    for (i, row) in rows.0.iter().map(|r| *r as usize).enumerate() {
        check::that(row < num_rows && !taken[row], "scatter_rows", || {
            format!("row {row} of {num_rows} is outside or was written already")
        })?;
        taken[row] = true;
        y[row * cols..(row + 1) * cols].copy_from_slice(x.row(i));
    }
    Ok(CpuTensor::new(num_rows, cols, y))
}

pub(crate) fn add<T: Element>(
    cpu: &Cpu<T>,
    x: &CpuTensor<T>,
    y: &CpuTensor<T>,
) -> Result<CpuTensor<T>> {
    check::same("add", (x.rows, x.cols), (y.rows, y.cols))?;
    let mut out = cpu.take(x.data().len());
    let to = Disjoint::new(&mut out);
    parallel::ranges(x.data().len(), parallel::grain_rows(1), |range| {
        // SAFETY: ranges are disjoint.
        add_row(&x.data()[range.clone()], &y.data()[range.clone()], unsafe {
            to.slice(range)
        });
    });
    Ok(CpuTensor::new(x.rows, x.cols, out))
}

pub(crate) fn sum_of<T: Element>(cpu: &Cpu<T>, all: &[&CpuTensor<T>]) -> Result<CpuTensor<T>> {
    let (rows, cols) = check::alike("sum", all.iter().map(|x| (x.rows, x.cols)))?;
    let mut out = cpu.take(rows * cols);
    for (i, out) in out.iter_mut().enumerate() {
        let sum = all.iter().fold(0.0, |sum, x| sum + x.data()[i].to_f64());
        *out = T::from_f64(sum);
    }
    Ok(CpuTensor::new(rows, cols, out))
}

simd! {
    fn add_row<T, V>(x: &[T], y: &[T], out: &mut [T]) {
        let mut i = 0;
        while i < out.len() {
            V::load_or(x, i, T::ZERO).add(V::load_or(y, i, T::ZERO)).store(out, i);
            i += V::LANES;
        }
    }
}

pub(crate) fn add_bias<T: Element>(
    cpu: &Cpu<T>,
    x: &CpuTensor<T>,
    b: &CpuTensor<T>,
) -> Result<CpuTensor<T>> {
    check::shape("add_bias", "the bias", (b.rows, b.cols), (1, x.cols))?;
    let cols = x.cols;
    let mut out = cpu.take(x.data().len());
    let to = Disjoint::new(&mut out);
    parallel::ranges(x.rows, parallel::grain_rows(cols), |range| {
        for i in range {
            // SAFETY: every row is written by one task.
            add_row(x.row(i), b.data(), unsafe {
                to.slice(i * cols..(i + 1) * cols)
            });
        }
    });
    Ok(CpuTensor::new(x.rows, cols, out))
}

pub(crate) fn accumulate_bias<T: Element>(
    cpu: &Cpu<T>,
    dy: &CpuTensor<T>,
    db: &mut CpuFloat<T>,
) -> Result<()> {
    check::shape("accumulate_bias", "db", (db.rows, db.cols), (1, dy.cols))?;
    accumulate_sum_of_rows(cpu, dy.data(), dy.cols, &mut db.data);
    Ok(())
}

/// `sum += Σ_rows x`, `x: [rows, cols]`. Tasks split the columns, so a column's order is always the rows'.
pub(crate) fn accumulate_sum_of_rows<T: Element>(
    cpu: &Cpu<T>,
    x: &[T],
    cols: usize,
    sum: &mut [T],
) {
    if cols == 0 {
        return;
    }
    let rows = x.len() / cols;
    let sum = Disjoint::new(sum);
    parallel::ranges(
        cols,
        parallel::grain_rows(rows).next_multiple_of(64),
        |range| {
            // SAFETY: ranges are disjoint.
            let sum = unsafe { sum.slice(range.clone()) };
            let mut block_sum = cpu.take(range.len());
            for block in x.chunks(BLOCK_ROWS * cols) {
                block_sum.fill(T::ZERO);
                for row in block.chunks_exact(cols) {
                    add_to(&mut block_sum, &row[range.clone()]);
                }
                add_to(sum, &block_sum);
            }
        },
    );
}

simd! {
    pub(crate) fn add_to<T, V>(to: &mut [T], x: &[T]) {
        let mut i = 0;
        while i < to.len() {
            V::load_or(to, i, T::ZERO).add(V::load_or(x, i, T::ZERO)).store(to, i);
            i += V::LANES;
        }
    }
}

pub(crate) fn scale<T: Element>(
    cpu: &Cpu<T>,
    x: &CpuTensor<T>,
    p: &CpuFloat<T>,
) -> Result<CpuTensor<T>> {
    check::shape("scale_rows", "the factors", (p.rows, p.cols), (x.rows, 1))?;
    let cols = x.cols;
    let mut out = cpu.take(x.data().len());
    let to = Disjoint::new(&mut out);
    parallel::ranges(x.rows, parallel::grain_rows(cols), |range| {
        for i in range {
            // SAFETY: every row is written by one task.
            let to = unsafe { to.slice(i * cols..(i + 1) * cols) };
            for (to, x) in to.iter_mut().zip(x.row(i)) {
                *to = p.data[i] * *x;
            }
        }
    });
    Ok(CpuTensor::new(x.rows, cols, out))
}

pub(crate) fn dots<T: Element>(
    cpu: &Cpu<T>,
    x: &CpuTensor<T>,
    y: &CpuTensor<T>,
) -> Result<CpuFloat<T>> {
    check::same("row_dots", (x.rows, x.cols), (y.rows, y.cols))?;
    let mut out = cpu.take(x.rows);
    let to = Disjoint::new(&mut out);
    parallel::ranges(x.rows, parallel::grain_rows(x.cols), |range| {
        for i in range {
            // SAFETY: every row is written by one task.
            unsafe { to.slice(i..i + 1)[0] = dot(x.row(i), y.row(i)) };
        }
    });
    Ok(CpuFloat::new(x.rows, 1, out))
}

simd! {
    pub(crate) fn dot<T, V>(x: &[T], y: &[T]) -> T {
        let mut sum = V::wide();
        let mut i = 0;
        while i < x.len() {
            sum = V::load_or(x, i, T::ZERO).wide_fma(V::load_or(y, i, T::ZERO), sum);
            i += V::LANES;
        }
        T::from_f64(V::wide_sum(sum))
    }
}

pub(crate) fn sum<T: Element>(
    cpu: &Cpu<T>,
    x: &CpuTensor<T>,
    places: &CpuIds,
    each: usize,
) -> Result<CpuTensor<T>> {
    let op = "sum_rows";
    check::that(each > 0 && places.0.len().is_multiple_of(each), op, || {
        format!("{} places, {each} for each row", places.0.len())
    })?;
    if let Some(bad) = places.0.iter().find(|r| **r as usize >= x.rows) {
        check::that(false, op, || {
            format!("row {bad} of {x:?}, which ends at {}", x.rows)
        })?;
    }
    let (rows, cols) = (places.0.len() / each, x.cols);
    let mut y = cpu.take(rows * cols);
    let out = Disjoint::new(&mut y);
    parallel::ranges(rows, parallel::grain_rows(each * cols), |range| {
        for i in range {
            // SAFETY: every row is written by one task.
            let to = unsafe { out.slice(i * cols..(i + 1) * cols) };
            let places = &places.0[i * each..(i + 1) * each];
            to.copy_from_slice(x.row(places[0] as usize));
            for place in &places[1..] {
                add_to(to, x.row(*place as usize));
            }
        }
    });
    Ok(CpuTensor::new(rows, cols, y))
}
