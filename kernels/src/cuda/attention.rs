//! Which attention kernels run, and over which tiles.
//!
//! Three sets of kernels give one answer: `attention/hopper.cu` (wgmma, sm_90a), `attention/tensor_core.cu` (mma, sm_80 and
//! later) and `attention/kernel.cu` (scalar, any head width). All keep a row's sum in one order that depends on the row's
//! own position alone.

use super::device::Arg::{self, Float as F, Int, Map, Ptr};
use super::device::TensorMap;
use super::nvrtc::Source;
use super::ops::{THREADS, expect, warps};
use super::pool::Block;
use super::sources;
use super::{Cuda, Float, Tensor};
use crate::{Heads, Result, Sequences};
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Rows of the tile a block owns, in both sets of tensor-core kernels.
pub(super) const TILE_ROWS: usize = 128;
/// Rows of the tile a block walks over, as in `attention/tensor_core.cu`.
pub(super) const TILE_WALK: usize = 32;
pub(super) fn tile_cols(heads: Heads) -> usize {
    if heads.dim > 128 { 32 } else { 64 }
}
/// Thread blocks that share the columns of a tile of dK and dV.
pub(super) fn shares(heads: Heads) -> u32 {
    if heads.dim > 128 { 2 } else { 1 }
}
/// Steps in flight, as in `attention/hopper.cu`.
pub(super) const STAGES: usize = 2;
pub(super) const DEPTH: usize = 3;
/// Queries and keys of a block of dS, its bytes, and the steps in flight where it is read, as in `attention/hopper.cu`.
pub(super) const BLOCK_ROWS: usize = 64;
pub(super) const BLOCK_BYTES: usize = BLOCK_ROWS * BLOCK_ROWS * 2;
/// Rows of a tile of the forward of heads 64 wide, as in `attention/hopper.cu`.
const NARROW_ROWS: usize = 192;
const KEPT_DEPTH: usize = 3;
/// Memory for what a backward keeps between its kernels (dS here, states in a delta rule's), 2.25 GiB: heads take turns in it.
pub(super) const KEPT_BYTES: usize = 9 << 28;

/// What a forward left for its backward.
pub(super) struct Forward<'a> {
    pub(super) qkv: &'a Tensor,
    pub(super) out: &'a Tensor,
    pub(super) lse: &'a Float,
}

/// The tiles of the last batch: every layer asks for the same.
#[derive(Default)]
pub(super) struct Cache(Mutex<Option<(Vec<Range<usize>>, Arc<Tiles>)>>);

/// Of each tile: first row of the sequence, its length, first row of the tile in it, first padded row of the sequence,
/// blocks of dS of the sequences before it, first row and number of rows of the other side ([`super::keys`]), and padding.
pub(super) type Tile = [i32; 8];

struct Tiles {
    /// Most keys to walk over first.
    by_keys: Block,
    /// Most queries to walk over first.
    by_queries: Block,
    /// As `by_keys`, of [`NARROW_ROWS`], and how many.
    narrow: (Block, u32),
    count: u32,
    /// Rows of all sequences when each is padded to whole tiles.
    padded: usize,
    /// Blocks of dS a head: of 64 queries and 64 keys of a sequence, where some of those see some of these.
    pairs: usize,
}

/// A backward on Hopper.
pub(super) struct Backward<'a> {
    pub(super) source: Source,
    pub(super) dout: &'a Tensor,
    pub(super) forward: &'a Forward<'a>,
    /// Keys and values, where they are not the packed rows' own.
    pub(super) others: Option<&'a Tensor>,
    pub(super) heads: Heads,
    pub(super) scale: f64,
    /// Tiles of keys, how many, and where dK and dV go.
    pub(super) keys: (&'a Block, u32, &'a Tensor),
    /// Tiles of queries, how many, and where dQ goes.
    pub(super) queries: (&'a Block, u32, &'a Tensor),
    /// As in [`Tiles`].
    pub(super) padded: usize,
    pub(super) pairs: usize,
}

pub(super) fn tile_bytes(heads: Heads, rows: usize) -> u32 {
    (rows * heads.dim * 2) as u32
}

/// Barriers and alignment come before the tiles, statistics of each step after them.
pub(super) fn hopper_bytes(heads: Heads, rows: usize) -> u32 {
    2048 + tile_bytes(heads, rows) + (DEPTH * 512) as u32
}

/// Key heads whose dS lies in memory together, in turns of even size. None where not even one's fits, and where it does
/// not pay: a narrow head has as many scores as a wide one and half the work to save.
fn kept_heads(heads: Heads, pairs: usize) -> Option<usize> {
    let fit = KEPT_BYTES / (heads.query / heads.kv * pairs * BLOCK_BYTES);
    let turns = (fit > 0 && heads.dim == 128).then(|| heads.kv.div_ceil(fit))?;
    Some(heads.kv.div_ceil(turns))
}

