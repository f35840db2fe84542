//! Attention of rows to keys and values that lie in a cache, block by block: what serves.

use super::device::Arg::{Float as F, Int, Ptr};
use super::ops::whole_vectors;
use super::sources::{self, BLOCK_TOKENS};
use super::tables::{Attending, Tables};
use super::{Cuda, KvCache, Tensor};
use crate::{Heads, Result};

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
        tables: &Tables,
    ) -> Result<()> {
        let slots = tables.slots(qkv.rows)?;
        let offset = (layer * cache.layer_elements * 2) as u64;
        let args = [
            Ptr(qkv.block.ptr),
            Ptr(slots),
            Ptr(cache.keys.ptr + offset),
            Ptr(cache.values.ptr + offset),
            Int(heads.query as i32),
            Int(heads.kv as i32),
        ];
        whole_vectors("kv_write", heads.dim)?;
        let (grid, threads) = Self::by_row(qkv.rows, heads.kv * heads.dim);
        self.device.launch(
            &sources::paged_cache(heads),
            "kv_write",
            grid,
            threads,
            0,
            &args,
        )
    }

    pub(super) fn paged_attention(
        &self,
        cache: &KvCache,
        layer: usize,
        qkv: &Tensor,
        heads: Heads,
        tables: &Tables,
        scale: f64,
    ) -> Result<Tensor> {
        whole_vectors("attention_paged", heads.dim)?;
        let out = self.new_tensor(qkv.rows, heads.out_cols(), "attention")?;
        // A prompt read whole sees its own rows only: the kernels of training do that, with tensor cores.
        let apart = sources::has_tensor_core_attention(heads);
        if apart && !tables.whole.is_empty() {
            self.attention_of(qkv, heads, tables.whole.clone(), &out, scale)?;
        }
        let Attending {
            rows,
            splits,
            which,
            table,
            seen,
            run,
            blocks,
        } = tables.attending(!apart);
        if rows == 0 {
            return Ok(out);
        }
        let parts = if splits == 1 {
            0
        } else {
            rows * heads.query * splits
        };
        let parts = self.new_float(parts, heads.dim + 2, "attention's parts")?;
        let parts = parts.at(&self.device)?;
        let offset = (layer * cache.layer_elements * 2) as u64;
        let (keys, values) = (cache.keys.ptr + offset, cache.values.ptr + offset);
        let head_groups = heads.query / sources::shared_heads(heads);
        let grid = (rows as u32, head_groups as u32, splits as u32);
        let of_rows = [qkv.block.ptr, which, keys, values, blocks, table, seen].map(Ptr);
        let to = [out.block.ptr, parts].map(Ptr);
        let shape = [
            Int(heads.query as i32),
            Int(heads.kv as i32),
            F(scale as f32),
        ];
        if apart {
            let args = [&of_rows[..], &[Ptr(run)], &to, &[Int(rows as i32)], &shape].concat();
            let source = sources::paged_tiles(heads);
            let (warps, stages) = sources::tiles_at_once(heads);
            // A block's keys and its values.
            let ahead = warps * stages * 2 * BLOCK_TOKENS * heads.dim * 2;
            let (threads, shared) = (32 * warps as u32, ahead as u32);
            self.device
                .launch(&source, "attention_tiles", grid, threads, shared, &args)?;
        } else {
            let args = [&of_rows[..], &to, &shape].concat();
            let source = sources::paged_rows(heads);
            self.device
                .launch(&source, "attention_paged", grid, 128, 0, &args)?;
        }
        if splits > 1 {
            let args = [
                Ptr(parts),
                Ptr(which),
                Ptr(seen),
                Ptr(out.block.ptr),
                Int(splits as i32),
                Int(heads.query as i32),
            ];
            let grid = (rows as u32, heads.query as u32, 1);
            let source = sources::paged_cache(heads);
            self.device
                .launch(&source, "attention_merge", grid, 128, 0, &args)?;
        }
        Ok(out)
    }
}
