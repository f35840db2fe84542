//! On the CPU: a task takes one value head of one sequence, token after token.

use crate::attention::cpu::BLOCK;
use crate::causal_conv::cpu::{silu, tap};
use crate::cpu::parallel::{self, Disjoint};
use crate::cpu::{Cpu, CpuFloat, CpuTensor, Element};
use crate::{DeltaHeads, PagedSequence, Result, Sequences, check};

/// Tokens between two states that the backward starts from.
pub(crate) const CHUNK: usize = 64;
/// Added to the squared length that queries and keys are divided by.
pub(crate) const TINY: f64 = 1e-6;

/// Everything but the rows.
#[derive(Clone, Copy)]
pub(crate) struct Rule<'a, T: Element> {
    pub(crate) heads: DeltaHeads,
    /// `[1, values]`.
    pub(crate) a_log: &'a CpuTensor<T>,
    /// `[1, values]`.
    pub(crate) dt_bias: &'a CpuTensor<T>,
}

/// What one token does to one value head.
pub(crate) struct Token<T> {
    /// Unit length over `√key_dim`.
    pub(crate) q: Vec<T>,
    /// Unit length.
    pub(crate) k: Vec<T>,
    /// `1 / |q|` and `1 / |k|`.
    pub(crate) lengths: (T, T),
    pub(crate) v: Vec<T>,
    pub(crate) alpha: T,
    pub(crate) beta: T,
}

fn unit<T: Element>(x: &[T]) -> (Vec<T>, T) {
    let squares: f64 = x.iter().map(|x| x.to_f64() * x.to_f64()).sum();
    let inverse = T::from_f64(1.0 / (squares + TINY).sqrt());
    (x.iter().map(|x| *x * inverse).collect(), inverse)
}

pub(crate) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub(crate) fn softplus(x: f64) -> f64 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

impl<T: Element> Rule<'_, T> {
    pub(crate) fn check(
        &self,
        op: &'static str,
        qkv: &CpuTensor<T>,
        gates: &CpuTensor<T>,
    ) -> Result<()> {
        let h = self.heads;
        let divides = h.keys > 0 && h.values.is_multiple_of(h.keys);
        check::that(divides && h.key_dim > 0 && h.value_dim > 0, op, || {
            format!("{h:?}: key heads must divide value heads, and nothing may be 0")
        })?;
        check::that(qkv.cols == h.cols(), op, || {
            format!("rows of {} columns, but {h:?} need {}", qkv.cols, h.cols())
        })?;
        check::shape(
            op,
            "the gates",
            (gates.rows, gates.cols),
            (qkv.rows, 2 * h.values),
        )?;
        for (what, x) in [("a_log", self.a_log), ("dt_bias", self.dt_bias)] {
            check::shape(op, what, (x.rows, x.cols), (1, h.values))?;
        }
        Ok(())
    }

    /// The decay's exponent of a head: `-e^a_log softplus(a + dt_bias)`.
    pub(crate) fn exponent(&self, head: usize, a: T) -> f64 {
        let rate = self.a_log.data()[head].to_f64().exp();
        -rate * softplus(a.to_f64() + self.dt_bias.data()[head].to_f64())
    }

    pub(crate) fn token(&self, head: usize, qkv: &[T], gates: &[T]) -> Token<T> {
        let h = self.heads;
        let group = head / (h.values / h.keys);
        let keys_at = h.keys * h.key_dim;
        let part = |start: usize| &qkv[start + group * h.key_dim..][..h.key_dim];
        let (q, q_length) = unit(part(0));
        let (k, k_length) = unit(part(keys_at));
        let scale = T::from_f64(1.0 / (h.key_dim as f64).sqrt());
        Token {
            q: q.into_iter().map(|x| x * scale).collect(),
            k,
            lengths: (q_length, k_length),
            v: qkv[2 * keys_at + head * h.value_dim..][..h.value_dim].to_vec(),
            alpha: T::from_f64(self.exponent(head, gates[h.values + head]).exp()),
            beta: T::from_f64(sigmoid(gates[head].to_f64())),
        }
    }
}

/// `y = Sᵀ x`, `S: [key_dim, value_dim]`.
pub(crate) fn read<T: Element>(state: &[T], x: &[T], y: &mut [T]) {
    y.fill(T::ZERO);
    for (row, x) in state.chunks_exact(y.len()).zip(x) {
        for (y, s) in y.iter_mut().zip(row) {
            *y = s.fma(*x, *y);
        }
    }
}

/// One token: changes the state, gives the correction `β (v - Sᵀ k̂)` and the output.
pub(crate) fn advance<T: Element>(
    state: &mut [T],
    token: &Token<T>,
    delta: &mut [T],
    out: &mut [T],
) {
    for s in state.iter_mut() {
        *s = *s * token.alpha;
    }
    read(state, &token.k, delta);
    for (delta, v) in delta.iter_mut().zip(&token.v) {
        *delta = token.beta * (*v - *delta);
    }
    for (row, k) in state.chunks_exact_mut(delta.len()).zip(&token.k) {
        for (s, d) in row.iter_mut().zip(delta.iter()) {
            *s = k.fma(*d, *s);
        }
    }
    read(state, &token.q, out);
}

