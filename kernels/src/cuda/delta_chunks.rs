//! The gated delta rule over whole sequences, in chunks of tokens: `gated_delta/chunks.cu`, `gated_delta/gradients.cu`.
//!
//! What tokens of a chunk do to each other is made for all chunks at once, then sequences are walked through chunk by chunk; the
//! backward keeps a state and its gradient for each chunk. Key heads take turns in that memory where it would grow too large.

use super::attention::KEPT_BYTES;
use super::delta::{Checked, Tokens, checked};
use super::device::Arg::{self, Int, Ptr};
use super::ops::expect;
use super::pool::Block;
use super::sources;
use super::{Cuda, Float, Tensor};
use crate::{DeltaHeads, DeltaRule, Result, Sequences};
use std::ops::Range;

/// Tokens of a chunk, as in `gated_delta/tiles.cuh`.
const CHUNK: usize = 64;
/// Threads of a block: 4 warps with 16 tokens each, of gradients twice as many.
const THREADS: u32 = 128;
const GRADIENT_THREADS: u32 = 256;
/// Bytes of `Factors`.
const FACTORS: usize = 16;
/// Floats between rows of a triangular matrix while it is solved.
const LOWER: usize = 72;
/// Bytes of a triangle in bf16: blocks of 16 x 16.
const TRIANGLE: usize = 10 * 16 * 16 * 2;

/// Bytes of a tile in shared memory.
fn tile(rows: usize, cols: usize) -> usize {
    let vectors = cols / 8;
    let stride = if vectors.is_multiple_of(8) {
        vectors
    } else {
        vectors + 1
    };
    rows * stride * 16
}

/// Widths, and what follows from them.
#[derive(Clone, Copy)]
struct Widths {
    key: usize,
    /// Columns of a state that a thread block walks with, and such blocks.
    slice: usize,
    slices: usize,
}

impl Widths {
    fn of(heads: DeltaHeads) -> Self {
        let slice = if heads.value_dim > 16 { 32 } else { 16 };
        Self {
            key: heads.key_dim,
            slice,
            slices: heads.value_dim.div_ceil(slice),
        }
    }

    /// Columns of a kept state.
    fn wide(self) -> usize {
        self.slice * self.slices
    }

    /// Bytes that a forward holds of a chunk and value head: two matrices in two terms, factors and decays.
    fn inside(self) -> usize {
        4 * TRIANGLE + CHUNK * (FACTORS + 4)
    }

    /// A backward's: a state, its gradient and corrections besides.
    fn kept(self) -> usize {
        self.inside() + (2 * self.key + CHUNK) * self.wide() * 2
    }

    fn shared_of_matrices(self) -> usize {
        2 * tile(CHUNK, self.key) + 4 * (2 * CHUNK * LOWER + 8 * CHUNK)
    }

    fn shared_of_walk(self, keeps: bool) -> usize {
        let always = 2 * (tile(CHUNK, self.key) + CHUNK * FACTORS + TRIANGLE)
            + 3 * tile(CHUNK, self.slice)
            + tile(self.key, self.slice);
        let output = tile(CHUNK, self.key) + TRIANGLE;
        if keeps { always } else { always + output }
    }

    fn shared_of_reverse(self) -> usize {
        3 * tile(CHUNK, self.key)
            + CHUNK * FACTORS
            + 4 * TRIANGLE
            + 4 * tile(CHUNK, self.slice)
            + tile(self.key, self.slice)
    }

    fn shared_of_gradients(self) -> usize {
        let tokens = (3 * tile(CHUNK, self.wide())).max(4 * tile(CHUNK, CHUNK));
        let state = tile(self.key, self.wide()).max(2 * tile(CHUNK, self.key));
        tokens + state + 4 * 9 * CHUNK
    }
}

/// The chunks of a batch on the device.
struct Chunks {
    /// Of each chunk its first row and number of rows.
    spans: Block,
    count: usize,
    /// Of each sequence its first row, number of rows and first chunk.
    runs: Block,
    num_runs: usize,
}

