//! [`Ops`] on the CPU: every operation is one line that goes to its folder. A macro and not a generic `impl`, so
//! that the kernels are compiled here once, optimised, and not again in every crate that uses them.

use super::element::private::Number;
use super::{Cpu, CpuFloat, CpuIds, CpuTensor};
use crate::gated_delta::cpu::Rule;
use crate::paged_attention::cpu::{CpuKvCache, CpuTables};
use crate::qk_norm_rope::cpu::{HeadNorms, Rope};
use crate::{
    AdamW, ColumnMap, DeltaRule, HeadParts, Heads, KeySpan, Norms, Ops, PagedSequence, Patch,
    Result, RopeTable, Sequences, TokenStats, adamw, attend_keys, attention, causal_conv, check,
    columns, embedding, gate, gated_delta, grouped_matmul, head, head_matmul, matmul,
    paged_attention, pieces, qk_norm_rope, rmsnorm, rows, swiglu,
};
use std::ops::Range;

fn convert<From: Number, To: Number>(
    op: &'static str,
    rows: usize,
    cols: usize,
    data: &[From],
    to: &mut [To],
) -> Result<()> {
    check::that(rows * cols == data.len(), op, || {
        format!("{} numbers for [{rows}, {cols}]", data.len())
    })?;
    for (to, from) in to.iter_mut().zip(data) {
        *to = To::from_f64(from.to_f64());
    }
    Ok(())
}

fn widened<T: Number>(data: &[T]) -> Vec<f64> {
    data.iter().map(|x| x.to_f64()).collect()
}

fn rounded<T: Number>(data: &[T]) -> Vec<f32> {
    data.iter().map(|x| x.to_f64() as f32).collect()
}

fn rule<'a, T: super::Element, O>(rule: &DeltaRule<'a, O>) -> Rule<'a, T>
where
    O: Ops<Tensor = CpuTensor<T>>,
{
    Rule {
        heads: rule.heads,
        a_log: rule.a_log,
        dt_bias: rule.dt_bias,
    }
}

