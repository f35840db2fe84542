//! The backward of [`super::cpu`]: a task takes one query head of one sequence and goes over keys in tiles; keys'
//! and values' gradients of a group's heads are added in the heads' order afterwards.

use crate::cpu::gemm::tile::{self, Chain, Operands};
use crate::cpu::parallel::{self, Disjoint};
use crate::cpu::simd::simd;
use crate::cpu::{Cpu, CpuFloat, CpuTensor, Element};
use crate::rows::cpu::{add_to, dot};
use crate::{Heads, Result, Sequences, check};

use super::cpu::{BLOCK, TILE, Transposed};

/// Queries taken at a time.
const QUERIES: usize = 64;

/// One query head of one sequence. Matrices are `[tokens, dim]` unless said.
struct Head<'a, T> {
    tokens: usize,
    dim: usize,
    scale: T,
    /// Times scale.
    q: &'a [T],
    /// In rows `qkv_stride` apart.
    k: &'a [T],
    qkv_stride: usize,
    /// In rows `out_stride` apart.
    dout: &'a [T],
    out_stride: usize,
    /// `[tokens]`.
    lse: &'a [T],
    /// `do·o`, `[tokens]`.
    d: &'a [T],
    /// Transposed, in blocks.
    keys: Vec<&'a [T]>,
    /// Transposed, in blocks.
    values: Vec<&'a [T]>,
}

#[allow(
    clippy::too_many_arguments,
    reason = "the operands of one fused backward"
)]
pub(crate) fn backward<T: Element>(
    cpu: &Cpu<T>,
    dout: &CpuTensor<T>,
    qkv: &CpuTensor<T>,
    out: &CpuTensor<T>,
    lse: &CpuFloat<T>,
    heads: Heads,
    sequences: &Sequences,
    scale: f64,
) -> Result<CpuTensor<T>> {
    let op = "attention_backward";
    check::qkv(op, qkv.cols, heads)?;
    check::sequences(op, sequences, qkv.rows)?;
    check::shape(
        op,
        "dout",
        (dout.rows, dout.cols),
        (qkv.rows, heads.out_cols()),
    )?;
    check::shape(
        op,
        "out",
        (out.rows, out.cols),
        (qkv.rows, heads.out_cols()),
    )?;
    check::shape(op, "lse", (lse.rows, lse.cols), (heads.query, qkv.rows))?;
    let (tokens, cols, dim, group) = (qkv.rows, qkv.cols, heads.dim, heads.query / heads.kv);
    let out_cols = heads.out_cols();
    let scale = T::from_f64(scale);
    let transposed = Transposed::new(sequences, dim);
    let mut keys = cpu.take(transposed.len(heads.kv));
    transposed.fill(qkv, heads.query * dim, heads.kv, sequences, &mut keys);
    let mut values = cpu.take(transposed.len(heads.kv));
    transposed.fill(
        qkv,
        (heads.query + heads.kv) * dim,
        heads.kv,
        sequences,
        &mut values,
    );

    let mut tasks: Vec<(usize, usize)> = (0..sequences.ranges().count())
        .flat_map(|sequence| (0..heads.query).map(move |h| (sequence, h)))
        .collect();
    let len = |sequence: usize| sequences.offsets[sequence + 1] - sequences.offsets[sequence];
    tasks.retain(|(sequence, _)| len(*sequence) > 0);
    tasks.sort_by_key(|(sequence, _)| std::cmp::Reverse(len(*sequence)));

    let mut dqkv = cpu.take(tokens * cols);
    // [query head][tokens, 2 dim]: keys' and values' gradients of each query head.
    let mut dkv = cpu.zeros(heads.query * tokens * 2 * dim);
    {
        let (dqkv, dkv) = (Disjoint::new(&mut dqkv), Disjoint::new(&mut dkv));
        parallel::each(tasks.len(), |task| {
            let (sequence, h) = tasks[task];
            let rows = sequences.offsets[sequence]..sequences.offsets[sequence + 1];
            let n = rows.len();
            let mut memory = cpu.take(n * (2 * dim + 1) + 2 * QUERIES * TILE);
            let (q, rest) = memory.split_at_mut(n * dim);
            let (dq, rest) = rest.split_at_mut(n * dim);
            let (d, s) = rest.split_at_mut(n);
            let head = h * dim..(h + 1) * dim;
            for (i, row) in rows.clone().enumerate() {
                for (q, x) in q[i * dim..(i + 1) * dim]
                    .iter_mut()
                    .zip(&qkv.row(row)[head.clone()])
                {
                    *q = *x * scale;
                }
                d[i] = dot(&dout.row(row)[head.clone()], &out.row(row)[head.clone()]);
            }
            let task = Head {
                tokens: n,
                dim,
                scale,
                q,
                k: &qkv.data()[rows.start * cols + (heads.query + h / group) * dim..],
                qkv_stride: cols,
                dout: &dout.data()[rows.start * out_cols + h * dim..],
                out_stride: out_cols,
                lse: &lse.data[h * tokens + rows.start..h * tokens + rows.end],
                d,
                keys: transposed.blocks(&keys, sequence, h / group),
                values: transposed.blocks(&values, sequence, h / group),
            };
            let at = (h * tokens + rows.start) * 2 * dim;
            // SAFETY: a task owns its head of its sequence.
            let dkv = unsafe { dkv.slice(at..at + n * 2 * dim) };
            head_backward(&task, s, dq, dkv);
            for (i, row) in rows.enumerate() {
                let at = row * cols + h * dim;
                // SAFETY: as above.
                unsafe { dqkv.slice(at..at + dim) }.copy_from_slice(&dq[i * dim..(i + 1) * dim]);
            }
        });
        parallel::ranges(
            tokens,
            parallel::grain_rows(heads.query * 2 * dim),
            |range| {
                for row in range {
                    for kv in 0..heads.kv {
                        let at = row * cols + (heads.query + kv) * dim;
                        // SAFETY: every row is written by one task, and the heads' tasks are done.
                        let dk = unsafe { dqkv.slice(at..at + dim) };
                        // SAFETY: as above; values lie behind all keys.
                        let dv =
                            unsafe { dqkv.slice(at + heads.kv * dim..at + heads.kv * dim + dim) };
                        for g in 0..group {
                            let at = ((kv * group + g) * tokens + row) * 2 * dim;
                            // SAFETY: as above.
                            let (from_k, from_v) =
                                unsafe { dkv.slice(at..at + 2 * dim) }.split_at(dim);
                            if g == 0 {
                                dk.copy_from_slice(from_k);
                                dv.copy_from_slice(from_v);
                            } else {
                                add_to(dk, from_k);
                                add_to(dv, from_v);
                            }
                        }
                    }
                }
            },
        );
    }
    Ok(CpuTensor::new(tokens, cols, dqkv))
}