impl Cuda {
    pub(super) fn has_hopper_attention(&self, heads: Heads) -> bool {
        self.device.is_hopper() && sources::has_hopper_attention(heads)
    }

    /// Tiles of the rows of each sequence.
    fn tiles(&self, sequences: Vec<Range<usize>>) -> Result<Arc<Tiles>> {
        let mut cache = self.tiles.0.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((_, tiles)) = cache.as_ref().filter(|(of, _)| *of == sequences) {
            return Ok(Arc::clone(tiles));
        }
        let (mut list, mut narrow) = (Vec::<Tile>::new(), Vec::<Tile>::new());
        let (mut padded, mut pairs) = (0, 0);
        for range in &sequences {
            let (start, len) = (range.start as i32, range.len() as i32);
            let tile = |row| [start, len, row, padded as i32, pairs as i32, 0, 0, 0];
            list.extend((0..len).step_by(TILE_ROWS).map(tile));
            narrow.extend((0..len).step_by(NARROW_ROWS).map(tile));
            padded += range.len().next_multiple_of(TILE_ROWS);
            let blocks = range.len().div_ceil(BLOCK_ROWS);
            pairs += blocks * (blocks + 1) / 2;
        }
        list.sort_by_key(|tile| -tile[2]);
        let by_keys = self.device.upload(&list, "attention tiles")?;
        narrow.sort_by_key(|tile| -tile[2]);
        let narrow = (
            self.device.upload(&narrow, "attention tiles")?,
            narrow.len() as u32,
        );
        list.sort_by_key(|tile| tile[2] - tile[1]);
        let by_queries = self.device.upload(&list, "attention tiles")?;
        let tiles = Arc::new(Tiles {
            by_keys,
            by_queries,
            narrow,
            count: list.len() as u32,
            padded,
            pairs,
        });
        *cache = Some((sequences, Arc::clone(&tiles)));
        Ok(tiles)
    }

    /// First row, or row after the last, of each token's sequence.
    pub(super) fn bounds(
        &self,
        sequences: &Sequences,
        of: impl Fn(Range<usize>) -> usize,
    ) -> Result<Block> {
        let bounds: Vec<u32> = sequences
            .ranges()
            .flat_map(|r| std::iter::repeat_n(of(r.clone()) as u32, r.len()))
            .collect();
        self.device.upload(&bounds, "sequence bounds")
    }

    pub(super) fn attention_forward(
        &self,
        qkv: &Tensor,
        heads: Heads,
        sequences: &Sequences,
        scale: f64,
    ) -> Result<(Tensor, Float)> {
        expect(
            "attention",
            qkv.cols == heads.qkv_cols() && qkv.rows == sequences.num_tokens(),
            || {
                format!(
                    "[{}, {}] for {heads:?} and {} tokens",
                    qkv.rows,
                    qkv.cols,
                    sequences.num_tokens()
                )
            },
        )?;
        let out = self.new_tensor(qkv.rows, heads.out_cols(), "attention")?;
        let lse = self.new_float(heads.query, qkv.rows, "attention statistics")?;
        if qkv.rows == 0 {
            return Ok((out, lse));
        }
        let shape = [
            Int(qkv.rows as i32),
            Int(heads.query as i32),
            Int(heads.kv as i32),
            F(scale as f32),
        ];
        let results = [Ptr(out.block.ptr), Ptr(lse.at(&self.device)?)];
        if !sources::has_tensor_core_attention(heads) {
            let first = self.bounds(sequences, |r| r.start)?;
            let (grid, threads) = warps(qkv.rows * heads.query);
            let args = [&[Ptr(qkv.block.ptr), Ptr(first.ptr)], &results[..], &shape].concat();
            self.device.launch(
                &sources::attention(heads),
                "attention_forward",
                grid,
                threads,
                0,
                &args,
            )?;
            return Ok((out, lse));
        }
        let tiles = self.tiles(sequences.ranges().collect())?;
        self.tiled_forward(qkv, heads, &tiles, &out, &lse, scale)?;
        Ok((out, lse))
    }

    /// Attention of a few sequences of a batch, each to itself from its first token on, into their rows of `out`.
    pub(super) fn attention_of(
        &self,
        qkv: &Tensor,
        heads: Heads,
        sequences: Vec<Range<usize>>,
        out: &Tensor,
        scale: f64,
    ) -> Result<()> {
        let lse = self.new_float(heads.query, qkv.rows, "attention statistics")?;
        let tiles = self.tiles(sequences)?;
        self.tiled_forward(qkv, heads, &tiles, out, &lse, scale)
    }

