//! The numbers the CPU computes with, f32 and f64, and the vector type each is computed in.

use super::simd;

/// A type of number. Sealed: f32 and f64.
pub trait Element:
    bytemuck::Pod + Send + Sync + PartialOrd + std::fmt::Debug + private::Number + 'static
{
}

impl Element for f32 {}
impl Element for f64 {}

pub(crate) mod private {
    use super::simd::Simd;

    /// What [`super::Element`]s can do.
    pub trait Number:
        Sized
        + Copy
        + Default
        + std::ops::Add<Output = Self>
        + std::ops::Sub<Output = Self>
        + std::ops::Mul<Output = Self>
        + std::ops::Div<Output = Self>
        + std::ops::AddAssign
    {
        /// 0.
        const ZERO: Self;
        /// 1.
        const ONE: Self;
        /// −∞.
        const NEG_INFINITY: Self;
        /// Vector of AVX2 and FMA.
        #[cfg(target_arch = "x86_64")]
        type Avx2: Simd<Self>;
        /// Vector of as many lanes that any machine has; the same bits, lane by lane.
        type Portable: Simd<Self>;

        /// Rounds.
        fn from_f64(x: f64) -> Self;
        /// Exact.
        fn to_f64(self) -> f64;
        /// `self × a + b`, rounded once.
        fn fma(self, a: Self, b: Self) -> Self;
        /// Natural logarithm.
        fn ln(self) -> Self;
        /// e^self, the bits that the vectors give.
        fn exp(self) -> Self;
    }
}

macro_rules! number {
    ($t:ident, $avx2:ident, $lanes:literal) => {
        impl private::Number for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const NEG_INFINITY: Self = $t::NEG_INFINITY;
            #[cfg(target_arch = "x86_64")]
            type Avx2 = simd::avx2::$avx2;
            type Portable = simd::portable::Lanes<$t, $lanes>;

            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                x as $t
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            #[inline(always)]
            fn fma(self, a: Self, b: Self) -> Self {
                self.mul_add(a, b)
            }
            #[inline(always)]
            fn ln(self) -> Self {
                $t::ln(self)
            }
            #[inline(always)]
            fn exp(self) -> Self {
                simd::portable::Exp::exp(self)
            }
        }
    };
}

number!(f32, F32x8, 8);
number!(f64, F64x4, 4);
