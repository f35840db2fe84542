//! Rows on their way through experts: products by expert, and what scales, compares and adds rows.
//!
//! On Hopper one launch of `grouped_matmul/hopper.cu` does all experts; elsewhere each expert that has rows is a product of
//! its own.

use super::device::Arg::{Int, Long, Map, Ptr};
use super::device::TensorMap;
use super::gemm::Shape;
use super::ops::{THREADS, VECTOR, expect, whole_vectors};
use super::pool::Block;
use super::{Cuda, Float, Ids, Tensor, sources};
use crate::{ColumnMap, Result};
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Rows of a tile, steps in flight and bytes of a step, as in `grouped_matmul/hopper.cu`.
const TILE_ROWS: usize = 128;
const DEPTH: u32 = 6;
const STAGE_BYTES: u32 = 32 << 10;

/// Which operand is transposed, as the kernels are named.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Nt,
    Nn,
    Tn,
}

/// The groups of the last offsets: all products of a layer ask for the same.
#[derive(Default)]
pub(super) struct Cache(Mutex<Option<(Vec<usize>, Arc<Groups>)>>);

/// `(expert, first row, row after the last, nothing)` of each tile of rows, and of each expert that has rows.
struct Groups {
    tiles: Block,
    num_tiles: usize,
    experts: Block,
    num_experts: usize,
}

/// The experts that have rows, with those rows.
fn with_rows(offsets: &[usize]) -> impl Iterator<Item = (usize, Range<usize>)> {
    let ranges = offsets.windows(2).map(|w| w[0]..w[1]).enumerate();
    ranges.filter(|(_, rows)| !rows.is_empty())
}

/// Rows of one expert's matrix of `rows` in all.
fn height(op: &'static str, rows: usize, offsets: &[usize], num_rows: usize) -> Result<usize> {
    let ends = offsets.first() == Some(&0) && offsets.last() == Some(&num_rows);
    expect(op, ends && offsets.is_sorted(), || {
        format!(
            "experts' offsets must run from 0 to the {num_rows} rows without decreasing, got {offsets:?}"
        )
    })?;
    let experts = offsets.len().saturating_sub(1).max(1);
    expect(op, rows.is_multiple_of(experts), || {
        format!("{rows} rows of weights for {experts} experts")
    })?;
    Ok(rows / experts)
}

impl Cuda {
    fn groups(&self, offsets: &[usize]) -> Result<Arc<Groups>> {
        let mut cache = self.groups.0.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((_, groups)) = cache.as_ref().filter(|(of, _)| of == offsets) {
            return Ok(Arc::clone(groups));
        }
        let row =
            |expert: usize, begin: usize, end: usize| [expert as i32, begin as i32, end as i32, 0];
        let (mut tiles, mut experts) = (Vec::new(), Vec::new());
        for (expert, rows) in with_rows(offsets) {
            experts.push(row(expert, rows.start, rows.end));
            let begins = rows.clone().step_by(TILE_ROWS);
            tiles.extend(begins.map(|at| row(expert, at, rows.end.min(at + TILE_ROWS))));
        }
        let groups = Arc::new(Groups {
            num_tiles: tiles.len(),
            tiles: self.device.upload(&tiles, "tiles of experts")?,
            num_experts: experts.len(),
            experts: self.device.upload(&experts, "experts with rows")?,
        });
        *cache = Some((offsets.to_vec(), Arc::clone(&groups)));
        Ok(groups)
    }

    /// One launch for all experts. `sizes`: columns of the left operand (of TN), of the answer, and the inner dimension (of
    /// the others).
    fn grouped_hopper(
        &self,
        form: Form,
        (left, right): (&Tensor, &Tensor),
        offsets: &[usize],
        [m, n, k]: [usize; 3],
        (out, add): (u64, bool),
    ) -> Result<()> {
        let groups = self.groups(offsets)?;
        let across = n.div_ceil(TILE_ROWS);
        let (name, list, count, tiles) = match form {
            Form::Nt => ("grouped_nt", &groups.tiles, groups.num_tiles, across),
            Form::Nn => ("grouped_nn", &groups.tiles, groups.num_tiles, across),
            Form::Tn => {
                let down = m.div_ceil(TILE_ROWS);
                (
                    "grouped_tn",
                    &groups.experts,
                    groups.num_experts,
                    across * down,
                )
            }
        };
        let args = [
            Map(TensorMap::new(left.block.ptr, left.rows, left.cols)?),
            Map(TensorMap::new(right.block.ptr, right.rows, right.cols)?),
            Ptr(list.ptr),
            Int(count as i32),
            Ptr(out),
            Int(m as i32),
            Int(n as i32),
            Int(k as i32),
            Int(i32::from(add)),
        ];
        let blocks = self.device.num_sms.min((count * tiles) as u32);
        let shared = 2048 + DEPTH * STAGE_BYTES;
        let source = sources::grouped_matmul();
        self.device
            .launch(&source, name, (blocks, 1, 1), 288, shared, &args)
    }

