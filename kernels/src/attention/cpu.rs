//! On the CPU. A task takes some consecutive tokens of one sequence for one key head, with all query heads that
//! share it, and goes over the keys once ([`attend`], which [`paged_attention`](crate::paged_attention) shares).
//! The backward is in [`backward`](super::cpu_backward).

use std::ops::Range;

use crate::cpu::gemm::pack;
use crate::cpu::gemm::tile::{self, Chain, Operands};
use crate::cpu::parallel::{self, Disjoint};
use crate::cpu::simd::{Simd, simd};
use crate::cpu::{Cpu, CpuFloat, CpuTensor, Element};
use crate::{Heads, Result, Sequences, check};

/// Keys that one round of the running softmax takes.
pub(crate) const TILE: usize = 64;
/// Keys that lie together, transposed: a block of the cache.
pub(crate) const BLOCK: usize = 16;
/// Query rows (tokens × heads of the group) a task takes.
const TASK_ROWS: usize = 64;

/// Keys and values of one sequence and one key head, in blocks of [`BLOCK`] tokens.
pub(crate) struct KeyValues<'a, T> {
    /// Each `[dim][BLOCK]`.
    pub(crate) keys: Vec<&'a [T]>,
    /// Each up to [`BLOCK`] rows of `dim`, `value_stride` apart.
    pub(crate) values: Vec<&'a [T]>,
    pub(crate) value_stride: usize,
}

/// Some consecutive tokens of a sequence, and the query heads of one key head.
pub(crate) struct Queries {
    /// Position of the first token in its sequence.
    pub(crate) first: usize,
    pub(crate) tokens: usize,
    /// Query heads.
    pub(crate) group: usize,
    pub(crate) dim: usize,
}

impl Queries {
    pub(crate) fn rows(&self) -> usize {
        self.tokens * self.group
    }
}

/// A task's own memory.
pub(crate) struct Scratch<'a, T> {
    /// `[rows, dim]`, queries times scale.
    pub(crate) q: &'a mut [T],
    /// `[rows, dim]`, the result.
    pub(crate) o: &'a mut [T],
    /// `[rows]`.
    pub(crate) lse: &'a mut [T],
    /// `[rows]`.
    pub(crate) max: &'a mut [T],
    /// `[rows, TILE]`.
    pub(crate) s: &'a mut [T],
}

impl<'a, T: Element> Scratch<'a, T> {
    /// Numbers it takes.
    pub(crate) fn len(rows: usize, dim: usize) -> usize {
        rows * (2 * dim + 2 + TILE)
    }

    pub(crate) fn split(memory: &'a mut [T], rows: usize, dim: usize) -> Self {
        let (q, rest) = memory.split_at_mut(rows * dim);
        let (o, rest) = rest.split_at_mut(rows * dim);
        let (lse, rest) = rest.split_at_mut(rows);
        let (max, s) = rest.split_at_mut(rows);
        Self { q, o, lse, max, s }
    }
}

simd! {
    /// Fills `o` and `lse` from `q`. Row `token × group + head` sees keys `0..=first + token`, and its sums run over
    /// them in an order that only its position fixes.
    pub(crate) fn attend<T, V>(queries: &Queries, kv: &KeyValues<'_, T>, scratch: &mut Scratch<'_, T>) {
        let Queries { first, tokens, group, dim } = *queries;
        let (rows, last) = (queries.rows(), first + tokens - 1);
        let Scratch { q, o, lse, max, s } = scratch;
        assert!(q.len() == rows * dim && o.len() == rows * dim && s.len() == rows * TILE);
        assert!(kv.keys.len() > last / BLOCK && kv.values.len() > last / BLOCK);
        o.fill(T::ZERO);
        lse.fill(T::ZERO); // the sum of exponentials until the end
        max.fill(T::NEG_INFINITY);
        for tile in 0..=last / TILE {
            let blocks = tile * (TILE / BLOCK)..((tile + 1) * (TILE / BLOCK)).min(last / BLOCK + 1);
            // Earlier tokens see nothing of this tile.
            let from = (tile * TILE).saturating_sub(first) * group;
            for (i, block) in blocks.clone().enumerate() {
                let keys = kv.keys[block];
                assert!(keys.len() >= dim * BLOCK);
                let a = Operands { a: q[from * dim..].as_ptr(), a_row: dim, a_k: 1, b: keys.as_ptr(), b_k: BLOCK };
                // SAFETY: q has the rows, the block `dim` rows of BLOCK, s rows of TILE with BLOCK columns from here.
                unsafe { tile::small(rows - from, BLOCK, dim, a, s[from * TILE + i * BLOCK..].as_mut_ptr(), TILE, Chain::Set) };
            }
            for row in from..rows {
                let seen = (first + row / group + 1 - tile * TILE).min(TILE);
                let s = &mut s[row * TILE..(row + 1) * TILE];
                let o = &mut o[row * dim..(row + 1) * dim];
                softmax_round::<T, V>(s, seen, &mut max[row], &mut lse[row], o);
            }
            for (i, block) in blocks.enumerate() {
                let values = kv.values[block];
                // Tokens from here on see the whole block; those before it see a part, one more key each.
                let whole = (block * BLOCK + BLOCK - 1).saturating_sub(first).min(tokens);
                let start = (block * BLOCK).saturating_sub(first);
                for token in start..whole {
                    let seen = first + token - block * BLOCK + 1;
                    add_values::<T, V>(token * group..(token + 1) * group, seen, i, s, values, kv.value_stride, o, dim);
                }
                add_values::<T, V>(whole * group..rows, BLOCK, i, s, values, kv.value_stride, o, dim);
            }
        }
        for row in 0..rows {
            let inverse = V::splat(T::ONE / lse[row]);
            let o = &mut o[row * dim..(row + 1) * dim];
            let mut i = 0;
            while i < dim {
                V::load_or(o, i, T::ZERO).mul(inverse).store(o, i);
                i += V::LANES;
            }
            lse[row] = max[row] + lse[row].ln();
        }
    }
}

