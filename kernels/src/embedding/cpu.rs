//! On the CPU. Tasks split the columns of the gradient, so rows of one id are added in the tokens' order.

use crate::cpu::parallel::{self, Disjoint};
use crate::cpu::{Cpu, CpuFloat, CpuIds, CpuTensor, Element};
use crate::rows::cpu::{add_to, gather};
use crate::{Result, check};

pub(crate) fn forward<T: Element>(
    cpu: &Cpu<T>,
    table: &CpuTensor<T>,
    ids: &CpuIds,
) -> Result<CpuTensor<T>> {
    gather(cpu, "embed", table, ids)
}

pub(crate) fn backward<T: Element>(
    dx: &CpuTensor<T>,
    ids: &CpuIds,
    dtable: &mut CpuFloat<T>,
) -> Result<()> {
    check::ids("accumulate_embed", "ids", ids.0.len(), dx.rows)?;
    check::that(dx.cols == dtable.cols, "accumulate_embed", || {
        format!("{dx:?} into {dtable:?}")
    })?;
    if let Some(bad) = ids.0.iter().find(|id| **id as usize >= dtable.rows) {
        check::that(false, "accumulate_embed", || {
            format!("id {bad} in a table of {}", dtable.rows)
        })?;
    }
    let cols = dx.cols;
    let table = Disjoint::new(&mut dtable.data);
    let grain = parallel::grain_rows(ids.0.len()).next_multiple_of(64);
    parallel::ranges(cols, grain, |range| {
        for (t, id) in ids.0.iter().enumerate() {
            let start = *id as usize * cols;
            // SAFETY: tasks own disjoint columns.
            let to = unsafe { table.slice(start + range.start..start + range.end) };
            add_to(to, &dx.row(t)[range.clone()]);
        }
    });
    Ok(())
}
