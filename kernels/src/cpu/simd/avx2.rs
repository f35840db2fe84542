//! Vectors of AVX2 and FMA. Every function is inlined into one that [`super::simd!`] compiled with both features
//! after it saw that the machine has them; outside of such a function nothing here may be called.

use std::arch::x86_64::*;

use super::Simd;
use super::portable::{EXP_POLYNOMIAL, EXP_RANGE, LN2_HIGH, LN2_LOW};

/// Eight f32.
#[derive(Clone, Copy)]
pub struct F32x8(__m256);

/// Four f64.
#[derive(Clone, Copy)]
pub struct F64x4(__m256d);

/// Sum of four lanes, halves first.
#[inline(always)]
fn sum4(v: __m256d) -> f64 {
    let mut lanes = [0.0f64; 4];
    // SAFETY: room for four; AVX is present (module docs).
    unsafe { _mm256_storeu_pd(lanes.as_mut_ptr(), v) };
    (lanes[0] + lanes[2]) + (lanes[1] + lanes[3])
}

macro_rules! arithmetic {
    ($t:ty, $load:ident, $store:ident, $set1:ident, $add:ident, $sub:ident, $mul:ident, $div:ident, $fma:ident, $max:ident, $min:ident, $sqrt:ident) => {
        #[inline(always)]
        fn splat(x: $t) -> Self {
            // SAFETY: AVX2 and FMA are present (module docs); so below.
            Self(unsafe { $set1(x) })
        }
        #[inline(always)]
        unsafe fn load_ptr(p: *const $t) -> Self {
            // SAFETY: the caller's.
            Self(unsafe { $load(p) })
        }
        #[inline(always)]
        unsafe fn store_ptr(self, p: *mut $t) {
            // SAFETY: the caller's.
            unsafe { $store(p, self.0) }
        }
        #[inline(always)]
        fn add(self, b: Self) -> Self {
            // SAFETY: see splat.
            Self(unsafe { $add(self.0, b.0) })
        }
        #[inline(always)]
        fn sub(self, b: Self) -> Self {
            // SAFETY: see splat.
            Self(unsafe { $sub(self.0, b.0) })
        }
        #[inline(always)]
        fn mul(self, b: Self) -> Self {
            // SAFETY: see splat.
            Self(unsafe { $mul(self.0, b.0) })
        }
        #[inline(always)]
        fn div(self, b: Self) -> Self {
            // SAFETY: see splat.
            Self(unsafe { $div(self.0, b.0) })
        }
        #[inline(always)]
        fn fma(self, a: Self, b: Self) -> Self {
            // SAFETY: see splat.
            Self(unsafe { $fma(self.0, a.0, b.0) })
        }
        #[inline(always)]
        fn max(self, b: Self) -> Self {
            // SAFETY: see splat.
            Self(unsafe { $max(self.0, b.0) })
        }
        #[inline(always)]
        fn min(self, b: Self) -> Self {
            // SAFETY: see splat.
            Self(unsafe { $min(self.0, b.0) })
        }
        #[inline(always)]
        fn sqrt(self) -> Self {
            // SAFETY: see splat.
            Self(unsafe { $sqrt(self.0) })
        }
    };
}

impl F32x8 {
    #[inline(always)]
    fn lanes(self) -> [f32; 8] {
        let mut lanes = [0.0; 8];
        // SAFETY: room for eight.
        unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), self.0) };
        lanes
    }

    /// Lanes 0–3 and 4–7 in f64.
    #[inline(always)]
    fn halves(self) -> [__m256d; 2] {
        // SAFETY: AVX is present (module docs).
        unsafe {
            [
                _mm256_cvtps_pd(_mm256_castps256_ps128(self.0)),
                _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(self.0)),
            ]
        }
    }
}

impl Simd<f32> for F32x8 {
    const LANES: usize = 8;
    type Wide = [__m256d; 2];

