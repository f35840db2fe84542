//! Vectors as arrays: what runs without AVX2, and what AVX2 is tested against.

use super::Simd;
use crate::cpu::element::private::Number;

/// `N` numbers.
#[derive(Clone, Copy)]
pub struct Lanes<T, const N: usize>([T; N]);

/// e^x with the bits that the vectors give.
pub(crate) trait Exp {
    /// e^self.
    fn exp(self) -> Self;
}

/// ln 2 in two parts, the first exact in few bits, so that `x - n ln 2` loses nothing.
pub(crate) const LN2_HIGH: f32 = 0.693_359_4;
pub(crate) const LN2_LOW: f32 = -2.121_944_4e-4;
/// Below: e^x rounds to 0. Above: to infinity.
pub(crate) const EXP_RANGE: (f32, f32) = (-105.0, 89.0);
/// `(e^r - 1 - r) / r²` on ±ln 2 / 2 (Cephes), highest power first.
pub(crate) const EXP_POLYNOMIAL: [f32; 6] = [
    1.987_569_1e-4,
    1.398_199_9e-3,
    8.333_452e-3,
    4.166_579_6e-2,
    0.166_666_65,
    0.5,
];

impl Exp for f32 {
    /// `2^n e^r` with `n = round(x / ln 2)`; 2^n in two factors, so that subnormal results come out right.
    #[inline(always)]
    fn exp(self) -> f32 {
        let x = if self < EXP_RANGE.0 {
            EXP_RANGE.0
        } else {
            self
        };
        let x = if x > EXP_RANGE.1 { EXP_RANGE.1 } else { x };
        let n = (x * std::f32::consts::LOG2_E).round_ties_even();
        let r = n.mul_add(-LN2_HIGH, x);
        let r = n.mul_add(-LN2_LOW, r);
        let mut p = EXP_POLYNOMIAL[0];
        for c in &EXP_POLYNOMIAL[1..] {
            p = p.mul_add(r, *c);
        }
        let y = p.mul_add(r * r, r) + 1.0;
        let n = n as i32;
        let half = n >> 1;
        let power = |n: i32| f32::from_bits(((n + 127) << 23) as u32);
        y * power(half) * power(n - half)
    }
}

impl Exp for f64 {
    #[inline(always)]
    fn exp(self) -> f64 {
        f64::exp(self)
    }
}

/// `max` and `min` as x86 defines them.
#[inline(always)]
fn greater<T: PartialOrd>(a: T, b: T) -> T {
    if a > b { a } else { b }
}

#[inline(always)]
fn lesser<T: PartialOrd>(a: T, b: T) -> T {
    if a < b { a } else { b }
}

macro_rules! lanes {
    ($t:ty, $n:literal) => {
        impl Simd<$t> for Lanes<$t, $n> {
            const LANES: usize = $n;
            type Wide = [f64; $n];

            #[inline(always)]
            fn splat(x: $t) -> Self {
                Self([x; $n])
            }
            #[inline(always)]
            unsafe fn load_ptr(p: *const $t) -> Self {
                // SAFETY: the caller's.
                Self(unsafe { p.cast::<[$t; $n]>().read_unaligned() })
            }
            #[inline(always)]
            unsafe fn store_ptr(self, p: *mut $t) {
                // SAFETY: the caller's.
                unsafe { p.cast::<[$t; $n]>().write_unaligned(self.0) }
            }
            #[inline(always)]
            fn add(self, b: Self) -> Self {
                Self(std::array::from_fn(|i| self.0[i] + b.0[i]))
            }
            #[inline(always)]
            fn sub(self, b: Self) -> Self {
                Self(std::array::from_fn(|i| self.0[i] - b.0[i]))
            }
            #[inline(always)]
            fn mul(self, b: Self) -> Self {
                Self(std::array::from_fn(|i| self.0[i] * b.0[i]))
            }
            #[inline(always)]
            fn div(self, b: Self) -> Self {
                Self(std::array::from_fn(|i| self.0[i] / b.0[i]))
            }
            #[inline(always)]
            fn fma(self, a: Self, b: Self) -> Self {
                Self(std::array::from_fn(|i| self.0[i].mul_add(a.0[i], b.0[i])))
            }
            #[inline(always)]
            fn max(self, b: Self) -> Self {
                Self(std::array::from_fn(|i| greater(self.0[i], b.0[i])))
            }
            #[inline(always)]
            fn min(self, b: Self) -> Self {
                Self(std::array::from_fn(|i| lesser(self.0[i], b.0[i])))
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                Self(self.0.map(<$t>::sqrt))
            }
            #[inline(always)]
            fn exp(self) -> Self {
                Self(self.0.map(Exp::exp))
            }
            #[inline(always)]
            fn max_lane(self) -> $t {
                self.0
                    .into_iter()
                    .fold(<$t>::NEG_INFINITY, |m, x| greater(x, m))
            }
            #[inline(always)]
            fn sum_lanes(self) -> $t {
                let mut lanes = self.0;
                let mut n = $n;
                while n > 1 {
                    n /= 2;
                    for i in 0..n {
                        lanes[i] += lanes[i + n];
                    }
                }
                lanes[0]
            }
            #[inline(always)]
            unsafe fn transpose(
                from: *const $t,
                from_stride: usize,
                rows: usize,
                to: *mut $t,
                to_stride: usize,
            ) {
                for j in 0..$n {
                    for i in 0..rows {
                        // SAFETY: the caller's.
                        unsafe { *to.add(j * to_stride + i) = *from.add(i * from_stride + j) };
                    }
                }
            }
            #[inline(always)]
            fn prefetch(_: *const $t) {}
            #[inline(always)]
            fn wide() -> Self::Wide {
                [0.0; $n]
            }
            #[inline(always)]
            fn wide_add(self, w: Self::Wide) -> Self::Wide {
                std::array::from_fn(|i| w[i] + self.0[i].to_f64())
            }
            #[inline(always)]
            fn wide_fma(self, b: Self, w: Self::Wide) -> Self::Wide {
                std::array::from_fn(|i| self.0[i].to_f64().mul_add(b.0[i].to_f64(), w[i]))
            }
            #[inline(always)]
            fn wide_sum(w: Self::Wide) -> f64 {
                let mut lanes = w;
                let mut n = $n;
                while n > 1 {
                    n /= 2;
                    for i in 0..n {
                        lanes[i] += lanes[i + n];
                    }
                }
                lanes[0]
            }
        }
    };
}

lanes!(f32, 8);
lanes!(f64, 4);
