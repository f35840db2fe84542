//! Delta nets: the short convolution, the gated delta rule, and both over memories that lie in a cache.
//!
//! The rule's backward needs the states again: one every [`CHUNK`] tokens is kept, those between are made anew. Key heads
//! take turns in that memory where it would grow too large.

use super::attention::KEPT_BYTES;
use super::device::Arg::{Int, Ptr};
use super::ops::{expect, whole_vectors};
use super::pool::Block;
use super::sources::{self, BLOCK_TOKENS};
use super::{Cuda, Float, Tensor};
use crate::{DeltaHeads, DeltaRule, PagedSequence, Result, Sequences};
use std::ops::Range;

/// Rows of a thread, as in `causal_conv/kernel.cu`.
const RUN: usize = 16;
const LONG: usize = 64;
/// Threads of a column, columns of a thread block and tokens between kept states, as in `gated_delta/kernel.cu`.
const SHARE: usize = 4;
const COLS: usize = 32;
const CHUNK: usize = 32;
/// Columns of a convolution's thread, and threads of its block.
const COLUMNS: usize = 8;
const THREADS: usize = 128;

/// A sequence, as in `gated_delta/kernel.cu`: its first row and number of rows, the token that row is, where its cache blocks or
/// kept states begin, and where its block's own states begin.
type Run = [i32; 5];

/// A rule whose operands fit each other.
struct Checked<'a> {
    heads: DeltaHeads,
    a_log: &'a Tensor,
    dt_bias: &'a Tensor,
}

impl Checked<'_> {
    fn numbers(&self) -> [super::device::Arg; 2] {
        [Int(self.heads.keys as i32), Int(self.heads.values as i32)]
    }

    /// Numbers of a token that a backward's thread blocks leave.
    fn part(&self) -> usize {
        2 * self.heads.key_dim + 2
    }

    fn state(&self) -> usize {
        self.heads.key_dim * self.heads.value_dim
    }
}

fn checked<'a>(
    op: &'static str,
    qkv: &Tensor,
    gates: &Tensor,
    rule: &DeltaRule<'a, Cuda>,
) -> Result<Checked<'a>> {
    let (h, a_log, dt_bias) = (rule.heads, rule.a_log, rule.dt_bias);
    let divides = h.keys > 0 && h.values.is_multiple_of(h.keys);
    expect(op, divides && h.value_dim > 0, || {
        format!("{h:?}: key heads must divide value heads, and nothing may be 0")
    })?;
    let whole = h.key_dim > 0 && h.key_dim.is_multiple_of(16) && h.value_dim <= 1024 / SHARE;
    expect(op, whole, || {
        format!(
            "{h:?}: CUDA kernels need a key width of whole 16s and a value width of at most 256"
        )
    })?;
    let fits = qkv.cols == h.cols()
        && (gates.rows, gates.cols) == (qkv.rows, 2 * h.values)
        && [a_log, dt_bias]
            .iter()
            .all(|x| (x.rows, x.cols) == (1, h.values));
    expect(op, fits, || {
        let shapes = [qkv, gates, a_log, dt_bias].map(|x| (x.rows, x.cols));
        format!("{shapes:?} for {h:?}")
    })?;
    Ok(Checked {
        heads: h,
        a_log,
        dt_bias,
    })
}

/// What the tokens of a batch do, before any state is known.
struct Tokens {
    lengths: Float,
    rates: Float,
}

impl Cuda {
    /// Blocks of `rows_each` rows and their columns, with threads for these.
    fn by_columns(rows: usize, rows_each: usize, cols: usize) -> ((u32, u32, u32), u32) {
        let across = (cols / COLUMNS).div_ceil(THREADS);
        let grid = (rows.div_ceil(rows_each) as u32, across as u32, 1);
        (grid, THREADS as u32)
    }

    fn check_convolution(
        &self,
        op: &'static str,
        x: &Tensor,
        w: &Tensor,
        num_tokens: usize,
    ) -> Result<()> {
        let fits = w.rows == x.cols && w.cols > 0 && num_tokens == x.rows;
        expect(op, fits, || {
            format!(
                "[{}, {}] and weights [{}, {}] for {num_tokens} tokens",
                x.rows, x.cols, w.rows, w.cols
            )
        })?;
        whole_vectors(op, x.cols)
    }

