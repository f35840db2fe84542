//! Cosines and sines of every position, computed once in f64.

use crate::spec::Rope;
use slime_kernels::{Ops, Result, RopeTable};

/// Cosines and sines of positions `0..positions`.
///
/// # Errors
/// The device has no room.
pub fn table<O: Ops>(ops: &O, rope: &Rope, positions: usize) -> Result<RopeTable<O>> {
    let (frequencies, magnitude) = (rope.inverse_frequencies(), rope.magnitude());
    let pairs = frequencies.len();
    let (mut cos, mut sin) = (Vec::new(), Vec::new());
    cos.reserve_exact(positions * pairs);
    sin.reserve_exact(positions * pairs);
    for position in 0..positions {
        for frequency in &frequencies {
            let (s, c) = (position as f64 * frequency).sin_cos();
            sin.push(s * magnitude);
            cos.push(c * magnitude);
        }
    }
    Ok(RopeTable {
        cos: ops.float_f64(positions, pairs, &cos)?,
        sin: ops.float_f64(positions, pairs, &sin)?,
        dims: 2 * pairs,
        style: rope.style,
    })
}
