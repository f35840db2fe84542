//! Every operation as one or two launches. Shapes are checked here, arithmetic is in the `.cu` files.

use super::device::Arg::{Int, Long, Ptr};
use super::float::Of;
use super::gemm::Shape;
use super::pool::Block;
use super::sources::{self, BLOCK_TOKENS};
use super::tables::Tables;
use super::{Cuda, Float, Ids, KvCache, Tensor, attention};
use crate::ops::through_host;
use crate::{
    AdamW, ColumnMap, DeltaRule, Draw, Drawn, Error, HeadParts, Heads, KeySpan, Later, Norms, Ops,
    PagedSequence, Patch, Replay, Result, RopeTable, Route, Sequences, TokenStats, Update,
    attend_keys, check, head,
};
use half::bf16;
use std::ops::Range;
use std::sync::Arc;

/// Vectors of 8 bf16 are the unit of memory traffic, so every row must be whole vectors.
pub(super) const VECTOR: usize = 8;
pub(super) const THREADS: u32 = 256;
/// Numbers that are widened at once to be looked at: 128 MiB.
const WIDENED_AT_ONCE: usize = 32 << 20;
/// What cublasLt expects of every matrix.
const ALIGNED: usize = 256;

fn shape_error(op: &'static str, detail: String) -> Error {
    Error::Shape { op, detail }
}

pub(super) fn expect(op: &'static str, fits: bool, detail: impl FnOnce() -> String) -> Result<()> {
    if fits {
        Ok(())
    } else {
        Err(shape_error(op, detail()))
    }
}

pub(super) fn whole_vectors(op: &'static str, cols: usize) -> Result<()> {
    expect(op, cols.is_multiple_of(VECTOR), || {
        format!("rows of {cols} columns; CUDA kernels need a multiple of {VECTOR}")
    })
}

impl Cuda {
    pub(super) fn new_tensor(&self, rows: usize, cols: usize, what: &str) -> Result<Tensor> {
        Ok(Tensor {
            block: Arc::new(self.device.pool.take(rows * cols * 2, what)?),
            rows,
            cols,
        })
    }

    /// Blocks for a grid-stride loop over `n` items.
    pub(super) fn grid(&self, n: usize) -> (u32, u32, u32) {
        let blocks = n
            .div_ceil(THREADS as usize)
            .min(self.device.num_sms as usize * 16);
        (blocks as u32, 1, 1)
    }

    /// Add `parts: [num_parts, cols]` to `out` in a fixed order; with a `second`, parts have twice as many columns and it gets the later ones.
    pub(super) fn add_parts(
        &self,
        parts: u64,
        (out, second): (u64, Option<u64>),
        num_parts: usize,
        cols: usize,
    ) -> Result<()> {
        let width = if second.is_some() { 2 * cols } else { cols };
        let args = [
            Ptr(parts),
            Ptr(out),
            Ptr(second.unwrap_or(0)),
            Int(num_parts as i32),
            Int(cols as i32),
        ];
        let grid = (width.div_ceil(32) as u32, 1, 1);
        self.device
            .launch(&sources::rows(), "add_parts", grid, 1024, 0, &args)
    }

    pub(super) fn product(
        &self,
        op: &'static str,
        a: (&Tensor, usize),
        b: (&Tensor, usize),
        shape: Shape,
        out: u64,
    ) -> Result<()> {
        self.product_added(op, a, b, shape, (out, shape.accumulate))
    }

    fn product_nt(&self, x: &Tensor, w: &Tensor, y: u64) -> Result<()> {
        let shape = Shape {
            m: w.rows,
            n: x.rows,
            k: x.cols,
            transpose_a: true,
            transpose_b: false,
            float_out: false,
            accumulate: false,
        };
        self.product("matmul_nt", (w, w.cols), (x, x.cols), shape, y)
    }

    fn product_nn(&self, dy: &Tensor, w: &Tensor, dx: u64) -> Result<()> {
        let shape = Shape {
            m: w.cols,
            n: dy.rows,
            k: dy.cols,
            transpose_a: false,
            transpose_b: false,
            float_out: false,
            accumulate: false,
        };
        self.product("matmul_nn", (w, w.rows), (dy, dy.cols), shape, dx)
    }