/// What the tokens of chunks do to each other, of some heads.
struct Inside {
    /// `(I + A)⁻¹` and what queries see of keys, `[chunks, heads, 2, TRIANGLE]`.
    solved: Block,
    seen: Block,
    /// `[chunks, heads, CHUNK]`.
    factors: Block,
    decays: Block,
}

/// Operands of a launch that all have.
struct Batch<'a> {
    qkv: &'a Tensor,
    rule: &'a Checked<'a>,
    tokens: &'a Tokens,
    chunks: &'a Chunks,
}

impl Cuda {
    fn chunks(&self, sequences: &Sequences) -> Result<Chunks> {
        let (mut spans, mut runs) = (Vec::<[i32; 2]>::new(), Vec::<[i32; 3]>::new());
        for r in sequences.ranges() {
            runs.push([r.start as i32, r.len() as i32, spans.len() as i32]);
            spans.extend(r.clone().step_by(CHUNK).map(|row| {
                let count = CHUNK.min(r.end - row);
                [row as i32, count as i32]
            }));
        }
        Ok(Chunks {
            spans: self.device.upload(&spans, "chunks of a delta rule")?,
            count: spans.len(),
            runs: self.device.upload(&runs, "sequences of a delta rule")?,
            num_runs: runs.len(),
        })
    }

    fn delta_room(&self, bytes: usize) -> Result<Block> {
        self.device.pool.take(bytes, "chunks of a delta rule")
    }

    fn delta_inside(&self, units: usize) -> Result<Inside> {
        let matrix = || self.delta_room(units * 2 * TRIANGLE);
        Ok(Inside {
            solved: matrix()?,
            seen: matrix()?,
            factors: self.delta_room(units * CHUNK * FACTORS)?,
            decays: self.delta_room(units * CHUNK * 4)?,
        })
    }

    /// Fills what is inside the chunks of `keys`.
    fn delta_matrices(
        &self,
        batch: &Batch<'_>,
        inside: &Inside,
        keys: &Range<usize>,
    ) -> Result<()> {
        let heads = batch.rule.heads;
        let pointers = [
            Ptr(batch.qkv.block.ptr),
            Ptr(batch.tokens.lengths.at(&self.device)?),
            Ptr(batch.tokens.rates.at(&self.device)?),
            Ptr(batch.chunks.spans.ptr),
            Ptr(inside.solved.ptr),
            Ptr(inside.seen.ptr),
            Ptr(inside.factors.ptr),
            Ptr(inside.decays.ptr),
        ];
        let first = [Int(keys.start as i32)];
        let args = [&pointers[..], &batch.rule.numbers(), &first].concat();
        let grid = (batch.chunks.count as u32, keys.len() as u32, 1);
        let bytes = Widths::of(heads).shared_of_matrices() as u32;
        let source = sources::delta_chunks(heads, THREADS);
        self.device
            .launch(&source, "delta_matrices", grid, THREADS, bytes, &args)
    }

    /// A kernel that walks over the sequences with the value heads of `keys`.
    fn delta_walk(
        &self,
        name: &'static str,
        batch: &Batch<'_>,
        pointers: &[Arg],
        keys: &Range<usize>,
        shared: usize,
    ) -> Result<()> {
        let heads = batch.rule.heads;
        let group = heads.values / heads.keys;
        let first = [Int((keys.start * group) as i32)];
        let args = [pointers, &batch.rule.numbers(), &first].concat();
        let slices = Widths::of(heads).slices as u32;
        let grid = (
            batch.chunks.num_runs as u32,
            (keys.len() * group) as u32,
            slices,
        );
        let source = sources::delta_chunks(heads, THREADS);
        self.device
            .launch(&source, name, grid, THREADS, shared as u32, &args)
    }

    /// Ranges of key heads whose value heads fit in memory together, `bytes` a chunk and value head; each gets as many.
    fn delta_turns(
        heads: DeltaHeads,
        chunks: usize,
        bytes: usize,
    ) -> (usize, impl Iterator<Item = Range<usize>>) {
        let keys = heads.keys;
        let of_key = (heads.values / keys * chunks * bytes).max(1);
        let turns = keys.div_ceil((KEPT_BYTES / of_key).clamp(1, keys));
        let at_once = keys.div_ceil(turns);
        let ranges = (0..keys).step_by(at_once);
        let units = at_once * (heads.values / keys) * chunks;
        (units, ranges.map(move |k| k..(k + at_once).min(keys)))
    }

