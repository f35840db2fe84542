//! Attention over the keys of other ranks: the kernels of [`super::attention`], made for rectangles of queries and keys.
//!
//! A block owns a tile of queries (output, dQ) or of keys (dK, dV) of one span and walks over the whole other side; what a
//! forward finds is merged into copies of the output and of the statistics before it. Spans whose rows overlap are left to
//! the host.

use super::attention::{
    BLOCK_ROWS, Backward, Forward, STAGES, TILE_ROWS, TILE_WALK, Tile, hopper_bytes, shares,
    tile_bytes, tile_cols,
};
use super::device::Arg::{self, Float as F, Int, Map, Ptr};
use super::device::TensorMap;
use super::ops::{THREADS, expect, warps};
use super::pool::Block;
use super::{Cuda, Float, Tensor, sources};
use crate::{Heads, KeySpan, Result, attend_keys};
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Layouts of spans that are kept on the device: every layer asks for the same, hop by hop.
const KEPT: usize = 16;

/// The last batches' rectangles.
#[derive(Default)]
pub(super) struct Cache(Mutex<Vec<(Key, Arc<Layout>)>>);

/// Spans, and whether their heads have tensor-core kernels, with the rows of both matrices where not.
type Key = (Vec<KeySpan>, Option<(usize, usize)>);

/// Where spans are, as kernels read it.
enum Layout {
    Tiled {
        /// Tiles of queries, most keys first.
        queries: (Block, u32),
        /// Tiles of keys, most queries first.
        keys: (Block, u32),
        /// Rows of all spans' queries when each is padded to whole tiles.
        padded: usize,
        /// Blocks of dS a head, as in [`super::attention`].
        pairs: usize,
    },
    Scalar {
        /// Of each row, the first it sees and the one after the last.
        queries: [Block; 2],
        /// Of each key, those that see it.
        keys: [Block; 2],
    },
}

/// Spans to be computed on the device.
pub(super) struct Rectangles {
    heads: Heads,
    /// None where nothing sees anything.
    layout: Option<Arc<Layout>>,
}

/// Do no two of these share a row?
fn apart<'a>(ranges: impl Iterator<Item = &'a Range<usize>>) -> bool {
    let mut ranges: Vec<&Range<usize>> = ranges.collect();
    ranges.sort_by_key(|range| range.start);
    ranges.windows(2).all(|two| two[0].end <= two[1].start)
}

/// Tiles of one side of the spans, padded rows of all queries, and blocks of dS.
fn tiles(spans: &[KeySpan], of_keys: bool) -> (Vec<Tile>, usize, usize) {
    let (mut list, mut padded, mut pairs) = (Vec::new(), 0, 0);
    for KeySpan { queries, keys } in spans {
        let (own, other) = if of_keys {
            (keys, queries)
        } else {
            (queries, keys)
        };
        let [start, length, from, others] = [own.start, own.len(), other.start, other.len()];
        let rows = (0..length).step_by(TILE_ROWS);
        let tile = |row| [start, length, row, padded, pairs, from, others, 0].map(|n| n as i32);
        list.extend(rows.map(tile));
        padded += queries.len().next_multiple_of(TILE_ROWS);
        pairs += queries.len().div_ceil(BLOCK_ROWS) * keys.len().div_ceil(BLOCK_ROWS);
    }
    // Longest walks first; equal ones stay in order.
    list.sort_by_key(|tile: &Tile| -tile[6]);
    (list, padded, pairs)
}

/// Of each of `rows`, the range of the other side that it belongs to, as two lists.
fn bounds<'a>(
    rows: usize,
    spans: impl Iterator<Item = (&'a Range<usize>, &'a Range<usize>)>,
) -> [Vec<u32>; 2] {
    let mut found = [vec![0; rows], vec![0; rows]];
    for (own, other) in spans {
        found[0][own.clone()].fill(other.start as u32);
        found[1][own.clone()].fill(other.end as u32);
    }
    found
}