simd! {
    /// `dq: [tokens, dim]` is written, `dkv: [tokens, 2 dim]` (keys' gradient, then values') added to; `s` is scratch
    /// of two tiles, `[QUERIES, TILE]` each.
    fn head_backward<T, V>(head: &Head<'_, T>, s: &mut [T], dq: &mut [T], dkv: &mut [T]) {
        let Head { tokens, dim, .. } = *head;
        assert!(s.len() == 2 * QUERIES * TILE && dq.len() == tokens * dim && dkv.len() == tokens * 2 * dim);
        assert!(head.q.len() == tokens * dim && head.lse.len() == tokens && head.d.len() == tokens);
        assert!(head.k.len() >= (tokens - 1) * head.qkv_stride + dim && head.dout.len() >= (tokens - 1) * head.out_stride + dim);
        let (p, ds) = s.split_at_mut(QUERIES * TILE);
        dq.fill(T::ZERO);
        let mut key = 0;
        while key < tokens {
            let keys = TILE.min(tokens - key);
            // Queries before the tile's first key see none of it.
            let mut query = key / QUERIES * QUERIES;
            while query < tokens {
                let queries = QUERIES.min(tokens - query);
                let dout = &head.dout[query * head.out_stride..];
                let q = &head.q[query * dim..];
                for block in 0..keys.div_ceil(BLOCK) {
                    let (k, v) = (head.keys[key / BLOCK + block], head.values[key / BLOCK + block]);
                    assert!(k.len() == dim * BLOCK && v.len() == dim * BLOCK);
                    let of_q = Operands { a: q.as_ptr(), a_row: dim, a_k: 1, b: k.as_ptr(), b_k: BLOCK };
                    let of_dout = Operands { a: dout.as_ptr(), a_row: head.out_stride, a_k: 1, b: v.as_ptr(), b_k: BLOCK };
                    // SAFETY: q and dout have the queries' rows, blocks `dim` rows of BLOCK, p and ds rows of TILE.
                    unsafe {
                        tile::small(queries, BLOCK, dim, of_q, p[block * BLOCK..].as_mut_ptr(), TILE, Chain::Set);
                        tile::small(queries, BLOCK, dim, of_dout, ds[block * BLOCK..].as_mut_ptr(), TILE, Chain::Set);
                    }
                }
                for i in 0..queries {
                    let (p, ds) = (&mut p[i * TILE..(i + 1) * TILE], &mut ds[i * TILE..(i + 1) * TILE]);
                    let seen = (query + i + 1).saturating_sub(key).min(keys);
                    p[seen..].fill(T::NEG_INFINITY);
                    ds[seen..].fill(T::ZERO);
                    let (lse, d) = (V::splat(head.lse[query + i]), V::splat(head.d[query + i]));
                    let mut j = 0;
                    while j < keys {
                        let e = V::load_or(p, j, T::ZERO).sub(lse).exp();
                        e.store(p, j);
                        e.mul(V::load_or(ds, j, T::ZERO).sub(d)).store(ds, j);
                        j += V::LANES;
                    }
                }
                let (dk, stride) = (dkv[key * 2 * dim..].as_mut_ptr(), 2 * dim);
                let (k, k_stride) = (&head.k[key * head.qkv_stride..], head.qkv_stride);
                let p_times_dout = Operands { a: p.as_ptr(), a_row: 1, a_k: TILE, b: dout.as_ptr(), b_k: head.out_stride };
                let ds_times_q = Operands { a: ds.as_ptr(), a_row: 1, a_k: TILE, b: q.as_ptr(), b_k: dim };
                let ds_times_k = Operands { a: ds.as_ptr(), a_row: TILE, a_k: 1, b: k.as_ptr(), b_k: k_stride };
                // SAFETY: p and ds are `[queries, TILE]` with `keys` columns filled; dkv has the keys' rows, each
                // `[dk | dv]`; dq, q, k and dout have the rows.
                unsafe {
                    tile::small(keys, dim, queries, p_times_dout, dk.add(dim), stride, Chain::Add);
                    tile::small(keys, dim, queries, ds_times_q, dk, stride, Chain::Add);
                    tile::small(queries, dim, keys, ds_times_k, dq[query * dim..].as_mut_ptr(), dim, Chain::Add);
                }
                query += queries;
            }
            key += keys;
        }
        let scale = V::splat(head.scale);
        let mut i = 0;
        while i < dq.len() {
            V::load_or(dq, i, T::ZERO).mul(scale).store(dq, i);
            i += V::LANES;
        }
    }
}
