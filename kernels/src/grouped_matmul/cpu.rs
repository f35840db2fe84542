//! On the CPU: one [`gemm`](crate::cpu::gemm) an expert that has rows.

use std::ops::Range;

use crate::cpu::gemm::{self, Right, Size, View};
use crate::cpu::parallel::{self, Disjoint};
use crate::cpu::{Cpu, CpuFloat, CpuTensor, Element};
use crate::{Result, check};

/// The experts that have rows, with those rows.
fn groups(op: &'static str, offsets: &[usize], rows: usize) -> Result<Vec<(usize, Range<usize>)>> {
    let ends = offsets.first() == Some(&0) && offsets.last() == Some(&rows);
    check::that(ends && offsets.is_sorted(), op, || {
        format!(
            "experts' offsets must run from 0 to the {rows} rows without decreasing, got {offsets:?}"
        )
    })?;
    let groups = offsets.windows(2).map(|w| w[0]..w[1]).enumerate();
    Ok(groups.filter(|(_, rows)| !rows.is_empty()).collect())
}

/// Rows of one expert's matrix.
fn height(op: &'static str, rows: usize, offsets: &[usize]) -> Result<usize> {
    let experts = offsets.len().saturating_sub(1).max(1);
    check::that(rows.is_multiple_of(experts), op, || {
        format!("{rows} rows of weights for {experts} experts")
    })?;
    Ok(rows / experts)
}

pub(crate) fn nt<T: Element>(
    cpu: &Cpu<T>,
    x: &CpuTensor<T>,
    w: &CpuTensor<T>,
    offsets: &[usize],
) -> Result<CpuTensor<T>> {
    let op = "grouped_nt";
    let (groups, n) = (groups(op, offsets, x.rows)?, height(op, w.rows, offsets)?);
    check::that(x.cols == w.cols, op, || format!("{x:?} × {w:?} transposed"))?;
    let k = x.cols;
    let mut y = cpu.take(x.rows * n);
    let out = Disjoint::new(&mut y);
    parallel::each(groups.len(), |i| {
        let (expert, rows) = groups[i].clone();
        let right = View::transposed(&w.data()[expert * n * k..(expert + 1) * n * k], k);
        // SAFETY: experts' rows are disjoint.
        let to = unsafe { out.slice(rows.start * n..rows.end * n) };
        let left = View::new(&x.data()[rows.start * k..rows.end * k], k);
        let size = Size {
            m: rows.len(),
            n,
            k,
        };
        gemm::gemm(cpu.pool(), size, left, Right::Plain(right), to, false);
    });
    Ok(CpuTensor::new(x.rows, n, y))
}

pub(crate) fn nn<T: Element>(
    cpu: &Cpu<T>,
    dy: &CpuTensor<T>,
    w: &CpuTensor<T>,
    offsets: &[usize],
) -> Result<CpuTensor<T>> {
    let op = "grouped_nn";
    let (groups, k) = (groups(op, offsets, dy.rows)?, height(op, w.rows, offsets)?);
    check::that(dy.cols == k, op, || format!("{dy:?} × {w:?}"))?;
    let n = w.cols;
    let mut dx = cpu.take(dy.rows * n);
    let out = Disjoint::new(&mut dx);
    parallel::each(groups.len(), |i| {
        let (expert, rows) = groups[i].clone();
        let right = View::new(&w.data()[expert * k * n..(expert + 1) * k * n], n);
        // SAFETY: experts' rows are disjoint.
        let to = unsafe { out.slice(rows.start * n..rows.end * n) };
        let left = View::new(&dy.data()[rows.start * k..rows.end * k], k);
        let size = Size {
            m: rows.len(),
            n,
            k,
        };
        gemm::gemm(cpu.pool(), size, left, Right::Plain(right), to, false);
    });
    Ok(CpuTensor::new(dy.rows, n, dx))
}

pub(crate) fn accumulate_tn<T: Element>(
    cpu: &Cpu<T>,
    dy: &CpuTensor<T>,
    x: &CpuTensor<T>,
    offsets: &[usize],
    dw: &mut CpuFloat<T>,
) -> Result<()> {
    let op = "accumulate_grouped_tn";
    check::that(dy.rows == x.rows, op, || {
        format!("{dy:?} transposed × {x:?}")
    })?;
    let (groups, m) = (groups(op, offsets, x.rows)?, dy.cols);
    let experts = offsets.len() - 1;
    check::shape(op, "dw", (dw.rows, dw.cols), (experts * m, x.cols))?;
    let n = x.cols;
    let out = Disjoint::new(&mut dw.data);
    parallel::each(groups.len(), |i| {
        let (expert, rows) = groups[i].clone();
        // SAFETY: experts' matrices are disjoint.
        let to = unsafe { out.slice(expert * m * n..(expert + 1) * m * n) };
        let left = View::transposed(&dy.data()[rows.start * m..rows.end * m], m);
        let right = View::new(&x.data()[rows.start * n..rows.end * n], n);
        let size = Size {
            m,
            n,
            k: rows.len(),
        };
        gemm::gemm(cpu.pool(), size, left, Right::Plain(right), to, true);
    });
    Ok(())
}
