//! `slime-host logprobs`: log-prob and entropy of every token of recorded sequences.

use super::{Context, Outcome};
use crate::config::{Device, Dtype, Problem};
use crate::error::{Result, at_path};
use crate::job::learner::train_failed;
use crate::wire::device::{check_dtype, on_device};
use crate::wire::model::model_failed;
use crate::wire::{Computer, Model};
use serde::Deserialize;
use slime_core::ports::TextCodec;
use slime_kernels::Ops;
use slime_trainer::{TrainConfig, Trainer};
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;

/// What to score.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// HF directory
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// Lines of {"tokens": [...]}
    #[arg(long, value_name = "FILE.jsonl")]
    input: PathBuf,
    /// Lines of {"logprobs": [...], "entropy": [...]}, one value a token but the first
    #[arg(long, value_name = "FILE.jsonl")]
    output: PathBuf,
    /// Logits are divided by it
    #[arg(long, value_name = "T", default_value_t = 1.0)]
    temperature: f64,
    /// Where to compute
    #[arg(long, value_enum, default_value_t)]
    device: Device,
    /// In which numbers; the device's own by default
    #[arg(long, value_enum)]
    dtype: Option<Dtype>,
    /// Tokens packed into one micro-batch
    #[arg(long, value_name = "N", default_value_t = 4096)]
    max_tokens_per_gpu: usize,
}

const LINE: &str = "a line is {\"tokens\": [1, 2, 3]}";

#[derive(Deserialize)]
struct Line {
    tokens: Vec<u32>,
}

/// Do it.
///
/// # Errors
/// A line or the model cannot be used.
pub fn run(args: Args, context: &Context) -> Result<Outcome> {
    check_dtype(args.device, args.dtype)?;
    if !(args.temperature.is_finite() && args.temperature > 0.0) {
        let problem = Problem::new(format!(
            "--temperature {} is not a number above 0",
            args.temperature
        ));
        return Err(problem
            .help("greedy decoding has no distribution; use 1 for the model's own")
            .into());
    }
    super::two_files(("--input", &args.input), ("--output", &args.output))?;
    super::writable(&args.output)?;
    let text = std::fs::read_to_string(&args.input).map_err(at_path(&args.input))?;
    let lines = read(&text, &args.input)?;
    let model = Model::directory(&args.model).map_err(|e| Problem::new(e.to_string()))?;
    on_device!(Computer::open(args.device)?, ops => score(ops, &model, &lines, &args, context))
}

fn score<O: Ops>(
    ops: Arc<O>,
    model: &Model,
    lines: &[Vec<u32>],
    args: &Args,
    context: &Context,
) -> Result<Outcome> {
    let weights = model.load(&*ops).map_err(model_failed)?;
    let config = TrainConfig {
        rollout_temperature: args.temperature,
        max_tokens_per_gpu: args.max_tokens_per_gpu,
        ..TrainConfig::default()
    };
    let trainer = Trainer::new(ops, model.spec.clone(), weights, config).map_err(train_failed)?;
    let trainer = trainer.with_vocab(model.text.vocab_size());

    let half = args.output.with_extension("writing");
    let file = std::fs::File::create(&half).map_err(at_path(&half))?;
    let mut out = BufWriter::new(file);
    let bar = context.console.progress("sequences", lines.len() as u64);
    for sequences in chunks(lines, args.max_tokens_per_gpu) {
        for scores in trainer.log_probs(&sequences).map_err(train_failed)? {
            let narrow = |values: &[f64]| values.iter().map(|x| *x as f32).collect::<Vec<f32>>();
            let row = serde_json::json!({"logprobs": narrow(&scores.logprobs), "entropy": narrow(&scores.entropy)});
            writeln!(out, "{row}").map_err(at_path(&half))?;
            bar.advance();
        }
    }
    out.flush().map_err(at_path(&half))?;
    std::fs::rename(&half, &args.output).map_err(at_path(&args.output))?;
    Ok(Outcome::Done)
}

fn read(text: &str, path: &std::path::Path) -> Result<Vec<Vec<u32>>> {
    let (mut lines, mut problems) = (Vec::new(), Vec::new());
    for (number, line) in text
        .split('\n')
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
    {
        match serde_json::from_str::<Line>(line) {
            Ok(line) if line.tokens.is_empty() => {
                problems.push((number, "it has no tokens".to_owned()))
            }
            Ok(line) => lines.push(line.tokens),
            Err(e) => {
                // serde counts columns of a line of its own.
                let reason = e.to_string();
                let reason = reason.split(" at line ").next().unwrap_or_default();
                problems.push((number, reason.to_owned()));
            }
        }
    }
    let problem = |(number, reason): (usize, String)| {
        Problem::new(format!("{}: line {}: {reason}", path.display(), number + 1)).help(LINE)
    };
    super::collected(problems.into_iter().take(10).map(problem).collect())?;
    if lines.is_empty() {
        return Err(problem_of_none(path));
    }
    Ok(lines)
}

fn problem_of_none(path: &std::path::Path) -> crate::error::Failure {
    Problem::new(format!("{} has no lines", path.display()))
        .help(LINE)
        .into()
}

/// Sequences that are scored together, so that progress shows and memory stays bounded.
fn chunks(lines: &[Vec<u32>], max_tokens: usize) -> Vec<Vec<&[u32]>> {
    let mut chunks: Vec<Vec<&[u32]>> = Vec::new();
    let mut room = 0;
    for line in lines {
        if line.len() > room || chunks.is_empty() {
            chunks.push(Vec::new());
            room = 4 * max_tokens;
        }
        room = room.saturating_sub(line.len());
        if let Some(chunk) = chunks.last_mut() {
            chunk.push(line);
        }
    }
    chunks
}
