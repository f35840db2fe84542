//! Vectors: one trait, [`Simd`], an AVX2+FMA implementation and a portable one with the same number of lanes,
//! so that a result's bits do not depend on which of them a machine runs.
//!
//! No fast-math: every operation is the IEEE one, NaN and infinities included. Kernels are written once with
//! [`simd!`], which compiles them for both and picks at run time.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
pub(crate) mod portable;

/// A vector of `LANES` numbers.
pub trait Simd<T: Copy + Default>: Copy {
    /// Numbers in it.
    const LANES: usize;
    /// Partial sums in f64, two vectors for f32.
    type Wide: Copy;

    /// The same number in all lanes.
    fn splat(x: T) -> Self;
    /// # Safety
    /// `p` must be valid for reads of `LANES` numbers.
    unsafe fn load_ptr(p: *const T) -> Self;
    /// # Safety
    /// `p` must be valid for writes of `LANES` numbers.
    unsafe fn store_ptr(self, p: *mut T);
    /// Sum.
    fn add(self, b: Self) -> Self;
    /// Difference.
    fn sub(self, b: Self) -> Self;
    /// Product.
    fn mul(self, b: Self) -> Self;
    /// Quotient.
    fn div(self, b: Self) -> Self;
    /// `self × a + b`, rounded once.
    fn fma(self, a: Self, b: Self) -> Self;
    /// The greater; `b` if either is NaN.
    fn max(self, b: Self) -> Self;
    /// The lesser; `b` if either is NaN.
    fn min(self, b: Self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// e^self, within 1.5 ulp.
    fn exp(self) -> Self;
    /// The greatest lane, NaN lanes aside.
    fn max_lane(self) -> T;
    /// Sum of the lanes, halves first.
    fn sum_lanes(self) -> T;

    /// Partial sums of 0.
    fn wide() -> Self::Wide;
    /// `w + self`, in f64.
    fn wide_add(self, w: Self::Wide) -> Self::Wide;
    /// `w + self × b`, in f64.
    fn wide_fma(self, b: Self, w: Self::Wide) -> Self::Wide;
    /// Sum of the partial sums, in a fixed order.
    fn wide_sum(w: Self::Wide) -> f64;

    /// The numbers from `i` on; where the slice has fewer than `LANES`, the rest of the lanes are `fill`.
    #[inline(always)]
    fn load_or(s: &[T], i: usize, fill: T) -> Self {
        if i + Self::LANES <= s.len() {
            // SAFETY: the slice holds LANES numbers from `i` on.
            unsafe { Self::load_ptr(s.as_ptr().add(i)) }
        } else {
            let mut lanes = [fill; MAX_LANES];
            let rest = &s[i..];
            lanes[..rest.len()].copy_from_slice(rest);
            // SAFETY: MAX_LANES ≥ LANES.
            unsafe { Self::load_ptr(lanes.as_ptr()) }
        }
    }

    /// Writes the numbers from `i` on, as many as the slice has.
    #[inline(always)]
    fn store(self, s: &mut [T], i: usize) {
        if i + Self::LANES <= s.len() {
            // SAFETY: the slice holds LANES numbers from `i` on.
            unsafe { self.store_ptr(s.as_mut_ptr().add(i)) }
        } else {
            let mut lanes = [T::default(); MAX_LANES];
            // SAFETY: MAX_LANES ≥ LANES.
            unsafe { self.store_ptr(lanes.as_mut_ptr()) };
            let rest = &mut s[i..];
            rest.copy_from_slice(&lanes[..rest.len()]);
        }
    }
}

const MAX_LANES: usize = 8;

/// Has this machine AVX2 and FMA?
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn has_avx2() -> bool {
    std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma")
}

/// A function of an [`Element`](super::element::Element) `T` whose body uses a vector type `V: Simd<T>`.
/// Helpers it calls with `V` must be `#[inline(always)]`, and closures must not use `V`, or they are compiled
/// without AVX2.
macro_rules! simd {
    ($(#[$meta:meta])* $vis:vis fn $name:ident<$T:ident, $V:ident>($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        $vis fn $name<$T: $crate::cpu::element::Element>($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments, reason = "a kernel's operands")]
            fn body<$T: $crate::cpu::element::Element, $V: $crate::cpu::simd::Simd<$T>>($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                #[allow(clippy::too_many_arguments, reason = "a kernel's operands")]
                fn avx2<$T: $crate::cpu::element::Element>($($arg: $ty),*) $(-> $ret)? {
                    body::<$T, <$T as $crate::cpu::element::private::Number>::Avx2>($($arg),*)
                }
                if $crate::cpu::simd::has_avx2() {
                    // SAFETY: the machine has these features.
                    return unsafe { avx2::<$T>($($arg),*) };
                }
            }
            body::<$T, <$T as $crate::cpu::element::private::Number>::Portable>($($arg),*)
        }
    };
}
pub(crate) use simd;
