//! Random numbers of one draw (SplitMix64): small, fast and the same everywhere.

/// A stream of random numbers that is a function of (seed, index).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64, index: u64) -> Self {
        // The index goes through one round first, so that neighbouring seeds and indices share no numbers.
        Self(seed ^ Self(index).next_u64())
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to `end - 1`; 0 where `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(end)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub fn within(&mut self, low: i64, high: i64) -> i64 {
        let span = high.abs_diff(low).saturating_add(1);
        low.wrapping_add_unsigned(self.below(span))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_draws_and_seeds_share_no_numbers() {
        let mut seen = std::collections::HashSet::new();
        for seed in 0..30 {
            for index in 0..30 {
                let mut random = Random::new(seed, index);
                for _ in 0..4 {
                    assert!(seen.insert(random.next_u64()), "seed {seed}, index {index}");
                }
            }
        }
    }

    #[test]
    fn every_value_of_a_range_comes_up_and_no_other() {
        let mut random = Random::new(7, 0);
        let mut counts = [0u32; 7];
        for _ in 0..7_000 {
            counts[usize::try_from(random.within(-3, 3) + 3).unwrap()] += 1;
        }
        assert!(
            counts.iter().all(|&n| (800..1200).contains(&n)),
            "{counts:?}"
        );
    }
}
