//! On the CPU: finds a sequence's blocks and lets [`attend`](crate::attention::cpu::attend) do the rest.

use std::ops::Range;

use crate::attention::cpu::{BLOCK, KeyValues, Queries, Scratch, attend, load_queries};
use crate::cpu::buffer::Buffer;
use crate::cpu::parallel::{self, Disjoint};
use crate::cpu::{Cpu, CpuTensor, Element};
use crate::{Heads, PagedSequence, Result, check};

/// Query rows (tokens × heads of the group) a task takes.
const TASK_ROWS: usize = 64;

/// Keys and values of every layer: `[layer][block][kv head]` of keys `[dim][BLOCK]`, then values `[BLOCK][dim]`.
pub struct CpuKvCache<T: Element> {
    data: Buffer<T>,
    heads: Heads,
    num_layers: usize,
    num_blocks: usize,
}

/// Slots and sequences of a step.
pub struct CpuTables {
    slots: Vec<usize>,
    sequences: Vec<Sequence>,
}

/// A [`PagedSequence`] that owns its blocks.
struct Sequence {
    rows: Range<usize>,
    context: usize,
    blocks: Vec<u32>,
}

impl CpuTables {
    pub(crate) fn new(slots: &[usize], sequences: &[PagedSequence<'_>]) -> Self {
        let own = |s: &PagedSequence<'_>| Sequence {
            rows: s.rows.clone(),
            context: s.context,
            blocks: s.blocks.to_vec(),
        };
        Self {
            slots: slots.to_vec(),
            sequences: sequences.iter().map(own).collect(),
        }
    }
}

impl<T: Element> CpuKvCache<T> {
    /// Where the keys of a block begin; its values follow.
    fn offset(&self, layer: usize, block: usize, kv: usize) -> usize {
        ((layer * self.num_blocks + block) * self.heads.kv + kv) * 2 * self.heads.dim * BLOCK
    }

    fn check(
        &self,
        op: &'static str,
        layer: usize,
        qkv: &CpuTensor<T>,
        heads: Heads,
    ) -> Result<()> {
        check::qkv(op, qkv.cols, heads)?;
        check::that(heads == self.heads && layer < self.num_layers, op, || {
            format!(
                "layer {layer} of {heads:?} in a cache of {} layers of {:?}",
                self.num_layers, self.heads
            )
        })
    }
}

pub(crate) fn cache<T: Element>(
    cpu: &Cpu<T>,
    num_layers: usize,
    num_blocks: usize,
    heads: Heads,
) -> Result<CpuKvCache<T>> {
    check::qkv("kv_cache", heads.qkv_cols(), heads)?;
    let len = num_layers * num_blocks * heads.kv * 2 * heads.dim * BLOCK;
    Ok(CpuKvCache {
        data: cpu.zeros(len),
        heads,
        num_layers,
        num_blocks,
    })
}

pub(crate) fn write<T: Element>(
    cache: &mut CpuKvCache<T>,
    layer: usize,
    qkv: &CpuTensor<T>,
    heads: Heads,
    tables: &CpuTables,
) -> Result<()> {
    let slots = &tables.slots;
    cache.check("kv_write", layer, qkv, heads)?;
    check::ids("kv_write", "slots", slots.len(), qkv.rows)?;
    let dim = heads.dim;
    for (i, slot) in slots.iter().enumerate() {
        let (block, offset) = (slot / BLOCK, slot % BLOCK);
        check::that(block < cache.num_blocks, "kv_write", || {
            format!(
                "slot {slot} in a cache of {} blocks of {BLOCK}",
                cache.num_blocks
            )
        })?;
        let row = qkv.row(i);
        for kv in 0..heads.kv {
            let at = cache.offset(layer, block, kv);
            let (keys, values) = cache.data[at..at + 2 * dim * BLOCK].split_at_mut(dim * BLOCK);
            let key = &row[(heads.query + kv) * dim..][..dim];
            let value = &row[(heads.query + heads.kv + kv) * dim..][..dim];
            for (d, x) in key.iter().enumerate() {
                keys[d * BLOCK + offset] = *x;
            }
            values[offset * dim..(offset + 1) * dim].copy_from_slice(value);
        }
    }
    Ok(())
}