impl Cuda {
    /// These spans on the device, or none where they have to be computed on the host.
    pub(super) fn rectangles(
        &self,
        qkv: &Tensor,
        kv: &Tensor,
        heads: Heads,
        spans: &[KeySpan],
    ) -> Result<Option<Rectangles>> {
        attend_keys::fit((qkv.rows, qkv.cols), (kv.rows, kv.cols), heads, spans)?;
        let mut seen = spans.to_vec();
        seen.retain(|span| !span.queries.is_empty() && !span.keys.is_empty());
        let apart = apart(seen.iter().map(|s| &s.queries)) && apart(seen.iter().map(|s| &s.keys));
        if !apart {
            return Ok(None);
        }
        let scalar = (!sources::has_tensor_core_attention(heads)).then_some((qkv.rows, kv.rows));
        let layout = match seen.is_empty() {
            true => None,
            false => Some(self.layout((seen, scalar))?),
        };
        Ok(Some(Rectangles { heads, layout }))
    }

    fn layout(&self, key: Key) -> Result<Arc<Layout>> {
        let mut cache = self.rectangles.0.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((_, layout)) = cache.iter().find(|(of, _)| *of == key) {
            return Ok(Arc::clone(layout));
        }
        let (spans, scalar) = &key;
        let layout = match scalar {
            None => {
                let upload = |list: &[Tile]| {
                    let block = self.device.upload(list, "attention tiles")?;
                    Ok((block, list.len() as u32))
                };
                let (queries, padded, pairs) = tiles(spans, false);
                let (keys, ..) = tiles(spans, true);
                Layout::Tiled {
                    queries: upload(&queries)?,
                    keys: upload(&keys)?,
                    padded,
                    pairs,
                }
            }
            Some((rows, others)) => {
                let upload = |[first, last]: [Vec<u32>; 2]| {
                    let to = |list: &[u32]| self.device.upload(list, "bounds of keys");
                    Ok([to(&first)?, to(&last)?])
                };
                let by_query = spans.iter().map(|s| (&s.queries, &s.keys));
                let by_key = spans.iter().map(|s| (&s.keys, &s.queries));
                Layout::Scalar {
                    queries: upload(bounds(*rows, by_query))?,
                    keys: upload(bounds(*others, by_key))?,
                }
            }
        };
        let layout = Arc::new(layout);
        if cache.len() == KEPT {
            cache.remove(0);
        }
        cache.push((key, Arc::clone(&layout)));
        Ok(layout)
    }

    pub(super) fn keys_forward(
        &self,
        on: &Rectangles,
        kv: &Tensor,
        forward: &Forward<'_>,
        scale: f64,
    ) -> Result<(Tensor, Float)> {
        let (heads, qkv) = (on.heads, forward.qkv);
        let expected = (qkv.rows, heads.out_cols(), heads.query, qkv.rows);
        let (o, l) = (forward.out, forward.lse);
        expect(
            "attend_keys",
            (o.rows, o.cols, l.rows, l.cols) == expected,
            || {
                let (rows, cols) = (o.rows, o.cols);
                format!(
                    "an output of [{rows}, {cols}] for {heads:?} and {} rows",
                    qkv.rows
                )
            },
        )?;
        let out = self.copy(o)?;
        let lse = self.new_float(l.rows, l.cols, "attention statistics")?;
        let (from, to) = (l.block(&self.device)?, lse.block(&self.device)?);
        self.device.copy(from, to, l.len() * 4)?;
        let Some(layout) = &on.layout else {
            return Ok((out, lse));
        };
        let results = [Ptr(out.block.ptr), Ptr(lse.at(&self.device)?)];
        let shape = [
            Int(qkv.rows as i32),
            Int(heads.query as i32),
            Int(heads.kv as i32),
            F(scale as f32),
        ];
        match &**layout {
            Layout::Scalar { queries, .. } => {
                let (grid, threads) = warps(qkv.rows * heads.query);
                let [first, last] = queries.each_ref().map(|b| Ptr(b.ptr));
                let inputs = [Ptr(qkv.block.ptr), Ptr(kv.block.ptr), first, last];
                let source = sources::of_rectangles(sources::attention(heads));
                let args = [&inputs, &results[..], &shape].concat();
                self.device
                    .launch(&source, "attention_forward", grid, threads, 0, &args)?;
            }
            Layout::Tiled { queries, .. } if self.has_hopper_attention(heads) => {
                let (tiles, count) = queries;
                let blocks = self.device.num_sms.min(count * heads.query as u32);
                let rows = Map(TensorMap::new(qkv.block.ptr, qkv.rows, qkv.cols)?);
                let others = Map(TensorMap::new(kv.block.ptr, kv.rows, kv.cols)?);
                let inputs = [rows, others, Ptr(tiles.ptr)];
                let args = [&inputs, &results[..], &[Int(*count as i32)], &shape].concat();
                let shared = hopper_bytes(heads, TILE_ROWS + 2 * STAGES * TILE_ROWS);
                let source = sources::of_rectangles(sources::hopper_attention(heads));
                self.device.launch(
                    &source,
                    "hopper_forward",
                    (blocks, 1, 1),
                    384,
                    shared,
                    &args,
                )?;
            }
            Layout::Tiled { queries, .. } => {
                let (tiles, count) = queries;
                let inputs = [Ptr(qkv.block.ptr), Ptr(kv.block.ptr), Ptr(tiles.ptr)];
                let args = [&inputs, &results[..], &shape].concat();
                let grid = (*count, heads.query as u32, 1);
                let shared = tile_bytes(heads, TILE_ROWS + 4 * tile_cols(heads));
                let source = sources::of_rectangles(sources::tensor_core_attention(heads));
                self.device
                    .launch(&source, "attention_forward", grid, THREADS, shared, &args)?;
            }
        }
        Ok((out, lse))
    }