    arithmetic!(
        f32,
        _mm256_loadu_ps,
        _mm256_storeu_ps,
        _mm256_set1_ps,
        _mm256_add_ps,
        _mm256_sub_ps,
        _mm256_mul_ps,
        _mm256_div_ps,
        _mm256_fmadd_ps,
        _mm256_max_ps,
        _mm256_min_ps,
        _mm256_sqrt_ps
    );

    /// The steps of [`super::portable::Exp`].
    #[inline(always)]
    fn exp(self) -> Self {
        // SAFETY: AVX2 and FMA are present (module docs).
        unsafe {
            // With the constant first, a NaN comes through.
            let x = _mm256_max_ps(_mm256_set1_ps(EXP_RANGE.0), self.0);
            let x = _mm256_min_ps(_mm256_set1_ps(EXP_RANGE.1), x);
            let n = _mm256_mul_ps(x, _mm256_set1_ps(std::f32::consts::LOG2_E));
            let n = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(n);
            let r = _mm256_fmadd_ps(n, _mm256_set1_ps(-LN2_HIGH), x);
            let r = _mm256_fmadd_ps(n, _mm256_set1_ps(-LN2_LOW), r);
            let mut p = _mm256_set1_ps(EXP_POLYNOMIAL[0]);
            for c in &EXP_POLYNOMIAL[1..] {
                p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(*c));
            }
            let y = _mm256_add_ps(
                _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r),
                _mm256_set1_ps(1.0),
            );
            let n = _mm256_cvtps_epi32(n);
            let half = _mm256_srai_epi32::<1>(n);
            let rest = _mm256_sub_epi32(n, half);
            let bias = _mm256_set1_epi32(127);
            let power = _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(half, bias)));
            let power_rest =
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(rest, bias)));
            Self(_mm256_mul_ps(_mm256_mul_ps(y, power), power_rest))
        }
    }

    #[inline(always)]
    fn max_lane(self) -> f32 {
        self.lanes()
            .into_iter()
            .fold(f32::NEG_INFINITY, |m, x| if x > m { x } else { m })
    }

    #[inline(always)]
    fn sum_lanes(self) -> f32 {
        let l = self.lanes();
        ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]))
    }

    #[inline(always)]
    unsafe fn transpose(
        from: *const f32,
        from_stride: usize,
        rows: usize,
        to: *mut f32,
        to_stride: usize,
    ) {
        // SAFETY: reads and writes are the caller's; AVX is present (module docs).
        unsafe {
            // Rows that are not there repeat the last.
            let r: [__m256; 8] =
                std::array::from_fn(|i| _mm256_loadu_ps(from.add(i.min(rows - 1) * from_stride)));
            let pair = |a, b| (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let (a, b) = pair(r[0], r[1]);
            let (c, d) = pair(r[2], r[3]);
            let (e, f) = pair(r[4], r[5]);
            let (g, h) = pair(r[6], r[7]);
            let (a, c, b, d) = (
                _mm256_shuffle_ps::<0x44>(a, c),
                _mm256_shuffle_ps::<0xee>(a, c),
                _mm256_shuffle_ps::<0x44>(b, d),
                _mm256_shuffle_ps::<0xee>(b, d),
            );
            let (e, g, f, h) = (
                _mm256_shuffle_ps::<0x44>(e, g),
                _mm256_shuffle_ps::<0xee>(e, g),
                _mm256_shuffle_ps::<0x44>(f, h),
                _mm256_shuffle_ps::<0xee>(f, h),
            );
            let low = |x, y| _mm256_permute2f128_ps::<0x20>(x, y);
            let high = |x, y| _mm256_permute2f128_ps::<0x31>(x, y);
            let out = [
                low(a, e),
                low(c, g),
                low(b, f),
                low(d, h),
                high(a, e),
                high(c, g),
                high(b, f),
                high(d, h),
            ];
            for (j, row) in out.into_iter().enumerate() {
                _mm256_storeu_ps(to.add(j * to_stride), row);
            }
        }
    }

    #[inline(always)]
    fn prefetch(p: *const f32) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }

    #[inline(always)]
    fn wide() -> Self::Wide {
        // SAFETY: AVX is present (module docs).
        [unsafe { _mm256_setzero_pd() }; 2]
    }

    #[inline(always)]
    fn wide_add(self, w: Self::Wide) -> Self::Wide {
        let [low, high] = self.halves();
        // SAFETY: AVX is present (module docs).
        unsafe { [_mm256_add_pd(w[0], low), _mm256_add_pd(w[1], high)] }
    }

    #[inline(always)]
    fn wide_fma(self, b: Self, w: Self::Wide) -> Self::Wide {
        let [low, high] = self.halves();
        let [b_low, b_high] = b.halves();
        // SAFETY: FMA is present (module docs).
        unsafe {
            [
                _mm256_fmadd_pd(low, b_low, w[0]),
                _mm256_fmadd_pd(high, b_high, w[1]),
            ]
        }
    }

    #[inline(always)]
    fn wide_sum(w: Self::Wide) -> f64 {
        // SAFETY: AVX is present (module docs).
        sum4(unsafe { _mm256_add_pd(w[0], w[1]) })
    }
}