    /// The tensor-core kernels over `tiles`.
    fn tiled_forward(
        &self,
        qkv: &Tensor,
        heads: Heads,
        tiles: &Tiles,
        out: &Tensor,
        lse: &Float,
        scale: f64,
    ) -> Result<()> {
        let shape = [
            Int(qkv.rows as i32),
            Int(heads.query as i32),
            Int(heads.kv as i32),
            F(scale as f32),
        ];
        let results = [Ptr(out.block.ptr), Ptr(lse.at(&self.device)?)];
        if self.has_hopper_attention(heads) {
            let (list, count, rows) = match heads.dim {
                64 => (&tiles.narrow.0, tiles.narrow.1, NARROW_ROWS),
                _ => (&tiles.by_keys, tiles.count, TILE_ROWS),
            };
            let blocks = self.device.num_sms.min(count * heads.query as u32);
            let map = TensorMap::new(qkv.block.ptr, qkv.rows, qkv.cols)?;
            let head = [Map(map), Ptr(list.ptr)];
            let args = [&head, &results[..], &[Int(count as i32)], &shape].concat();
            let shared = hopper_bytes(heads, rows + 2 * STAGES * TILE_ROWS);
            // Sixty-four rows a warpgroup, and one that fetches.
            let threads = (2 * rows + 128) as u32;
            self.device.launch(
                &sources::hopper_attention(heads),
                "hopper_forward",
                (blocks, 1, 1),
                threads,
                shared,
                &args,
            )?;
        } else {
            let args = [
                &[Ptr(qkv.block.ptr), Ptr(tiles.by_keys.ptr)],
                &results[..],
                &shape,
            ]
            .concat();
            let grid = (tiles.count, heads.query as u32, 1);
            let shared = tile_bytes(heads, TILE_ROWS + 4 * tile_cols(heads));
            let source = sources::tensor_core_attention(heads);
            self.device
                .launch(&source, "attention_forward", grid, THREADS, shared, &args)?;
        }
        Ok(())
    }

    pub(super) fn attention_gradient(
        &self,
        dout: &Tensor,
        forward: &Forward<'_>,
        heads: Heads,
        sequences: &Sequences,
        scale: f64,
    ) -> Result<Tensor> {
        let qkv = forward.qkv;
        expect(
            "attention_backward",
            (dout.rows, dout.cols) == (qkv.rows, heads.out_cols()),
            || {
                format!(
                    "[{}, {}] for {heads:?} and {} tokens",
                    dout.rows, dout.cols, qkv.rows
                )
            },
        )?;
        let dqkv = self.new_tensor(qkv.rows, qkv.cols, "attention's gradient")?;
        if qkv.rows == 0 {
            return Ok(dqkv);
        }
        if self.has_hopper_attention(heads) {
            let tiles = self.tiles(sequences.ranges().collect())?;
            self.hopper_backward(&Backward {
                source: sources::hopper_attention(heads),
                dout,
                forward,
                others: None,
                heads,
                scale,
                keys: (&tiles.by_queries, tiles.count, &dqkv),
                queries: (&tiles.by_keys, tiles.count, &dqkv),
                padded: tiles.padded,
                pairs: tiles.pairs,
            })?;
            return Ok(dqkv);
        }
        let source = sources::attention(heads);
        let (tokens, nq, nkv) = (
            Int(qkv.rows as i32),
            Int(heads.query as i32),
            Int(heads.kv as i32),
        );
        let delta = self.new_float(heads.query, qkv.rows, "attention statistics")?;
        let (delta, lse) = (delta.at(&self.device)?, forward.lse.at(&self.device)?);
        let (by_query, threads) = warps(qkv.rows * heads.query);
        let args = [
            Ptr(dout.block.ptr),
            Ptr(forward.out.block.ptr),
            Ptr(delta),
            tokens,
            nq,
        ];
        self.device
            .launch(&source, "attention_delta", by_query, threads, 0, &args)?;
        let common = |bound: u64| -> [Arg; 10] {
            [
                Ptr(dout.block.ptr),
                Ptr(qkv.block.ptr),
                Ptr(lse),
                Ptr(delta),
                Ptr(bound),
                Ptr(dqkv.block.ptr),
                tokens,
                nq,
                nkv,
                F(scale as f32),
            ]
        };
        if sources::has_tensor_core_attention(heads) {
            let source = sources::tensor_core_attention(heads);
            let tiles = self.tiles(sequences.ranges().collect())?;
            let launch = |name, across: (usize, u32), by: &Block, shared| {
                self.device.launch(
                    &source,
                    name,
                    (tiles.count, across.0 as u32, across.1),
                    THREADS,
                    shared,
                    &common(by.ptr),
                )
            };
            launch(
                "attention_dq",
                (heads.query, 1),
                &tiles.by_keys,
                tile_bytes(heads, 2 * TILE_ROWS + 4 * tile_cols(heads)),
            )?;
            launch(
                "attention_dkv",
                (heads.kv, shares(heads)),
                &tiles.by_queries,
                tile_bytes(heads, 2 * TILE_ROWS + 4 * TILE_WALK),
            )?;
            return Ok(dqkv);
        }
        let (first, last) = (
            self.bounds(sequences, |r| r.start)?,
            self.bounds(sequences, |r| r.end)?,
        );
        self.device.launch(
            &source,
            "attention_dq",
            by_query,
            threads,
            0,
            &common(first.ptr),
        )?;
        let (by_key, threads) = warps(qkv.rows * heads.kv);
        self.device.launch(
            &source,
            "attention_dkv",
            by_key,
            threads,
            0,
            &common(last.ptr),
        )?;
        Ok(dqkv)
    }

