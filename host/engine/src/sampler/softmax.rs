//! One pass over a row: largest entry, `exp((z - max) / T)` and its sum.
//!
//! A vocabulary is 50,000 to 150,000 entries, so this is the sampler's cost: `exp` is a polynomial the compiler
//! turns into SIMD (within 2 ulp of f32, the same bits on every machine), sums are f64 in an order fixed by the
//! index, and nothing is sorted.

/// Entries whose sum is kept, so that a draw scans sums first.
const BLOCK: usize = 256;

/// What a row's softmax needs to say.
pub(super) struct Softmax {
    max: f32,
    temperature: f64,
    /// The first index that holds the largest logit.
    pub(super) argmax: usize,
    /// `Σ exp((z - max) / T)`.
    pub(super) total: f64,
    log_total: f64,
    sums: Vec<f64>,
}

impl Softmax {
    /// Leaves `exp((z - max) / T)` in `weights`. `None` where a logit is NaN or +∞, or all are −∞.
    pub(super) fn of(logits: &[f32], weights: &mut [f32], temperature: f64) -> Option<Self> {
        let mut lanes = [f32::NEG_INFINITY; 8];
        let chunks = logits.chunks_exact(8);
        let rest = chunks.remainder();
        for chunk in chunks {
            for (lane, &z) in lanes.iter_mut().zip(chunk) {
                *lane = if z > *lane { z } else { *lane };
            }
        }
        let max = lanes
            .iter()
            .chain(rest)
            .fold(f32::NEG_INFINITY, |m, &z| if z > m { z } else { m });
        if !max.is_finite() {
            return None;
        }
        let inverse = (1.0 / temperature) as f32;
        let sums: Vec<f64> = logits
            .chunks(BLOCK)
            .zip(weights.chunks_mut(BLOCK))
            .map(|(z, w)| {
                for (w, &z) in w.iter_mut().zip(z) {
                    *w = exp((z - max) * inverse);
                }
                sum(&w[..z.len()])
            })
            .collect();
        let total: f64 = sums.iter().sum();
        let argmax = logits.iter().position(|&z| z == max)?;
        total.is_finite().then(|| Self {
            max,
            temperature,
            argmax,
            total,
            log_total: total.ln(),
            sums,
        })
    }

    /// `log_softmax` of an entry.
    pub(super) fn logprob(&self, z: f32) -> f32 {
        ((f64::from(z) - f64::from(self.max)) / self.temperature - self.log_total) as f32
    }

    /// The index at which the cumulative sum passes `u × total`.
    pub(super) fn pick(&self, weights: &[f32], u: f64) -> usize {
        let mut left = u * self.total;
        let mut last = self.argmax;
        for (block, (&sum, weights)) in self.sums.iter().zip(weights.chunks(BLOCK)).enumerate() {
            if left >= sum {
                left -= sum;
                continue;
            }
            for (i, &w) in weights.iter().enumerate() {
                if w > 0.0 {
                    last = block * BLOCK + i;
                    if left < f64::from(w) {
                        return last;
                    }
                    left -= f64::from(w);
                }
            }
            // Rounding: the block's sum was a little more than its entries one by one.
            return last;
        }
        last
    }
}

/// Sum in four f64 lanes.
fn sum(w: &[f32]) -> f64 {
    let mut lanes = [0.0f64; 4];
    let chunks = w.chunks_exact(4);
    let rest: f64 = chunks.remainder().iter().map(|&w| f64::from(w)).sum();
    for chunk in chunks {
        for (lane, &w) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(w);
        }
    }
    (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]) + rest
}

/// `exp(x)` for `x ≤ 0`; 0 below −87, where f32 would be subnormal.
///
/// Cephes' expf: `x = n ln 2 + r`, a polynomial in `r`, and `2ⁿ` put together from its bits.
#[inline]
#[allow(clippy::excessive_precision, reason = "the published coefficients")]
pub(super) fn exp(x: f32) -> f32 {
    /// Adding it rounds to an integer that can be read from the low bits.
    const ROUND: f32 = 12_582_912.0;
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * 0.693_359_375) - n * -2.121_944_4e-4;
    let mut p = 1.987_569_15e-4;
    p = p * r + 1.398_199_950_7e-3;
    p = p * r + 8.333_451_907_3e-3;
    p = p * r + 4.166_579_589_4e-2;
    p = p * r + 1.666_666_545_9e-1;
    p = p * r + 5.000_000_120_1e-1;
    let y = p * r * r + r + 1.0;
    let exponent = shifted
        .to_bits()
        .wrapping_sub(ROUND.to_bits())
        .wrapping_add(127)
        << 23;
    let y = y * f32::from_bits(exponent);
    if x < -87.0 { 0.0 } else { y }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_ulp_of_the_real_one() {
        for i in 0..870_000 {
            let x = -(i as f32) * 1e-4;
            let want = f64::from(x).exp();
            let got = f64::from(exp(x));
            assert!((got - want).abs() <= want * 2.4e-7, "{x}: {got} {want}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-88.0), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn logits_that_are_no_numbers_are_refused() {
        let mut w = [0.0; 4];
        for bad in [
            [0.0, f32::NAN, 1.0, 2.0],
            [f32::INFINITY, 0.0, 0.0, 0.0],
            [f32::NEG_INFINITY; 4],
        ] {
            assert!(Softmax::of(&bad, &mut w, 1.0).is_none(), "{bad:?}");
        }
        let s = Softmax::of(&[f32::NEG_INFINITY, 3.0], &mut w[..2], 0.5)
            .expect("one finite logit is enough");
        assert_eq!((s.argmax, s.logprob(3.0)), (1, 0.0));
    }
}
