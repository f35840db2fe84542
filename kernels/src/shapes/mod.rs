//! A device that computes nothing: tensors are shapes, and every call is noted with what it would cost.
//!
//! The trainer's own code runs on it unchanged, so its peak of memory, its FLOPs and its order of calls are those of a real
//! run, for models and numbers of ranks that no machine here could hold. Whatever is read from it is 0. Read [`meter`] for
//! what is noted, and `plan` in the trainer for who asks.

mod experts;
mod families;
pub mod meter;

pub use meter::{Meter, Widths, Work};

use crate::ops::{
    AdamW, ColumnMap, DeltaRule, HeadParts, Heads, KeySpan, Norms, Ops, PagedSequence, Patch,
    RopeTable, Sequences, TokenStats,
};
use crate::{Result, check};
use meter::Held;
use std::ops::Range;
use std::sync::Arc;

/// Tensors of so many elements keep them.
const FEW: usize = 8;

/// A tensor's shape and its place in the meter's books.
#[derive(Clone)]
pub struct ShapeTensor {
    rows: usize,
    cols: usize,
    /// The numbers of a handful, rounded as the device would: how the trainer finds out whether weights need masters.
    few: Option<Arc<[f64]>>,
    _held: Arc<Held>,
}

/// An accumulator's.
pub struct ShapeFloat {
    rows: usize,
    cols: usize,
    /// Bytes of a number.
    width: usize,
    _held: Held,
}

/// How many ids there are.
pub struct ShapeIds {
    len: usize,
    _held: Held,
}

/// The device.
pub struct Shapes {
    meter: Arc<Meter>,
}

impl Shapes {
    /// A device whose calls `meter` notes.
    pub fn new(meter: Arc<Meter>) -> Self {
        Self { meter }
    }

    /// Its books.
    pub fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// A tensor, without data to upload.
    pub fn tensor_of(&self, rows: usize, cols: usize) -> ShapeTensor {
        let bytes = self.meter.widths().tensor_bytes(rows * cols);
        ShapeTensor {
            rows,
            cols,
            few: None,
            _held: Arc::new(self.meter.hold(bytes)),
        }
    }

    fn float_of(&self, rows: usize, cols: usize) -> ShapeFloat {
        let widths = self.meter.widths();
        ShapeFloat {
            rows,
            cols,
            width: widths.float,
            _held: self.meter.hold(widths.float_bytes(rows * cols)),
        }
    }

    /// An optimizer's state in as few bits as a weight.
    fn compact_of(&self, rows: usize, cols: usize) -> ShapeFloat {
        let widths = self.meter.widths();
        ShapeFloat {
            rows,
            cols,
            width: widths.tensor,
            _held: self.meter.hold(widths.tensor_bytes(rows * cols)),
        }
    }

    /// A product, whose result is in memory already.
    fn gemm(&self, m: usize, n: usize, k: usize) {
        self.meter.note(Work::Gemm { m, n, k });
        // A block of the right operand, packed.
        self.laid_out(n.min(2048).next_multiple_of(16) * k.min(384));
    }

    /// Memory that a call needs while it runs.
    fn laid_out(&self, elements: usize) {
        let widths = self.meter.widths();
        if widths.lays_out {
            drop(self.meter.hold(widths.tensor_bytes(elements)));
        }
    }

    /// Elements read and written once each.
    fn moved(&self, elements: usize) {
        let bytes = elements * self.meter.widths().tensor;
        self.meter.note(Work::Move { bytes });
    }

    fn attended(&self, heads: Heads, pairs: f64, backward: bool) {
        self.meter.note(Work::Attention {
            heads: heads.query,
            dim: heads.dim,
            pairs,
            backward,
        });
    }
}

/// Pairs of tokens that see each other.
fn causal_pairs(sequences: &Sequences) -> f64 {
    let of = |len: usize| len as f64 * (len as f64 + 1.0) / 2.0;
    sequences.ranges().map(|r| of(r.len())).sum()
}