    pub(super) fn delta(
        &self,
        qkv: &Tensor,
        gates: &Tensor,
        rule: &DeltaRule<'_, Self>,
        sequences: &Sequences,
    ) -> Result<Tensor> {
        let op = "gated_delta";
        let rule = checked(op, qkv, gates, rule)?;
        expect(op, sequences.num_tokens() == qkv.rows, || {
            format!("{} tokens for {} rows", sequences.num_tokens(), qkv.rows)
        })?;
        let h = rule.heads;
        let o = self.new_tensor(qkv.rows, h.values * h.value_dim, "a delta rule's output")?;
        if qkv.rows == 0 {
            return Ok(o);
        }
        let (tokens, chunks) = (
            self.delta_tokens(qkv, gates, &rule)?,
            self.chunks(sequences)?,
        );
        let batch = Batch {
            qkv,
            rule: &rule,
            tokens: &tokens,
            chunks: &chunks,
        };
        let widths = Widths::of(h);
        let (units, turns) = Self::delta_turns(h, chunks.count, widths.inside());
        let inside = self.delta_inside(units)?;
        for keys in turns {
            self.delta_matrices(&batch, &inside, &keys)?;
            let pointers = [
                Ptr(qkv.block.ptr),
                Ptr(chunks.runs.ptr),
                Ptr(inside.solved.ptr),
                Ptr(inside.seen.ptr),
                Ptr(inside.factors.ptr),
                Ptr(inside.decays.ptr),
                Ptr(o.block.ptr),
            ];
            let shared = widths.shared_of_walk(false);
            self.delta_walk("delta_chunks", &batch, &pointers, &keys, shared)?;
        }
        Ok(o)
    }

