//! Weights of 8 bits with a scale for each block of 128 × 128, as DeepSeek-V3 and the FP8 editions of other families
//! store them: `X` holds E4M3 numbers, `X_scale_inv` what they are to be multiplied by.
//!
//! Models are trained in full: blocks are multiplied out on the way in, and made anew where a server that runs the FP8
//! edition is given weights. Read [`super::export`] for who asks.

use super::Dtype;
use crate::{Error, Result};
use float8::F8E4M3;
use rayon::prelude::*;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Rows and columns of a block.
pub const BLOCK: usize = 128;
/// The largest E4M3 number.
const LARGEST: f32 = 448.0;
/// In safetensors headers.
pub(super) const NAME: &str = "F8_E4M3";

/// How a model's tensors are stored: in one format, but for those named, which are blocks of 8 bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form {
    /// Of all others.
    pub dtype: Dtype,
    /// Names of the tensors in blocks.
    pub blocks: Arc<BTreeSet<String>>,
}

impl From<Dtype> for Form {
    fn from(dtype: Dtype) -> Self {
        Self {
            dtype,
            blocks: Arc::default(),
        }
    }
}

/// Where a tensor's scales are.
pub(super) fn scales_of(name: &str) -> String {
    format!("{name}_scale_inv")
}

/// Blocks down and across of a matrix.
pub(super) fn grid(shape: &[usize]) -> Option<[usize; 2]> {
    match shape {
        [rows, cols] => Some([rows.div_ceil(BLOCK), cols.div_ceil(BLOCK)]),
        _ => None,
    }
}

/// Is a `quantization_config` one of these blocks?
pub(crate) fn is_known(config: &Value) -> bool {
    let says = |key: &str, value: Value| config.get(key).is_none_or(|found| *found == value);
    config.get("quant_method") == Some(&"fp8".into())
        && says("fmt", "e4m3".into())
        && config.get("weight_block_size") == Some(&serde_json::json!([BLOCK, BLOCK]))
}

/// Multiplied out, appended to `out`.
pub(super) fn decode(bytes: &[u8], scales: &[f32], cols: usize, out: &mut Vec<f32>) {
    let (start, across) = (out.len(), cols.div_ceil(BLOCK));
    out.resize(start + bytes.len(), 0.0);
    let rows = out[start..]
        .par_chunks_mut(cols.max(1))
        .zip(bytes.par_chunks(cols.max(1)));
    rows.enumerate().for_each(|(row, (to, from))| {
        let scales = &scales[row / BLOCK * across..][..across];
        for (col, (to, bits)) in to.iter_mut().zip(from).enumerate() {
            *to = F8E4M3::from_bits(*bits).to_f32() * scales[col / BLOCK];
        }
    });
}

/// A matrix's bytes and scales: `scale = largest / 448` of each block, and the numbers over it rounded to the nearest E4M3,
/// ties to even. A block of zeros has the scale 1.
///
/// # Errors
/// A number is not finite.
pub(super) fn encode(name: &str, numbers: &[f32], cols: usize) -> Result<(Vec<u8>, Vec<f32>)> {
    if let Some(bad) = numbers.iter().find(|x| !x.is_finite()) {
        let detail = format!("{name}: {bad} does not fit 8 bits; the training has diverged");
        return Err(Error::Input(detail));
    }
    let across = cols.div_ceil(BLOCK);
    let mut bytes = vec![0; numbers.len()];
    let bands = numbers
        .par_chunks(BLOCK * cols)
        .zip(bytes.par_chunks_mut(BLOCK * cols));
    let scales: Vec<Vec<f32>> = bands
        .map(|(from, to)| {
            let mut largest = vec![0.0f32; across];
            for row in from.chunks(cols) {
                for (block, part) in row.chunks(BLOCK).enumerate() {
                    largest[block] = part.iter().fold(largest[block], |m, x| m.max(x.abs()));
                }
            }
            let scale = |most: &f32| if *most == 0.0 { 1.0 } else { most / LARGEST };
            let scales: Vec<f32> = largest.iter().map(scale).collect();
            for (to, from) in to.chunks_mut(cols).zip(from.chunks(cols)) {
                for (col, (to, x)) in to.iter_mut().zip(from).enumerate() {
                    *to = F8E4M3::from_f32(x / scales[col / BLOCK]).to_bits();
                }
            }
            scales
        })
        .collect();
    Ok((bytes, scales.concat()))
}
