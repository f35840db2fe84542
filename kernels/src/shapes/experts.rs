//! What experts, latent attention and gates cost: one product an expert that has rows, and passes over memory.

use super::{ShapeFloat, ShapeTensor, Shapes};
use crate::ops::ColumnMap;
use crate::{Result, check};

/// Rows of each expert's matrix.
fn height(op: &'static str, rows: usize, offsets: &[usize]) -> Result<usize> {
    let experts = offsets.len().saturating_sub(1).max(1);
    check::that(rows.is_multiple_of(experts), op, || {
        format!("{rows} rows of weights for {experts} experts")
    })?;
    Ok(rows / experts)
}

impl Shapes {
    /// A product an expert, of its rows with `n` columns and an inner size of `k`.
    fn grouped(&self, offsets: &[usize], n: usize, k: usize) {
        for m in offsets.windows(2).map(|w| w[1] - w[0]).filter(|m| *m > 0) {
            self.gemm(m, n, k);
        }
    }

    pub(super) fn experts_nt(
        &self,
        x: &ShapeTensor,
        w: &ShapeTensor,
        offsets: &[usize],
    ) -> Result<ShapeTensor> {
        let n = height("grouped_nt", w.rows, offsets)?;
        check::that(x.cols == w.cols, "grouped_nt", || {
            format!("rows of {} against {}", x.cols, w.cols)
        })?;
        let y = self.tensor_of(x.rows, n);
        self.grouped(offsets, n, x.cols);
        Ok(y)
    }

    pub(super) fn experts_nn(
        &self,
        dy: &ShapeTensor,
        w: &ShapeTensor,
        offsets: &[usize],
    ) -> Result<ShapeTensor> {
        let k = height("grouped_nn", w.rows, offsets)?;
        check::that(dy.cols == k, "grouped_nn", || {
            format!("rows of {} against {k}", dy.cols)
        })?;
        let dx = self.tensor_of(dy.rows, w.cols);
        self.grouped(offsets, w.cols, k);
        Ok(dx)
    }

    pub(super) fn experts_tn(
        &self,
        dy: &ShapeTensor,
        x: &ShapeTensor,
        offsets: &[usize],
        dw: &ShapeFloat,
    ) -> Result<()> {
        let n = height("accumulate_grouped_tn", dw.rows, offsets)?;
        check::that(
            (dy.cols, x.cols) == (n, dw.cols),
            "accumulate_grouped_tn",
            || format!("[{n}, {}] from {} and {}", dw.cols, dy.cols, x.cols),
        )?;
        for rows in offsets.windows(2).map(|w| w[1] - w[0]).filter(|m| *m > 0) {
            self.gemm(n, x.cols, rows);
        }
        Ok(())
    }

    pub(super) fn mapped(&self, inputs: &[&ShapeTensor], map: &ColumnMap) -> ShapeTensor {
        let rows = inputs.first().map_or(0, |x| x.rows);
        self.moved(rows * (map.sources.len() + map.num_outputs()));
        self.tensor_of(rows, map.num_outputs())
    }
}
