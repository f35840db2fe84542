//! Random numbers as a function of (seed, position), so a token never depends on what else was sampled.
//!
//! There is no generator with a state: a request that is retracted, aborted and continued elsewhere, or moved
//! to another batch draws the same numbers.

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64's finaliser: every input bit reaches every output bit.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A word of its own for every pair.
pub(crate) fn word(seed: u64, index: u64) -> u64 {
    mix(mix(seed.wrapping_add(GOLDEN)) ^ mix(index.wrapping_mul(GOLDEN).wrapping_add(1)))
}

/// Uniform in [0, 1), 53 bits.
pub(crate) fn uniform(seed: u64, index: u64) -> f64 {
    (word(seed, index) >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// A seed from bytes (a request's id).
pub(crate) fn seed_of(seed: u64, bytes: &[u8]) -> u64 {
    bytes
        .chunks(8)
        .enumerate()
        .fold(word(seed, bytes.len() as u64), |hash, (i, chunk)| {
            let mut eight = [0; 8];
            eight[..chunk.len()].copy_from_slice(chunk);
            word(hash ^ u64::from_le_bytes(eight), i as u64)
        })
}

/// 32 hexadecimal digits, as ids of requests look.
pub(crate) fn hex_id(seed: u64, index: u64) -> String {
    format!(
        "{:016x}{:016x}",
        word(seed, 2 * index),
        word(seed ^ GOLDEN, 2 * index + 1)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_uniform_over_positions_and_over_seeds() {
        // 16 cells, 64,000 draws along each axis: chi-square with 15 degrees of freedom is below 44 with p = 1e-4.
        for draw in [
            (|i| uniform(7, i)) as fn(u64) -> f64,
            |i| uniform(i, 7),
            |i| uniform(i, i),
        ] {
            let mut cells = [0u32; 16];
            for i in 0..64_000 {
                cells[(draw(i) * 16.0) as usize] += 1;
            }
            let chi: f64 = cells
                .iter()
                .map(|&n| (f64::from(n) - 4000.0).powi(2) / 4000.0)
                .sum();
            assert!(chi < 44.0, "{chi}");
        }
    }

    #[test]
    fn neighbours_are_not_correlated() {
        let n = 20_000;
        let c: f64 = (0..n)
            .map(|i| (uniform(1, i) - 0.5) * (uniform(1, i + 1) - 0.5))
            .sum::<f64>()
            / n as f64;
        assert!(c.abs() < 4.0 / 12.0 / (n as f64).sqrt(), "{c}");
    }

    #[test]
    fn ids_and_seeds_differ() {
        let ids: std::collections::BTreeSet<_> = (0..1000).map(|i| hex_id(3, i)).collect();
        assert_eq!(ids.len(), 1000);
        assert!(ids.iter().all(|id| id.len() == 32));
        assert_ne!(seed_of(0, b"a"), seed_of(0, b"a\0"));
        assert_ne!(seed_of(0, b"12345678"), seed_of(0, b"123456789"));
        assert_eq!(seed_of(5, b"rollout-1"), seed_of(5, b"rollout-1"));
    }
}
