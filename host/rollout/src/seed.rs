//! Where every random number of a rollout comes from: a hash of names, never time or arrival order.
//!
//! `hash64(domain, parts)` is the first 8 bytes, little endian, of SHA-256 over the domain and the parts,
//! each preceded by its length in bytes as u64 little endian. It refuses to be a general generator;
//! [`SplitMix64`] is there for shuffles only.

use sha2::{Digest, Sha256};
use slime_core::PromptId;

/// The hash that every seed derives from; see the module's head for the definition.
pub fn hash64(domain: &str, parts: &[&[u8]]) -> u64 {
    let mut hash = Sha256::new();
    for part in std::iter::once(&domain.as_bytes()).chain(parts) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let digest = hash.finalize();
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(first)
}

/// The seed of one rollout: run seed, prompt, which drawing of the run it is, and its index in the group.
///
/// The drawing's number keeps a prompt that comes again in a later epoch from meeting the same random
/// numbers. The top bit is 0: engines and SQLite hold seeds in signed 64-bit integers.
pub fn rollout_seed(run_seed: u64, prompt: &PromptId, draw: u64, index: u32) -> u64 {
    let parts: [&[u8]; 5] = [
        &run_seed.to_le_bytes(),
        prompt.source.as_bytes(),
        &prompt.row.to_le_bytes(),
        &draw.to_le_bytes(),
        &index.to_le_bytes(),
    ];
    hash64("rollout", &parts) >> 1
}

/// The seed of one request of a rollout: the rollout's own for the first turn, so that a record can be
/// reproduced by hand; later turns and forks get numbers of their own.
pub fn turn_seed(rollout_seed: u64, lineage: u64, turn: u32) -> u64 {
    if lineage == 0 && turn == 0 {
        return rollout_seed;
    }
    hash64(
        "turn",
        &[
            &rollout_seed.to_le_bytes(),
            &lineage.to_le_bytes(),
            &turn.to_le_bytes(),
        ],
    ) >> 1
}

/// Steele, Lea and Flood's SplitMix64 (OOPSLA 2014): small, well defined, equal on every machine.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Start from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in `0..bound`; values that would bias the remainder are drawn again.
    pub fn below(&mut self, bound: u64) -> u64 {
        let reject_from = u64::MAX - u64::MAX % bound;
        loop {
            let value = self.next_u64();
            if value < reject_from {
                return value % bound;
            }
        }
    }

    /// Fisher and Yates, from the last place to the first.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u64 + 1) as usize;
            items.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn splitmix_gives_the_published_sequence() {
        // The reference C program's first outputs for seed 1234567.
        let mut rng = SplitMix64::new(1_234_567);
        let got: Vec<u64> = (0..3).map(|_| rng.next_u64()).collect();
        assert_eq!(
            got,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn every_rollout_has_a_seed_of_its_own_and_keeps_it() {
        let mut seen = HashSet::new();
        for row in 0..20 {
            let prompt = PromptId {
                source: "s".into(),
                row,
            };
            for draw in 0..5 {
                for index in 0..8 {
                    let seed = rollout_seed(1, &prompt, draw, index);
                    assert!(seed <= i64::MAX as u64);
                    assert_eq!(seed, rollout_seed(1, &prompt, draw, index));
                    assert!(seen.insert(seed));
                }
            }
        }
        let a = PromptId {
            source: "ab".into(),
            row: 0,
        };
        assert_ne!(rollout_seed(1, &a, 0, 0), rollout_seed(2, &a, 0, 0));
    }

    #[test]
    fn parts_do_not_run_into_one_another() {
        assert_ne!(hash64("d", &[b"ab", b"c"]), hash64("d", &[b"a", b"bc"]));
        assert_ne!(hash64("d", &[b"a"]), hash64("da", &[]));
    }
}
