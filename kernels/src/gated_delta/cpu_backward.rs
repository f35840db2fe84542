//! The backward of [`super::cpu`]: a task takes one value head of one sequence, chunk by chunk from the end; key heads'
//! gradients are added up in the heads' order afterwards.

use crate::cpu::parallel::{self, Disjoint};
use crate::cpu::{Cpu, CpuFloat, CpuTensor, Element};
use crate::{Result, Sequences, check};

use super::cpu::{CHUNK, Rule, Token, advance, sigmoid};

/// Gradients that one value head of one token has.
struct Parts {
    key_dim: usize,
    value_dim: usize,
}

impl Parts {
    /// `[dq | dk | dv | db | da]`, before lengths are taken into account.
    fn len(&self) -> usize {
        2 * self.key_dim + self.value_dim + 2
    }
}

/// `(dqkv, dgates)`; adds to the gradients of `a_log` and `dt_bias`.
#[allow(
    clippy::too_many_arguments,
    reason = "the operands of one fused backward"
)]
pub(crate) fn backward<T: Element>(
    cpu: &Cpu<T>,
    dout: &CpuTensor<T>,
    qkv: &CpuTensor<T>,
    gates: &CpuTensor<T>,
    rule: Rule<'_, T>,
    sequences: &Sequences,
    da_log: &mut CpuFloat<T>,
    ddt_bias: &mut CpuFloat<T>,
) -> Result<(CpuTensor<T>, CpuTensor<T>)> {
    let op = "gated_delta_backward";
    rule.check(op, qkv, gates)?;
    check::sequences(op, sequences, qkv.rows)?;
    let h = rule.heads;
    let (rows, out_cols) = (qkv.rows, h.values * h.value_dim);
    check::shape(op, "dout", (dout.rows, dout.cols), (rows, out_cols))?;
    for (what, x) in [("da_log", &*da_log), ("ddt_bias", &*ddt_bias)] {
        check::shape(op, what, (x.rows, x.cols), (1, h.values))?;
    }
    let parts = Parts {
        key_dim: h.key_dim,
        value_dim: h.value_dim,
    };
    // [row][value head][parts]
    let mut of_heads = cpu.take(rows * h.values * parts.len());
    {
        let out = Disjoint::new(&mut of_heads);
        let ranges: Vec<_> = sequences.ranges().collect();
        parallel::each(ranges.len() * h.values, |task| {
            let (range, head) = (ranges[task / h.values].clone(), task % h.values);
            head_backward(cpu, rule, head, range, dout, qkv, gates, |row, part| {
                let at = (row * h.values + head) * parts.len();
                // SAFETY: a task owns its head of its rows.
                unsafe { out.slice(at..at + parts.len()) }.copy_from_slice(part);
            });
        });
    }
    let (mut dqkv, mut dgates) = (cpu.take(rows * qkv.cols), cpu.take(rows * 2 * h.values));
    let (group, keys_at) = (h.values / h.keys, h.keys * h.key_dim);
    {
        let (dqkv, dgates) = (Disjoint::new(&mut dqkv), Disjoint::new(&mut dgates));
        parallel::ranges(rows, parallel::grain_rows(4 * qkv.cols), |range| {
            for row in range {
                // SAFETY: every row is written by one task.
                let (dqkv, dgates) = unsafe {
                    (
                        dqkv.slice(row * qkv.cols..(row + 1) * qkv.cols),
                        dgates.slice(row * 2 * h.values..(row + 1) * 2 * h.values),
                    )
                };
                dqkv.fill(T::ZERO);
                for head in 0..h.values {
                    let at = (row * h.values + head) * parts.len();
                    let part = &of_heads[at..at + parts.len()];
                    let (dq, rest) = part.split_at(h.key_dim);
                    let (dk, rest) = rest.split_at(h.key_dim);
                    let (dv, rest) = rest.split_at(h.value_dim);
                    let key = head / group * h.key_dim;
                    for (to, from) in [(key, dq), (keys_at + key, dk)] {
                        for (to, x) in dqkv[to..].iter_mut().zip(from) {
                            *to += *x;
                        }
                    }
                    dqkv[2 * keys_at + head * h.value_dim..][..h.value_dim].copy_from_slice(dv);
                    (dgates[head], dgates[h.values + head]) = (rest[0], rest[1]);
                }
            }
        });
    }
    for head in 0..h.values {
        // da / da_log is the exponent itself, da / dt_bias is da / a.
        let (mut of_log, mut of_bias) = (0.0, 0.0);
        for row in 0..rows {
            let da = dgates[row * 2 * h.values + h.values + head].to_f64();
            let a = gates.row(row)[h.values + head];
            let x = a.to_f64() + rule.dt_bias.data()[head].to_f64();
            of_bias += da;
            of_log += da * super::cpu::softplus(x) / sigmoid(x);
        }
        da_log.data[head] += T::from_f64(of_log);
        ddt_bias.data[head] += T::from_f64(of_bias);
    }
    Ok((
        CpuTensor::new(rows, qkv.cols, dqkv),
        CpuTensor::new(rows, 2 * h.values, dgates),
    ))
}