/// Turns `seen` scores into `e^(s - max)`, the rest into 0, after raising `max` to them and scaling down what was summed.
#[inline(always)]
fn softmax_round<T: Element, V: Simd<T>>(
    s: &mut [T],
    seen: usize,
    max: &mut T,
    sum: &mut T,
    o: &mut [T],
) {
    s[seen..].fill(T::NEG_INFINITY);
    let mut greatest = V::splat(*max);
    let mut i = 0;
    while i < s.len() {
        greatest = V::load_or(s, i, T::ZERO).max(greatest);
        i += V::LANES;
    }
    let new_max = greatest.max_lane();
    let shift = V::splat(new_max);
    let mut round = V::splat(T::ZERO);
    let mut i = 0;
    while i < s.len() {
        let e = V::load_or(s, i, T::ZERO).sub(shift).exp();
        e.store(s, i);
        round = round.add(e);
        i += V::LANES;
    }
    let round = round.sum_lanes();
    if new_max > *max {
        // At the first round the factor is e^-inf = 0.
        let factor = (*max - new_max).exp();
        *max = new_max;
        *sum = *sum * factor;
        let mut i = 0;
        while i < o.len() {
            V::load_or(o, i, T::ZERO).mul(V::splat(factor)).store(o, i);
            i += V::LANES;
        }
    }
    *sum += round;
}

/// `o += P v` for the first `seen` keys of a block, the `i`th of its tile.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "a product's operands")]
fn add_values<T: Element, V: Simd<T>>(
    rows: Range<usize>,
    seen: usize,
    i: usize,
    s: &[T],
    values: &[T],
    stride: usize,
    o: &mut [T],
    dim: usize,
) {
    if rows.is_empty() {
        return;
    }
    assert!(
        values.len() >= (seen - 1) * stride + dim
            && s.len() >= rows.end * TILE
            && o.len() >= rows.end * dim
    );
    let a = Operands {
        a: s[rows.start * TILE + i * BLOCK..].as_ptr(),
        a_row: TILE,
        a_k: 1,
        b: values.as_ptr(),
        b_k: stride,
    };
    // SAFETY: s has BLOCK columns from there, the block `seen` rows of values, o the rows.
    unsafe {
        tile::small(
            rows.len(),
            dim,
            seen,
            a,
            o[rows.start * dim..].as_mut_ptr(),
            dim,
            Chain::Continue,
        )
    };
}

/// Copies the queries of `queries` that belong to key head `kv` out of packed rows, times `scale`.
pub(crate) fn load_queries<T: Element>(
    queries: &Queries,
    rows: Range<usize>,
    qkv: &CpuTensor<T>,
    kv: usize,
    scale: T,
    q: &mut [T],
) {
    let width = queries.group * queries.dim;
    for (row, q) in rows.zip(q.chunks_exact_mut(width)) {
        for (q, x) in q.iter_mut().zip(&qkv.row(row)[kv * width..]) {
            *q = *x * scale;
        }
    }
}

/// For each sequence and key head, the columns `[start, start + dim)` of its rows, transposed in blocks: `[dim][BLOCK]`,
/// zeros after the end.
pub(crate) struct Transposed {
    /// First block of each sequence.
    first: Vec<usize>,
    blocks: usize,
    dim: usize,
}

impl Transposed {
    pub(crate) fn new(sequences: &Sequences, dim: usize) -> Self {
        let mut first = vec![0];
        for range in sequences.ranges() {
            first.push(first[first.len() - 1] + range.len().div_ceil(BLOCK));
        }
        let blocks = first[first.len() - 1];
        Self { first, blocks, dim }
    }

    /// Numbers for `heads` heads.
    pub(crate) fn len(&self, heads: usize) -> usize {
        heads * self.blocks * self.dim * BLOCK
    }

