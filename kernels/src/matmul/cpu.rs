//! On the CPU: shape checks around [`gemm`](crate::cpu::gemm), which says in what order sums run.

use crate::cpu::gemm::{self, FEW_ROWS, Right, Size, View};
use crate::cpu::{Cpu, CpuFloat, CpuTensor, Element};
use crate::{Result, check};

/// `x Wᵀ` into fresh memory, `[rows, out]`.
///
/// For few rows the weight is packed once and keeps that form until it is written to; that doubles its memory and
/// is what makes decoding run at the speed of memory. A product with many rows uses the packed form if it is there.
fn product_nt<T: Element>(
    cpu: &Cpu<T>,
    x: &CpuTensor<T>,
    w: &CpuTensor<T>,
) -> crate::cpu::buffer::Buffer<T> {
    let size = Size {
        m: x.rows,
        n: w.rows,
        k: x.cols,
    };
    let mut y = cpu.take(size.m * size.n);
    let right = if size.m <= FEW_ROWS {
        Right::Packed(w.packed(|| gemm::pack_weight(cpu.pool(), w.data(), size.n, size.k)))
    } else {
        w.packed_if_made().map_or(
            Right::Plain(View::transposed(w.data(), size.k)),
            Right::Packed,
        )
    };
    gemm::gemm(
        cpu.pool(),
        size,
        View::new(x.data(), size.k),
        right,
        &mut y,
        false,
    );
    y
}

pub(crate) fn nt<T: Element>(
    cpu: &Cpu<T>,
    x: &CpuTensor<T>,
    w: &CpuTensor<T>,
) -> Result<CpuTensor<T>> {
    check::that(x.cols == w.cols, "matmul_nt", || {
        format!("{x:?} × {w:?} transposed")
    })?;
    Ok(CpuTensor::new(x.rows, w.rows, product_nt(cpu, x, w)))
}

pub(crate) fn nt_float<T: Element>(
    cpu: &Cpu<T>,
    x: &CpuTensor<T>,
    w: &CpuTensor<T>,
) -> Result<CpuFloat<T>> {
    check::that(x.cols == w.cols, "logits", || {
        format!("{x:?} × {w:?} transposed")
    })?;
    Ok(CpuFloat::new(x.rows, w.rows, product_nt(cpu, x, w)))
}

pub(crate) fn nn<T: Element>(
    cpu: &Cpu<T>,
    dy: &CpuTensor<T>,
    w: &CpuTensor<T>,
) -> Result<CpuTensor<T>> {
    check::that(dy.cols == w.rows, "matmul_nn", || format!("{dy:?} × {w:?}"))?;
    let size = Size {
        m: dy.rows,
        n: w.cols,
        k: dy.cols,
    };
    let mut dx = cpu.take(size.m * size.n);
    let right = Right::Plain(View::new(w.data(), size.n));
    gemm::gemm(
        cpu.pool(),
        size,
        View::new(dy.data(), size.k),
        right,
        &mut dx,
        false,
    );
    Ok(CpuTensor::new(size.m, size.n, dx))
}

/// Rows of a product in their place among others.
pub(crate) fn put<T: Element>(rows: &CpuTensor<T>, y: &mut CpuTensor<T>, at: usize) -> Result<()> {
    check::that(
        rows.cols == y.cols && at + rows.rows <= y.rows,
        "put",
        || format!("{rows:?} at row {at} of {y:?}"),
    )?;
    let (start, len) = (at * y.cols, rows.data().len());
    y.data_mut()[start..start + len].copy_from_slice(rows.data());
    Ok(())
}

pub(crate) fn accumulate_tn<T: Element>(
    cpu: &Cpu<T>,
    dy: &CpuTensor<T>,
    x: &CpuTensor<T>,
    dw: &mut CpuFloat<T>,
) -> Result<()> {
    check::that(dy.rows == x.rows, "accumulate_tn", || {
        format!("{dy:?} transposed × {x:?}")
    })?;
    check::shape("accumulate_tn", "dw", (dw.rows, dw.cols), (dy.cols, x.cols))?;
    let size = Size {
        m: dy.cols,
        n: x.cols,
        k: dy.rows,
    };
    let right = Right::Plain(View::new(x.data(), size.n));
    gemm::gemm(
        cpu.pool(),
        size,
        View::transposed(dy.data(), size.m),
        right,
        &mut dw.data,
        true,
    );
    Ok(())
}
