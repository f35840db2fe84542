//! Training speed on a GPU at the shapes of Qwen3, with random weights and tokens.
//!
//! ```text
//! cargo run --release -p slime-trainer --example gpu_speed -- 0.6B[,1.7B,4B,8B,30B-A3B/8] [--batch 4] [--length 4096]
//!     [--steps 4] [--warmup 2] [--recompute none|selective|mlp|full] [--recompute-layers N] [--compact] [--log-probs]
//!     [--head-rows N] [--prompt N] [--profile]
//! ```
//!
//! `--prompt N`: the first N tokens of each sequence carry no loss, so that their logits are not needed; MFU counts them all the same.
//! 30B-A3B/8 is Qwen3-30B-A3B with 6 of its 48 layers: what one card holds of it with its optimizer.
//!
//! A line of JSON a model, in the terms of reference peers: MFU is `(6 N + 6 V h + 6 layers length heads dim) tokens / time
//! / 989.4e12`, `N` without embeddings and of experts the chosen ones; recomputation is not counted. Read `slime_trainer::trainer` for what a step is.
#![allow(clippy::print_stdout, reason = "its output is the result")]

use serde_json::json;
use slime_kernels::Ops;
use slime_kernels::cuda::Cuda;
use slime_model::families::{HfConfig, from_config};
use slime_model::{ModelSpec, params};
use slime_trainer::{SftSequence, TrainConfig, Trainer};
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

/// `(hidden, feed-forward, layers, query heads, tied)`.
const SHAPES: [(&str, usize, usize, usize, usize, bool); 4] = [
    ("0.6B", 1024, 3072, 28, 16, true),
    ("1.7B", 2048, 6144, 28, 16, true),
    ("4B", 2560, 9728, 36, 32, true),
    ("8B", 4096, 12_288, 36, 32, false),
];
const VOCAB: usize = 151_936;
/// A prime, so that no two rows of a matrix are the same.
const REPEATED: usize = 16_777_213;
const DENSE_FLOPS: f64 = 989.4e12;

struct Options {
    batch: usize,
    length: usize,
    prompt: usize,
    steps: usize,
    warmup: usize,
    recompute: String,
    recompute_layers: Option<usize>,
    head_rows: Option<usize>,
    compact: bool,
    log_probs: bool,
    profile: bool,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        args.iter()
            .position(|a| a == name)
            .and_then(|i| args.get(i + 1))
    };
    let number =
        |name: &str, default: usize| value(name).map_or(Ok(default), |text| text.parse::<usize>());
    let flag = |name: &str| args.iter().any(|a| a == name);
    let options = Options {
        batch: number("--batch", 4)?,
        length: number("--length", 4096)?,
        prompt: number("--prompt", 0)?,
        steps: number("--steps", 4)?,
        warmup: number("--warmup", 2)?,
        recompute: value("--recompute").map_or("none", String::as_str).into(),
        recompute_layers: value("--recompute-layers").map(|n| n.parse()).transpose()?,
        head_rows: value("--head-rows").map(|n| n.parse()).transpose()?,
        compact: flag("--compact"),
        log_probs: flag("--log-probs"),
        profile: flag("--profile"),
    };
    let models = args.first().map_or("0.6B", String::as_str);
    for name in models.split(',') {
        if let Err(why) = run(name, &options) {
            println!("{}", json!({"model": name, "error": why.to_string()}));
        }
    }
    Ok(())
}

fn spec_of(name: &str) -> Result<ModelSpec, Box<dyn Error>> {
    if name == "30B-A3B/8" {
        let config = json!({
            "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_act": "silu", "attention_bias": false,
            "vocab_size": VOCAB, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 6,
            "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 40_960,
            "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": false, "moe_intermediate_size": 768,
            "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true, "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        });
        return Ok(from_config(&HfConfig::new("config.json", config)?)?);
    }
    let shape = SHAPES.iter().find(|shape| shape.0 == name);
    let &(_, hidden, ffn, layers, heads, tied) =
        shape.ok_or("models: 0.6B, 1.7B, 4B, 8B, 30B-A3B/8, with commas")?;
    let config = json!({
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_act": "silu", "attention_bias": false,
        "vocab_size": VOCAB, "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40_960,
        "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": tied, "initializer_range": 0.02,
    });
    Ok(from_config(&HfConfig::new("config.json", config)?)?)
}

