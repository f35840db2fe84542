//! How long parameters take from ranks to an engine on the first one's GPU: meeting on that GPU, and read one by one into the
//! host's memory.

use super::{Failure, Where, config, ranks, spec};
use serde_json::json;
use slime_kernels::Ops;
use slime_kernels::cuda::Cuda;
use slime_model::params;
use slime_trainer::parallel::ParallelConfig;
use std::sync::Arc;
use std::time::Instant;

/// As the program's.
const AT_ONCE: usize = 64 << 20;
const TIMES: u32 = 5;

/// A line a layout of as many GPUs as it names.
pub(crate) fn measure(model: &str, layouts: &[&str], place: Where) -> Result<(), Failure> {
    let spec = spec(model)?;
    let all = params(&spec);
    let numbers: usize = all.iter().map(|param| param.len()).sum();
    for words in layouts {
        let words = words.strip_prefix("dp").unwrap_or(words);
        let parallel = ParallelConfig::from_words(words, 2)?;
        let (trainer, devices) = ranks(&spec, &parallel, &config(4096), place)?;
        let engine = Arc::new(Cuda::open(0)?);
        let before: Vec<usize> = devices.iter().map(|cuda| cuda.peak_bytes()).collect();
        let first = Instant::now();
        let copies = trainer.copy_to(&engine, AT_ONCE)?;
        let first = first.elapsed().as_secs_f64();
        let began = Instant::now();
        for _ in 0..TIMES {
            trainer.copy_to(&engine, AT_ONCE)?;
        }
        let seconds = began.elapsed().as_secs_f64() / f64::from(TIMES);
        let began = Instant::now();
        let mut equal = true;
        let mut reading = 0.0;
        for (param, copy) in all.iter().zip(&copies) {
            let begin = Instant::now();
            let read = trainer.read_param(param)?;
            reading += begin.elapsed().as_secs_f64();
            equal &= read == engine.read(copy)?;
        }
        let more = devices.iter().zip(before);
        let more = more.map(|(cuda, before)| cuda.peak_bytes() - before).max();
        println!(
            "{}",
            json!({
                "model": model, "layout": parallel.short(), "gb": numbers as f64 * 2e-9, "equal": equal,
                "first_s": first, "handed_over_s": seconds, "gb_per_s": numbers as f64 * 2e-9 / seconds,
                "read_s": reading, "compared_s": began.elapsed().as_secs_f64(),
                "more_gib": more.unwrap_or(0) as f64 / (1u64 << 30) as f64,
            })
        );
        if !equal {
            return Err("what was handed over is not what the ranks hold".into());
        }
    }
    Ok(())
}
