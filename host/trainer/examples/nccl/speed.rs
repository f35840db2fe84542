//! Tokens a second of a train step: one GPU, and two of them in each layout; and where the time of a step goes.

use super::{Failure, Where, config, one, ranks, records, spec};
use serde_json::{Value, json};
use slime_kernels::cuda::Cuda;
use slime_trainer::parallel::ParallelConfig;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Of an H200, in bf16.
const DENSE_FLOPS: f64 = 989.4e12;
const GPUS: usize = 2;
const STEPS: usize = 3;

/// What is timed.
pub(crate) struct Work<'a> {
    pub(crate) model: &'a str,
    /// Tokens of a sequence.
    pub(crate) length: usize,
    /// Sequences of a micro-batch.
    pub(crate) micro: usize,
    /// Micro-batches a GPU.
    pub(crate) micros: usize,
    /// In words, as `tp2` or `pp2,first16`; `dp` adds nothing, since what is left of the GPUs is data-parallel.
    pub(crate) layouts: Vec<&'a str>,
    /// One GPU first, to which the others are compared.
    pub(crate) single: bool,
    /// With optimizer states of 16 bits.
    pub(crate) compact: bool,
    /// What the backward computes again: `none`, `selective` or `full`.
    pub(crate) recompute: &'a str,
    /// Folder for the laps of one more step of each layout.
    pub(crate) trace: Option<&'a Path>,
}

/// A line a layout.
pub(crate) fn measure(work: &Work<'_>) -> Result<(), Failure> {
    let spec = spec(work.model)?;
    let each = work.micro * work.micros;
    let records = |gpus| {
        let vocab = spec.vocab.min(150_000);
        records(gpus * each, 128, work.length - 128, vocab)
    };
    let mut alone = None;
    let mut report = |layout: &str, gpus: usize, seconds: f64, peak: usize| {
        let rate = (gpus * each * work.length) as f64 / seconds;
        if gpus == 1 {
            alone = Some(rate);
        }
        let mfu = rate * spec.train_flops(work.length) / gpus as f64 / DENSE_FLOPS;
        println!(
            "{}",
            json!({
                "model": work.model, "layout": layout, "length": work.length, "sequences": gpus * each,
                "micros": work.micros, "step_s": seconds, "tokens_per_s": rate.round(), "mfu": mfu,
                "efficiency": alone.map(|one| rate / one / gpus as f64), "peak_gib": peak as f64 / (1u64 << 30) as f64,
            })
        );
    };
    let mut config = config(work.micro * work.length);
    config.use_precision_aware_optimizer = work.compact;
    config.recompute_granularity = serde_json::from_value(work.recompute.into())?;
    let single = || -> Result<(f64, usize), Failure> {
        let mut trainer = one(&spec, &config)?;
        let seconds = timed(|| Ok(trainer.train(&records(1)).map(drop)?))?;
        Ok((seconds, trainer.network().ops().peak_bytes()))
    };
    match work.single.then(single) {
        Some(Ok((seconds, peak))) => report("one GPU", 1, seconds, peak),
        // A model that only several GPUs hold.
        Some(Err(why)) => println!("{}", json!({"layout": "one GPU", "error": why.to_string()})),
        None => {}
    }
    for words in &work.layouts {
        let words = words.strip_prefix("dp").unwrap_or(words);
        let parallel = ParallelConfig::from_words(words, GPUS)?;
        let (mut trainer, devices) = ranks(&spec, &parallel, &config, Where::Apart)?;
        eprintln!("{}: ranks are there", parallel.short());
        let records = records(GPUS);
        let seconds = timed(|| Ok(trainer.train(&records).map(drop)?))?;
        let peak = devices.iter().map(|cuda| cuda.peak_bytes()).max();
        report(&parallel.short(), GPUS, seconds, peak.unwrap_or(0));
        if let Some(folder) = work.trace {
            devices.iter().for_each(|cuda| cuda.profile(true));
            trainer.train(&records)?;
            let name = parallel.short().replace(' ', "-");
            let path = folder.join(format!("{}-{name}.json", work.model));
            std::fs::write(path, laps(&devices)?.to_string())?;
        }
    }
    Ok(())
}

/// Seconds of a step, after one that is not counted.
fn timed(mut step: impl FnMut() -> Result<(), Failure>) -> Result<f64, Failure> {
    let began = Instant::now();
    step()?;
    eprintln!("first step: {:.1} s", began.elapsed().as_secs_f64());
    let began = Instant::now();
    for _ in 0..STEPS {
        step()?;
    }
    Ok(began.elapsed().as_secs_f64() / STEPS as f64)
}

/// Chrome's trace format: a process a GPU, a thread a stream.
fn laps(devices: &[Arc<Cuda>]) -> Result<Value, Failure> {
    let mut events = Vec::new();
    for (gpu, cuda) in devices.iter().enumerate() {
        for lap in cuda.profile_laps()? {
            events.push(json!({
                "name": lap.name, "ph": "X", "pid": gpu, "tid": lap.stream,
                "ts": (lap.begin_ms * 1e3).round(), "dur": (lap.ms * 1e3).round(),
            }));
        }
    }
    Ok(json!({ "traceEvents": events }))
}
