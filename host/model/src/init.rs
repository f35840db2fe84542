//! Fresh weights, fixed by a seed.
//!
//! Every parameter draws from a stream of its own, named by the parameter, so its values depend neither on the
//! order of drawing nor on the other parameters.

use crate::params::{ParamKind, ParamSpec};
use crate::spec::ModelSpec;

/// Fresh values of one parameter: norms are 1, biases 0, matrices normal with the spec's standard deviation; the two
/// projections that write into the residual stream are divided by `√(2 layers)` (GPT-2's rule), so that the stream's
/// variance does not grow with depth.
pub fn fresh(spec: &ModelSpec, param: &ParamSpec, seed: u64) -> Vec<f32> {
    if param.kind == ParamKind::DeltaALog {
        // The logarithm of something between 0.01 and 16, evenly.
        let mut uniform = Normal::new(seed, &param.name);
        let rate = |_| (0.01 + 15.99 * uniform.uniform()).ln() as f32;
        return (0..param.len()).map(rate).collect();
    }
    if param.kind.is_vector() {
        let one = match param.kind {
            ParamKind::DeltaNorm | ParamKind::DeltaDtBias => true,
            kind => kind.is_norm() && !spec.norm_plus_one,
        };
        return vec![if one { 1.0 } else { 0.0 }; param.len()];
    }
    let std = if param.kind.is_residual() {
        spec.init_std / (2.0 * spec.layers.len() as f64).sqrt()
    } else {
        spec.init_std
    };
    let mut normal = Normal::new(seed, &param.name);
    (0..param.len())
        .map(|_| (normal.next() * std) as f32)
        .collect()
}

/// Standard normal numbers by Box and Muller's method over SplitMix64.
struct Normal {
    state: u64,
    spare: Option<f64>,
}

impl Normal {
    fn new(seed: u64, name: &str) -> Self {
        // FNV-1a of the name, so that streams of different parameters are unrelated.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
        });
        let mut stream = Self {
            state: seed,
            spare: None,
        };
        stream.state = stream.bits() ^ hash;
        stream
    }

    fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In (0, 1]: its logarithm is finite.
    fn uniform(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    fn next(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        let (sin, cos) = (2.0 * std::f64::consts::PI * self.uniform()).sin_cos();
        self.spare = Some(radius * sin);
        radius * cos
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{families, params};

    #[test]
    fn fresh_weights_are_normal_and_fixed_by_seed_and_name() {
        let spec = families::demo::spec();
        let all = params(&spec);
        let embed = fresh(&spec, &all[0], 7);
        let n = embed.len() as f64;
        let mean = embed.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
        let std =
            (embed.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / n - mean * mean).sqrt();
        assert!(
            mean.abs() < 5.0 * 0.02 / n.sqrt() && (std / 0.02 - 1.0).abs() < 0.02,
            "{mean} {std}"
        );
        let beyond_two = embed.iter().filter(|x| x.abs() > 0.04).count() as f64 / n;
        assert!((beyond_two - 0.0455).abs() < 0.005, "{beyond_two}");

        assert_eq!(embed, fresh(&spec, &all[0], 7));
        assert_ne!(embed, fresh(&spec, &all[0], 8));
        let (a, b) = all
            .iter()
            .filter(|p| p.kind == ParamKind::Qkv)
            .fold((None, None), |(_, a), p| (a, Some(p)));
        let (a, b) = (fresh(&spec, a.unwrap(), 7), fresh(&spec, b.unwrap(), 7));
        assert_ne!(a[..8], b[..8]);
    }

    #[test]
    fn projections_into_the_stream_are_smaller_and_norms_are_one() {
        let spec = families::demo::spec();
        let std_of = |kind| {
            let param = params(&spec).into_iter().find(|p| p.kind == kind).unwrap();
            let x = fresh(&spec, &param, 1);
            (x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / x.len() as f64).sqrt()
        };
        let expected = 0.02 / (2.0 * spec.layers.len() as f64).sqrt();
        assert!((std_of(ParamKind::Down) / expected - 1.0).abs() < 0.02);
        assert_eq!(std_of(ParamKind::FfnNorm), 1.0);
    }
}