    /// `x_r W_eᵀ` or, not `transposed`, `x_r W_e`.
    pub(super) fn grouped(
        &self,
        op: &'static str,
        x: &Tensor,
        w: &Tensor,
        offsets: &[usize],
        transposed: bool,
    ) -> Result<Tensor> {
        let each = height(op, w.rows, offsets, x.rows)?;
        let (n, k) = if transposed {
            (each, w.cols)
        } else {
            (w.cols, each)
        };
        expect(op, x.cols == k, || {
            format!(
                "[{}, {}] against [{}, {}] of {each} rows an expert",
                x.rows, x.cols, w.rows, w.cols
            )
        })?;
        whole_vectors(op, x.cols)?;
        whole_vectors(op, n)?;
        let y = self.new_tensor(x.rows, n, "experts' products")?;
        if x.rows == 0 {
            return Ok(y);
        }
        if self.device.is_hopper() {
            let form = if transposed { Form::Nt } else { Form::Nn };
            self.grouped_hopper(form, (x, w), offsets, [0, n, k], (y.block.ptr, false))?;
            return Ok(y);
        }
        for (expert, rows) in with_rows(offsets) {
            let shape = Shape {
                m: n,
                n: rows.len(),
                k,
                transpose_a: transposed,
                transpose_b: false,
                float_out: false,
                accumulate: false,
            };
            let matrix = w.block.ptr + (expert * each * w.cols * 2) as u64;
            let input = x.block.ptr + (rows.start * x.cols * 2) as u64;
            let output = y.block.ptr + (rows.start * n * 2) as u64;
            self.gemm
                .run(&self.device, shape, (matrix, input), output, false)?;
        }
        Ok(y)
    }

    /// `dW_e += dy_eᵀ x_e`.
    pub(super) fn grouped_gradient(
        &self,
        dy: &Tensor,
        x: &Tensor,
        offsets: &[usize],
        dw: &mut Float,
    ) -> Result<()> {
        let op = "accumulate_grouped_tn";
        let each = height(op, dw.rows, offsets, x.rows)?;
        expect(
            op,
            dy.rows == x.rows && each == dy.cols && dw.cols == x.cols,
            || {
                format!(
                    "[{}, {}] for [{}, {}] and [{}, {}]",
                    dw.rows, dw.cols, dy.rows, dy.cols, x.rows, x.cols
                )
            },
        )?;
        whole_vectors(op, dy.cols)?;
        whole_vectors(op, x.cols)?;
        if x.rows == 0 {
            return Ok(());
        }
        // Where every expert has rows all of it is written; else the others' keep what they hold.
        let all = with_rows(offsets).count() + 1 == offsets.len();
        let (out, add) = match all {
            true => dw.place_to_add(),
            false => (dw.at(&self.device)?, true),
        };
        let (m, n) = (dy.cols, x.cols);
        if self.device.is_hopper() {
            return self.grouped_hopper(Form::Tn, (dy, x), offsets, [m, n, 0], (out, add));
        }
        for (expert, rows) in with_rows(offsets) {
            let shape = Shape {
                m: n,
                n: m,
                k: rows.len(),
                transpose_a: false,
                transpose_b: true,
                float_out: true,
                accumulate: true,
            };
            let left = x.block.ptr + (rows.start * n * 2) as u64;
            let right = dy.block.ptr + (rows.start * m * 2) as u64;
            let matrix = out + (expert * m * n * 4) as u64;
            self.gemm
                .run(&self.device, shape, (left, right), matrix, add)?;
        }
        Ok(())
    }

    pub(super) fn scaled_rows(&self, x: &Tensor, p: &Float) -> Result<Tensor> {
        expect("scale_rows", (p.rows, p.cols) == (x.rows, 1), || {
            format!("[{}, {}] by [{}, {}]", x.rows, x.cols, p.rows, p.cols)
        })?;
        whole_vectors("scale_rows", x.cols)?;
        let y = self.new_tensor(x.rows, x.cols, "scaled rows")?;
        let (grid, threads) = Self::by_row(x.rows, x.cols);
        let args = [
            Ptr(x.block.ptr),
            Ptr(p.at(&self.device)?),
            Ptr(y.block.ptr),
            Int(x.cols as i32),
        ];
        self.device
            .launch(&sources::rows(), "scale_rows", grid, threads, 0, &args)?;
        Ok(y)
    }

    pub(super) fn dots(&self, x: &Tensor, y: &Tensor) -> Result<Float> {
        expect("row_dots", (x.rows, x.cols) == (y.rows, y.cols), || {
            format!("[{}, {}] and [{}, {}]", x.rows, x.cols, y.rows, y.cols)
        })?;
        whole_vectors("row_dots", x.cols)?;
        let out = self.new_float(x.rows, 1, "rows' products")?;
        let (grid, threads) = Self::by_row(x.rows, x.cols);
        let args = [
            Ptr(x.block.ptr),
            Ptr(y.block.ptr),
            Ptr(out.at(&self.device)?),
            Int(x.cols as i32),
        ];
        self.device
            .launch(&sources::rows(), "row_dots", grid, threads, 0, &args)?;
        Ok(out)
    }

