//! On the CPU, a row at a time.

use crate::cpu::parallel::{self, Disjoint};
use crate::cpu::{Cpu, CpuTensor, Element};
use crate::{ColumnMap, Result, check};

pub(crate) fn map<T: Element>(
    cpu: &Cpu<T>,
    inputs: &[&CpuTensor<T>],
    map: &ColumnMap,
) -> Result<CpuTensor<T>> {
    let op = "map_columns";
    let rows = inputs.first().map_or(0, |x| x.rows);
    let total: usize = inputs.iter().map(|x| x.cols).sum();
    check::that(
        inputs.iter().all(|x| x.rows == rows) && total == map.num_inputs,
        op,
        || format!("{inputs:?} for a map of {} columns", map.num_inputs),
    )?;
    let fits = map.starts.is_sorted()
        && map
            .starts
            .last()
            .is_some_and(|n| *n as usize == map.sources.len())
        && map.sources.iter().all(|s| (*s as usize) < total);
    check::that(fits, op, || {
        "the map's sources lie outside of its inputs".into()
    })?;
    // Where each input column lies: which input, which column of it.
    let places: Vec<(usize, usize)> = inputs
        .iter()
        .enumerate()
        .flat_map(|(i, x)| (0..x.cols).map(move |c| (i, c)))
        .collect();
    let cols = map.num_outputs();
    let mut y = cpu.take(rows * cols);
    let out = Disjoint::new(&mut y);
    parallel::ranges(
        rows,
        parallel::grain_rows(cols + map.sources.len()),
        |range| {
            for row in range {
                // SAFETY: every row is written by one task.
                let to = unsafe { out.slice(row * cols..(row + 1) * cols) };
                for (c, to) in to.iter_mut().enumerate() {
                    let sources = &map.sources[map.starts[c] as usize..map.starts[c + 1] as usize];
                    *to = sources.iter().fold(T::ZERO, |sum, s| {
                        let (input, column) = places[*s as usize];
                        sum + inputs[input].row(row)[column]
                    });
                }
            }
        },
    );
    Ok(CpuTensor::new(rows, cols, y))
}