fn span_pairs(spans: &[KeySpan]) -> f64 {
    let of = |span: &KeySpan| span.queries.len() as f64 * span.keys.len() as f64;
    spans.iter().map(of).sum()
}

impl Ops for Shapes {
    type Tensor = ShapeTensor;
    type Float = ShapeFloat;
    type Ids = ShapeIds;
    type KvCache = ();
    type Tables = ();

    fn tensor(&self, rows: usize, cols: usize, data: &[f32]) -> Result<ShapeTensor> {
        let fits = data.is_empty() || data.len() == rows * cols;
        check::that(fits, "tensor", || {
            format!("{} values for [{rows}, {cols}]", data.len())
        })?;
        Ok(self.tensor_of(rows, cols))
    }
    fn tensor_f64(&self, rows: usize, cols: usize, data: &[f64]) -> Result<ShapeTensor> {
        let rounded = |&x: &f64| match self.meter.widths().tensor {
            2 => half::bf16::from_f64(x).to_f64(),
            4 => f64::from(x as f32),
            _ => x,
        };
        let few = (data.len() <= FEW).then(|| data.iter().map(rounded).collect());
        Ok(ShapeTensor {
            few,
            ..self.tensor_of(rows, cols)
        })
    }
    fn shape(&self, x: &ShapeTensor) -> (usize, usize) {
        (x.rows, x.cols)
    }
    fn read(&self, x: &ShapeTensor) -> Result<Vec<f32>> {
        Ok(vec![0.0; x.rows * x.cols])
    }
    fn read_f64(&self, x: &ShapeTensor) -> Result<Vec<f64>> {
        Ok(match &x.few {
            Some(few) => few.to_vec(),
            None => vec![0.0; x.rows * x.cols],
        })
    }
    fn float_zeros(&self, rows: usize, cols: usize) -> Result<ShapeFloat> {
        Ok(self.float_of(rows, cols))
    }
    fn float(&self, rows: usize, cols: usize, _: &[f32]) -> Result<ShapeFloat> {
        Ok(self.float_of(rows, cols))
    }
    fn float_f64(&self, rows: usize, cols: usize, _: &[f64]) -> Result<ShapeFloat> {
        Ok(self.float_of(rows, cols))
    }
    fn float_shape(&self, x: &ShapeFloat) -> (usize, usize) {
        (x.rows, x.cols)
    }
    fn read_float(&self, x: &ShapeFloat) -> Result<Vec<f32>> {
        Ok(vec![0.0; x.rows * x.cols])
    }
    fn read_float_f64(&self, x: &ShapeFloat) -> Result<Vec<f64>> {
        Ok(vec![0.0; x.rows * x.cols])
    }
    fn widened(&self, x: &ShapeTensor) -> Result<ShapeFloat> {
        Ok(self.float_of(x.rows, x.cols))
    }
    fn zero(&self, x: &mut ShapeFloat) -> Result<()> {
        let bytes = self.meter.widths().float * x.rows * x.cols;
        self.meter.note(Work::Move { bytes });
        Ok(())
    }
    fn ids(&self, ids: &[u32]) -> Result<ShapeIds> {
        Ok(ShapeIds {
            len: ids.len(),
            _held: self.meter.hold(self.meter.widths().id_bytes(ids.len())),
        })
    }

    fn gather_rows(&self, x: &ShapeTensor, rows: &ShapeIds) -> Result<ShapeTensor> {
        self.moved(2 * rows.len * x.cols);
        Ok(self.tensor_of(rows.len, x.cols))
    }
    fn scatter_rows(&self, x: &ShapeTensor, _: &ShapeIds, rows: usize) -> Result<ShapeTensor> {
        self.moved((x.rows + rows) * x.cols);
        Ok(self.tensor_of(rows, x.cols))
    }
    fn add(&self, x: &ShapeTensor, y: &ShapeTensor) -> Result<ShapeTensor> {
        check::same("add", (x.rows, x.cols), (y.rows, y.cols))?;
        self.moved(3 * x.rows * x.cols);
        Ok(self.tensor_of(x.rows, x.cols))
    }
    fn sum(&self, all: &[&ShapeTensor]) -> Result<ShapeTensor> {
        let (rows, cols) = check::alike("sum", all.iter().map(|x| (x.rows, x.cols)))?;
        self.moved((all.len() + 1) * rows * cols);
        Ok(self.tensor_of(rows, cols))
    }
    fn add_bias(&self, x: &ShapeTensor, _: &ShapeTensor) -> Result<ShapeTensor> {
        self.moved(2 * x.rows * x.cols);
        Ok(self.tensor_of(x.rows, x.cols))
    }
    fn accumulate_bias(&self, dy: &ShapeTensor, _: &mut ShapeFloat) -> Result<()> {
        self.moved(dy.rows * dy.cols);
        Ok(())
    }

