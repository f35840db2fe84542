//! `slime-host logprobs`: log-prob and entropy of every token of recorded sequences.

use super::{Context, Outcome};
use crate::config::{Device, Dtype, Problem};
use crate::error::{Result, at_path, input};
use crate::job::learner::train_failed;
use crate::wire::device::{check_dtype, on_device};
use crate::wire::model::model_failed;
use crate::wire::{Computer, Model};
use serde::Deserialize;
use slime_core::json;
use slime_core::ports::TextCodec;
use slime_kernels::Ops;
use slime_rollout::WholeFile;
use slime_trainer::data::rollouts::{Limits, check_tokens};
use slime_trainer::{TrainConfig, Trainer};
use std::io::Write;
use std::path::{Path, PathBuf};
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
struct Row {
    tokens: Vec<u32>,
}

/// A sequence and where it stands.
struct Line {
    number: usize,
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
    if args.max_tokens_per_gpu == 0 {
        let problem = Problem::new("--max-tokens-per-gpu 0 leaves no room for a token");
        return Err(problem
            .help("leave it out, or give a number above 0")
            .into());
    }
    super::two_files(("--input", &args.input), ("--output", &args.output))?;
    super::writable(&args.output)?;
    let lines = read(&args.input)?;
    let model = Model::directory(&args.model).map_err(|e| Problem::new(e.to_string()))?;
    check(&lines, &args.input, &model)?;
    on_device!(Computer::open(args.device)?, ops => score(ops, &model, &lines, &args, context))
}

fn score<O: Ops>(
    ops: Arc<O>,
    model: &Model,
    lines: &[Line],
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

    let written = &args.output;
    let mut out = WholeFile::create(written).map_err(at_path(written))?;
    let bar = context.console.progress("sequences", lines.len() as u64);
    for sequences in chunks(lines, args.max_tokens_per_gpu) {
        for scores in trainer.log_probs(&sequences).map_err(train_failed)? {
            let narrow = |values: &[f64]| values.iter().map(|x| *x as f32).collect::<Vec<f32>>();
            let row = serde_json::json!({"logprobs": narrow(&scores.logprobs), "entropy": narrow(&scores.entropy)});
            writeln!(out, "{row}").map_err(at_path(written))?;
            bar.advance();
        }
    }
    out.finish().map_err(at_path(written))?;
    Ok(Outcome::Done)
}

fn read(path: &Path) -> Result<Vec<Line>> {
    let bytes = std::fs::read(path).map_err(input(path))?;
    let (mut lines, mut problems) = (Vec::new(), Vec::new());
    let all = (1..).zip(bytes.split(|byte| *byte == b'\n'));
    for (number, line) in all.filter(|(_, line)| !line.trim_ascii().is_empty()) {
        match json::object::<Row>(line) {
            Ok(row) if row.tokens.is_empty() => problems.push((number, "it has no tokens".into())),
            Ok(Row { tokens }) => lines.push(Line { number, tokens }),
            Err(reason) => problems.push((number, reason)),
        }
    }
    refuse(path, problems, LINE)?;
    if lines.is_empty() {
        return Err(Problem::new(format!("{} has no lines", path.display()))
            .help(LINE)
            .into());
    }
    Ok(lines)
}

/// Every line that the model cannot take, before its weights are read.
fn check(lines: &[Line], path: &Path, model: &Model) -> Result<()> {
    let limits = Limits {
        vocab: model.text.vocab_size().min(model.spec.vocab),
        max_positions: model.spec.max_positions,
    };
    let problems = lines.iter().filter_map(|line| {
        let reason = check_tokens(&line.tokens, limits).err()?;
        Some((line.number, reason))
    });
    let help = "these are another model's tokens, or too many: name their model, or cut them";
    refuse(path, problems.collect(), help)
}

fn refuse(path: &Path, problems: Vec<(usize, String)>, help: &str) -> Result<()> {
    let problem = |(number, reason)| {
        Problem::new(format!("{}: line {number}: {reason}", path.display())).help(help)
    };
    super::collected(problems.into_iter().take(10).map(problem).collect())
}

/// Sequences that are scored together, so that progress shows and memory stays bounded.
fn chunks(lines: &[Line], max_tokens: usize) -> Vec<Vec<&[u32]>> {
    let mut chunks: Vec<Vec<&[u32]>> = Vec::new();
    let mut room = 0;
    for Line { tokens, .. } in lines {
        if tokens.len() > room || chunks.is_empty() {
            chunks.push(Vec::new());
            room = 4 * max_tokens;
        }
        room = room.saturating_sub(tokens.len());
        if let Some(chunk) = chunks.last_mut() {
            chunk.push(tokens);
        }
    }
    chunks
}