impl Simd<f64> for F64x4 {
    const LANES: usize = 4;
    type Wide = __m256d;

    arithmetic!(
        f64,
        _mm256_loadu_pd,
        _mm256_storeu_pd,
        _mm256_set1_pd,
        _mm256_add_pd,
        _mm256_sub_pd,
        _mm256_mul_pd,
        _mm256_div_pd,
        _mm256_fmadd_pd,
        _mm256_max_pd,
        _mm256_min_pd,
        _mm256_sqrt_pd
    );

    #[inline(always)]
    fn exp(self) -> Self {
        let mut lanes = [0.0f64; 4];
        // SAFETY: room for four, both ways.
        unsafe {
            _mm256_storeu_pd(lanes.as_mut_ptr(), self.0);
            Self(_mm256_loadu_pd(lanes.map(f64::exp).as_ptr()))
        }
    }

    #[inline(always)]
    fn max_lane(self) -> f64 {
        let mut lanes = [0.0f64; 4];
        // SAFETY: room for four.
        unsafe { _mm256_storeu_pd(lanes.as_mut_ptr(), self.0) };
        lanes
            .into_iter()
            .fold(f64::NEG_INFINITY, |m, x| if x > m { x } else { m })
    }

    #[inline(always)]
    fn sum_lanes(self) -> f64 {
        sum4(self.0)
    }

    #[inline(always)]
    unsafe fn transpose(
        from: *const f64,
        from_stride: usize,
        rows: usize,
        to: *mut f64,
        to_stride: usize,
    ) {
        for j in 0..4 {
            for i in 0..rows {
                // SAFETY: the caller's.
                unsafe { *to.add(j * to_stride + i) = *from.add(i * from_stride + j) };
            }
        }
    }

    #[inline(always)]
    fn prefetch(p: *const f64) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }

    #[inline(always)]
    fn wide() -> Self::Wide {
        // SAFETY: AVX is present (module docs).
        unsafe { _mm256_setzero_pd() }
    }

    #[inline(always)]
    fn wide_add(self, w: Self::Wide) -> Self::Wide {
        // SAFETY: AVX is present (module docs).
        unsafe { _mm256_add_pd(w, self.0) }
    }

    #[inline(always)]
    fn wide_fma(self, b: Self, w: Self::Wide) -> Self::Wide {
        // SAFETY: FMA is present (module docs).
        unsafe { _mm256_fmadd_pd(self.0, b.0, w) }
    }

    #[inline(always)]
    fn wide_sum(w: Self::Wide) -> f64 {
        sum4(w)
    }
}