    fn matmul_nt(&self, x: &ShapeTensor, w: &ShapeTensor) -> Result<ShapeTensor> {
        check::that(x.cols == w.cols, "matmul_nt", || {
            format!("[{}, {}] and [{}, {}]", x.rows, x.cols, w.rows, w.cols)
        })?;
        let y = self.tensor_of(x.rows, w.rows);
        self.gemm(x.rows, w.rows, x.cols);
        Ok(y)
    }
    fn matmul_nn(&self, dy: &ShapeTensor, w: &ShapeTensor) -> Result<ShapeTensor> {
        check::that(dy.cols == w.rows, "matmul_nn", || {
            format!("[{}, {}] and [{}, {}]", dy.rows, dy.cols, w.rows, w.cols)
        })?;
        let dx = self.tensor_of(dy.rows, w.cols);
        self.gemm(dy.rows, w.cols, dy.cols);
        Ok(dx)
    }
    fn rows(&self, x: &ShapeTensor, rows: Range<usize>) -> Result<ShapeTensor> {
        check::within("rows", &rows, x.rows)?;
        let (rows, few) = (rows.len(), None);
        Ok(ShapeTensor {
            rows,
            few,
            ..x.clone()
        })
    }
    fn room(&self, rows: usize, cols: usize) -> Result<ShapeTensor> {
        Ok(self.tensor_of(rows, cols))
    }
    fn put_nt(
        &self,
        x: &ShapeTensor,
        w: &ShapeTensor,
        y: &mut ShapeTensor,
        at: usize,
    ) -> Result<()> {
        check::that(
            x.cols == w.cols && y.cols == w.rows && at + x.rows <= y.rows,
            "put_nt",
            || format!("[{}, {}] and [{}, {}]", x.rows, x.cols, w.rows, w.cols),
        )?;
        self.gemm(x.rows, w.rows, x.cols);
        Ok(())
    }
    fn put_nn(
        &self,
        dy: &ShapeTensor,
        w: &ShapeTensor,
        dx: &mut ShapeTensor,
        at: usize,
    ) -> Result<()> {
        check::that(
            dy.cols == w.rows && dx.cols == w.cols && at + dy.rows <= dx.rows,
            "put_nn",
            || format!("[{}, {}] and [{}, {}]", dy.rows, dy.cols, w.rows, w.cols),
        )?;
        self.gemm(dy.rows, w.cols, dy.cols);
        Ok(())
    }
    fn accumulate_tn(&self, dy: &ShapeTensor, x: &ShapeTensor, dw: &mut ShapeFloat) -> Result<()> {
        let fits = dy.rows == x.rows && (dw.rows, dw.cols) == (dy.cols, x.cols);
        check::that(fits, "accumulate_tn", || {
            format!(
                "[{}, {}] and [{}, {}] into [{}, {}]",
                dy.rows, dy.cols, x.rows, x.cols, dw.rows, dw.cols
            )
        })?;
        self.gemm(dy.cols, x.cols, dy.rows);
        Ok(())
    }

    fn embed(&self, table: &ShapeTensor, ids: &ShapeIds) -> Result<ShapeTensor> {
        self.moved(2 * ids.len * table.cols);
        Ok(self.tensor_of(ids.len, table.cols))
    }
    fn accumulate_embed(&self, dx: &ShapeTensor, _: &ShapeIds, _: &mut ShapeFloat) -> Result<()> {
        self.moved(5 * dx.rows * dx.cols);
        Ok(())
    }