    pub(super) fn delta_gradient(
        &self,
        dout: &Tensor,
        qkv: &Tensor,
        gates: &Tensor,
        rule: &DeltaRule<'_, Self>,
        sequences: &Sequences,
        (da_log, ddt_bias): (&mut Float, &mut Float),
    ) -> Result<(Tensor, Tensor)> {
        let op = "gated_delta_backward";
        let rule = checked(op, qkv, gates, rule)?;
        let h = rule.heads;
        let fits = sequences.num_tokens() == qkv.rows
            && (dout.rows, dout.cols) == (qkv.rows, h.values * h.value_dim)
            && da_log.len() == h.values
            && ddt_bias.len() == h.values;
        expect(op, fits, || {
            format!(
                "[{}, {}] and {} tokens for {h:?}",
                dout.rows,
                dout.cols,
                sequences.num_tokens()
            )
        })?;
        let dqkv = self.new_tensor(qkv.rows, qkv.cols, "a delta rule's gradient")?;
        let dgates = self.new_tensor(gates.rows, gates.cols, "a delta rule's gradient")?;
        if qkv.rows == 0 {
            return Ok((dqkv, dgates));
        }
        let (tokens, chunks) = (
            self.delta_tokens(qkv, gates, &rule)?,
            self.chunks(sequences)?,
        );
        let batch = Batch {
            qkv,
            rule: &rule,
            tokens: &tokens,
            chunks: &chunks,
        };
        let widths = Widths::of(h);
        let of_rates = self.new_float(qkv.rows, h.values, "a delta rule's gradient")?;
        let of_rates = of_rates.at(&self.device)?;
        let (units, turns) = Self::delta_turns(h, chunks.count, widths.kept());
        let inside = self.delta_inside(units)?;
        let state = || self.delta_room(units * h.key_dim * widths.wide() * 2);
        let (states, dstates) = (state()?, state()?);
        let deltas = self.delta_room(units * CHUNK * widths.wide() * 2)?;
        for keys in turns {
            self.delta_matrices(&batch, &inside, &keys)?;
            let pointers = [
                Ptr(qkv.block.ptr),
                Ptr(chunks.runs.ptr),
                Ptr(inside.solved.ptr),
                Ptr(inside.factors.ptr),
                Ptr(inside.decays.ptr),
                Ptr(states.ptr),
                Ptr(deltas.ptr),
            ];
            let shared = widths.shared_of_walk(true);
            self.delta_walk("delta_states", &batch, &pointers, &keys, shared)?;
            let pointers = [
                Ptr(dout.block.ptr),
                Ptr(qkv.block.ptr),
                Ptr(chunks.runs.ptr),
                Ptr(inside.solved.ptr),
                Ptr(inside.seen.ptr),
                Ptr(inside.factors.ptr),
                Ptr(inside.decays.ptr),
                Ptr(dstates.ptr),
                Ptr(dqkv.block.ptr),
            ];
            let shared = widths.shared_of_reverse();
            self.delta_walk("delta_reverse", &batch, &pointers, &keys, shared)?;
            let pointers = [
                Ptr(dout.block.ptr),
                Ptr(qkv.block.ptr),
                Ptr(gates.block.ptr),
                Ptr(rule.a_log.block.ptr),
                Ptr(rule.dt_bias.block.ptr),
                Ptr(tokens.lengths.at(&self.device)?),
                Ptr(chunks.spans.ptr),
                Ptr(inside.factors.ptr),
                Ptr(inside.decays.ptr),
                Ptr(states.ptr),
                Ptr(dstates.ptr),
                Ptr(deltas.ptr),
                Ptr(dqkv.block.ptr),
                Ptr(dgates.block.ptr),
                Ptr(of_rates),
            ];
            let first = [Int(keys.start as i32)];
            let args = [&pointers[..], &rule.numbers(), &first].concat();
            let grid = (chunks.count as u32, keys.len() as u32, 1);
            let bytes = widths.shared_of_gradients() as u32;
            let source = sources::delta_gradients(h, GRADIENT_THREADS);
            self.device.launch(
                &source,
                "delta_gradients",
                grid,
                GRADIENT_THREADS,
                bytes,
                &args,
            )?;
        }
        let args = [
            Ptr(of_rates),
            Ptr(tokens.rates.at(&self.device)?),
            Ptr(gates.block.ptr),
            Ptr(rule.a_log.block.ptr),
            Ptr(rule.dt_bias.block.ptr),
            Ptr(da_log.at(&self.device)?),
            Ptr(ddt_bias.at(&self.device)?),
            Int(qkv.rows as i32),
            Int(h.values as i32),
        ];
        let grid = (h.values as u32, 1, 1);
        let source = sources::gated_delta(h);
        self.device
            .launch(&source, "delta_weights", grid, 1024, 0, &args)?;
        Ok((dqkv, dgates))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_head_gets_one_turn_and_each_turn_fits() {
        for (keys, values, chunks) in [(16, 32, 256), (16, 32, 4096), (3, 9, 20_000), (7, 7, 1)] {
            let heads = DeltaHeads {
                keys,
                values,
                key_dim: 128,
                value_dim: 128,
            };
            let bytes = Widths::of(heads).kept();
            let (units, turns) = Cuda::delta_turns(heads, chunks, bytes);
            let turns: Vec<_> = turns.collect();
            let taken: Vec<usize> = turns.iter().cloned().flatten().collect();
            assert_eq!(taken, (0..keys).collect::<Vec<_>>());
            let most = turns.iter().map(Range::len).max();
            let of_key = values / keys * chunks;
            assert_eq!(Some(units), most.map(|k| k * of_key));
            assert!(units * bytes <= KEPT_BYTES || most == Some(1));
        }
    }

    #[test]
    fn the_widths_of_published_models_fit_every_card_since_ampere() {
        let widths = Widths {
            key: 128,
            slice: 32,
            slices: 4,
        };
        let most = [
            widths.shared_of_matrices(),
            widths.shared_of_walk(false),
            widths.shared_of_reverse(),
            widths.shared_of_gradients(),
        ];
        assert!(most.iter().all(|bytes| *bytes <= 99 << 10), "{most:?}");
    }
}