    /// A product `[rows, cols]` in its place among the rows of `y`.
    fn product_among(
        &self,
        op: &'static str,
        (rows, cols): (usize, usize),
        y: &mut Tensor,
        at: usize,
        product: impl FnOnce(u64) -> Result<()>,
    ) -> Result<()> {
        expect(op, cols == y.cols && at + rows <= y.rows, || {
            format!("[{rows}, {cols}] at row {at} of [{}, {}]", y.rows, y.cols)
        })?;
        let to = y.block.ptr + (at * cols * 2) as u64;
        if to.is_multiple_of(ALIGNED as u64) {
            return product(to);
        }
        let held = self.new_tensor(rows, cols, "a product")?;
        product(held.block.ptr)?;
        self.copy_piece(held.block.ptr, to, rows * cols * 2)
    }

    /// A product written or, where `add` says so, added.
    fn product_added(
        &self,
        op: &'static str,
        (a, a_inner): (&Tensor, usize),
        (b, b_inner): (&Tensor, usize),
        shape: Shape,
        (out, add): (u64, bool),
    ) -> Result<()> {
        expect(op, a_inner == b_inner, || {
            format!(
                "[{}, {}] against [{}, {}]: inner sizes {a_inner} and {b_inner}",
                a.rows, a.cols, b.rows, b.cols
            )
        })?;
        let inputs = (a.block.ptr, b.block.ptr);
        self.gemm.run(&self.device, shape, inputs, out, add)
    }

    /// A block for each of `rows`, with threads for its vectors.
    pub(super) fn by_row(rows: usize, cols: usize) -> ((u32, u32, u32), u32) {
        (
            (rows as u32, 1, 1),
            (cols / VECTOR).next_multiple_of(32).clamp(32, 512) as u32,
        )
    }
}

/// Warps of four a block.
pub(super) fn warps(jobs: usize) -> ((u32, u32, u32), u32) {
    ((jobs.div_ceil(4) as u32, 1, 1), 128)
}

impl Ops for Cuda {
    type Tensor = Tensor;
    type Float = Float;
    type Ids = Ids;
    type KvCache = KvCache;
    type Tables = Tables;

    fn tensor(&self, rows: usize, cols: usize, data: &[f32]) -> Result<Tensor> {
        expect("tensor", data.len() == rows * cols, || {
            format!("{} values for [{rows}, {cols}]", data.len())
        })?;
        let rounded: Vec<bf16> = data.iter().map(|&v| bf16::from_f32(v)).collect();
        Ok(Tensor {
            block: Arc::new(self.device.upload(&rounded, "a tensor")?),
            rows,
            cols,
        })
    }

    fn tensor_f64(&self, rows: usize, cols: usize, data: &[f64]) -> Result<Tensor> {
        self.tensor(
            rows,
            cols,
            &data.iter().map(|&v| v as f32).collect::<Vec<_>>(),
        )
    }

    fn shape(&self, x: &Tensor) -> (usize, usize) {
        (x.rows, x.cols)
    }

    fn read(&self, x: &Tensor) -> Result<Vec<f32>> {
        self.device.download_halves(&x.block, x.rows * x.cols)
    }

    fn read_f64(&self, x: &Tensor) -> Result<Vec<f64>> {
        Ok(self.read(x)?.into_iter().map(f64::from).collect())
    }

    fn adopt(&self, other: &Self, tensors: &[Tensor]) -> Result<Vec<Tensor>> {
        if self.device.context.ordinal() != other.device.context.ordinal() {
            return through_host(self, other, tensors);
        }
        // The copies run in this device's order: the other has to have written what they read, and may write again only
        // when they have read it.
        other.synchronize()?;
        let copies = tensors.iter().map(|x| self.copy(x));
        let copies = copies.collect::<Result<Vec<_>>>()?;
        self.synchronize()?;
        Ok(copies)
    }

    fn assign_tensor(&self, to: &mut Tensor, from: &Tensor) -> Result<()> {
        let (has, gets) = (self.shape(to), self.shape(from));
        expect("assign_tensor", has == gets, || {
            format!("{gets:?} in the place of {has:?}")
        })?;
        self.device
            .copy(&from.block, &to.block, to.rows * to.cols * 2)
    }

