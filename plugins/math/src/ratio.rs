//! Exact rational numbers of any size.

use num_bigint::BigInt;
use std::cmp::Ordering;

/// A reduced fraction; the denominator is positive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ratio {
    num: BigInt,
    den: BigInt,
}

/// Powers and factorials beyond this many bits are not computed exactly.
const MAX_BITS: u64 = 1 << 16;

impl Ratio {
    /// `None` where `den` is zero.
    pub(crate) fn new(num: BigInt, den: BigInt) -> Option<Self> {
        let zero = BigInt::from(0);
        if den == zero {
            return None;
        }
        let (num, den) = if den < zero { (-num, -den) } else { (num, den) };
        let gcd = gcd(&num, &den);
        Some(Self {
            num: num / &gcd,
            den: den / gcd,
        })
    }

    pub(crate) fn integer(value: impl Into<BigInt>) -> Self {
        Self {
            num: value.into(),
            den: BigInt::from(1),
        }
    }

    /// Digits with an optional fraction and exponent, as `12`, `0.5` or `1e-3`.
    pub(crate) fn decimal(whole: &str, fraction: &str, exponent: i32) -> Option<Self> {
        let digits = format!("{whole}{fraction}");
        let num = BigInt::parse_bytes(digits.as_bytes(), 10)?;
        let shift = exponent.checked_sub(i32::try_from(fraction.len()).ok()?)?;
        if shift.unsigned_abs() > 5_000 {
            return None;
        }
        let power = BigInt::from(10).pow(shift.unsigned_abs());
        if shift >= 0 {
            Self::new(num * power, BigInt::from(1))
        } else {
            Self::new(num, power)
        }
    }

    pub(crate) fn is_integer(&self) -> bool {
        self.den == BigInt::from(1)
    }

    fn is_negative(&self) -> bool {
        self.num < BigInt::from(0)
    }

    pub(crate) fn neg(&self) -> Self {
        Self {
            num: -self.num.clone(),
            den: self.den.clone(),
        }
    }

    pub(crate) fn abs(&self) -> Self {
        if self.is_negative() {
            self.neg()
        } else {
            self.clone()
        }
    }

    pub(crate) fn add(&self, other: &Self) -> Option<Self> {
        Self::new(
            &self.num * &other.den + &other.num * &self.den,
            &self.den * &other.den,
        )
    }

    pub(crate) fn mul(&self, other: &Self) -> Option<Self> {
        Self::new(&self.num * &other.num, &self.den * &other.den)
    }

    pub(crate) fn div(&self, other: &Self) -> Option<Self> {
        Self::new(&self.num * &other.den, &self.den * &other.num)
    }

    /// `None` where the exponent is no integer, or the result too large or not defined.
    pub(crate) fn pow(&self, exponent: &Self) -> Option<Self> {
        let times = exponent.to_i64()?;
        let n = u32::try_from(times.unsigned_abs()).ok()?;
        if u64::from(n) * (self.num.bits() + self.den.bits()) > MAX_BITS {
            return None;
        }
        let (num, den) = (self.num.pow(n), self.den.pow(n));
        if times < 0 {
            Self::new(den, num)
        } else {
            Self::new(num, den)
        }
    }

    /// The exact root, where there is one.
    pub(crate) fn root(&self, degree: &Self) -> Option<Self> {
        let degree = u32::try_from(degree.to_i64()?)
            .ok()
            .filter(|n| (1..=64).contains(n))?;
        if self.is_negative() && degree.is_multiple_of(2) {
            return None;
        }
        let exact = |value: &BigInt| {
            let root = value.nth_root(degree);
            (root.pow(degree) == *value).then_some(root)
        };
        Self::new(exact(&self.num)?, exact(&self.den)?)
    }

    pub(crate) fn factorial(&self) -> Option<Self> {
        let n = self.to_i64().filter(|n| (0..=2_000).contains(n))?;
        Some(Self::integer(
            (2..=n).fold(BigInt::from(1), |product, k| product * k),
        ))
    }

    pub(crate) fn to_i64(&self) -> Option<i64> {
        if self.is_integer() {
            i64::try_from(&self.num).ok()
        } else {
            None
        }
    }

    /// The nearest float, also where numerator and denominator both exceed its range.
    pub(crate) fn to_f64(&self) -> f64 {
        let excess = self.num.bits().max(self.den.bits()).saturating_sub(1000);
        let part = |value: &BigInt| {
            let kept: BigInt = value >> excess;
            kept.to_string().parse::<f64>().unwrap_or(f64::NAN)
        };
        part(&self.num) / part(&self.den)
    }
}

impl PartialOrd for Ratio {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some((&self.num * &other.den).cmp(&(&other.num * &self.den)))
    }
}

fn gcd(a: &BigInt, b: &BigInt) -> BigInt {
    let zero = BigInt::from(0);
    let (mut a, mut b) = (a.clone(), b.clone());
    while b != zero {
        let rest = &a % &b;
        a = b;
        b = rest;
    }
    if a < zero { -a } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(num: i64, den: i64) -> Ratio {
        Ratio::new(num.into(), den.into()).unwrap()
    }

    #[test]
    fn arithmetic_is_exact_and_reduced() {
        assert_eq!(ratio(2, -4), ratio(-1, 2));
        assert_eq!(ratio(1, 3).add(&ratio(1, 6)).unwrap(), ratio(1, 2));
        assert_eq!(ratio(2, 3).pow(&ratio(-2, 1)).unwrap(), ratio(9, 4));
        assert_eq!(ratio(4, 9).root(&ratio(2, 1)).unwrap(), ratio(2, 3));
        assert_eq!(ratio(2, 1).root(&ratio(2, 1)), None);
        assert_eq!(ratio(5, 1).factorial().unwrap(), ratio(120, 1));
        assert_eq!(ratio(1, 2).div(&ratio(0, 1)), None);
        assert_eq!(Ratio::decimal("0", "333", 0).unwrap(), ratio(333, 1000));
        assert_eq!(Ratio::decimal("1", "", 3).unwrap(), ratio(1000, 1));
        assert!((ratio(1, 3).to_f64() - 1.0 / 3.0).abs() < 1e-16);
    }

    #[test]
    fn what_would_not_end_is_not_computed() {
        assert_eq!(ratio(10, 1).pow(&ratio(100_000_000, 1)), None);
        assert_eq!(ratio(10_000_000, 1).factorial(), None);
    }
}