    /// dK and dV, and dQ: of the dS that the first left, as many heads at once as it has room for, or from the start.
    pub(super) fn hopper_backward(&self, of: &Backward<'_>) -> Result<()> {
        let (heads, forward) = (of.heads, of.forward);
        let (dkv_tiles, dkv_count, dkv) = of.keys;
        let (dq_tiles, dq_count, dq) = of.queries;
        let [nq, nkv, padded, pairs, rows] =
            [heads.query, heads.kv, of.padded, of.pairs, of.dout.rows].map(|n| Int(n as i32));
        let stats = self.new_float(2 * heads.query, of.padded, "attention statistics")?;
        let stats = Ptr(stats.at(&self.device)?);
        let args = [
            Ptr(of.dout.block.ptr),
            Ptr(forward.out.block.ptr),
            Ptr(forward.lse.at(&self.device)?),
            Ptr(dq_tiles.ptr),
            stats,
            rows,
            padded,
            nq,
        ];
        let grid = (dq_count, heads.query as u32, 1);
        self.device
            .launch(&of.source, "hopper_stats", grid, 256, 0, &args)?;
        let map = |x: &Tensor| TensorMap::new(x.block.ptr, x.rows, x.cols).map(Map);
        let inputs = [Some(forward.qkv), of.others].into_iter().flatten();
        let inputs: Vec<Arg> = inputs.map(map).collect::<Result<_>>()?;
        let shape = [nq, nkv, F(of.scale as f32)];
        let launch = |name, threads, grid: (usize, u32), shared: u32, args: &[&[Arg]]| {
            let grid = (grid.0 as u32, grid.1, 1);
            let args = [&[&inputs[..]], args, &[&shape[..]]].concat().concat();
            self.device
                .launch(&of.source, name, grid, threads, shared, &args)
        };
        let dout = map(of.dout)?;
        let walk = hopper_bytes(heads, 2 * TILE_ROWS + 2 * DEPTH * BLOCK_ROWS);
        let keys = |first: usize, count: usize, kept: u64| {
            let pointers = [dout, stats, Ptr(dkv_tiles.ptr), Ptr(dkv.block.ptr)];
            let numbers = [Ptr(kept), pairs, Int(first as i32), padded];
            let shared = walk + (2 * DEPTH * BLOCK_BYTES) as u32;
            let grid = (count, dkv_count);
            launch("hopper_dkv", 384, grid, shared, &[&pointers, &numbers])
        };
        let Some(at_once) = kept_heads(heads, of.pairs) else {
            keys(0, heads.kv, 0)?;
            let pointers = [dout, stats, Ptr(dq_tiles.ptr), Ptr(dq.block.ptr)];
            let grid = (heads.query, dq_count);
            return launch("hopper_dq", 384, grid, walk, &[&pointers, &[padded]]);
        };
        let group = heads.query / heads.kv;
        let bytes = at_once * group * of.pairs * BLOCK_BYTES;
        let kept = self.device.pool.take(bytes, "attention's gradient")?;
        let stages = KEPT_DEPTH * 2 * BLOCK_BYTES;
        let shared = 2048 + stages as u32 + tile_bytes(heads, KEPT_DEPTH * BLOCK_ROWS);
        for first in (0..heads.kv).step_by(at_once) {
            let count = at_once.min(heads.kv - first);
            keys(first, count, kept.ptr)?;
            let pointers = [Ptr(kept.ptr), Ptr(dq_tiles.ptr), Ptr(dq.block.ptr)];
            let numbers = [pairs, Int(first as i32)];
            let grid = (count * group, dq_count);
            launch("hopper_dq_kept", 288, grid, shared, &[&pointers, &numbers])?;
        }
        Ok(())
    }
}