    pub(super) fn convolved(
        &self,
        x: &Tensor,
        w: &Tensor,
        sequences: &Sequences,
    ) -> Result<Tensor> {
        self.check_convolution("causal_conv", x, w, sequences.num_tokens())?;
        let y = self.new_tensor(x.rows, x.cols, "a convolution")?;
        let first = self.bounds(sequences, |r| r.start)?;
        let args = [
            Ptr(x.block.ptr),
            Ptr(w.block.ptr),
            Ptr(first.ptr),
            Ptr(y.block.ptr),
            Int(x.rows as i32),
            Int(x.cols as i32),
        ];
        let (grid, threads) = Self::by_columns(x.rows, RUN, x.cols);
        let source = sources::causal_conv(w.cols);
        self.device
            .launch(&source, "causal_conv", grid, threads, 0, &args)?;
        Ok(y)
    }

    pub(super) fn convolved_gradient(
        &self,
        dy: &Tensor,
        x: &Tensor,
        w: &Tensor,
        sequences: &Sequences,
        dw: &mut Float,
    ) -> Result<Tensor> {
        let op = "causal_conv_backward";
        self.check_convolution(op, x, w, sequences.num_tokens())?;
        let fits = (dy.rows, dy.cols) == (x.rows, x.cols) && (dw.rows, dw.cols) == (w.rows, w.cols);
        expect(op, fits, || {
            let shapes = [(dy.rows, dy.cols), (dw.rows, dw.cols)];
            format!("{shapes:?} for [{}, {}]", x.rows, x.cols)
        })?;
        let dx = self.new_tensor(x.rows, x.cols, "a convolution's gradient")?;
        if x.rows == 0 {
            return Ok(dx);
        }
        let first = self.bounds(sequences, |r| r.start)?;
        let parts = x.rows.div_ceil(LONG);
        let part = self.new_float(parts, dw.len(), "a convolution's gradient")?;
        let part = part.at(&self.device)?;
        let args = [
            Ptr(dy.block.ptr),
            Ptr(x.block.ptr),
            Ptr(w.block.ptr),
            Ptr(first.ptr),
            Ptr(dx.block.ptr),
            Ptr(part),
            Int(x.rows as i32),
            Int(x.cols as i32),
        ];
        let (grid, threads) = Self::by_columns(x.rows, LONG, x.cols);
        let source = sources::causal_conv(w.cols);
        self.device.launch(&source, op, grid, threads, 0, &args)?;
        self.add_parts(part, dw.at(&self.device)?, parts, dw.len(), dw.len())?;
        Ok(dx)
    }

    fn delta_tokens(&self, qkv: &Tensor, gates: &Tensor, rule: &Checked<'_>) -> Result<Tokens> {
        let h = rule.heads;
        let tokens = Tokens {
            lengths: self.new_float(qkv.rows, 2 * h.keys, "a delta rule's tokens")?,
            rates: self.new_float(qkv.rows, 2 * h.values, "a delta rule's tokens")?,
        };
        let pointers = [
            Ptr(qkv.block.ptr),
            Ptr(gates.block.ptr),
            Ptr(rule.a_log.block.ptr),
            Ptr(rule.dt_bias.block.ptr),
            Ptr(tokens.lengths.at(&self.device)?),
            Ptr(tokens.rates.at(&self.device)?),
            Int(qkv.rows as i32),
        ];
        let args = [&pointers[..], &rule.numbers()].concat();
        let (grid, threads) = super::ops::warps(qkv.rows * h.keys);
        let source = sources::gated_delta(h);
        self.device
            .launch(&source, "delta_tokens", grid, threads, 0, &args)?;
        Ok(tokens)
    }

