//! Tensors of one device in the keeping of another on the same GPU, and the look for numbers that are not finite.

use slime_kernels::cuda::Cuda;
use slime_kernels::{Ops, Result};

/// Longer than what is looked at in one piece.
const LONG: usize = (32 << 20) + 24;

/// Prints a line a check and returns how many are wrong.
pub(crate) fn check(cuda: &Cuda) -> usize {
    let checks = [
        ("adopted tensors keep their bits", keep(cuda)),
        ("numbers that are not finite are found", found(cuda)),
    ];
    let say = |(what, outcome)| crate::say("adopt", what, outcome);
    checks.into_iter().map(say).sum()
}

fn numbers(rows: usize, cols: usize) -> Vec<f32> {
    (0..rows * cols)
        .map(|i| ((i * 37 % 211) as f32 - 105.0) / 64.0)
        .collect()
}

/// Whatever the first device does after it, the second has what the first had.
fn keep(first: &Cuda) -> Result<bool> {
    let second = Cuda::open_poisoning(0)?;
    let shapes = [(1, 8), (513, 64), (4096, 1024)];
    let own = shapes.map(|(rows, cols)| first.tensor(rows, cols, &numbers(rows, cols)));
    let own = own.into_iter().collect::<Result<Vec<_>>>()?;
    // Still on its way when the other asks for it.
    let doubled = own.iter().map(|x| first.add(x, x));
    let doubled = doubled.collect::<Result<Vec<_>>>()?;
    let taken = second.adopt(first, &doubled)?;
    let mut right = true;
    for ((x, taken), (rows, cols)) in doubled.into_iter().zip(taken).zip(shapes) {
        let want = first.read(&x)?;
        drop(x);
        // The memory is written again at once.
        let other = first.tensor(rows, cols, &vec![9.0; rows * cols])?;
        right &= second.read(&taken)? == want && second.shape(&taken) == (rows, cols);
        drop(other);
    }
    Ok(right)
}

fn found(cuda: &Cuda) -> Result<bool> {
    let small = cuda.tensor(3, 8, &numbers(3, 8))?;
    let mut values = numbers(1, LONG);
    let fine = cuda.tensor(1, LONG, &values)?;
    values[LONG - 1] = f32::INFINITY;
    let infinite = cuda.tensor(1, LONG, &values)?;
    let mut torn = numbers(3, 8);
    torn[5] = f32::NAN;
    let torn = cuda.tensor(3, 8, &torn)?;
    // Finite, and too large to be squared.
    let large = cuda.tensor(1, 8, &[3e38; 8])?;
    Ok(cuda.all_finite(&[small.clone(), fine.clone()])?
        && !cuda.all_finite(&[small.clone(), infinite])?
        && !cuda.all_finite(&[fine, torn])?
        && cuda.all_finite(&[large, small])?
        && cuda.all_finite(&[])?)
}