macro_rules! ops {
    ($t:ty) => {
        impl Ops for Cpu<$t> {
            type Tensor = CpuTensor<$t>;
            type Float = CpuFloat<$t>;
            type Ids = CpuIds;
            type KvCache = CpuKvCache<$t>;
            type Tables = CpuTables;

            fn tensor(&self, rows: usize, cols: usize, data: &[f32]) -> Result<Self::Tensor> {
                let mut to = self.take(data.len());
                convert("tensor", rows, cols, data, &mut to)?;
                Ok(CpuTensor::new(rows, cols, to))
            }
            fn tensor_f64(&self, rows: usize, cols: usize, data: &[f64]) -> Result<Self::Tensor> {
                let mut to = self.take(data.len());
                convert("tensor", rows, cols, data, &mut to)?;
                Ok(CpuTensor::new(rows, cols, to))
            }
            fn shape(&self, x: &Self::Tensor) -> (usize, usize) {
                (x.rows, x.cols)
            }
            fn read(&self, x: &Self::Tensor) -> Result<Vec<f32>> {
                Ok(rounded(x.data()))
            }
            fn read_f64(&self, x: &Self::Tensor) -> Result<Vec<f64>> {
                Ok(widened(x.data()))
            }
            fn adopt(&self, _other: &Self, tensors: &[Self::Tensor]) -> Result<Vec<Self::Tensor>> {
                // Whoever changes one that is shared copies it first.
                Ok(tensors.to_vec())
            }
            fn all_finite(&self, tensors: &[Self::Tensor]) -> Result<bool> {
                // No short cut, so that it vectorises.
                let finite =
                    |x: &Self::Tensor| x.data().iter().fold(true, |ok, x| ok & x.is_finite());
                Ok(tensors.iter().all(finite))
            }
            fn float_zeros(&self, rows: usize, cols: usize) -> Result<Self::Float> {
                Ok(CpuFloat::new(rows, cols, self.zeros(rows * cols)))
            }
            fn float(&self, rows: usize, cols: usize, data: &[f32]) -> Result<Self::Float> {
                let mut to = self.take(data.len());
                convert("float", rows, cols, data, &mut to)?;
                Ok(CpuFloat::new(rows, cols, to))
            }
            fn float_f64(&self, rows: usize, cols: usize, data: &[f64]) -> Result<Self::Float> {
                let mut to = self.take(data.len());
                convert("float", rows, cols, data, &mut to)?;
                Ok(CpuFloat::new(rows, cols, to))
            }
            fn float_shape(&self, x: &Self::Float) -> (usize, usize) {
                (x.rows, x.cols)
            }
            fn read_float(&self, x: &Self::Float) -> Result<Vec<f32>> {
                Ok(rounded(&x.data))
            }
            fn read_float_f64(&self, x: &Self::Float) -> Result<Vec<f64>> {
                Ok(widened(&x.data))
            }
            fn zero(&self, x: &mut Self::Float) -> Result<()> {
                x.data.fill(0.0);
                Ok(())
            }
            fn ids(&self, ids: &[u32]) -> Result<Self::Ids> {
                Ok(CpuIds(ids.to_vec()))
            }

            fn gather_rows(&self, x: &Self::Tensor, rows: &Self::Ids) -> Result<Self::Tensor> {
                rows::cpu::gather(self, "gather_rows", x, rows)
            }
            fn scatter_rows(
                &self,
                x: &Self::Tensor,
                rows: &Self::Ids,
                num_rows: usize,
            ) -> Result<Self::Tensor> {
                rows::cpu::scatter(self, x, rows, num_rows)
            }
            fn add(&self, x: &Self::Tensor, y: &Self::Tensor) -> Result<Self::Tensor> {
                rows::cpu::add(self, x, y)
            }
            fn sum(&self, all: &[&Self::Tensor]) -> Result<Self::Tensor> {
                rows::cpu::sum_of(self, all)
            }
            fn add_bias(&self, x: &Self::Tensor, b: &Self::Tensor) -> Result<Self::Tensor> {
                rows::cpu::add_bias(self, x, b)
            }
            fn accumulate_bias(&self, dy: &Self::Tensor, db: &mut Self::Float) -> Result<()> {
                rows::cpu::accumulate_bias(self, dy, db)
            }

            fn join(
                &self,
                parts: &[(&Self::Tensor, Range<usize>)],
                len: usize,
            ) -> Result<Self::Tensor> {
                let mut to = self.take(len);
                pieces::join("join", parts.iter().map(|(x, r)| (x.data(), r)), &mut to)?;
                Ok(CpuTensor::new(1, len, to))
            }
            fn cut(
                &self,
                x: &Self::Tensor,
                range: Range<usize>,
                rows: usize,
                cols: usize,
            ) -> Result<Self::Tensor> {
                let mut to = self.take(rows * cols);
                pieces::cut("cut", x.data(), range, &mut to)?;
                Ok(CpuTensor::new(rows, cols, to))
            }
            fn join_float(
                &self,
                parts: &[(&Self::Float, Range<usize>)],
                len: usize,
            ) -> Result<Self::Float> {
                let mut to = self.take(len);
                let parts = parts.iter().map(|(x, r)| (&x.data[..], r));
                pieces::join("join_float", parts, &mut to)?;
                Ok(CpuFloat::new(1, len, to))
            }
            fn cut_float(
                &self,
                x: &Self::Float,
                range: Range<usize>,
                rows: usize,
                cols: usize,
            ) -> Result<Self::Float> {
                let mut to = self.take(rows * cols);
                pieces::cut("cut_float", &x.data, range, &mut to)?;
                Ok(CpuFloat::new(rows, cols, to))
            }
            fn columns(&self, x: &Self::Tensor, cols: Range<usize>) -> Result<Self::Tensor> {
                let (rows, width) = (x.rows, cols.len());
                let mut to = self.take(rows * width);
                pieces::columns(x.data(), x.cols, cols, &mut to)?;
                Ok(CpuTensor::new(rows, width, to))
            }
            fn add_columns(
                &self,
                x: &Self::Tensor,
                y: &Self::Tensor,
                at: usize,
            ) -> Result<Self::Tensor> {
                pieces::check_added((x.rows, x.cols), (y.rows, y.cols), at)?;
                let mut to = self.take(x.rows * x.cols);
                to.copy_from_slice(x.data());
                let added = y.data().chunks_exact(y.cols.max(1));
                for (row, added) in to.chunks_exact_mut(x.cols.max(1)).zip(added) {
                    row[at..].iter_mut().zip(added).for_each(|(to, y)| *to += y);
                }
                Ok(CpuTensor::new(x.rows, x.cols, to))
            }
            fn lay_out(
                &self,
                patches: &[Patch<'_, Self::Tensor>],
                rows: usize,
                cols: usize,
            ) -> Result<Self::Tensor> {
                pieces::check_patches(patches, |x| x.data().len(), rows * cols)?;
                let mut to = self.take(rows * cols);
                for patch in patches {
                    pieces::lay(patch, patch.from.data(), &mut to);
                }
                Ok(CpuTensor::new(rows, cols, to))
            }

            fn scale_rows(&self, x: &Self::Tensor, p: &Self::Float) -> Result<Self::Tensor> {
                rows::cpu::scale(self, x, p)
            }
            fn row_dots(&self, x: &Self::Tensor, y: &Self::Tensor) -> Result<Self::Float> {
                rows::cpu::dots(self, x, y)
            }
            fn sum_rows(
                &self,
                x: &Self::Tensor,
                places: &Self::Ids,
                each: usize,
            ) -> Result<Self::Tensor> {
                rows::cpu::sum(self, x, places, each)
            }
            fn map_columns(
                &self,
                inputs: &[&Self::Tensor],
                map: &ColumnMap,
            ) -> Result<Self::Tensor> {
                columns::cpu::map(self, inputs, map)
            }

            fn matmul_nt(&self, x: &Self::Tensor, w: &Self::Tensor) -> Result<Self::Tensor> {
                matmul::cpu::nt(self, x, w)
            }
            fn matmul_nn(&self, dy: &Self::Tensor, w: &Self::Tensor) -> Result<Self::Tensor> {
                matmul::cpu::nn(self, dy, w)
            }
            fn room(&self, rows: usize, cols: usize) -> Result<Self::Tensor> {
                Ok(CpuTensor::new(rows, cols, self.take(rows * cols)))
            }
            fn put_nt(
                &self,
                x: &Self::Tensor,
                w: &Self::Tensor,
                y: &mut Self::Tensor,
                at: usize,
            ) -> Result<()> {
                matmul::cpu::put(&matmul::cpu::nt(self, x, w)?, y, at)
            }
            fn put_nn(
                &self,
                dy: &Self::Tensor,
                w: &Self::Tensor,
                dx: &mut Self::Tensor,
                at: usize,
            ) -> Result<()> {
                matmul::cpu::put(&matmul::cpu::nn(self, dy, w)?, dx, at)
            }
            fn accumulate_tn(
                &self,
                dy: &Self::Tensor,
                x: &Self::Tensor,
                dw: &mut Self::Float,
            ) -> Result<()> {
                matmul::cpu::accumulate_tn(self, dy, x, dw)
            }

            fn grouped_nt(
                &self,
                x: &Self::Tensor,
                w: &Self::Tensor,
                offsets: &[usize],
            ) -> Result<Self::Tensor> {
                grouped_matmul::cpu::nt(self, x, w, offsets)
            }
            fn grouped_nn(
                &self,
                dy: &Self::Tensor,
                w: &Self::Tensor,
                offsets: &[usize],
            ) -> Result<Self::Tensor> {
                grouped_matmul::cpu::nn(self, dy, w, offsets)
            }
            fn accumulate_grouped_tn(
                &self,
                dy: &Self::Tensor,
                x: &Self::Tensor,
                offsets: &[usize],
                dw: &mut Self::Float,
            ) -> Result<()> {
                grouped_matmul::cpu::accumulate_tn(self, dy, x, offsets, dw)
            }
            fn heads_nn(
                &self,
                x: &Self::Tensor,
                w: &Self::Tensor,
                parts: HeadParts,
            ) -> Result<Self::Tensor> {
                head_matmul::cpu::product(self, "heads_nn", x, w, parts, false)
            }
            fn heads_nt(
                &self,
                x: &Self::Tensor,
                w: &Self::Tensor,
                parts: HeadParts,
            ) -> Result<Self::Tensor> {
                head_matmul::cpu::product(self, "heads_nt", x, w, parts, true)
            }

            fn embed(&self, table: &Self::Tensor, ids: &Self::Ids) -> Result<Self::Tensor> {
                embedding::cpu::forward(self, table, ids)
            }
            fn accumulate_embed(
                &self,
                dx: &Self::Tensor,
                ids: &Self::Ids,
                dtable: &mut Self::Float,
            ) -> Result<()> {
                embedding::cpu::backward(dx, ids, dtable)
            }

            fn rmsnorm(
                &self,
                x: &Self::Tensor,
                w: &Self::Tensor,
                eps: f64,
            ) -> Result<(Self::Tensor, Self::Float)> {
                rmsnorm::cpu::forward(self, x, w, eps)
            }
            fn add_rmsnorm(
                &self,
                x: &Self::Tensor,
                delta: &Self::Tensor,
                w: &Self::Tensor,
                eps: f64,
            ) -> Result<(Self::Tensor, Self::Tensor, Self::Float)> {
                rmsnorm::cpu::add_forward(self, x, delta, w, eps)
            }
            fn rmsnorm_backward(
                &self,
                dy: &Self::Tensor,
                x: &Self::Tensor,
                r: &Self::Float,
                w: &Self::Tensor,
                residual: Option<&Self::Tensor>,
                dw: &mut Self::Float,
            ) -> Result<Self::Tensor> {
                rmsnorm::cpu::backward(self, dy, x, r, w, residual, dw)
            }

            fn qk_norm_rope(
                &self,
                qkv: &Self::Tensor,
                heads: Heads,
                positions: &Self::Ids,
                rope: &RopeTable<Self>,
                norms: Option<Norms<'_, Self>>,
            ) -> Result<(Self::Tensor, Option<Self::Float>)> {
                qk_norm_rope::cpu::forward(
                    self,
                    qkv,
                    heads,
                    positions,
                    &Rope::new(rope),
                    norms.as_ref().map(HeadNorms::new),
                )
            }
            fn qk_norm_rope_backward(
                &self,
                dqkv: &Self::Tensor,
                heads: Heads,
                positions: &Self::Ids,
                rope: &RopeTable<Self>,
                norms: Option<(Norms<'_, Self>, &Self::Tensor, &Self::Float)>,
                dnorms: Option<(&mut Self::Float, &mut Self::Float)>,
            ) -> Result<Self::Tensor> {
                let norms = norms
                    .as_ref()
                    .map(|(norms, qkv, r)| (HeadNorms::new(norms), *qkv, *r));
                qk_norm_rope::cpu::backward(
                    self,
                    dqkv,
                    heads,
                    positions,
                    &Rope::new(rope),
                    norms,
                    dnorms,
                )
            }

            fn attention(
                &self,
                qkv: &Self::Tensor,
                heads: Heads,
                sequences: &Sequences,
                scale: f64,
            ) -> Result<(Self::Tensor, Self::Float)> {
                attention::cpu::forward(self, qkv, heads, sequences, scale)
            }
            fn attention_backward(
                &self,
                dout: &Self::Tensor,
                qkv: &Self::Tensor,
                out: &Self::Tensor,
                lse: &Self::Float,
                heads: Heads,
                sequences: &Sequences,
                scale: f64,
            ) -> Result<Self::Tensor> {
                attention::cpu_backward::backward(
                    self, dout, qkv, out, lse, heads, sequences, scale,
                )
            }

            #[allow(clippy::too_many_arguments, reason = "the operands of one merge")]
            fn attend_keys(
                &self,
                qkv: &Self::Tensor,
                kv: &Self::Tensor,
                heads: Heads,
                spans: &[KeySpan],
                scale: f64,
                out: &Self::Tensor,
                lse: &Self::Float,
            ) -> Result<(Self::Tensor, Self::Float)> {
                attend_keys::forward(self, qkv, kv, heads, spans, scale, out, lse)
            }
            #[allow(
                clippy::too_many_arguments,
                reason = "the operands of one fused backward"
            )]
            fn attend_keys_backward(
                &self,
                dout: &Self::Tensor,
                qkv: &Self::Tensor,
                kv: &Self::Tensor,
                heads: Heads,
                spans: &[KeySpan],
                scale: f64,
                out: &Self::Tensor,
                lse: &Self::Float,
            ) -> Result<(Self::Tensor, Self::Tensor)> {
                attend_keys::backward(self, dout, qkv, kv, heads, spans, scale, out, lse)
            }

            fn kv_block_tokens(&self) -> usize {
                attention::cpu::BLOCK
            }
            fn kv_cache(
                &self,
                num_layers: usize,
                num_blocks: usize,
                heads: Heads,
            ) -> Result<Self::KvCache> {
                paged_attention::cpu::cache(self, num_layers, num_blocks, heads)
            }
            fn tables(
                &self,
                slots: &[usize],
                sequences: &[PagedSequence<'_>],
                _longest: usize,
            ) -> Result<CpuTables> {
                Ok(CpuTables::new(slots, sequences))
            }
            fn kv_write(
                &self,
                cache: &mut Self::KvCache,
                layer: usize,
                qkv: &Self::Tensor,
                heads: Heads,
                tables: &CpuTables,
            ) -> Result<()> {
                paged_attention::cpu::write(cache, layer, qkv, heads, tables)
            }
            fn attention_paged(
                &self,
                cache: &Self::KvCache,
                layer: usize,
                qkv: &Self::Tensor,
                heads: Heads,
                tables: &CpuTables,
                scale: f64,
            ) -> Result<Self::Tensor> {
                paged_attention::cpu::forward(self, cache, layer, qkv, heads, tables, scale)
            }

            fn swiglu(&self, gate_up: &Self::Tensor) -> Result<Self::Tensor> {
                swiglu::cpu::forward(self, gate_up)
            }
            fn swiglu_backward(
                &self,
                da: &Self::Tensor,
                gate_up: &Self::Tensor,
            ) -> Result<Self::Tensor> {
                swiglu::cpu::backward(self, da, gate_up)
            }

            fn reshape(&self, x: &Self::Tensor, rows: usize, cols: usize) -> Result<Self::Tensor> {
                check::that(rows * cols == x.rows * x.cols, "reshape", || {
                    format!("{x:?} as [{rows}, {cols}]")
                })?;
                Ok(x.reshaped(rows, cols))
            }
            fn gate(&self, x: &Self::Tensor, gate: &Self::Tensor) -> Result<Self::Tensor> {
                gate::cpu::forward(self, x, gate)
            }
            fn gate_backward(
                &self,
                dy: &Self::Tensor,
                x: &Self::Tensor,
                gate: &Self::Tensor,
            ) -> Result<(Self::Tensor, Self::Tensor)> {
                gate::cpu::backward(self, dy, x, gate)
            }
            fn causal_conv(
                &self,
                x: &Self::Tensor,
                w: &Self::Tensor,
                sequences: &Sequences,
            ) -> Result<Self::Tensor> {
                causal_conv::cpu::forward(self, x, w, sequences)
            }
            fn causal_conv_backward(
                &self,
                dy: &Self::Tensor,
                x: &Self::Tensor,
                w: &Self::Tensor,
                sequences: &Sequences,
                dw: &mut Self::Float,
            ) -> Result<Self::Tensor> {
                causal_conv::cpu::backward(self, dy, x, w, sequences, dw)
            }
            fn gated_delta(
                &self,
                qkv: &Self::Tensor,
                gates: &Self::Tensor,
                weights: &DeltaRule<'_, Self>,
                sequences: &Sequences,
            ) -> Result<Self::Tensor> {
                gated_delta::cpu::forward(self, qkv, gates, rule(weights), sequences)
            }
            fn gated_delta_backward(
                &self,
                dout: &Self::Tensor,
                qkv: &Self::Tensor,
                gates: &Self::Tensor,
                weights: &DeltaRule<'_, Self>,
                sequences: &Sequences,
                (da_log, ddt_bias): (&mut Self::Float, &mut Self::Float),
            ) -> Result<(Self::Tensor, Self::Tensor)> {
                gated_delta::cpu_backward::backward(
                    self,
                    dout,
                    qkv,
                    gates,
                    rule(weights),
                    sequences,
                    da_log,
                    ddt_bias,
                )
            }
            fn gated_delta_paged(
                &self,
                states: &mut Self::Float,
                x: &Self::Tensor,
                conv: &Self::Tensor,
                gates: &Self::Tensor,
                weights: &DeltaRule<'_, Self>,
                sequences: &[PagedSequence<'_>],
            ) -> Result<Self::Tensor> {
                gated_delta::cpu::paged(self, states, x, conv, gates, rule(weights), sequences)
            }

            fn logits(&self, h: &Self::Tensor, w: &Self::Tensor) -> Result<Self::Float> {
                matmul::cpu::nt_float(self, h, w)
            }
            fn token_stats(
                &self,
                logits: &Self::Float,
                targets: &Self::Ids,
                inv_temperature: f64,
                vocab: usize,
            ) -> Result<TokenStats> {
                head::cpu::token_stats(logits, targets, inv_temperature, vocab)
            }
            fn logits_backward(
                &self,
                logits: Self::Float,
                targets: &Self::Ids,
                inv_temperature: f64,
                vocab: usize,
                stats: &TokenStats,
                a: &[f64],
                b: &[f64],
            ) -> Result<Self::Tensor> {
                head::cpu::logits_backward(logits, targets, inv_temperature, vocab, stats, a, b)
            }

            fn sum_squares(&self, x: &Self::Float) -> Result<f64> {
                Ok(adamw::cpu::sum_squares(x))
            }
            fn adamw(
                &self,
                step: &AdamW,
                grad: &Self::Float,
                m: &mut Self::Float,
                v: &mut Self::Float,
                master: Option<&mut Self::Float>,
                weight: &mut Self::Tensor,
            ) -> Result<()> {
                adamw::cpu::step(step, grad, m, v, master, weight)
            }
        }
    };
}

ops!(f32);
ops!(f64);
