//! Gradients and a loss curve on a GPU, for `tests/bench/gpu_curve.py` to compare with PyTorch in fp32.
//!
//! ```text
//! cargo run --release -p slime-trainer --example gpu_curve -- HF_DIR TOKENS.jsonl OUT [STEPS] [LR]
//! ```
//!
//! Every step trains on all of TOKENS. Leaves `OUT/gradients/` (the first step's, before clipping, under HF names) and
//! `OUT/losses.json`.

use serde::Deserialize;
use slime_kernels::Ops;
use slime_kernels::cuda::Cuda;
use slime_model::hf::{DEFAULT_SHARD_BYTES, Dtype, HfDir, save_weights};
use slime_trainer::algo::weights::Aggregation;
use slime_trainer::{SftSequence, TrainConfig, Trainer};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Deserialize)]
struct Line {
    tokens: Vec<u32>,
    loss_mask: Vec<u8>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [dir, tokens, out, rest @ ..] = &args[..] else {
        return Err("usage: gpu_curve HF_DIR TOKENS.jsonl OUT [STEPS] [LR]".into());
    };
    let steps = rest.first().map_or(Ok(50), |text| text.parse::<usize>())?;
    let lr = rest.get(1).map_or(Ok(1e-4), |text| text.parse::<f64>())?;
    let out = PathBuf::from(out);
    std::fs::create_dir_all(&out)?;
    let lines = std::fs::read_to_string(tokens)?;
    let lines: Vec<Line> = lines
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    let sequences: Vec<SftSequence<'_>> = lines
        .iter()
        .map(|line| SftSequence {
            tokens: &line.tokens,
            loss_mask: &line.loss_mask,
        })
        .collect();
    let dir = HfDir::open(Path::new(dir))?;
    let ops = Arc::new(Cuda::open(0)?);
    let mut weights = Vec::new();
    dir.weights.load_params(&dir.spec, |param, data| {
        weights.push(ops.tensor(param.rows, param.cols, &data)?);
        Ok::<_, slime_model::Error>(())
    })?;
    let config = TrainConfig {
        lr,
        loss_aggregation: Aggregation::TokenMean,
        max_tokens_per_gpu: 16_384,
        ..TrainConfig::default()
    };
    let mut trainer = Trainer::new(ops.clone(), Arc::new(dir.spec.clone()), weights, config)?;
    let mut losses = Vec::with_capacity(steps);
    for step in 0..steps {
        losses.push(trainer.sft_step(&sequences)?.loss);
        if step == 0 {
            let (names, gradients) = (trainer.network().params(), trainer.gradients());
            let read = |param: &slime_model::ParamSpec| {
                let at = names.iter().position(|p| p.name == param.name);
                let at = at.ok_or_else(|| slime_model::Error::Input(param.name.clone()))?;
                Ok::<_, slime_model::Error>(ops.read_float(&gradients.0[at])?)
            };
            let to = out.join("gradients");
            save_weights(&to, &dir.spec, Dtype::F32, DEFAULT_SHARD_BYTES, read)?;
        }
    }
    std::fs::write(out.join("losses.json"), serde_json::to_string(&losses)?)?;
    Ok(())
}