#[allow(
    clippy::too_many_arguments,
    reason = "the operands of one fused backward"
)]
fn head_backward<T: Element>(
    cpu: &Cpu<T>,
    rule: Rule<'_, T>,
    head: usize,
    rows: std::ops::Range<usize>,
    dout: &CpuTensor<T>,
    qkv: &CpuTensor<T>,
    gates: &CpuTensor<T>,
    mut write: impl FnMut(usize, &[T]),
) {
    let h = rule.heads;
    let size = h.key_dim * h.value_dim;
    let chunks = rows.len().div_ceil(CHUNK);
    let token = |row: usize| rule.token(head, qkv.row(row), gates.row(row));
    let (mut delta, mut out) = (cpu.take(h.value_dim), cpu.take(h.value_dim));
    // The state before each chunk.
    let mut starts = cpu.zeros(chunks.max(1) * size);
    for chunk in 1..chunks {
        let (before, after) = starts.split_at_mut(chunk * size);
        let state = &mut after[..size];
        state.copy_from_slice(&before[(chunk - 1) * size..]);
        for i in (chunk - 1) * CHUNK..chunk * CHUNK {
            advance(state, &token(rows.start + i), &mut delta, &mut out);
        }
    }
    let mut dstate = cpu.zeros(size);
    // The states before the tokens of a chunk, and after its last; the corrections.
    let mut states = cpu.take((CHUNK + 1) * size);
    let mut deltas = cpu.take(CHUNK * h.value_dim);
    for chunk in (0..chunks).rev() {
        let own = rows.start + chunk * CHUNK..rows.end.min(rows.start + (chunk + 1) * CHUNK);
        states[..size].copy_from_slice(&starts[chunk * size..(chunk + 1) * size]);
        let tokens: Vec<Token<T>> = own.clone().map(token).collect();
        for (i, token) in tokens.iter().enumerate() {
            let (before, after) = states.split_at_mut((i + 1) * size);
            after[..size].copy_from_slice(&before[i * size..]);
            let delta = &mut deltas[i * h.value_dim..(i + 1) * h.value_dim];
            advance(&mut after[..size], token, delta, &mut out);
        }
        for (i, row) in own.enumerate().rev() {
            let delta = &deltas[i * h.value_dim..(i + 1) * h.value_dim];
            let (before, after) = states[i * size..(i + 2) * size].split_at(size);
            let dout = &dout.row(row)[head * h.value_dim..][..h.value_dim];
            let part = token_backward(
                rule,
                head,
                &tokens[i],
                delta,
                before,
                after,
                dout,
                gates.row(row),
                &mut dstate,
            );
            write(row, &part);
        }
    }
}

/// Gradients of one token: `[dq | dk | dv | db | da]`. `dstate` is that of the state after it, and becomes that of the
/// state before it.
#[allow(
    clippy::too_many_arguments,
    reason = "the operands of one fused backward"
)]
fn token_backward<T: Element>(
    rule: Rule<'_, T>,
    head: usize,
    token: &Token<T>,
    delta: &[T],
    before: &[T],
    after: &[T],
    dout: &[T],
    gates: &[T],
    dstate: &mut [T],
) -> Vec<T> {
    let h = rule.heads;
    let width = h.value_dim;
    let dot = |x: &[T], y: &[T]| x.iter().zip(y).fold(T::ZERO, |sum, (x, y)| x.fma(*y, sum));
    let row = |state: &[T], i: usize| state[i * width..(i + 1) * width].to_vec();
    // o = Sᵀ q
    let mut dq: Vec<T> = (0..h.key_dim).map(|i| dot(&row(after, i), dout)).collect();
    for (i, q) in token.q.iter().enumerate() {
        for (d, o) in dstate[i * width..(i + 1) * width].iter_mut().zip(dout) {
            *d = q.fma(*o, *d);
        }
    }
    // S = S' + k δᵀ
    let mut dk: Vec<T> = (0..h.key_dim)
        .map(|i| dot(&row(dstate, i), delta))
        .collect();
    let mut ddelta = vec![T::ZERO; width];
    super::cpu::read(dstate, &token.k, &mut ddelta);
    // δ = β (v - m), m = S'ᵀ k
    let mut remembered = vec![T::ZERO; width];
    super::cpu::read(before, &token.k, &mut remembered);
    let mut dbeta = T::ZERO;
    for (dd, (v, m)) in ddelta.iter().zip(token.v.iter().zip(&remembered)) {
        dbeta += *dd * (*v - token.alpha * *m);
    }
    let dv: Vec<T> = ddelta.iter().map(|d| token.beta * *d).collect();
    let mut dalpha = T::ZERO;
    for i in 0..h.key_dim {
        let (before, dstate) = (row(before, i), &mut dstate[i * width..(i + 1) * width]);
        // S' is α times the state before.
        let with_dm = dot(&before, &dv) * token.alpha;
        dk[i] = dk[i] - with_dm;
        for (d, dv) in dstate.iter_mut().zip(&dv) {
            *d = *d - token.k[i] * *dv;
        }
        dalpha += dot(&before, dstate);
        for d in dstate.iter_mut() {
            *d = *d * token.alpha;
        }
    }
    // q and k were divided by their lengths; q by √key_dim too.
    let scale = T::from_f64(1.0 / (h.key_dim as f64).sqrt());
    for (d, unit, length, scale) in [
        (&mut dq, &token.q, token.lengths.0, scale),
        (&mut dk, &token.k, token.lengths.1, T::ONE),
    ] {
        let along = dot(d, unit) / scale;
        for (d, unit) in d.iter_mut().zip(unit) {
            *d = (*d * scale - *unit / scale * along * scale) * length;
        }
    }
    let (b, a) = (gates[head].to_f64(), gates[h.values + head].to_f64());
    let dbeta = dbeta.to_f64() * sigmoid(b) * (1.0 - sigmoid(b));
    let rate = rule.a_log.data()[head].to_f64().exp();
    let slope = -rate * sigmoid(a + rule.dt_bias.data()[head].to_f64());
    let da = dalpha.to_f64() * token.alpha.to_f64() * slope;
    let mut part = dq;
    part.extend(dk);
    part.extend(dv);
    part.extend([T::from_f64(dbeta), T::from_f64(da)]);
    part
}
