//! One body per operation, run on both backends over the same bf16 numbers; the error of each result in relative L2.

use crate::cases::{self, Case, Kind};
use slime_kernels::Cpu;
use slime_kernels::cuda::Cuda;

/// Relative L2 error allowed of a result: one to three bf16 roundings, or fp32 sums in another order.
fn limit(kind: Kind) -> f64 {
    match kind {
        Kind::Rounded => 6e-3,
        Kind::Float => 2e-4,
        Kind::FloatOfRounded => 6e-3,
        Kind::Merged => 1e-2,
        Kind::Exact => 0.0,
    }
}

/// ‖a − b‖ / ‖b‖, NaN if any number is; a zero reference must be met with nearly zero.
fn error(got: &[f64], want: &[f64]) -> f64 {
    let difference: f64 = got.iter().zip(want).map(|(a, b)| (a - b) * (a - b)).sum();
    let size: f64 = want.iter().map(|b| b * b).sum();
    if got.len() != want.len() {
        return f64::NAN;
    }
    (difference / size.max(1e-6)).sqrt()
}

/// Prints a line a result and returns how many are wrong. With `words`, only of operations whose names contain one (and, after a
/// colon, whose shapes contain the rest); of the others only the `quick` ones where that is asked for.
pub(crate) fn check(cuda: &Cuda, words: &[String], quick: bool) -> usize {
    let cpu = Cpu::<f64>::new();
    let mut failures = 0;
    println!(
        "{:<24} {:<44} {:<10} {:>9} {:>8}  ok",
        "op", "shape", "result", "error", "limit"
    );
    let wanted = |case: &Case| match words {
        [] => !quick || case.is_quick(),
        words => words.iter().any(|word| {
            let (op, shape) = word.split_once(':').unwrap_or((word, ""));
            case.op.contains(op) && case.shape.contains(shape)
        }),
    };
    for case in cases::all().iter().filter(|case| wanted(case)) {
        let Case { op, shape, .. } = case;
        let outcome = case
            .run(&cpu)
            .and_then(|want| Ok((want, case.run(cuda)?, case.run(cuda)?)));
        let (want, got, again) = match outcome {
            Ok(results) => results,
            Err(why) => {
                println!("{op:<24} {shape:<44} FAILED: {why}");
                failures += 1;
                continue;
            }
        };
        let mut bad_lines = Vec::new();
        let mut worst = ("", 0.0, 1.0);
        for ((want, got), again) in want.iter().zip(&got).zip(&again) {
            let (error, limit) = (error(&got.values, &want.values), limit(got.kind));
            let repeats = got
                .values
                .iter()
                .zip(&again.values)
                .all(|(a, b)| a.to_bits() == b.to_bits());
            let is_near = error <= limit; // not so of NaN
            if !is_near || !repeats {
                let verdict = if repeats {
                    "WRONG"
                } else {
                    "DIFFERS BETWEEN RUNS"
                };
                bad_lines.push(format!(
                    "{op:<24} {shape:<44} {:<10} {error:>9.2e} {limit:>8.0e}  {verdict}",
                    got.name
                ));
            }
            if worst.0.is_empty() || error / limit > worst.1 / worst.2 {
                worst = (got.name, error, limit);
            }
        }
        if bad_lines.is_empty() {
            println!(
                "{op:<24} {shape:<44} {:<10} {:>9.2e} {:>8.0e}  yes",
                worst.0, worst.1, worst.2
            );
        }
        for line in &bad_lines {
            println!("{line}");
        }
        failures += bad_lines.len();
    }
    println!(
        "parity: {failures} wrong (each line shows the result nearest to its limit; every result ran twice, bitwise equal)"
    );
    failures
}