    /// Gradients of the packed rows and of the keys and values.
    pub(super) fn keys_gradient(
        &self,
        on: &Rectangles,
        dout: &Tensor,
        kv: &Tensor,
        forward: &Forward<'_>,
        scale: f64,
    ) -> Result<(Tensor, Tensor)> {
        let (heads, qkv) = (on.heads, forward.qkv);
        expect(
            "attend_keys_backward",
            (dout.rows, dout.cols) == (qkv.rows, heads.out_cols()),
            || {
                format!(
                    "[{}, {}] for {heads:?} and {} rows",
                    dout.rows, dout.cols, qkv.rows
                )
            },
        )?;
        let dqkv = self.zeros(qkv.rows, qkv.cols)?;
        let dkv = self.zeros(kv.rows, kv.cols)?;
        let Some(layout) = &on.layout else {
            return Ok((dqkv, dkv));
        };
        match &**layout {
            Layout::Tiled {
                queries,
                keys,
                padded,
                pairs,
            } if self.has_hopper_attention(heads) => self.hopper_backward(&Backward {
                source: sources::of_rectangles(sources::hopper_attention(heads)),
                dout,
                forward,
                others: Some(kv),
                heads,
                scale,
                keys: (&keys.0, keys.1, &dkv),
                queries: (&queries.0, queries.1, &dqkv),
                padded: *padded,
                pairs: *pairs,
            })?,
            layout => self.base_keys(layout, (dout, kv), forward, (&dqkv, &dkv), heads, scale)?,
        }
        Ok((dqkv, dkv))
    }

    fn zeros(&self, rows: usize, cols: usize) -> Result<Tensor> {
        let x = self.new_tensor(rows, cols, "attention's gradient")?;
        self.device.zero(&x.block, rows * cols * 2)?;
        Ok(x)
    }