/// Even numbers in ±√3 of a fixed stream: variance 1.
fn numbers(state: &mut u64, count: usize, scale: f32) -> Vec<f32> {
    (0..count)
        .map(|_| {
            *state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((*state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * 1.732 * scale
        })
        .collect()
}

fn run(name: &str, options: &Options) -> Result<(), Box<dyn Error>> {
    let started = Instant::now();
    let spec = spec_of(name)?;
    let ops = Arc::new(Cuda::open(0)?);
    let mut state = 1;
    // One list of numbers, repeated on the device: billions would take longer to make than to train on.
    let some = ops.tensor(1, REPEATED, &numbers(&mut state, REPEATED, 0.02))?;
    let mut weights = Vec::new();
    for param in params(&spec) {
        let count = param.rows * param.cols;
        if param.kind.is_norm() {
            weights.push(ops.tensor(param.rows, param.cols, &vec![1.0; count])?);
            continue;
        }
        let starts = (0..count).step_by(REPEATED);
        let parts: Vec<_> = starts
            .map(|at| (&some, 0..REPEATED.min(count - at)))
            .collect();
        let line = ops.join(&parts, count)?;
        weights.push(ops.cut(&line, 0..count, param.rows, param.cols)?);
    }
    drop(some);
    let heads = spec.layers[0]
        .attn
        .grouped()
        .expect("Qwen3 is grouped")
        .heads;
    let attention = (spec.layers.len() * options.length * heads.query * heads.dim) as f64;
    let per_token = spec.param_counts().multiplied as f64 + attention;
    let tokens = options.batch * options.length;
    let config = TrainConfig {
        lr: 1e-5,
        max_tokens_per_gpu: tokens,
        recompute_granularity: serde_json::from_value(options.recompute.as_str().into())?,
        recompute_num_layers: options.recompute_layers,
        use_precision_aware_optimizer: options.compact,
        log_probs_chunk_size: options.head_rows,
        ..TrainConfig::default()
    };
    let mut trainer = Trainer::new(ops.clone(), Arc::new(spec), weights, config)?;
    let ids: Vec<u32> = numbers(&mut state, tokens, 1e6)
        .into_iter()
        .map(|v| v.abs() as u32 % VOCAB as u32)
        .collect();
    let mut mask = vec![1u8; options.length];
    mask[..options.prompt.min(options.length)].fill(0);
    let rows: Vec<&[u32]> = ids.chunks(options.length).collect();
    let sequences: Vec<SftSequence<'_>> = rows
        .iter()
        .map(|tokens| SftSequence {
            tokens,
            loss_mask: &mask,
        })
        .collect();
    let setup_s = started.elapsed().as_secs_f64();

    let mut losses = Vec::new();
    let (train_ms, train_times) = median(options, &ops, |timed| {
        if timed && options.profile {
            ops.profile(true);
        }
        let metrics = trainer.sft_step(&sequences)?;
        losses.push((metrics.loss * 1e4).round() / 1e4);
        Ok(metrics.grad_norm.unwrap_or(f64::NAN))
    })?;
    report(&ops, options, train_ms);
    let speed = |ms: f64| (tokens as f64 / ms * 1e3).round();
    let mfu = |ms: f64, factor: f64| {
        (factor * per_token * tokens as f64 / (ms / 1e3) / DENSE_FLOPS * 1e3).round() / 10.0
    };
    let mut line = json!({
        "model": name, "tokens": tokens, "prompt": options.prompt, "recompute": options.recompute, "step_ms": round(train_ms), "tok_s": speed(train_ms),
        "mfu": mfu(train_ms, 6.0), "peak_gib": round(ops.peak_bytes() as f64 / (1u64 << 30) as f64), "setup_s": round(setup_s),
        "losses": losses, "all_ms": train_times,
    });
    if options.log_probs {
        let (ms, times) = median(options, &ops, |timed| {
            if timed && options.profile {
                ops.profile(true);
            }
            Ok(trainer.log_probs(&rows)?[0].logprobs[0])
        })?;
        report(&ops, options, ms);
        line["log_prob_ms"] = round(ms).into();
        line["log_prob_all_ms"] = times.into();
        line["log_prob_tok_s"] = speed(ms).into();
        line["log_prob_mfu"] = mfu(ms, 2.0).into();
    }
    println!("{line}");
    Ok(())
}

fn round(x: f64) -> f64 {
    (x * 100.0).round() / 100.0
}

/// Median milliseconds of a step, the device waited for; `step` is told whether it counts.
fn median(
    options: &Options,
    ops: &Cuda,
    mut step: impl FnMut(bool) -> Result<f64, Box<dyn Error>>,
) -> Result<(f64, Vec<f64>), Box<dyn Error>> {
    let mut times = Vec::new();
    for i in 0..options.warmup + options.steps {
        ops.synchronize()?;
        let start = Instant::now();
        step(i >= options.warmup)?;
        ops.synchronize()?;
        if i >= options.warmup {
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    let all = times.iter().map(|ms| round(*ms)).collect();
    times.sort_by(f64::total_cmp);
    Ok((times[times.len() / 2], all))
}

/// Where the device's time went, if asked for.
fn report(ops: &Cuda, options: &Options, step_ms: f64) {
    if !options.profile {
        return;
    }
    let Ok(spans) = ops.profile_spans() else {
        return;
    };
    let steps = options.steps as f64;
    let total: f64 = spans.iter().map(|(_, _, ms)| ms / steps).sum();
    println!("{total:.2} ms in kernels of {step_ms:.2} ms a step");
    for (name, count, ms) in spans {
        println!(
            "{:8.3} ms {:5.0} x  {name}",
            ms / steps,
            count as f64 / steps
        );
    }
}
