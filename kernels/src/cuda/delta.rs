//! Delta nets: the short convolution, what each token does, and both over memories that lie in a cache. The rule over whole
//! sequences is in [`super::delta_chunks`].

use super::device::Arg::{Int, Ptr};
use super::ops::{expect, whole_vectors};
use super::sources::{self, BLOCK_TOKENS};
use super::{Cuda, Float, Tensor};
use crate::{DeltaHeads, DeltaRule, PagedSequence, Result, Sequences};

/// Rows of a thread, as in `causal_conv/kernel.cu`.
const RUN: usize = 16;
const LONG: usize = 64;
/// Threads of a column and columns of a thread block, as in `gated_delta/kernel.cu`.
const SHARE: usize = 4;
const COLS: usize = 32;
/// Widths that fit the shared memory of a thread block.
const WIDEST: usize = 256;
/// Columns of a convolution's thread, and threads of its block.
const COLUMNS: usize = 8;
const THREADS: usize = 128;

/// A sequence, as in `gated_delta/kernel.cu`: its first row and number of rows, the token that row is, and where its cache blocks
/// begin.
type Run = [i32; 4];

/// A rule whose operands fit each other.
pub(super) struct Checked<'a> {
    pub(super) heads: DeltaHeads,
    pub(super) a_log: &'a Tensor,
    pub(super) dt_bias: &'a Tensor,
}

impl Checked<'_> {
    pub(super) fn numbers(&self) -> [super::device::Arg; 2] {
        [Int(self.heads.keys as i32), Int(self.heads.values as i32)]
    }
}

pub(super) fn checked<'a>(
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
    let whole = h.key_dim > 0 && h.key_dim.is_multiple_of(16) && h.value_dim.is_multiple_of(8);
    expect(op, whole && h.key_dim.max(h.value_dim) <= WIDEST, || {
        format!(
            "{h:?}: CUDA kernels need a key width of whole 16s and a value width of whole 8s, at most {WIDEST} each"
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
pub(super) struct Tokens {
    pub(super) lengths: Float,
    pub(super) rates: Float,
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
        self.add_parts(part, (dw.at(&self.device)?, None), parts, dw.len())?;
        Ok(dx)
    }

    pub(super) fn delta_tokens(
        &self,
        qkv: &Tensor,
        gates: &Tensor,
        rule: &Checked<'_>,
    ) -> Result<Tokens> {
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
            runs.push([first, s.rows.len() as i32, position, table]);
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
        let pointers = [
            Ptr(mixed.block.ptr),
            Ptr(tokens.lengths.at(&self.device)?),
            Ptr(tokens.rates.at(&self.device)?),
            Ptr(list.ptr),
            Ptr(o.block.ptr),
            Ptr(memory),
            Ptr(blocks.ptr),
        ];
        let places = [Int(((taps - 1) * x.cols) as i32), Int(len as i32)];
        let args = [&pointers[..], &rule.numbers(), &places].concat();
        let cols = h.value_dim.min(COLS);
        let across = h.value_dim.div_ceil(cols) as u32;
        let grid = (runs.len() as u32, h.values as u32, across);
        let threads = (cols * SHARE).next_multiple_of(32) as u32;
        let source = sources::gated_delta(h);
        self.device
            .launch(&source, "delta_paged", grid, threads, 0, &args)?;
        Ok(o)
    }
}