    fn base_keys(
        &self,
        layout: &Layout,
        (dout, kv): (&Tensor, &Tensor),
        forward: &Forward<'_>,
        (dqkv, dkv): (&Tensor, &Tensor),
        heads: Heads,
        scale: f64,
    ) -> Result<()> {
        let qkv = forward.qkv;
        let numbers = [heads.query, heads.kv].map(|n| Int(n as i32));
        let (tokens, scale) = (Int(qkv.rows as i32), F(scale as f32));
        let delta = self.new_float(heads.query, qkv.rows, "attention statistics")?;
        let (delta, lse) = (delta.at(&self.device)?, forward.lse.at(&self.device)?);
        let (by_query, threads) = warps(qkv.rows * heads.query);
        let args = [
            Ptr(dout.block.ptr),
            Ptr(forward.out.block.ptr),
            Ptr(delta),
            tokens,
            numbers[0],
        ];
        let scalar = sources::attention(heads);
        self.device
            .launch(&scalar, "attention_delta", by_query, threads, 0, &args)?;
        let inputs = [dout, qkv, kv].map(|x| Ptr(x.block.ptr));
        let inputs = [&inputs[..], &[Ptr(lse), Ptr(delta)]].concat();
        match layout {
            Layout::Tiled { queries, keys, .. } => {
                let source = sources::of_rectangles(sources::tensor_core_attention(heads));
                let run = |name, (tiles, count): &(Block, u32), into: &Tensor, across, rows| {
                    let (heads_across, shares): (usize, u32) = across;
                    let grid = (*count, heads_across as u32, shares);
                    let own = [Ptr(tiles.ptr), Ptr(into.block.ptr), tokens];
                    let args = [&inputs[..], &own, &numbers, &[scale]].concat();
                    let shared = tile_bytes(heads, rows);
                    self.device
                        .launch(&source, name, grid, THREADS, shared, &args)
                };
                let walk = |rows| 2 * TILE_ROWS + 4 * rows;
                let (of_dq, of_dkv) = (walk(tile_cols(heads)), walk(TILE_WALK));
                run("attention_dq", queries, dqkv, (heads.query, 1), of_dq)?;
                let across = (heads.kv, shares(heads));
                run("attention_dkv", keys, dkv, across, of_dkv)
            }
            Layout::Scalar { queries, keys } => {
                let source = sources::of_rectangles(scalar);
                let run = |name, of: &[Block; 2], into: &Tensor, jobs, counts: &[Arg]| {
                    let (grid, threads) = warps(jobs);
                    let own = [Ptr(of[0].ptr), Ptr(of[1].ptr), Ptr(into.block.ptr)];
                    let args = [&inputs[..], &own, counts, &numbers, &[scale]].concat();
                    self.device.launch(&source, name, grid, threads, 0, &args)
                };
                let jobs = qkv.rows * heads.query;
                run("attention_dq", queries, dqkv, jobs, &[tokens])?;
                let counts = [tokens, Int(kv.rows as i32)];
                run("attention_dkv", keys, dkv, kv.rows * heads.kv, &counts)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(queries: Range<usize>, keys: Range<usize>) -> KeySpan {
        KeySpan { queries, keys }
    }

    #[test]
    fn tiles_cover_every_row_of_their_side_once_and_point_to_the_whole_other_side() {
        let spans = [
            span(3..4, 0..130),
            span(10..300, 130..131),
            span(300..428, 200..457),
        ];
        for of_keys in [false, true] {
            let (list, padded, pairs) = tiles(&spans, of_keys);
            assert_eq!(padded, 128 + 384 + 128);
            assert_eq!(pairs, 3 + 5 + 2 * 5);
            let mut rows = Vec::new();
            for [start, length, row, padded, pairs, other, others, _] in list {
                let end = length.min(row + TILE_ROWS as i32);
                rows.extend((start + row) as usize..(start + end) as usize);
                let of = |s: &&KeySpan| match of_keys {
                    true => s.keys.start as i32 == start && s.keys.len() as i32 == length,
                    false => s.queries.start as i32 == start && s.queries.len() as i32 == length,
                };
                let mut found = spans.iter().enumerate().filter(|(_, s)| of(s));
                let (at, span) = found.next().unwrap();
                let wanted = if of_keys { &span.queries } else { &span.keys };
                assert_eq!((other, others), (wanted.start as i32, wanted.len() as i32));
                assert_eq!((padded, pairs), [(0, 0), (128, 3), (512, 8)][at]);
            }
            rows.sort_unstable();
            let side = |s: &KeySpan| {
                if of_keys {
                    s.keys.clone()
                } else {
                    s.queries.clone()
                }
            };
            let mut all: Vec<usize> = spans.iter().flat_map(side).collect();
            all.sort_unstable();
            assert_eq!(rows, all);
        }
    }

    #[test]
    fn ranges_that_share_a_row_are_not_apart() {
        assert!(apart([4..6, 0..4, 6..6].iter()));
        assert!(!apart([4..6, 0..5].iter()));
    }

    #[test]
    fn rows_outside_spans_see_nothing() {
        let [first, last] = bounds(4, [(&(1..3), &(5..9))].into_iter());
        assert_eq!((first, last), (vec![0, 5, 5, 0], vec![0, 9, 9, 0]));
    }
}
