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

    /// `to[j × to_stride + i] = from[i × from_stride + j]` for `i < rows` and `j < LANES`, in whole vectors: each row of
    /// `to` gets `LANES` numbers, those from `rows` on unspecified. Rows are written in order.
    ///
    /// # Safety
    /// `from` must be valid for reads of `rows` ≤ LANES rows of LANES numbers, `to` for writes of LANES rows of LANES.
    unsafe fn transpose(
        from: *const T,
        from_stride: usize,
        rows: usize,
        to: *mut T,
        to_stride: usize,
    );
    /// Asks for the line at `p` to come to the second-level cache; `p` need not be valid.
    fn prefetch(p: *const T);

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

#[cfg(test)]
mod tests {
    use super::Simd;
    use super::portable::{Exp, Lanes};

    /// f32 from −∞ to ∞, dense where e^x is finite, and NaN.
    fn inputs() -> Vec<f32> {
        let mut x: Vec<f32> = (-110_000..=95_000)
            .map(|i| i as f32 * 1e-3 + 1e-5)
            .collect();
        x.extend([
            0.0,
            -0.0,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::MAX,
            f32::MIN,
            f32::MIN_POSITIVE,
            f32::NAN,
        ]);
        x.resize(x.len().next_multiple_of(8), 1.0);
        x
    }

    #[test]
    fn exp_is_within_one_and_a_half_ulp_down_to_subnormals() {
        for x in inputs().into_iter().filter(|x| !x.is_nan()) {
            let (is, should) = (Exp::exp(x), f64::from(x).exp());
            if should > f64::from(f32::MAX) {
                assert_eq!(is, f32::INFINITY, "{x}");
                continue;
            }
            let rounded = should as f32;
            let ulp = f64::from(rounded.next_up()) - f64::from(rounded);
            assert!(
                (f64::from(is) - should).abs() <= 1.5 * ulp,
                "e^{x} = {should:e}, got {is:e}"
            );
        }
        assert_eq!(Exp::exp(0.0f32), 1.0);
        assert_eq!(Exp::exp(f32::NEG_INFINITY), 0.0);
        assert!(Exp::exp(f32::NAN).is_nan());
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn avx2_and_portable_vectors_give_the_same_bits() {
        if !super::has_avx2() {
            return;
        }
        use super::avx2::F32x8;

        #[target_feature(enable = "avx2,fma")]
        fn avx2(x: &[f32], y: &[f32]) -> Vec<u32> {
            all::<F32x8>(x, y)
        }
        #[inline(always)]
        fn all<V: Simd<f32>>(x: &[f32], y: &[f32]) -> Vec<u32> {
            let mut out = Vec::new();
            let mut wide = V::wide();
            for i in (0..x.len()).step_by(8) {
                let (a, b) = (V::load_or(x, i, 0.0), V::load_or(y, i, 0.0));
                let mut lanes = [0.0f32; 8];
                for v in [
                    a.add(b),
                    a.sub(b),
                    a.mul(b),
                    a.div(b),
                    a.fma(b, a),
                    a.max(b),
                    a.min(b),
                    a.sqrt(),
                    a.exp(),
                ] {
                    v.store(&mut lanes, 0);
                    // Which NaN is not promised.
                    out.extend(lanes.map(|x| if x.is_nan() { 1 } else { x.to_bits() }));
                }
                out.extend([a.max_lane(), a.exp().sum_lanes()].map(f32::to_bits));
                wide = a.min(V::splat(9.0)).max(V::splat(-9.0)).wide_fma(b, wide);
                wide = b.wide_add(wide);
            }
            out.push(V::wide_sum(wide).to_bits() as u32);
            out
        }
        let x = inputs();
        let y: Vec<f32> = x.iter().rev().map(|x| x.clamp(-50.0, 50.0)).collect();
        // SAFETY: the machine has these features.
        assert!(unsafe { avx2(&x, &y) } == all::<Lanes<f32, 8>>(&x, &y));
    }
}