    /// The forward's kernel over `runs`: `o`, kept states and the cache's are where they are asked for.
    #[allow(clippy::too_many_arguments, reason = "the operands of one launch")]
    fn delta_walk(
        &self,
        qkv: &Tensor,
        tokens: &Tokens,
        rule: &Checked<'_>,
        (runs, num_runs): (&Block, usize),
        (o, starts): (u64, u64),
        heads: Range<usize>,
        cache: Option<(u64, u64, usize, usize)>,
    ) -> Result<()> {
        let (states, blocks, tail, state_len) = cache.unwrap_or_default();
        let pointers = [
            Ptr(qkv.block.ptr),
            Ptr(tokens.lengths.at(&self.device)?),
            Ptr(tokens.rates.at(&self.device)?),
            Ptr(runs.ptr),
            Ptr(o),
            Ptr(starts),
            Ptr(states),
            Ptr(blocks),
        ];
        let places = [
            Int(heads.start as i32),
            Int(tail as i32),
            Int(state_len as i32),
        ];
        let args = [&pointers[..], &rule.numbers(), &places].concat();
        let width = rule.heads.value_dim;
        let cols = width.min(COLS);
        let grid = (
            num_runs as u32,
            heads.len() as u32,
            width.div_ceil(cols) as u32,
        );
        let threads = (cols * SHARE).next_multiple_of(32) as u32;
        let source = sources::gated_delta(rule.heads);
        self.device
            .launch(&source, "delta_forward", grid, threads, 0, &args)
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
        let tokens = self.delta_tokens(qkv, gates, &rule)?;
        let runs: Vec<Run> = sequences
            .ranges()
            .map(|r| [r.start as i32, r.len() as i32, 0, 0, 0])
            .collect();
        let list = self.device.upload(&runs, "sequences of a delta rule")?;
        let runs = (&list, runs.len());
        let all = 0..h.values;
        self.delta_walk(qkv, &tokens, &rule, runs, (o.block.ptr, 0), all, None)?;
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
        let tokens = self.delta_tokens(qkv, gates, &rule)?;
        let (mut runs, mut chunks, mut own) = (Vec::<Run>::new(), 0, 0);
        for r in sequences.ranges() {
            runs.push([r.start as i32, r.len() as i32, 0, chunks as i32, own as i32]);
            chunks += r.len().div_ceil(CHUNK);
            own += r.len().min(CHUNK);
        }
        let list = self.device.upload(&runs, "sequences of a delta rule")?;
        let source = sources::gated_delta(h);
        let of_rates = self.new_float(qkv.rows, h.values, "a delta rule's gradient")?;
        let (lengths, rates) = (
            tokens.lengths.at(&self.device)?,
            tokens.rates.at(&self.device)?,
        );

        // Key heads whose states and parts fit in memory together, each with its value heads.
        let group = h.values / h.keys;
        let state = rule.state();
        let of_key = 4 * group * ((chunks + own) * state + qkv.rows * rule.part());
        let turns = h.keys.div_ceil((KEPT_BYTES / of_key).clamp(1, h.keys));
        let at_once = h.keys.div_ceil(turns);
        let room =
            |numbers: usize| self.new_float(at_once * group, numbers, "a delta rule's states");
        let (starts, kept) = (room(chunks * state)?, room(own * state)?);
        let parts = room(qkv.rows * rule.part())?;
        let (starts, kept) = (starts.at(&self.device)?, kept.at(&self.device)?);
        let parts = parts.at(&self.device)?;
        let threads = (h.value_dim * SHARE).next_multiple_of(32);
        let shared = CHUNK * (2 * h.key_dim + 3 * h.value_dim + 2) + 2 * threads / 32 * rule.part();
        for first in (0..h.keys).step_by(at_once) {
            let count = at_once.min(h.keys - first);
            let heads = first * group..(first + count) * group;
            let walked = (&list, runs.len());
            self.delta_walk(
                qkv,
                &tokens,
                &rule,
                walked,
                (0, starts),
                heads.clone(),
                None,
            )?;
            let pointers = [
                Ptr(dout.block.ptr),
                Ptr(qkv.block.ptr),
                Ptr(lengths),
                Ptr(rates),
                Ptr(list.ptr),
                Ptr(starts),
                Ptr(kept),
                Ptr(parts),
                Ptr(dqkv.block.ptr),
            ];
            let first_head = [Int(heads.start as i32)];
            let args = [&pointers[..], &rule.numbers(), &first_head].concat();
            let grid = (runs.len() as u32, heads.len() as u32, 1);
            let bytes = 4 * shared as u32;
            self.device.launch(
                &source,
                "delta_backward",
                grid,
                threads as u32,
                bytes,
                &args,
            )?;
            let pointers = [
                Ptr(parts),
                Ptr(qkv.block.ptr),
                Ptr(gates.block.ptr),
                Ptr(rule.a_log.block.ptr),
                Ptr(rule.dt_bias.block.ptr),
                Ptr(lengths),
                Ptr(rates),
                Ptr(dqkv.block.ptr),
                Ptr(dgates.block.ptr),
                Ptr(of_rates.at(&self.device)?),
                Int(qkv.rows as i32),
            ];
            let places = [Int(first as i32), Int(count as i32)];
            let args = [&pointers[..], &rule.numbers(), &places].concat();
            let (grid, threads) = super::ops::warps(qkv.rows * count);
            self.device
                .launch(&source, "delta_finish", grid, threads, 0, &args)?;
        }
        let args = [
            Ptr(of_rates.at(&self.device)?),
            Ptr(gates.block.ptr),
            Ptr(rule.dt_bias.block.ptr),
            Ptr(da_log.at(&self.device)?),
            Ptr(ddt_bias.at(&self.device)?),
            Int(qkv.rows as i32),
            Int(h.values as i32),
        ];
        let grid = (h.values as u32, 1, 1);
        self.device
            .launch(&source, "delta_weights", grid, 256, 0, &args)?;
        Ok((dqkv, dgates))
    }

