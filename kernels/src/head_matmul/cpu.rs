//! On the CPU: one [`gemm`](crate::cpu::gemm) a head.

use crate::cpu::gemm::{self, Right, Size, View};
use crate::cpu::parallel::{self, Disjoint};
use crate::cpu::{Cpu, CpuTensor, Element};
use crate::{HeadParts, Result, check};

/// `transposed`: `x_h W_hᵀ`, else `x_h W_h`.
pub(crate) fn product<T: Element>(
    cpu: &Cpu<T>,
    op: &'static str,
    x: &CpuTensor<T>,
    w: &CpuTensor<T>,
    parts: HeadParts,
    transposed: bool,
) -> Result<CpuTensor<T>> {
    let HeadParts {
        heads,
        x_start,
        w_start,
        len,
    } = parts;
    let (r, rows) = (w.cols, x.rows);
    let (k, n) = if transposed { (r, len) } else { (len, r) };
    check::that(parts.fits(x.cols, w.rows, k), op, || {
        format!("{parts:?} of {x:?} and {w:?}")
    })?;
    let (x_width, w_height) = (x.cols / heads, w.rows / heads);
    let mut y = cpu.take(rows * heads * n);
    if rows == 0 {
        return Ok(CpuTensor::new(0, heads * n, y));
    }
    let out = Disjoint::new(&mut y);
    parallel::each(heads, |h| {
        let mut of_head = cpu.take(rows * n);
        let left = View {
            data: &x.data()[h * x_width + x_start..],
            row_stride: x.cols,
            col_stride: 1,
        };
        let first = (h * w_height + w_start) * r;
        let matrix = &w.data()[first..first + len * r];
        let right = if transposed {
            View::transposed(matrix, r)
        } else {
            View::new(matrix, r)
        };
        let size = Size { m: rows, n, k };
        gemm::gemm(
            cpu.pool(),
            size,
            left,
            Right::Plain(right),
            &mut of_head,
            false,
        );
        for (row, from) in of_head.chunks_exact(n.max(1)).enumerate() {
            let at = (row * heads + h) * n;
            // SAFETY: a task owns its head's columns.
            unsafe { out.slice(at..at + n) }.copy_from_slice(from);
        }
    });
    Ok(CpuTensor::new(rows, heads * n, y))
}