pub(crate) fn forward<T: Element>(
    cpu: &Cpu<T>,
    cache: &CpuKvCache<T>,
    layer: usize,
    qkv: &CpuTensor<T>,
    heads: Heads,
    tables: &CpuTables,
    scale: f64,
) -> Result<CpuTensor<T>> {
    let sequences = &tables.sequences;
    cache.check("attention_paged", layer, qkv, heads)?;
    for s in sequences {
        check_sequence(s, qkv.rows, cache.num_blocks)?;
    }
    let rows_given: usize = sequences.iter().map(|s| s.rows.len()).sum();
    check::ids("attention_paged", "rows in sequences", rows_given, qkv.rows)?;
    let (dim, group, out_cols) = (heads.dim, heads.query / heads.kv, heads.out_cols());
    let scale = T::from_f64(scale);
    let task_tokens = (TASK_ROWS / group).max(1);
    let mut tasks: Vec<(&Sequence, usize, Range<usize>)> = Vec::new();
    for s in sequences {
        for kv in 0..heads.kv {
            tasks.extend(
                (0..s.rows.len())
                    .step_by(task_tokens)
                    .map(|t| (s, kv, t..(t + task_tokens).min(s.rows.len()))),
            );
        }
    }
    let mut covered = vec![false; qkv.rows];
    for row in sequences.iter().flat_map(|s| s.rows.clone()) {
        check::that(!covered[row], "attention_paged", || {
            format!("row {row} is in two sequences")
        })?;
        covered[row] = true;
    }
    let mut o = cpu.take(qkv.rows * out_cols);
    {
        let o = Disjoint::new(&mut o);
        parallel::each(tasks.len(), |task| {
            let (s, kv, part) = tasks[task].clone();
            let first = s.context - s.rows.len() + part.start;
            let rows = s.rows.start + part.start..s.rows.start + part.end;
            let blocks = || {
                s.blocks
                    .iter()
                    .map(|b| cache.offset(layer, *b as usize, kv))
                    .take(s.context.div_ceil(BLOCK))
            };
            let key_values = KeyValues {
                keys: blocks()
                    .map(|at| &cache.data[at..at + dim * BLOCK])
                    .collect(),
                values: blocks()
                    .map(|at| &cache.data[at + dim * BLOCK..at + 2 * dim * BLOCK])
                    .collect(),
                value_stride: dim,
            };
            let queries = Queries {
                first,
                tokens: part.len(),
                group,
                dim,
            };
            let mut memory = cpu.take(Scratch::<T>::len(queries.rows(), dim));
            let mut scratch = Scratch::split(&mut memory, queries.rows(), dim);
            load_queries(&queries, rows.clone(), qkv, kv, scale, scratch.q);
            attend(&queries, &key_values, &mut scratch);
            for (i, row) in rows.enumerate() {
                let at = row * out_cols + kv * group * dim;
                // SAFETY: a task owns these heads of its rows, and no row is in two sequences.
                unsafe { o.slice(at..at + group * dim) }
                    .copy_from_slice(&scratch.o[i * group * dim..(i + 1) * group * dim]);
            }
        });
    }
    Ok(CpuTensor::new(qkv.rows, out_cols, o))
}

fn check_sequence(s: &Sequence, rows: usize, num_blocks: usize) -> Result<()> {
    let op = "attention_paged";
    check::that(
        s.rows.start <= s.rows.end && s.rows.end <= rows && s.rows.len() <= s.context,
        op,
        || {
            format!(
                "rows {:?} of {rows} with a context of {}",
                s.rows, s.context
            )
        },
    )?;
    check::that(s.blocks.len() * BLOCK >= s.context, op, || {
        format!(
            "{} blocks of {BLOCK} for a context of {}",
            s.blocks.len(),
            s.context
        )
    })?;
    match s.blocks.iter().find(|b| **b as usize >= num_blocks) {
        Some(bad) => check::that(false, op, || format!("block {bad} of {num_blocks}")),
        None => Ok(()),
    }
}