    pub(super) fn delta_paged(
        &self,
        states: &mut Float,
        x: &Tensor,
        conv: &Tensor,
        gates: &Tensor,
        rule: &DeltaRule<'_, Self>,
        sequences: &[PagedSequence<'_>],
    ) -> Result<Tensor> {
        let op = "gated_delta_paged";
        let rule = checked(op, x, gates, rule)?;
        let (h, taps) = (rule.heads, conv.cols);
        let given: usize = sequences.iter().map(|s| s.rows.len()).sum();
        self.check_convolution(op, x, conv, given)?;
        let len = h.state_len(taps);
        expect(op, states.cols == len, || {
            format!("states of {} numbers, should be {len}", states.cols)
        })?;
        let (mut pieces, mut runs, mut blocks) =
            (Vec::<[i32; 6]>::new(), Vec::<Run>::new(), Vec::new());
        for s in sequences {
            let fits = s.rows.start <= s.rows.end
                && s.rows.end <= x.rows
                && s.rows.len() <= s.context
                && s.blocks.len() * BLOCK_TOKENS >= s.context
                && s.blocks.iter().all(|b| (*b as usize) < states.rows);
            expect(op, fits, || {
                format!("{s:?} in a cache of {} blocks", states.rows)
            })?;
            let (first, position) = (s.rows.start as i32, (s.context - s.rows.len()) as i32);
            let table = blocks.len() as i32;
            blocks.extend_from_slice(s.blocks);
            runs.push([first, s.rows.len() as i32, position, table, 0]);
            pieces.extend(s.rows.clone().step_by(LONG).map(|row| {
                let count = LONG.min(s.rows.end - row);
                let is_last = i32::from(row + count == s.rows.end);
                [row as i32, count as i32, first, position, table, is_last]
            }));
        }
        let o = self.new_tensor(x.rows, h.values * h.value_dim, "a delta rule's output")?;
        if pieces.is_empty() {
            return Ok(o);
        }
        let mixed = self.new_tensor(x.rows, x.cols, "a convolution")?;
        let blocks = self.device.upload(&blocks, "cache blocks")?;
        let list = self.device.upload(&pieces, "rows of a convolution")?;
        let memory = states.at(&self.device)?;
        let args = [
            Ptr(x.block.ptr),
            Ptr(conv.block.ptr),
            Ptr(memory),
            Ptr(blocks.ptr),
            Ptr(list.ptr),
            Ptr(mixed.block.ptr),
            Int(x.cols as i32),
            Int(len as i32),
        ];
        let (grid, threads) = Self::by_columns(pieces.len(), 1, x.cols);
        let source = sources::causal_conv(taps);
        self.device
            .launch(&source, "causal_conv_paged", grid, threads, 0, &args)?;
        let tokens = self.delta_tokens(&mixed, gates, &rule)?;
        let list = self.device.upload(&runs, "sequences of a delta rule")?;
        let cache = Some((memory, blocks.ptr, (taps - 1) * x.cols, len));
        let runs = (&list, runs.len());
        let all = 0..h.values;
        self.delta_walk(&mixed, &tokens, &rule, runs, (o.block.ptr, 0), all, cache)?;
        Ok(o)
    }
}
