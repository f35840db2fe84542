//! Seeds derived from seeds.

/// A bijection of 64 bits that looks random (SplitMix64's finaliser).
pub(crate) fn scramble(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The seed of the `index`-th thing under `seed`.
pub(crate) fn derive(seed: u64, index: u64) -> u64 {
    scramble(seed.wrapping_add(0x9e37_79b9_7f4a_7c15) ^ scramble(index))
}

/// The same seed in 53 bits, so that every guest language holds it exactly.
pub(crate) fn for_guest(seed: u64) -> u64 {
    if seed < 1 << 53 {
        seed
    } else {
        scramble(seed) >> 11
    }
}