    pub(super) fn summed_rows(&self, x: &Tensor, places: &Ids, each: usize) -> Result<Tensor> {
        let fits = each > 0
            && places.host.len().is_multiple_of(each)
            && places.host.iter().all(|&place| (place as usize) < x.rows);
        expect("sum_rows", fits, || {
            format!(
                "{} places, {each} a row, among {} rows",
                places.host.len(),
                x.rows
            )
        })?;
        whole_vectors("sum_rows", x.cols)?;
        let y = self.new_tensor(places.host.len() / each, x.cols, "summed rows")?;
        let (grid, threads) = Self::by_row(y.rows, y.cols);
        let args = [
            Ptr(x.block.ptr),
            Ptr(places.block.ptr),
            Ptr(y.block.ptr),
            Int(x.cols as i32),
            Int(each as i32),
        ];
        self.device
            .launch(&sources::rows(), "sum_rows", grid, threads, 0, &args)?;
        Ok(y)
    }

    pub(super) fn mapped_columns(&self, inputs: &[&Tensor], map: &ColumnMap) -> Result<Tensor> {
        let rows = inputs.first().map_or(0, |x| x.rows);
        let total: usize = inputs.iter().map(|x| x.cols).sum();
        let fits = inputs.iter().all(|x| x.rows == rows)
            && (1..=4).contains(&inputs.len())
            && total == map.num_inputs
            && map.starts.is_sorted()
            && map
                .starts
                .last()
                .is_some_and(|n| *n as usize == map.sources.len())
            && map.sources.iter().all(|s| (*s as usize) < total);
        expect("map_columns", fits, || {
            let shapes: Vec<_> = inputs.iter().map(|x| (x.rows, x.cols)).collect();
            format!("{shapes:?} for a map of {} columns", map.num_inputs)
        })?;
        let cols = map.num_outputs();
        let y = self.new_tensor(rows, cols, "mapped columns")?;
        if rows == 0 {
            return Ok(y);
        }
        // Which input a source is in, in its upper four bits, and which column of it.
        let placed = map.sources.iter().map(|&source| {
            let (mut column, mut input) = (source, 0);
            while column as usize >= inputs[input as usize].cols {
                column -= inputs[input as usize].cols as u32;
                input += 1;
            }
            input << 28 | column
        });
        let placed: Vec<u32> = placed.collect();
        let (starts, sources) = (
            self.device.upload(&map.starts, "a map of columns")?,
            self.device.upload(&placed, "a map of columns")?,
        );
        let input = |i: usize| inputs.get(i).map_or((0, 0), |x| (x.block.ptr, x.cols));
        let mut args: Vec<_> = (0..4).map(|i| Ptr(input(i).0)).collect();
        args.extend((0..4).map(|i| Int(input(i).1 as i32)));
        args.extend([
            Ptr(starts.ptr),
            Ptr(sources.ptr),
            Ptr(y.block.ptr),
            Int(cols as i32),
        ]);
        let threads = cols.next_multiple_of(32).clamp(32, 512) as u32;
        let grid = (rows as u32, 1, 1);
        self.device
            .launch(&sources::rows(), "map_columns", grid, threads, 0, &args)?;
        Ok(y)
    }

    pub(super) fn gated(&self, x: &Tensor, gate: &Tensor) -> Result<Tensor> {
        let n = self.gate_fits("gate", x, gate)?;
        let y = self.new_tensor(x.rows, x.cols, "gated rows")?;
        let args = [
            Ptr(x.block.ptr),
            Ptr(gate.block.ptr),
            Ptr(y.block.ptr),
            Long(n as i64),
        ];
        self.device
            .launch(&sources::rows(), "gate", self.grid(n), THREADS, 0, &args)?;
        Ok(y)
    }

    pub(super) fn gated_gradient(
        &self,
        dy: &Tensor,
        x: &Tensor,
        gate: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        self.gate_fits("gate_backward", dy, x)?;
        let n = self.gate_fits("gate_backward", x, gate)?;
        let dx = self.new_tensor(x.rows, x.cols, "a gate's gradient")?;
        let dgate = self.new_tensor(x.rows, x.cols, "a gate's gradient")?;
        let args = [
            Ptr(dy.block.ptr),
            Ptr(x.block.ptr),
            Ptr(gate.block.ptr),
            Ptr(dx.block.ptr),
            Ptr(dgate.block.ptr),
            Long(n as i64),
        ];
        let source = sources::rows();
        self.device
            .launch(&source, "gate_backward", self.grid(n), THREADS, 0, &args)?;
        Ok((dx, dgate))
    }

    /// Vectors of two tensors of one shape.
    fn gate_fits(&self, op: &'static str, x: &Tensor, y: &Tensor) -> Result<usize> {
        expect(op, (x.rows, x.cols) == (y.rows, y.cols), || {
            format!("[{}, {}] and [{}, {}]", x.rows, x.cols, y.rows, y.cols)
        })?;
        let len = x.rows * x.cols;
        whole_vectors(op, len)?;
        Ok(len / VECTOR)
    }
}
