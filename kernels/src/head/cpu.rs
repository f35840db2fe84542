//! On the CPU. Sums over the vocabulary run in f64; the gradient overwrites the logits.

use crate::cpu::parallel::{self, Disjoint};
use crate::cpu::simd::simd;
use crate::cpu::{CpuFloat, CpuIds, CpuTensor, Element};
use crate::{NO_TARGET, Result, TokenStats, check};

/// Where `p` is 0, `p × (E₁ - u)` shall be 0 also for `u = -inf`; no `u` with `p > 0` is this far from the others.
const FAR: f64 = 1e4;

fn check_rows<T: Element>(
    op: &'static str,
    logits: &CpuFloat<T>,
    targets: &CpuIds,
    inv_temperature: f64,
    vocab: usize,
) -> Result<()> {
    check::that(
        inv_temperature > 0.0 && inv_temperature.is_finite(),
        op,
        || format!("1 / temperature is {inv_temperature}; a temperature is above 0 and finite"),
    )?;
    check::ids(op, "targets", targets.0.len(), logits.rows)?;
    check::that(vocab <= logits.cols, op, || {
        format!("a vocabulary of {vocab} in {logits:?}")
    })?;
    let elsewhere = |y: u32| op == "logits_backward" && y == NO_TARGET;
    let mut targets = targets.0.iter();
    match targets.find(|y| **y as usize >= vocab && !elsewhere(**y)) {
        Some(bad) => check::that(false, op, || {
            format!("target {bad} in a vocabulary of {vocab}")
        }),
        None => Ok(()),
    }
}

pub(crate) fn token_stats<T: Element>(
    logits: &CpuFloat<T>,
    targets: &CpuIds,
    inv_temperature: f64,
    vocab: usize,
) -> Result<TokenStats> {
    check_rows("token_stats", logits, targets, inv_temperature, vocab)?;
    let (rows, cols) = (logits.rows, logits.cols);
    let mut rows_stats = vec![[0.0; 3]; rows];
    let to = Disjoint::new(&mut rows_stats);
    parallel::ranges(rows, parallel::grain_rows(4 * vocab), |range| {
        for i in range {
            let z = &logits.data[i * cols..][..vocab];
            let s = row(z, T::from_f64(inv_temperature));
            let target = (z[targets.0[i] as usize] * T::from_f64(inv_temperature)).to_f64();
            // SAFETY: every row is written by one task.
            unsafe { to.slice(i..i + 1)[0] = [target - s.lse, s.entropy, s.lse] };
        }
    });
    Ok(TokenStats {
        logprob: rows_stats.iter().map(|s| s[0]).collect(),
        entropy: rows_stats.iter().map(|s| s[1]).collect(),
        lse: rows_stats.iter().map(|s| s[2]).collect(),
    })
}

struct RowStats {
    lse: f64,
    entropy: f64,
}

simd! {
    fn row<T, V>(z: &[T], inv_temperature: T) -> RowStats {
        let scale = V::splat(inv_temperature);
        let mut greatest = V::splat(T::NEG_INFINITY);
        let mut i = 0;
        while i < z.len() {
            greatest = V::load_or(z, i, T::NEG_INFINITY).mul(scale).max(greatest);
            i += V::LANES;
        }
        let m = greatest.max_lane();
        let (mut sum, mut sum_u) = (V::wide(), V::wide());
        let mut i = 0;
        while i < z.len() {
            // Shifted by the greatest: nothing overflows, and the greatest adds e^0.
            let u = V::load_or(z, i, T::NEG_INFINITY).mul(scale).sub(V::splat(m));
            let e = u.exp();
            sum = e.wide_add(sum);
            sum_u = e.wide_fma(u.max(V::splat(T::from_f64(-FAR))), sum_u);
            i += V::LANES;
        }
        let (sum, sum_u) = (V::wide_sum(sum), V::wide_sum(sum_u));
        RowStats { lse: m.to_f64() + sum.ln(), entropy: sum.ln() - sum_u / sum }
    }
}

#[allow(
    clippy::too_many_arguments,
    reason = "the operands of one fused backward"
)]
pub(crate) fn logits_backward<T: Element>(
    mut logits: CpuFloat<T>,
    targets: &CpuIds,
    inv_temperature: f64,
    vocab: usize,
    stats: &TokenStats,
    a: &[f64],
    b: &[f64],
) -> Result<CpuTensor<T>> {
    let op = "logits_backward";
    check_rows(op, &logits, targets, inv_temperature, vocab)?;
    let (rows, cols) = (logits.rows, logits.cols);
    for (what, len) in [
        ("a", a.len()),
        ("b", b.len()),
        ("entropies", stats.entropy.len()),
        ("lse", stats.lse.len()),
    ] {
        check::ids(op, what, len, rows)?;
    }
    let to = Disjoint::new(&mut logits.data);
    parallel::ranges(rows, parallel::grain_rows(4 * vocab), |range| {
        for i in range {
            // SAFETY: every row belongs to one task.
            let (z, pad) = unsafe { to.slice(i * cols..(i + 1) * cols) }.split_at_mut(vocab);
            row_backward(
                z,
                inv_temperature,
                stats.lse[i],
                stats.entropy[i],
                a[i],
                b[i],
            );
            if targets.0[i] != NO_TARGET {
                let target = &mut z[targets.0[i] as usize];
                *target += T::from_f64(a[i] * inv_temperature);
            }
            pad.fill(T::ZERO);
        }
    });
    Ok(CpuTensor::new(rows, cols, logits.data))
}

simd! {
    /// All of `dz` but the target's `a / temperature`: `p (b (E₁ - u) - a) / temperature`.
    fn row_backward<T, V>(z: &mut [T], inv_temperature: f64, lse: f64, entropy: f64, a: f64, b: f64) {
        let scale = V::splat(T::from_f64(inv_temperature));
        let far = V::splat(T::from_f64(FAR));
        // A large lse in f32 would be off by more than p may be: what it loses is subtracted too.
        let lse_high = T::from_f64(lse);
        let lse_low = V::splat(T::from_f64(lse - lse_high.to_f64()));
        let lse_high = V::splat(lse_high);
        // With u relative to lse, E₁ - u is -entropy - (u - lse).
        let (entropy, b) = (V::splat(T::from_f64(-entropy)), V::splat(T::from_f64(b * inv_temperature)));
        let minus_a = V::splat(T::from_f64(-a * inv_temperature));
        let mut i = 0;
        while i < z.len() {
            let u = V::load_or(z, i, T::NEG_INFINITY).mul(scale).sub(lse_high).sub(lse_low);
            let below = entropy.sub(u).min(far);
            u.exp().mul(b.fma(below, minus_a)).store(z, i);
            i += V::LANES;
        }
    }
}
