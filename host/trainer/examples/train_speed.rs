//! Training speed on recorded tokens: the counterpart of `tests/bench/peer_train.py`, same input, same output.
//!
//! ```text
//! cargo run --release -p slime-trainer --example train_speed -- HF_DIR TOKENS.jsonl [--batch 16]
//!     [--max-tokens 2048] [--steps 4] [--warmup 1] [--recompute none|selective|full] [--threads N]
//! ```

use serde::Deserialize;
use slime_kernels::{Cpu, Ops};
use slime_model::hf::HfDir;
use slime_trainer::algo::weights::Aggregation;
use slime_trainer::{SftSequence, TrainConfig, Trainer};
use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

#[derive(Deserialize)]
struct Line {
    tokens: Vec<u32>,
    loss_mask: Vec<u8>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut positional = Vec::new();
    let mut options = BTreeMap::new();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.strip_prefix("--") {
            Some(name) => {
                options.insert(
                    name.to_owned(),
                    args.next().ok_or("an option without a value")?,
                );
            }
            None => positional.push(arg),
        }
    }
    let [dir, tokens] = &positional[..] else {
        return Err("usage: train_speed HF_DIR TOKENS.jsonl".into());
    };
    let number = |name: &str, default: usize| options.get(name).map_or(Ok(default), |v| v.parse());
    if options.contains_key("threads") {
        rayon::ThreadPoolBuilder::new()
            .num_threads(number("threads", 0)?)
            .build_global()?;
    }
    let lines = read(Path::new(tokens))?;
    let dir = HfDir::open(Path::new(dir))?;
    let ops = Arc::new(Cpu::<f32>::new());
    let mut weights = Vec::new();
    dir.weights.load_params(&dir.spec, |param, data| {
        weights.push(ops.tensor(param.rows, param.cols, &data)?);
        Ok::<_, slime_model::Error>(())
    })?;
    let num_params = dir.spec.num_params();
    let recompute = options.get("recompute").map_or("selective", String::as_str);
    let config = TrainConfig {
        lr: 1e-5,
        loss_aggregation: Aggregation::TokenMean,
        max_tokens_per_gpu: number("max-tokens", 2048)?,
        recompute_granularity: serde_json::from_value(recompute.into())?,
        ..TrainConfig::default()
    };
    let mut trainer = Trainer::new(ops, Arc::new(dir.spec), weights, config)?;
    let (batch, steps, warmup) = (
        number("batch", 16)?,
        number("steps", 4)?,
        number("warmup", 1)?,
    );
    let (mut seconds, mut trained, mut losses, mut norm) = (0.0, 0, Vec::new(), None);
    for step in 0..warmup + steps {
        let sequences: Vec<SftSequence<'_>> = (step * batch..(step + 1) * batch)
            .map(|i| &lines[i % lines.len()])
            .map(|line| SftSequence {
                tokens: &line.tokens,
                loss_mask: &line.loss_mask,
            })
            .collect();
        let start = Instant::now();
        let metrics = trainer.sft_step(&sequences)?;
        losses.push(metrics.loss);
        norm = metrics.grad_norm;
        if step >= warmup {
            seconds += start.elapsed().as_secs_f64();
            trained += sequences.iter().map(|s| s.tokens.len()).sum::<usize>();
        }
    }
    let report = serde_json::json!({
        "trainer": "slime-trainer", "dtype": "f32", "device": "cpu", "threads": rayon::current_num_threads(),
        "num_params": num_params, "steps": steps, "tokens": trained, "seconds": seconds,
        "tokens_per_s": trained as f64 / seconds, "losses": losses, "last_grad_norm": norm,
    });
    writeln!(std::io::stdout(), "{report}")?;
    Ok(())
}

/// Masks as long as the tokens, whichever of the two lengths the file has.
fn read(path: &Path) -> Result<Vec<Line>, Box<dyn Error>> {
    let mut lines: Vec<Line> = Vec::new();
    for text in std::fs::read_to_string(path)?.lines() {
        let mut line: Line = serde_json::from_str(text)?;
        if line.loss_mask.len() + 1 == line.tokens.len() {
            line.loss_mask.insert(0, 0);
        }
        lines.push(line);
    }
    Ok(lines)
}