    fn rmsnorm(
        &self,
        x: &ShapeTensor,
        _: &ShapeTensor,
        _: f64,
    ) -> Result<(ShapeTensor, ShapeFloat)> {
        self.moved(2 * x.rows * x.cols);
        Ok((self.tensor_of(x.rows, x.cols), self.float_of(x.rows, 1)))
    }
    fn add_rmsnorm(
        &self,
        x: &ShapeTensor,
        delta: &ShapeTensor,
        _: &ShapeTensor,
        _: f64,
    ) -> Result<(ShapeTensor, ShapeTensor, ShapeFloat)> {
        check::same("add_rmsnorm", (x.rows, x.cols), (delta.rows, delta.cols))?;
        self.moved(4 * x.rows * x.cols);
        let of = || self.tensor_of(x.rows, x.cols);
        Ok((of(), of(), self.float_of(x.rows, 1)))
    }
    fn rmsnorm_backward(
        &self,
        dy: &ShapeTensor,
        x: &ShapeTensor,
        _: &ShapeFloat,
        _: &ShapeTensor,
        residual: Option<&ShapeTensor>,
        _: &mut ShapeFloat,
    ) -> Result<ShapeTensor> {
        check::same("rmsnorm_backward", (dy.rows, dy.cols), (x.rows, x.cols))?;
        let streams = if residual.is_some() { 4 } else { 3 };
        self.moved(streams * x.rows * x.cols);
        Ok(self.tensor_of(x.rows, x.cols))
    }

