//! Indices past 2³¹: the last rows of a huge call equal the same rows computed alone.

use slime_kernels::cuda::Cuda;
use slime_kernels::{Ops, Result};

const ROWS: usize = 16_384;
const VOCAB: usize = 151_936;
const HIDDEN: usize = 64;
const LAST: usize = 3;

/// Prints a line a result and returns how many are wrong.
pub(crate) fn pitfall_13_more_than_two_to_the_31_logits(cuda: &Cuda) -> usize {
    match wrong(cuda) {
        Ok(wrong) => wrong,
        Err(why) => {
            println!("large: FAILED: {why}");
            1
        }
    }
}

fn wave(count: usize, step: f32) -> Vec<f32> {
    (0..count)
        .map(|i| ((i % 65_521) as f32 * step).sin())
        .collect()
}

fn wrong(cuda: &Cuda) -> Result<usize> {
    let (h, w) = (wave(ROWS * HIDDEN, 0.37), wave(VOCAB * HIDDEN, 0.73));
    let w = cuda.tensor(VOCAB, HIDDEN, &w)?;
    let head = |h: &[f32]| -> Result<(Vec<f64>, Vec<f32>)> {
        let rows = h.len() / HIDDEN;
        let logits = cuda.logits(&cuda.tensor(rows, HIDDEN, h)?, &w)?;
        let targets = cuda.ids(&vec![VOCAB as u32 - 1; rows])?;
        let stats = cuda.token_stats(&logits, &targets, 1.0, VOCAB)?;
        let ones = vec![1.0; rows];
        let dz = cuda.logits_backward(logits, &targets, 1.0, VOCAB, &stats, &ones, &ones)?;
        let last: Vec<u32> = (rows - LAST..rows).map(|r| r as u32).collect();
        let dz = cuda.read(&cuda.gather_rows(&dz, &cuda.ids(&last)?)?)?;
        Ok((stats.logprob[rows - LAST..].to_vec(), dz))
    };
    let (all, all_dz) = head(&h)?;
    let (alone, alone_dz) = head(&h[(ROWS - LAST) * HIDDEN..])?;
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-3 * b.abs().max(1e-3);
    let same = all.iter().zip(&alone).all(|(a, b)| near(*a, *b));
    let difference: f32 = all_dz
        .iter()
        .zip(&alone_dz)
        .map(|(a, b)| (a - b).powi(2))
        .sum();
    let size: f32 = alone_dz.iter().map(|b| b * b).sum();
    let error = (difference / size).sqrt();
    let ok = same && error < 1e-2;
    println!(
        "large: [{ROWS}, {VOCAB}] logits: last rows' log-probs {all:?} alone {alone:?}, dz error {error:.1e}: {}",
        if ok { "yes" } else { "WRONG" }
    );
    Ok(usize::from(!ok))
}
