//! Every operation on the GPU against the CPU in f64, and how fast each is, in one table.
//!
//! `cargo test -p slime-kernels --test gpu_check` checks; with `-- --bench` it times too, with `-- --large` it also runs
//! shapes of more than 2³¹ elements, with `-- attention rms:128` it checks only operations whose names contain
//! one of the words, and of the second only shapes that contain what comes after the colon.
//! On a machine without a GPU the kernels run on an emulated one, a few cases of each unless words name some; where not even that
//! can be built it says so and passes. Read `parity.rs` for what is compared, `bench.rs` for what is timed.
#![allow(
    clippy::print_stdout,
    reason = "a table on the terminal is what this program is for"
)]

mod adopt;
mod bench;
mod broadcast;
mod cases;
mod emulator;
mod exchange;
mod families;
mod large;
mod parity;
mod recorded;
mod router;

use slime_kernels::Result;
use slime_kernels::cuda::{Cuda, num_gpus};
use std::process::ExitCode;

fn main() -> ExitCode {
    let wants = |flag: &str| std::env::args().any(|arg| arg == flag);
    let cuda = match Cuda::open_poisoning(0) {
        Ok(cuda) => cuda,
        Err(why) if emulator::is_here() => {
            println!("gpu_check: the emulated GPU does not open: {why}");
            return ExitCode::FAILURE;
        }
        Err(why) => {
            println!("gpu_check: {why}");
            return emulator::again().unwrap_or_else(|why| {
                println!("gpu_check: skipped: {why}");
                ExitCode::SUCCESS
            });
        }
    };
    println!("{}", cuda.name().unwrap_or_default());
    let failures = if wants("--no-parity") {
        0
    } else {
        let words: Vec<String> = std::env::args()
            .skip(1)
            .filter(|arg| !arg.starts_with('-'))
            .collect();
        let wanted = |name: &str| words.is_empty() || words.iter().any(|word| word == name);
        let checks: [(&str, fn(&Cuda) -> usize); 4] = [
            ("adopt", adopt::check),
            ("record", recorded::check),
            ("broadcast", broadcast::check),
            ("exchange", exchange::check),
        ];
        let wanted = checks.into_iter().filter(|(name, _)| wanted(name));
        let besides: usize = wanted.map(|(_, check)| check(&cuda)).sum();
        parity::check(&cuda, &words, emulator::is_here()) + besides
    };
    let failures = failures
        + if wants("--large") {
            large::pitfall_13_more_than_two_to_the_31_logits(&cuda)
        } else {
            0
        };
    drop(cuda);
    if wants("--bench") {
        match Cuda::open(0) {
            Ok(cuda) => bench::run(&cuda),
            Err(why) => println!("bench: {why}"),
        }
    }
    if failures == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// A line for what a check found; 1 where it is wrong.
fn say(op: &str, what: &str, outcome: Result<bool>) -> usize {
    let verdict = match &outcome {
        Ok(true) => "ok".into(),
        Ok(false) => "WRONG".into(),
        Err(why) => format!("FAILED: {why}"),
    };
    println!("{op:<24} {what:<44} {verdict}");
    usize::from(!matches!(outcome, Ok(true)))
}

/// NCCL lets ranks share a GPU: 2.30 and later do, when told so.
fn shares_one_gpu() -> bool {
    std::env::var("NCCL_MULTI_RANK_GPU_ENABLE").is_ok_and(|on| on == "1")
}

/// The GPU of a rank: one each, unless NCCL is told to let ranks share the first.
fn gpu_of(rank: usize) -> usize {
    if shares_one_gpu() { 0 } else { rank }
}

/// What `check` finds wrong; where there are not two GPUs a line says so.
fn with_two_gpus(op: &str, what: &str, check: impl FnOnce() -> usize) -> usize {
    match num_gpus() {
        Ok(0 | 1) if !shares_one_gpu() => {
            println!("{op:<24} {what:<44} skipped: it needs two GPUs");
            0
        }
        Ok(_) => check(),
        Err(why) => say(op, what, Err(why)),
    }
}
