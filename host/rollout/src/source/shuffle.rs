//! The order of an epoch: a permutation that is a function of (seed, source, epoch) and nothing else.

use crate::seed::{SplitMix64, hash64};

/// The order in which epoch `epoch` of `source` visits its `len` rows.
///
/// Fisher and Yates over `0..len` (last place first) with SplitMix64 started from
/// `hash64("epoch", [seed, source, epoch])`. Epochs differ from each other; a resumed run computes the same.
pub fn permutation(seed: u64, source: &str, epoch: u64, len: u32) -> Vec<u32> {
    let mut order: Vec<u32> = (0..len).collect();
    let start = hash64(
        "epoch",
        &[&seed.to_le_bytes(), source.as_bytes(), &epoch.to_le_bytes()],
    );
    SplitMix64::new(start).shuffle(&mut order);
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_epoch_visits_every_row_once(seed: u64, epoch in 0u64..1000, len in 1u32..200) {
            let mut order = permutation(seed, "s", epoch, len);
            order.sort_unstable();
            prop_assert_eq!(order, (0..len).collect::<Vec<_>>());
        }
    }

    #[test]
    fn i03_epochs_seeds_and_sources_differ() {
        let base = permutation(1, "a", 0, 50);
        assert_eq!(base, permutation(1, "a", 0, 50));
        assert_ne!(base, permutation(1, "a", 1, 50));
        assert_ne!(base, permutation(2, "a", 0, 50));
        assert_ne!(base, permutation(1, "b", 0, 50));
    }

    #[test]
    fn every_order_of_three_is_about_as_likely() {
        let mut counts = std::collections::BTreeMap::new();
        for epoch in 0..6000 {
            *counts.entry(permutation(7, "s", epoch, 3)).or_insert(0u32) += 1;
        }
        assert_eq!(counts.len(), 6);
        // Binomial(6000, 1/6): mean 1000, sigma 29; 5 sigma.
        assert!(
            counts.values().all(|&n| (855..=1145).contains(&n)),
            "{counts:?}"
        );
    }
}