    fn qk_norm_rope(
        &self,
        qkv: &ShapeTensor,
        heads: Heads,
        _: &ShapeIds,
        _: &RopeTable<Self>,
        norms: Option<Norms<'_, Self>>,
    ) -> Result<(ShapeTensor, Option<ShapeFloat>)> {
        check::qkv("qk_norm_rope", qkv.cols, heads)?;
        self.moved(2 * qkv.rows * qkv.cols);
        let stat = norms.map(|_| self.float_of(qkv.rows, heads.query + heads.kv));
        Ok((self.tensor_of(qkv.rows, qkv.cols), stat))
    }
    fn qk_norm_rope_backward(
        &self,
        dqkv: &ShapeTensor,
        _: Heads,
        _: &ShapeIds,
        _: &RopeTable<Self>,
        norms: Option<(Norms<'_, Self>, &ShapeTensor, &ShapeFloat)>,
        _: Option<(&mut ShapeFloat, &mut ShapeFloat)>,
    ) -> Result<ShapeTensor> {
        let streams = if norms.is_some() { 3 } else { 2 };
        self.moved(streams * dqkv.rows * dqkv.cols);
        Ok(self.tensor_of(dqkv.rows, dqkv.cols))
    }

    fn attention(
        &self,
        qkv: &ShapeTensor,
        heads: Heads,
        sequences: &Sequences,
        _: f64,
    ) -> Result<(ShapeTensor, ShapeFloat)> {
        check::qkv("attention", qkv.cols, heads)?;
        check::sequences("attention", sequences, qkv.rows)?;
        self.attended(heads, causal_pairs(sequences), false);
        let out = self.tensor_of(qkv.rows, heads.out_cols());
        let lse = self.float_of(heads.query, qkv.rows);
        self.laid_out(qkv.rows * heads.kv * heads.dim);
        Ok((out, lse))
    }
    fn attention_backward(
        &self,
        _: &ShapeTensor,
        qkv: &ShapeTensor,
        _: &ShapeTensor,
        _: &ShapeFloat,
        heads: Heads,
        sequences: &Sequences,
        _: f64,
    ) -> Result<ShapeTensor> {
        self.attended(heads, causal_pairs(sequences), true);
        let dqkv = self.tensor_of(qkv.rows, qkv.cols);
        // Keys and values, and each query head's gradient of them.
        self.laid_out(qkv.rows * 2 * (heads.kv + heads.query) * heads.dim);
        Ok(dqkv)
    }
    fn attend_keys(
        &self,
        qkv: &ShapeTensor,
        _: &ShapeTensor,
        heads: Heads,
        spans: &[KeySpan],
        _: f64,
        _: &ShapeTensor,
        _: &ShapeFloat,
    ) -> Result<(ShapeTensor, ShapeFloat)> {
        self.attended(heads, span_pairs(spans), false);
        Ok((
            self.tensor_of(qkv.rows, heads.out_cols()),
            self.float_of(heads.query, qkv.rows),
        ))
    }
    fn attend_keys_backward(
        &self,
        _: &ShapeTensor,
        qkv: &ShapeTensor,
        kv: &ShapeTensor,
        heads: Heads,
        spans: &[KeySpan],
        _: f64,
        _: &ShapeTensor,
        _: &ShapeFloat,
    ) -> Result<(ShapeTensor, ShapeTensor)> {
        self.attended(heads, span_pairs(spans), true);
        Ok((
            self.tensor_of(qkv.rows, qkv.cols),
            self.tensor_of(kv.rows, kv.cols),
        ))
    }

    fn kv_block_tokens(&self) -> usize {
        16
    }
    fn kv_cache(&self, _: usize, _: usize, _: Heads) -> Result<()> {
        Ok(())
    }
    fn tables(&self, _: &[usize], _: &[PagedSequence<'_>], _: usize) -> Result<()> {
        Ok(())
    }
    fn kv_write(&self, _: &mut (), _: usize, _: &ShapeTensor, _: Heads, (): &()) -> Result<()> {
        Ok(())
    }
    fn attention_paged(
        &self,
        _: &(),
        _: usize,
        qkv: &ShapeTensor,
        heads: Heads,
        (): &(),
        _: f64,
    ) -> Result<ShapeTensor> {
        Ok(self.tensor_of(qkv.rows, heads.out_cols()))
    }

    fn swiglu(&self, gate_up: &ShapeTensor) -> Result<ShapeTensor> {
        self.moved(3 * gate_up.rows * gate_up.cols / 2);
        Ok(self.tensor_of(gate_up.rows, gate_up.cols / 2))
    }
    fn swiglu_backward(&self, _: &ShapeTensor, gate_up: &ShapeTensor) -> Result<ShapeTensor> {
        self.moved(5 * gate_up.rows * gate_up.cols / 2);
        Ok(self.tensor_of(gate_up.rows, gate_up.cols))
    }

    fn computes(&self) -> bool {
        false
    }
    fn grouped_nt(&self, x: &ShapeTensor, w: &ShapeTensor, of: &[usize]) -> Result<ShapeTensor> {
        self.experts_nt(x, w, of)
    }
    fn grouped_nn(&self, dy: &ShapeTensor, w: &ShapeTensor, of: &[usize]) -> Result<ShapeTensor> {
        self.experts_nn(dy, w, of)
    }
    fn accumulate_grouped_tn(
        &self,
        dy: &ShapeTensor,
        x: &ShapeTensor,
        offsets: &[usize],
        dw: &mut ShapeFloat,
    ) -> Result<()> {
        self.experts_tn(dy, x, offsets, dw)
    }
    fn scale_rows(&self, x: &ShapeTensor, _: &ShapeFloat) -> Result<ShapeTensor> {
        self.moved(2 * x.rows * x.cols);
        Ok(self.tensor_of(x.rows, x.cols))
    }
    fn row_dots(&self, x: &ShapeTensor, _: &ShapeTensor) -> Result<ShapeFloat> {
        self.moved(2 * x.rows * x.cols);
        Ok(self.float_of(x.rows, 1))
    }
    fn sum_rows(&self, x: &ShapeTensor, places: &ShapeIds, each: usize) -> Result<ShapeTensor> {
        let rows = places.len / each.max(1);
        self.moved((places.len + rows) * x.cols);
        Ok(self.tensor_of(rows, x.cols))
    }
    fn map_columns(&self, inputs: &[&ShapeTensor], map: &ColumnMap) -> Result<ShapeTensor> {
        Ok(self.mapped(inputs, map))
    }
    fn heads_nn(&self, x: &ShapeTensor, w: &ShapeTensor, parts: HeadParts) -> Result<ShapeTensor> {
        self.heads("heads_nn", x, w, parts, false)
    }
    fn heads_nt(&self, x: &ShapeTensor, w: &ShapeTensor, parts: HeadParts) -> Result<ShapeTensor> {
        self.heads("heads_nt", x, w, parts, true)
    }
    fn reshape(&self, x: &ShapeTensor, rows: usize, cols: usize) -> Result<ShapeTensor> {
        check::same("reshape", (x.rows * x.cols, 1), (rows * cols, 1))?;
        let same = x.clone();
        Ok(ShapeTensor { rows, cols, ..same })
    }
    fn causal_conv(&self, x: &ShapeTensor, w: &ShapeTensor, _: &Sequences) -> Result<ShapeTensor> {
        self.convolved(x, w)
    }
    fn causal_conv_backward(
        &self,
        _: &ShapeTensor,
        x: &ShapeTensor,
        _: &ShapeTensor,
        _: &Sequences,
        dw: &mut ShapeFloat,
    ) -> Result<ShapeTensor> {
        Ok(self.convolved_gradient(x, dw))
    }
    fn gated_delta(
        &self,
        qkv: &ShapeTensor,
        _: &ShapeTensor,
        rule: &DeltaRule<'_, Self>,
        sequences: &Sequences,
    ) -> Result<ShapeTensor> {
        Ok(self.delta(qkv, rule.heads, sequences))
    }
    fn gated_delta_backward(
        &self,
        _: &ShapeTensor,
        qkv: &ShapeTensor,
        gates: &ShapeTensor,
        rule: &DeltaRule<'_, Self>,
        sequences: &Sequences,
        _: (&mut ShapeFloat, &mut ShapeFloat),
    ) -> Result<(ShapeTensor, ShapeTensor)> {
        Ok(self.delta_gradient(qkv, gates, rule.heads, sequences))
    }
    fn gated_delta_paged(
        &self,
        _: &mut ShapeFloat,
        x: &ShapeTensor,
        _: &ShapeTensor,
        _: &ShapeTensor,
        rule: &DeltaRule<'_, Self>,
        _: &[PagedSequence<'_>],
    ) -> Result<ShapeTensor> {
        let h = rule.heads;
        self.delta_work(x.rows, h, 1);
        Ok(self.tensor_of(x.rows, h.values * h.value_dim))
    }
    fn gate(&self, x: &ShapeTensor, _: &ShapeTensor) -> Result<ShapeTensor> {
        self.moved(3 * x.rows * x.cols);
        Ok(self.tensor_of(x.rows, x.cols))
    }
    fn gate_backward(
        &self,
        _: &ShapeTensor,
        x: &ShapeTensor,
        _: &ShapeTensor,
    ) -> Result<(ShapeTensor, ShapeTensor)> {
        self.moved(5 * x.rows * x.cols);
        let like = || self.tensor_of(x.rows, x.cols);
        Ok((like(), like()))
    }

    fn logits_chunk_bytes(&self) -> usize {
        self.meter.widths().logits_chunk
    }
    fn logits(&self, h: &ShapeTensor, w: &ShapeTensor) -> Result<ShapeFloat> {
        let z = self.float_of(h.rows, w.rows);
        self.gemm(h.rows, w.rows, h.cols);
        Ok(z)
    }
    fn token_stats(
        &self,
        logits: &ShapeFloat,
        targets: &ShapeIds,
        _: f64,
        _: usize,
    ) -> Result<TokenStats> {
        check::ids("token_stats", "targets", targets.len, logits.rows)?;
        let bytes = self.meter.widths().float * logits.rows * logits.cols;
        self.meter.note(Work::Move { bytes });
        // lse is log of the vocabulary, so that merging parts of a vocabulary stays finite.
        let of = |x: f64| vec![x; logits.rows];
        Ok(TokenStats {
            logprob: of(-1.0),
            entropy: of(1.0),
            lse: of(1.0),
        })
    }
    fn logits_backward(
        &self,
        logits: ShapeFloat,
        _: &ShapeIds,
        _: f64,
        _: usize,
        _: &TokenStats,
        _: &[f64],
        _: &[f64],
    ) -> Result<ShapeTensor> {
        let widths = self.meter.widths();
        let bytes = (widths.float + widths.tensor) * logits.rows * logits.cols;
        self.meter.note(Work::Move { bytes });
        let (rows, cols) = (logits.rows, logits.cols);
        if widths.gradient_overwrites_logits {
            drop(logits);
        }
        Ok(self.tensor_of(rows, cols))
    }

    fn join(&self, parts: &[(&ShapeTensor, Range<usize>)], len: usize) -> Result<ShapeTensor> {
        let taken: usize = parts.iter().map(|(_, range)| range.len()).sum();
        self.moved(2 * taken);
        Ok(self.tensor_of(1, len))
    }
    fn cut(
        &self,
        _: &ShapeTensor,
        _: Range<usize>,
        rows: usize,
        cols: usize,
    ) -> Result<ShapeTensor> {
        self.moved(2 * rows * cols);
        Ok(self.tensor_of(rows, cols))
    }
    fn join_float(&self, parts: &[(&ShapeFloat, Range<usize>)], len: usize) -> Result<ShapeFloat> {
        let taken: usize = parts.iter().map(|(_, range)| range.len()).sum();
        let bytes = 2 * taken * self.meter.widths().float;
        self.meter.note(Work::Move { bytes });
        Ok(self.float_of(1, len))
    }
    fn cut_float(
        &self,
        _: &ShapeFloat,
        _: Range<usize>,
        rows: usize,
        cols: usize,
    ) -> Result<ShapeFloat> {
        let bytes = 2 * rows * cols * self.meter.widths().float;
        self.meter.note(Work::Move { bytes });
        Ok(self.float_of(rows, cols))
    }
    fn lay_out(
        &self,
        _: &[Patch<'_, ShapeTensor>],
        rows: usize,
        cols: usize,
    ) -> Result<ShapeTensor> {
        self.moved(2 * rows * cols);
        Ok(self.tensor_of(rows, cols))
    }
    fn columns(&self, x: &ShapeTensor, cols: Range<usize>) -> Result<ShapeTensor> {
        self.moved(2 * x.rows * cols.len());
        Ok(self.tensor_of(x.rows, cols.len()))
    }
    fn add_columns(&self, x: &ShapeTensor, y: &ShapeTensor, _: usize) -> Result<ShapeTensor> {
        self.moved(2 * x.rows * x.cols + y.rows * y.cols);
        Ok(self.tensor_of(x.rows, x.cols))
    }

    fn sum_squares(&self, x: &ShapeFloat) -> Result<f64> {
        let bytes = self.meter.widths().float * x.rows * x.cols;
        self.meter.note(Work::Move { bytes });
        Ok(1.0)
    }
    fn compact_moment(&self, rows: usize, cols: usize) -> Result<ShapeFloat> {
        Ok(self.compact_of(rows, cols))
    }
    fn compact_master(&self, weight: &ShapeTensor) -> Result<ShapeFloat> {
        Ok(self.compact_of(weight.rows, weight.cols))
    }
    fn adamw(
        &self,
        _: &AdamW,
        grad: &ShapeFloat,
        m: &mut ShapeFloat,
        v: &mut ShapeFloat,
        master: Option<&mut ShapeFloat>,
        _: &mut ShapeTensor,
    ) -> Result<()> {
        // Gradient read; moments and master read and written; weight written.
        let states = m.width + v.width + master.map_or(0, |master| master.width);
        let each = grad.width + 2 * states + self.meter.widths().tensor;
        let bytes = grad.rows * grad.cols * each;
        self.meter.note(Work::Move { bytes });
        Ok(())
    }
}