    fn all_finite(&self, tensors: &[Tensor]) -> Result<bool> {
        let (mut sum, mut held, mut wide) = (0.0, 0, Vec::new());
        for x in tensors {
            let len = x.rows * x.cols;
            for at in (0..len).step_by(WIDENED_AT_ONCE) {
                let end = len.min(at + WIDENED_AT_ONCE);
                if held + (end - at) > WIDENED_AT_ONCE {
                    sum += self.sum_squares_of_all(&wide.iter().collect::<Vec<_>>())?;
                    (held, wide) = (0, Vec::new());
                }
                let piece = match end - at == len {
                    true => x.clone(),
                    false => self.cut(x, at..end, 1, end - at)?,
                };
                wide.push(self.widened(&piece)?);
                held += end - at;
            }
        }
        if !wide.is_empty() {
            sum += self.sum_squares_of_all(&wide.iter().collect::<Vec<_>>())?;
        }
        // Finite numbers may add up to one that is not; then each is looked at.
        let finite = |x: &Tensor| Ok(self.read(x)?.iter().all(|x| x.is_finite()));
        Ok(sum.is_finite()
            || tensors
                .iter()
                .map(finite)
                .collect::<Result<Vec<_>>>()?
                .into_iter()
                .all(|ok| ok))
    }

    fn float_zeros(&self, rows: usize, cols: usize) -> Result<Float> {
        let mut x = self.new_float(rows, cols, "an accumulator")?;
        x.clear();
        Ok(x)
    }

    fn float(&self, rows: usize, cols: usize, data: &[f32]) -> Result<Float> {
        expect("float", data.len() == rows * cols, || {
            format!("{} values for [{rows}, {cols}]", data.len())
        })?;
        let block = self.device.upload(data, "an accumulator")?;
        Ok(Float::new(block, rows, cols))
    }

    fn float_f64(&self, rows: usize, cols: usize, data: &[f64]) -> Result<Float> {
        self.float(
            rows,
            cols,
            &data.iter().map(|&v| v as f32).collect::<Vec<_>>(),
        )
    }

    fn float_shape(&self, x: &Float) -> (usize, usize) {
        (x.rows, x.cols)
    }

    fn read_float(&self, x: &Float) -> Result<Vec<f32>> {
        self.read_any(x)
    }

    fn assign(&self, to: &mut Float, data: &[f32]) -> Result<()> {
        self.put(to, data)
    }

    fn compact_moment(&self, rows: usize, cols: usize) -> Result<Float> {
        self.new_moment(rows, cols, Of::default())
    }

    fn compact_piece(&self, rows: usize, cols: usize, param: usize, start: usize) -> Result<Float> {
        let (param, start) = (param as u32, start as u64);
        self.new_moment(rows, cols, Of { param, start })
    }

    fn compact_master(&self, weight: &Tensor) -> Result<Float> {
        self.new_rest(weight)
    }

    fn read_float_f64(&self, x: &Float) -> Result<Vec<f64>> {
        Ok(self.read_float(x)?.into_iter().map(f64::from).collect())
    }

    fn widened(&self, x: &Tensor) -> Result<Float> {
        let y = self.new_float(x.rows, x.cols, "an accumulator")?;
        let n = x.rows * x.cols;
        let args = [Ptr(x.block.ptr), Ptr(y.at(&self.device)?), Long(n as i64)];
        self.device
            .launch(&sources::rows(), "widened", self.grid(n), THREADS, 0, &args)?;
        Ok(y)
    }

    fn zero(&self, x: &mut Float) -> Result<()> {
        x.clear();
        Ok(())
    }

    fn ids(&self, ids: &[u32]) -> Result<Ids> {
        Ok(Ids {
            block: self.device.upload(ids, "ids")?,
            host: ids.to_vec(),
        })
    }

    fn assign_ids(&self, to: &mut Ids, ids: &[u32]) -> Result<()> {
        let (has, gets) = (to.host.len(), ids.len());
        expect("assign_ids", has == gets, || {
            format!("{gets} ids in the place of {has}")
        })?;
        ids.clone_into(&mut to.host);
        self.device.write(&to.block, ids)
    }