pub(crate) fn forward<T: Element>(
    cpu: &Cpu<T>,
    qkv: &CpuTensor<T>,
    gates: &CpuTensor<T>,
    rule: Rule<'_, T>,
    sequences: &Sequences,
) -> Result<CpuTensor<T>> {
    rule.check("gated_delta", qkv, gates)?;
    check::sequences("gated_delta", sequences, qkv.rows)?;
    let h = rule.heads;
    let cols = h.values * h.value_dim;
    let mut o = cpu.take(qkv.rows * cols);
    let out = Disjoint::new(&mut o);
    let ranges: Vec<_> = sequences.ranges().collect();
    parallel::each(ranges.len() * h.values, |task| {
        let (rows, head) = (ranges[task / h.values].clone(), task % h.values);
        let mut state = cpu.zeros(h.key_dim * h.value_dim);
        let mut delta = cpu.take(h.value_dim);
        for row in rows {
            let token = rule.token(head, qkv.row(row), gates.row(row));
            let at = row * cols + head * h.value_dim;
            // SAFETY: a task owns its head of its rows.
            let to = unsafe { out.slice(at..at + h.value_dim) };
            advance(&mut state, &token, &mut delta, to);
        }
    });
    Ok(CpuTensor::new(qkv.rows, cols, o))
}

/// The convolution and the rule for the newest tokens of sequences whose states lie in `states: [blocks, state_len]`.
pub(crate) fn paged<T: Element>(
    cpu: &Cpu<T>,
    states: &mut CpuFloat<T>,
    x: &CpuTensor<T>,
    conv: &CpuTensor<T>,
    gates: &CpuTensor<T>,
    rule: Rule<'_, T>,
    sequences: &[PagedSequence<'_>],
) -> Result<CpuTensor<T>> {
    let op = "gated_delta_paged";
    rule.check(op, x, gates)?;
    let (h, taps) = (rule.heads, conv.cols);
    check::that(conv.rows == x.cols && taps > 0, op, || {
        format!("{conv:?} for {x:?}")
    })?;
    let len = h.state_len(taps);
    check::that(states.cols == len, op, || {
        format!("states of {} numbers, should be {len}", states.cols)
    })?;
    let given: usize = sequences.iter().map(|s| s.rows.len()).sum();
    check::ids(op, "rows in sequences", given, x.rows)?;
    let cols = h.values * h.value_dim;
    let mut o = cpu.take(x.rows * cols);
    for s in sequences {
        let fits = s.rows.start <= s.rows.end && s.rows.end <= x.rows && s.rows.len() <= s.context;
        let held = s.blocks.len() * BLOCK >= s.context
            && s.blocks.iter().all(|b| (*b as usize) < states.rows);
        check::that(fits && held, op, || {
            format!("{s:?} in a cache of {} blocks", states.rows)
        })?;
        let block = |position: usize| s.blocks[position / BLOCK] as usize * len;
        let first = s.context - s.rows.len();
        let mut memory = cpu.zeros(len);
        if first > 0 && !s.rows.is_empty() {
            let at = block(first - 1);
            memory.copy_from_slice(&states.data[at..at + len]);
        }
        let (tail, state) = memory.split_at_mut((taps - 1) * x.cols);
        let mut mixed = cpu.take(x.cols);
        let mut delta = cpu.take(h.value_dim);
        for (i, row) in s.rows.clone().enumerate() {
            let new = x.row(row);
            for (c, mixed) in mixed.iter_mut().enumerate() {
                let before = (0..taps - 1).map(|j| tail[j * x.cols + c]);
                *mixed = silu(tap(conv.row(c), before.chain([new[c]])));
            }
            if taps > 1 {
                tail.copy_within(x.cols.., 0);
                tail[(taps - 2) * x.cols..].copy_from_slice(new);
            }
            for head in 0..h.values {
                let token = rule.token(head, &mixed, gates.row(row));
                let own = head * h.key_dim * h.value_dim..(head + 1) * h.key_dim * h.value_dim;
                let at = row * cols + head * h.value_dim;
                advance(
                    &mut state[own],
                    &token,
                    &mut delta,
                    &mut o[at..at + h.value_dim],
                );
            }
            let position = first + i;
            if position % BLOCK == BLOCK - 1 || row + 1 == s.rows.end {
                let at = block(position);
                let (to_tail, to_state) = states.data[at..at + len].split_at_mut(tail.len());
                to_tail.copy_from_slice(tail);
                to_state.copy_from_slice(state);
            }
        }
    }
    Ok(CpuTensor::new(x.rows, cols, o))
}
