//! Attention of rows to keys and values that lie in a cache, block by block: what serves.

use super::device::Arg::{Float as F, Int, Ptr};
use super::ops::{expect, whole_vectors};
use super::sources::{self, BLOCK_TOKENS, SPLIT};
use super::{Cuda, KvCache, Tensor};
use crate::{Heads, PagedSequence, Result};

/// Prompts of so many tokens are worth a tile of the tensor-core kernels.
const WHOLE_PROMPT: usize = 32;

impl Cuda {
    pub(super) fn new_cache(
        &self,
        num_layers: usize,
        num_blocks: usize,
        heads: Heads,
    ) -> Result<KvCache> {
        let layer_elements = num_blocks * BLOCK_TOKENS * heads.kv * heads.dim;
        let take = || {
            self.device
                .pool
                .take(num_layers * layer_elements * 2, "the key/value cache")
        };
        Ok(KvCache {
            keys: take()?,
            values: take()?,
            layer_elements,
        })
    }

    pub(super) fn write_keys(
        &self,
        cache: &mut KvCache,
        layer: usize,
        qkv: &Tensor,
        heads: Heads,
        slots: &[usize],
    ) -> Result<()> {
        expect("kv_write", slots.len() == qkv.rows, || {
            format!("{} slots for {} rows", slots.len(), qkv.rows)
        })?;
        let slots: Vec<u32> = slots.iter().map(|&s| s as u32).collect();
        let slots = self.tables.slots.upload(&self.device, slots)?;
        let offset = (layer * cache.layer_elements * 2) as u64;
        let args = [
            Ptr(qkv.block.ptr),
            Ptr(slots.ptr),
            Ptr(cache.keys.ptr + offset),
            Ptr(cache.values.ptr + offset),
            Int(heads.query as i32),
            Int(heads.kv as i32),
        ];
        whole_vectors("kv_write", heads.dim)?;
        let (grid, threads) = Self::by_row(qkv.rows, heads.kv * heads.dim);
        let source = sources::paged_attention(heads);
        self.device
            .launch(&source, "kv_write", grid, threads, 0, &args)
    }

    pub(super) fn paged_attention(
        &self,
        cache: &KvCache,
        layer: usize,
        qkv: &Tensor,
        heads: Heads,
        sequences: &[PagedSequence<'_>],
        scale: f64,
    ) -> Result<Tensor> {
        whole_vectors("attention_paged", heads.dim)?;
        let out = self.new_tensor(qkv.rows, heads.out_cols(), "attention")?;
        // A prompt read whole sees its own rows only: the kernels of training do that, with tensor cores.
        let (whole, rest): (Vec<_>, Vec<_>) = sequences.iter().partition(|s| {
            s.rows.len() == s.context
                && s.context >= WHOLE_PROMPT
                && sources::has_tensor_core_attention(heads)
        });
        if !whole.is_empty() {
            let ranges = whole.iter().map(|s| s.rows.clone()).collect();
            self.attention_of(qkv, heads, ranges, &out, scale)?;
        }
        let (mut which, mut table, mut seen, mut blocks) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for sequence in rest {
            let start = blocks.len() as u32;
            blocks.extend_from_slice(sequence.blocks);
            for row in sequence.rows.clone() {
                which.push(row as u32);
                table.push(start);
                seen.push((sequence.context - (sequence.rows.end - 1 - row)) as u32);
            }
        }
        let rows = which.len();
        if rows == 0 {
            return Ok(out);
        }
        let splits = seen
            .iter()
            .map(|&s| (s as usize).div_ceil(SPLIT))
            .max()
            .unwrap_or(1);
        let parts = if splits == 1 {
            0
        } else {
            rows * heads.query * splits
        };
        let parts = self.new_float(parts, heads.dim + 2, "attention's parts")?;
        let parts = parts.at(&self.device)?;
        let which = self.tables.which.upload(&self.device, which)?;
        let table = self.tables.table.upload(&self.device, table)?;
        let seen = self.tables.seen.upload(&self.device, seen)?;
        let blocks = self.tables.blocks.upload(&self.device, blocks)?;
        let offset = (layer * cache.layer_elements * 2) as u64;
        let source = sources::paged_attention(heads);
        let args = [
            Ptr(qkv.block.ptr),
            Ptr(which.ptr),
            Ptr(cache.keys.ptr + offset),
            Ptr(cache.values.ptr + offset),
            Ptr(blocks.ptr),
            Ptr(table.ptr),
            Ptr(seen.ptr),
            Ptr(out.block.ptr),
            Ptr(parts),
            Int(heads.query as i32),
            Int(heads.kv as i32),
            F(scale as f32),
        ];
        let head_groups = heads.query / sources::shared_heads(heads);
        let grid = (rows as u32, head_groups as u32, splits as u32);
        self.device
            .launch(&source, "attention_paged", grid, 128, 0, &args)?;
        if splits > 1 {
            let args = [
                Ptr(parts),
                Ptr(which.ptr),
                Ptr(seen.ptr),
                Ptr(out.block.ptr),
                Int(splits as i32),
                Int(heads.query as i32),
            ];
            let grid = (rows as u32, heads.query as u32, 1);
            self.device
                .launch(&source, "attention_merge", grid, 128, 0, &args)?;
        }
        Ok(out)
    }
}