    /// Fills `out` from rows of `x`; head `h` starts at column `start + h × dim`.
    pub(crate) fn fill<T: Element>(
        &self,
        x: &CpuTensor<T>,
        start: usize,
        heads: usize,
        sequences: &Sequences,
        out: &mut [T],
    ) {
        let size = self.dim * BLOCK;
        let rows: Vec<Range<usize>> = sequences
            .ranges()
            .flat_map(|r| {
                r.clone()
                    .step_by(BLOCK)
                    .map(move |from| from..(from + BLOCK).min(r.end))
            })
            .collect();
        let out = Disjoint::new(out);
        parallel::ranges(self.blocks, parallel::grain_rows(heads * size), |blocks| {
            for block in blocks {
                for h in 0..heads {
                    let at = (h * self.blocks + block) * size;
                    // SAFETY: every block is written by one task.
                    let out = unsafe { out.slice(at..at + size) };
                    let first = &x.data()[rows[block].start * x.cols + start + h * self.dim..];
                    pack::transpose(first, x.cols, rows[block].len(), 0..self.dim, BLOCK, out);
                }
            }
        });
    }

    /// The blocks of one sequence and head.
    pub(crate) fn blocks<'a, T>(
        &self,
        data: &'a [T],
        sequence: usize,
        head: usize,
    ) -> Vec<&'a [T]> {
        let size = self.dim * BLOCK;
        let range = head * self.blocks + self.first[sequence]
            ..head * self.blocks + self.first[sequence + 1];
        data[range.start * size..range.end * size]
            .chunks_exact(size)
            .collect()
    }
}

/// The rows of a sequence in blocks, from column `start` on.
pub(crate) fn row_blocks<T: Element>(
    x: &CpuTensor<T>,
    rows: Range<usize>,
    start: usize,
) -> Vec<&[T]> {
    let data = x.data();
    rows.clone()
        .step_by(BLOCK)
        .map(|row| &data[row * x.cols + start..(rows.end - 1) * x.cols + x.cols])
        .collect()
}

/// `(o, lse)`.
pub(crate) fn forward<T: Element>(
    cpu: &Cpu<T>,
    qkv: &CpuTensor<T>,
    heads: Heads,
    sequences: &Sequences,
    scale: f64,
) -> Result<(CpuTensor<T>, CpuFloat<T>)> {
    check::qkv("attention", qkv.cols, heads)?;
    check::sequences("attention", sequences, qkv.rows)?;
    let (tokens, dim, group) = (qkv.rows, heads.dim, heads.query / heads.kv);
    let out_cols = heads.out_cols();
    let scale = T::from_f64(scale);
    let transposed = Transposed::new(sequences, dim);
    let mut keys = cpu.take(transposed.len(heads.kv));
    transposed.fill(qkv, heads.query * dim, heads.kv, sequences, &mut keys);

    let task_tokens = (TASK_ROWS / group).max(1);
    // The longest-running tasks first.
    let mut tasks: Vec<(usize, usize, Range<usize>)> = Vec::new();
    for (sequence, rows) in sequences.ranges().enumerate() {
        for kv in 0..heads.kv {
            tasks.extend(
                (0..rows.len())
                    .step_by(task_tokens)
                    .map(|t| (sequence, kv, t..(t + task_tokens).min(rows.len()))),
            );
        }
    }
    tasks.sort_by_key(|(_, _, positions)| std::cmp::Reverse(positions.end));

    let (mut o, mut lse) = (cpu.take(tokens * out_cols), cpu.take(heads.query * tokens));
    {
        let (o, lse) = (Disjoint::new(&mut o), Disjoint::new(&mut lse));
        parallel::each(tasks.len(), |task| {
            let (sequence, kv, positions) = tasks[task].clone();
            let start = sequences.offsets[sequence];
            let all_rows = start..sequences.offsets[sequence + 1];
            let rows = start + positions.start..start + positions.end;
            let key_values = KeyValues {
                keys: transposed.blocks(&keys, sequence, kv),
                values: row_blocks(qkv, all_rows, (heads.query + heads.kv + kv) * dim),
                value_stride: qkv.cols,
            };
            let queries = Queries {
                first: positions.start,
                tokens: positions.len(),
                group,
                dim,
            };
            let mut memory = cpu.take(Scratch::<T>::len(queries.rows(), dim));
            let mut scratch = Scratch::split(&mut memory, queries.rows(), dim);
            load_queries(&queries, rows.clone(), qkv, kv, scale, scratch.q);
            attend(&queries, &key_values, &mut scratch);
            for (i, row) in rows.enumerate() {
                let at = row * out_cols + kv * group * dim;
                // SAFETY: a task owns these heads of its rows.
                unsafe { o.slice(at..at + group * dim) }
                    .copy_from_slice(&scratch.o[i * group * dim..(i + 1) * group * dim]);
                for g in 0..group {
                    let at = (kv * group + g) * tokens + row;
                    // SAFETY: as above.
                    unsafe { lse.slice(at..at + 1)[0] = scratch.lse[i * group + g] };
                }
            }
        });
    }
    Ok((
        CpuTensor::new(tokens, out_cols, o),
        CpuFloat::new(heads.query, tokens, lse),
    ))
}
