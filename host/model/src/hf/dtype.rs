//! Number formats of weights in files, and rounding to them.

use crate::{Error, Result};
use bytemuck::allocation::pod_collect_to_vec;
use half::slice::HalfFloatSliceExt;
use half::vec::HalfFloatVecExt;
use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// How a file stores numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// 32 bits.
    F32,
    /// IEEE half: 5 bits of exponent, nothing above 65504.
    F16,
    /// 8 bits of exponent, 8 of precision.
    Bf16,
}

impl Dtype {
    /// Every format.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Bf16];

    /// Bytes a number takes.
    pub fn bytes(self) -> usize {
        if self == Self::F32 { 4 } else { 2 }
    }

    /// The name in safetensors headers.
    pub fn safetensors_name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
        }
    }

    /// The name in `config.json`.
    pub fn torch_name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
        }
    }

    /// Little-endian numbers of this format, appended to `out` as f32; exact.
    pub(crate) fn decode(self, bytes: &[u8], out: &mut Vec<f32>) {
        let start = out.len();
        out.resize(start + bytes.len() / self.bytes(), 0.0);
        let numbers = &mut out[start..];
        match self {
            Self::F32 => bytemuck::cast_slice_mut(numbers).copy_from_slice(bytes),
            Self::F16 => pod_collect_to_vec::<u8, f16>(bytes).convert_to_f32_slice(numbers),
            Self::Bf16 => pod_collect_to_vec::<u8, bf16>(bytes).convert_to_f32_slice(numbers),
        }
    }

    /// Numbers rounded to nearest, ties to even, appended to `out`. The error is a finite number that has no finite
    /// neighbour in this format.
    pub(crate) fn encode(self, numbers: &[f32], out: &mut Vec<u8>) -> Result<(), f32> {
        match self {
            Self::F32 => out.extend_from_slice(bytemuck::cast_slice(numbers)),
            Self::F16 => {
                let rounded = Vec::<f16>::from_f32_slice(numbers);
                let lost = rounded
                    .iter()
                    .zip(numbers)
                    .find(|(r, x)| r.is_infinite() && x.is_finite());
                if let Some((_, x)) = lost {
                    return Err(*x);
                }
                out.extend_from_slice(bytemuck::cast_slice(&rounded));
            }
            Self::Bf16 => {
                out.extend_from_slice(bytemuck::cast_slice(&Vec::<bf16>::from_f32_slice(numbers)))
            }
        }
        Ok(())
    }
}

#[cfg(target_endian = "big")]
compile_error!(
    "weight files are little-endian, and numbers are copied from them as they lie in memory"
);

impl FromStr for Dtype {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name
            .trim_start_matches("torch.")
            .to_ascii_lowercase()
            .as_str()
        {
            "f32" | "fp32" | "float32" => Ok(Self::F32),
            "f16" | "fp16" | "float16" => Ok(Self::F16),
            "bf16" | "bfloat16" => Ok(Self::Bf16),
            _ => Err(Error::Input(format!(
                "dtype \"{name}\" is not one of f32, f16, bf16"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_16_bit_pattern_survives_reading_and_writing() {
        let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        for dtype in [Dtype::F16, Dtype::Bf16] {
            let (mut numbers, mut back) = (Vec::new(), Vec::new());
            dtype.decode(&bytes, &mut numbers);
            dtype.encode(&numbers, &mut back).unwrap();
            let changed = bytes
                .chunks(2)
                .zip(back.chunks(2))
                .zip(&numbers)
                .filter(|((a, b), x)| a != b && !x.is_nan());
            assert_eq!(changed.count(), 0, "{dtype:?}");
        }
    }

    #[test]
    fn a_weight_too_large_for_f16_is_refused_and_not_made_infinite() {
        assert_eq!(
            Dtype::F16.encode(&[1.0, 70_000.0], &mut Vec::new()),
            Err(70_000.0)
        );
        assert_eq!(Dtype::Bf16.encode(&[70_000.0], &mut Vec::new()), Ok(()));
    }
}