    fn record(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<Option<Replay>> {
        self.recorded(work).map(Some)
    }

    fn gather_rows(&self, x: &Tensor, rows: &Ids) -> Result<Tensor> {
        whole_vectors("gather_rows", x.cols)?;
        let y = self.new_tensor(rows.host.len(), x.cols, "gathered rows")?;
        let (grid, threads) = Self::by_row(rows.host.len(), x.cols);
        let args = [
            Ptr(x.block.ptr),
            Ptr(rows.block.ptr),
            Ptr(y.block.ptr),
            Int(x.cols as i32),
        ];
        self.device
            .launch(&sources::rows(), "gather_rows", grid, threads, 0, &args)?;
        Ok(y)
    }

    fn scatter_rows(&self, x: &Tensor, rows: &Ids, num_rows: usize) -> Result<Tensor> {
        whole_vectors("scatter_rows", x.cols)?;
        let y = self.new_tensor(num_rows, x.cols, "scattered rows")?;
        self.device.zero(&y.block, num_rows * x.cols * 2)?;
        let (grid, threads) = Self::by_row(rows.host.len(), x.cols);
        let args = [
            Ptr(x.block.ptr),
            Ptr(rows.block.ptr),
            Ptr(y.block.ptr),
            Int(x.cols as i32),
        ];
        self.device
            .launch(&sources::rows(), "scatter_rows", grid, threads, 0, &args)?;
        Ok(y)
    }

    fn add(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        expect("add", (x.rows, x.cols) == (y.rows, y.cols), || {
            format!("[{}, {}] and [{}, {}]", x.rows, x.cols, y.rows, y.cols)
        })?;
        whole_vectors("add", x.cols)?;
        let z = self.new_tensor(x.rows, x.cols, "a sum")?;
        let n = x.rows * x.cols / VECTOR;
        let args = [
            Ptr(x.block.ptr),
            Ptr(y.block.ptr),
            Ptr(z.block.ptr),
            Long(n as i64),
        ];
        self.device
            .launch(&sources::rows(), "add", self.grid(n), THREADS, 0, &args)?;
        Ok(z)
    }

    fn sum(&self, all: &[&Tensor]) -> Result<Tensor> {
        let (rows, cols) = check::alike("sum", all.iter().map(|x| (x.rows, x.cols)))?;
        if let [x, y] = all {
            return self.add(x, y);
        }
        whole_vectors("sum", cols)?;
        let y = self.new_tensor(rows, cols, "a sum")?;
        let n = rows * cols / VECTOR;
        let addresses: Vec<u64> = all.iter().map(|x| x.block.ptr).collect();
        let addresses = self.device.upload(&addresses, "addresses of summands")?;
        let args = [
            Ptr(addresses.ptr),
            Int(all.len() as i32),
            Ptr(y.block.ptr),
            Long(n as i64),
        ];
        self.device
            .launch(&sources::rows(), "sum", self.grid(n), THREADS, 0, &args)?;
        Ok(y)
    }

    fn add_bias(&self, x: &Tensor, b: &Tensor) -> Result<Tensor> {
        expect("add_bias", x.cols == b.cols, || {
            format!("{} columns and {} biases", x.cols, b.cols)
        })?;
        whole_vectors("add_bias", x.cols)?;
        let z = self.new_tensor(x.rows, x.cols, "a biased sum")?;
        let (grid, threads) = Self::by_row(x.rows, x.cols);
        let args = [
            Ptr(x.block.ptr),
            Ptr(b.block.ptr),
            Ptr(z.block.ptr),
            Int(x.cols as i32),
        ];
        self.device
            .launch(&sources::rows(), "add_bias", grid, threads, 0, &args)?;
        Ok(z)
    }

    fn accumulate_bias(&self, dy: &Tensor, db: &mut Float) -> Result<()> {
        let parts = dy.rows.div_ceil(256).clamp(1, 64);
        let part = self.new_float(parts, dy.cols, "bias partial sums")?;
        let part = part.at(&self.device)?;
        let grid = (dy.cols.div_ceil(32) as u32, parts as u32, 1);
        let args = [
            Ptr(dy.block.ptr),
            Ptr(part),
            Int(dy.rows as i32),
            Int(dy.cols as i32),
        ];
        self.device
            .launch(&sources::rows(), "column_sum_part", grid, 256, 0, &args)?;
        self.add_parts(part, (db.at(&self.device)?, None), parts, dy.cols)
    }

    fn scale_rows(&self, x: &Tensor, p: &Float) -> Result<Tensor> {
        self.scaled_rows(x, p)
    }

    fn row_dots(&self, x: &Tensor, y: &Tensor) -> Result<Float> {
        self.dots(x, y)
    }

    fn sum_rows(&self, x: &Tensor, places: &Ids, each: usize) -> Result<Tensor> {
        self.summed_rows(x, places, each)
    }

    fn map_columns(&self, inputs: &[&Tensor], map: &ColumnMap) -> Result<Tensor> {
        self.mapped_columns(inputs, map)
    }

    fn grouped_nt(&self, x: &Tensor, w: &Tensor, offsets: &[usize]) -> Result<Tensor> {
        self.grouped("grouped_nt", x, w, offsets, true)
    }

    fn grouped_nn(&self, dy: &Tensor, w: &Tensor, offsets: &[usize]) -> Result<Tensor> {
        self.grouped("grouped_nn", dy, w, offsets, false)
    }

    fn accumulate_grouped_tn(
        &self,
        dy: &Tensor,
        x: &Tensor,
        offsets: &[usize],
        dw: &mut Float,
    ) -> Result<()> {
        self.grouped_gradient(dy, x, offsets, dw)
    }

    fn heads_nn(&self, x: &Tensor, w: &Tensor, parts: HeadParts) -> Result<Tensor> {
        self.head_products("heads_nn", x, w, parts, false)
    }

    fn heads_nt(&self, x: &Tensor, w: &Tensor, parts: HeadParts) -> Result<Tensor> {
        self.head_products("heads_nt", x, w, parts, true)
    }

    fn rows(&self, x: &Tensor, rows: Range<usize>) -> Result<Tensor> {
        check::within("rows", &rows, x.rows)?;
        let (offset, cols) = (rows.start * x.cols * 2, x.cols);
        if !offset.is_multiple_of(ALIGNED) {
            return self.cut_tensor(x, rows.start * cols..rows.end * cols, rows.len(), cols);
        }
        let block = Arc::new(Block::part(&x.block, offset, rows.len() * cols * 2));
        let rows = rows.len();
        Ok(Tensor { block, rows, cols })
    }

    fn reshape(&self, x: &Tensor, rows: usize, cols: usize) -> Result<Tensor> {
        expect("reshape", x.rows * x.cols == rows * cols, || {
            format!("[{}, {}] as [{rows}, {cols}]", x.rows, x.cols)
        })?;
        let block = Arc::clone(&x.block);
        Ok(Tensor { block, rows, cols })
    }

    fn causal_conv(&self, x: &Tensor, w: &Tensor, sequences: &Sequences) -> Result<Tensor> {
        self.convolved(x, w, sequences)
    }

    fn causal_conv_backward(
        &self,
        dy: &Tensor,
        x: &Tensor,
        w: &Tensor,
        sequences: &Sequences,
        dw: &mut Float,
    ) -> Result<Tensor> {
        self.convolved_gradient(dy, x, w, sequences, dw)
    }

    fn gated_delta(
        &self,
        qkv: &Tensor,
        gates: &Tensor,
        rule: &DeltaRule<'_, Self>,
        sequences: &Sequences,
    ) -> Result<Tensor> {
        self.delta(qkv, gates, rule, sequences)
    }

    fn gated_delta_backward(
        &self,
        dout: &Tensor,
        qkv: &Tensor,
        gates: &Tensor,
        rule: &DeltaRule<'_, Self>,
        sequences: &Sequences,
        dweights: (&mut Float, &mut Float),
    ) -> Result<(Tensor, Tensor)> {
        self.delta_gradient(dout, qkv, gates, rule, sequences, dweights)
    }

    fn gated_delta_paged(
        &self,
        states: &mut Float,
        x: &Tensor,
        conv: &Tensor,
        gates: &Tensor,
        rule: &DeltaRule<'_, Self>,
        sequences: &[PagedSequence<'_>],
    ) -> Result<Tensor> {
        self.delta_paged(states, x, conv, gates, rule, sequences)
    }

    fn gate(&self, x: &Tensor, gate: &Tensor) -> Result<Tensor> {
        self.gated(x, gate)
    }

    fn gate_backward(&self, dy: &Tensor, x: &Tensor, gate: &Tensor) -> Result<(Tensor, Tensor)> {
        self.gated_gradient(dy, x, gate)
    }

    fn matmul_nt(&self, x: &Tensor, w: &Tensor) -> Result<Tensor> {
        let y = self.new_tensor(x.rows, w.rows, "a product")?;
        self.product_nt(x, w, y.block.ptr)?;
        Ok(y)
    }

    fn matmul_nn(&self, dy: &Tensor, w: &Tensor) -> Result<Tensor> {
        let dx = self.new_tensor(dy.rows, w.cols, "a product")?;
        self.product_nn(dy, w, dx.block.ptr)?;
        Ok(dx)
    }

    fn room(&self, rows: usize, cols: usize) -> Result<Tensor> {
        self.new_tensor(rows, cols, "products")
    }

    fn put_nt(&self, x: &Tensor, w: &Tensor, y: &mut Tensor, at: usize) -> Result<()> {
        self.product_among("put_nt", (x.rows, w.rows), y, at, |to| {
            self.product_nt(x, w, to)
        })
    }

    fn put_nn(&self, dy: &Tensor, w: &Tensor, dx: &mut Tensor, at: usize) -> Result<()> {
        self.product_among("put_nn", (dy.rows, w.cols), dx, at, |to| {
            self.product_nn(dy, w, to)
        })
    }

    fn accumulate_tn(&self, dy: &Tensor, x: &Tensor, dw: &mut Float) -> Result<()> {
        let shape = Shape {
            m: x.cols,
            n: dy.cols,
            k: x.rows,
            transpose_a: false,
            transpose_b: true,
            float_out: true,
            accumulate: true,
        };
        expect("accumulate_tn", dw.len() == x.cols * dy.cols, || {
            format!("[{}, {}] for [{}, {}]", dw.rows, dw.cols, dy.cols, x.cols)
        })?;
        if x.rows == 0 && dy.rows == 0 {
            return Ok(());
        }
        let out = dw.place_to_add();
        self.product_added("accumulate_tn", (x, x.rows), (dy, dy.rows), shape, out)
    }

    fn route(
        &self,
        logits: &Float,
        bias: Option<&Tensor>,
        forced: Option<&[u32]>,
        rule: &Route,
    ) -> Result<Option<(Vec<u32>, Vec<f64>)>> {
        if !Self::routes(rule) {
            return Ok(None);
        }
        self.routed(logits, bias, forced, rule).map(Some)
    }

    fn route_backward(
        &self,
        logits: &Float,
        rule: &Route,
        experts: &[u32],
        weights: &[f64],
        dweights: &[f64],
    ) -> Result<Option<Tensor>> {
        if !Self::routes(rule) {
            return Ok(None);
        }
        self.routed_gradient(logits, rule, experts, weights, dweights)
            .map(Some)
    }

    fn embed(&self, table: &Tensor, ids: &Ids) -> Result<Tensor> {
        whole_vectors("embed", table.cols)?;
        if let Some(id) = ids.host.iter().find(|&&id| id as usize >= table.rows) {
            return Err(shape_error(
                "embed",
                format!("token id {id}, but the table has {} rows", table.rows),
            ));
        }
        let y = self.new_tensor(ids.host.len(), table.cols, "embeddings")?;
        let (grid, threads) = Self::by_row(y.rows, y.cols);
        let args = [
            Ptr(table.block.ptr),
            Ptr(ids.block.ptr),
            Ptr(y.block.ptr),
            Int(table.cols as i32),
        ];
        self.device
            .launch(&sources::embedding(), "embed", grid, threads, 0, &args)?;
        Ok(y)
    }

    fn accumulate_embed(&self, dx: &Tensor, ids: &Ids, dtable: &mut Float) -> Result<()> {
        let mut order: Vec<u32> = (0..ids.host.len() as u32).collect();
        order.sort_by_key(|&row| ids.host[row as usize]); // stable: rows of one id stay in order
        let (mut distinct, mut first) = (Vec::new(), Vec::new());
        for (place, &row) in order.iter().enumerate() {
            let id = ids.host[row as usize];
            if distinct.last() != Some(&id) {
                distinct.push(id);
                first.push(place as u32);
            }
        }
        first.push(order.len() as u32);
        let distinct_on_device = self.device.upload(&distinct, "ids")?;
        let first = self.device.upload(&first, "ids")?;
        let order = self.device.upload(&order, "ids")?;
        let args = [
            Ptr(dx.block.ptr),
            Ptr(distinct_on_device.ptr),
            Ptr(first.ptr),
            Ptr(order.ptr),
            Ptr(dtable.at(&self.device)?),
            Int(dx.cols as i32),
        ];
        let grid = (distinct.len() as u32, 1, 1);
        self.device
            .launch(&sources::embedding(), "embed_backward", grid, 128, 0, &args)
    }

    fn rmsnorm(&self, x: &Tensor, w: &Tensor, eps: f64) -> Result<(Tensor, Float)> {
        self.normed(x, w, eps)
    }

    fn add_rmsnorm(
        &self,
        x: &Tensor,
        delta: &Tensor,
        w: &Tensor,
        eps: f64,
    ) -> Result<(Tensor, Tensor, Float)> {
        self.sum_normed(x, delta, w, eps)
    }

    fn rmsnorm_backward(
        &self,
        dy: &Tensor,
        x: &Tensor,
        r: &Float,
        w: &Tensor,
        residual: Option<&Tensor>,
        dw: &mut Float,
    ) -> Result<Tensor> {
        self.norm_gradient(dy, x, (r, w), residual, dw, None)
    }

    fn rmsnorm_backward_again(
        &self,
        dy: &Tensor,
        x: &Tensor,
        r: &Float,
        w: &Tensor,
        _eps: f64,
        residual: Option<&Tensor>,
        dw: &mut Float,
    ) -> Result<(Tensor, Tensor)> {
        let y = self.new_tensor(x.rows, x.cols, "a norm")?;
        let dx = self.norm_gradient(dy, x, (r, w), residual, dw, Some(&y))?;
        Ok((dx, y))
    }

    fn qk_norm_rope(
        &self,
        qkv: &Tensor,
        heads: Heads,
        positions: &Ids,
        rope: &RopeTable<Self>,
        norms: Option<Norms<'_, Self>>,
    ) -> Result<(Tensor, Option<Float>)> {
        self.rotated(qkv, heads, positions, rope, norms)
    }

    fn qk_norm_rope_backward(
        &self,
        dqkv: &Tensor,
        heads: Heads,
        positions: &Ids,
        rope: &RopeTable<Self>,
        norms: Option<(Norms<'_, Self>, &Tensor, &Float)>,
        dnorms: Option<(&mut Float, &mut Float)>,
    ) -> Result<Tensor> {
        self.rotated_gradient(dqkv, heads, positions, rope, norms, dnorms)
    }

    fn attention(
        &self,
        qkv: &Tensor,
        heads: Heads,
        sequences: &Sequences,
        scale: f64,
    ) -> Result<(Tensor, Float)> {
        self.attention_forward(qkv, heads, sequences, scale)
    }

    fn attention_backward(
        &self,
        dout: &Tensor,
        qkv: &Tensor,
        out: &Tensor,
        lse: &Float,
        heads: Heads,
        sequences: &Sequences,
        scale: f64,
    ) -> Result<Tensor> {
        let forward = attention::Forward { qkv, out, lse };
        self.attention_gradient(dout, &forward, heads, sequences, scale)
    }

    fn attend_keys(
        &self,
        qkv: &Tensor,
        kv: &Tensor,
        heads: Heads,
        spans: &[KeySpan],
        scale: f64,
        out: &Tensor,
        lse: &Float,
    ) -> Result<(Tensor, Float)> {
        let forward = attention::Forward { qkv, out, lse };
        match self.rectangles(qkv, kv, heads, spans)? {
            Some(on) => self.keys_forward(&on, kv, &forward, scale),
            None => attend_keys::forward(self, qkv, kv, heads, spans, scale, out, lse),
        }
    }

    fn attend_keys_backward(
        &self,
        dout: &Tensor,
        qkv: &Tensor,
        kv: &Tensor,
        heads: Heads,
        spans: &[KeySpan],
        scale: f64,
        out: &Tensor,
        lse: &Float,
    ) -> Result<(Tensor, Tensor)> {
        let forward = attention::Forward { qkv, out, lse };
        match self.rectangles(qkv, kv, heads, spans)? {
            Some(on) => self.keys_gradient(&on, dout, kv, &forward, scale),
            None => attend_keys::backward(self, dout, qkv, kv, heads, spans, scale, out, lse),
        }
    }

    fn kv_block_tokens(&self) -> usize {
        BLOCK_TOKENS
    }

    fn kv_cache(&self, num_layers: usize, num_blocks: usize, heads: Heads) -> Result<KvCache> {
        self.new_cache(num_layers, num_blocks, heads)
    }

    fn tables(
        &self,
        slots: &[usize],
        sequences: &[PagedSequence<'_>],
        longest: usize,
    ) -> Result<Tables> {
        self.new_tables(slots, sequences, longest)
    }

    fn assign_tables(
        &self,
        to: &mut Tables,
        slots: &[usize],
        sequences: &[PagedSequence<'_>],
    ) -> Result<()> {
        self.put_tables(to, slots, sequences)
    }

    fn kv_write(
        &self,
        cache: &mut KvCache,
        layer: usize,
        qkv: &Tensor,
        heads: Heads,
        tables: &Tables,
    ) -> Result<()> {
        self.write_keys(cache, layer, qkv, heads, tables)
    }

    fn attention_paged(
        &self,
        cache: &KvCache,
        layer: usize,
        qkv: &Tensor,
        heads: Heads,
        tables: &Tables,
        scale: f64,
    ) -> Result<Tensor> {
        self.paged_attention(cache, layer, qkv, heads, tables, scale)
    }

    fn swiglu(&self, gate_up: &Tensor) -> Result<Tensor> {
        self.activated(gate_up)
    }

    fn swiglu_backward(&self, da: &Tensor, gate_up: &Tensor) -> Result<Tensor> {
        self.swiglu_gradient(da, gate_up, None)
    }

    fn swiglu_backward_again(&self, da: &Tensor, gate_up: &Tensor) -> Result<(Tensor, Tensor)> {
        let y = self.new_tensor(da.rows, da.cols, "swiglu")?;
        Ok((self.swiglu_gradient(da, gate_up, Some(&y))?, y))
    }

    fn logits_chunk_bytes(&self) -> usize {
        head::GPU_CHUNK_BYTES
    }

    fn logits(&self, h: &Tensor, w: &Tensor) -> Result<Float> {
        self.logits_of(h, w)
    }

    fn token_stats(
        &self,
        logits: &Float,
        targets: &Ids,
        inv_temperature: f64,
        vocab: usize,
    ) -> Result<TokenStats> {
        self.stats_of(self.queue_stats(logits, targets, inv_temperature, vocab)?)
    }

    fn token_stats_later<'a>(
        &'a self,
        logits: &Float,
        targets: &Ids,
        inv_temperature: f64,
        vocab: usize,
    ) -> Result<Later<'a, TokenStats>> {
        let queued = self.queue_stats(logits, targets, inv_temperature, vocab)?;
        Ok(Box::new(move || self.stats_of(queued)))
    }

    fn draw(&self, logits: &Float, draws: &[Draw], vocab: usize) -> Result<Option<Vec<Drawn>>> {
        self.draw_tokens(logits, draws, vocab)
    }

    fn logits_backward(
        &self,
        logits: Float,
        targets: &Ids,
        inv_temperature: f64,
        vocab: usize,
        stats: &TokenStats,
        a: &[f64],
        b: &[f64],
    ) -> Result<Tensor> {
        self.logits_gradient(&logits, targets, inv_temperature, vocab, stats, a, b)
    }

    fn join(&self, parts: &[(&Tensor, Range<usize>)], len: usize) -> Result<Tensor> {
        self.join_tensors(parts, len)
    }

    fn cut(&self, x: &Tensor, range: Range<usize>, rows: usize, cols: usize) -> Result<Tensor> {
        self.cut_tensor(x, range, rows, cols)
    }

    fn join_float(&self, parts: &[(&Float, Range<usize>)], len: usize) -> Result<Float> {
        self.join_floats(parts, len)
    }

    fn cut_float(&self, x: &Float, range: Range<usize>, rows: usize, cols: usize) -> Result<Float> {
        self.cut_of_float(x, range, rows, cols)
    }

    fn lay_out(&self, patches: &[Patch<'_, Tensor>], rows: usize, cols: usize) -> Result<Tensor> {
        self.laid_out(patches, rows, cols)
    }

    fn columns(&self, x: &Tensor, cols: Range<usize>) -> Result<Tensor> {
        self.columns_of(x, cols)
    }

    fn add_columns(&self, x: &Tensor, y: &Tensor, at: usize) -> Result<Tensor> {
        self.with_columns(x, y, at)
    }

    fn sum_squares(&self, x: &Float) -> Result<f64> {
        self.squares_of_all(&[x])
    }

    fn sum_squares_of_all(&self, all: &[&Float]) -> Result<f64> {
        self.squares_of_all(all)
    }

    fn adamw(
        &self,
        step: &AdamW,
        grad: &Float,
        m: &mut Float,
        v: &mut Float,
        master: Option<&mut Float>,
        weight: &mut Tensor,
    ) -> Result<()> {
        let weight_decay = step.weight_decay;
        let update = Update {
            weight_decay,
            grad,
            m,
            v,
            master,
            weight,
        };
        self.update_all(step, vec![update])
    }

    fn adamw_all(&self, step: &AdamW, updates: Vec<Update<'_, Self>>) -> Result<()> {
        self.update_all(step, updates)
    }
}
