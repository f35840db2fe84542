//! Ranks on several GPUs against one GPU: the same rollouts, the same weights, bf16; and how fast each layout is.
//!
//! ```text
//! cargo build --release -p slime-trainer --example nccl
//! target/release/examples/nccl                 parity of dp2, tp2, tp2 with sp, pp2, cp2 and, with experts, ep2 on GPUs 0
//!                                              and 1, then speed
//! target/release/examples/nccl --speed 1.7B --micros 8      speed of another of Qwen3's shapes, 8 micro-batches a GPU
//! target/release/examples/nccl --quick         parity only
//! target/release/examples/nccl --quick --one-gpu threads     both ranks on GPU 0, numbers meeting on the host
//! NCCL_MULTI_RANK_GPU_ENABLE=1 target/release/examples/nccl --quick --one-gpu nccl      the same through NCCL 2.30 or later
//! ```
//!
//! A line of JSON a measurement; ends with 1 where a layout is off. Read `slime_trainer::parallel` for what a layout is.
#![allow(clippy::print_stdout, reason = "its output is the result")]

use serde_json::json;
use slime_core::{GroupId, RolloutId, RolloutRecord};
use slime_kernels::Ops;
use slime_kernels::cuda::Cuda;
use slime_kernels::cuda::nccl;
use slime_model::families::{HfConfig, from_config};
use slime_model::{ModelSpec, ParamSpec, params};
use slime_trainer::parallel::trainer::{Weights, gpus, threads};
use slime_trainer::parallel::{ParallelConfig, ParallelTrainer, Training};
use slime_trainer::{TrainConfig, TrainMetrics, Trainer};
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Failure = Box<dyn Error>;

/// hidden, feed-forward, layers, query heads, vocabulary, tied.
fn spec(name: &str) -> Result<Arc<ModelSpec>, Failure> {
    if name == "small-moe" {
        let config = json!({
            "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_act": "silu", "attention_bias": false,
            "vocab_size": 4104, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 4,
            "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 40_960,
            "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": false, "moe_intermediate_size": 256,
            "num_experts": 16, "num_experts_per_tok": 4, "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [],
        });
        return Ok(Arc::new(from_config(&HfConfig::new(
            "config.json",
            config,
        )?)?));
    }
    let (hidden, ffn, layers, heads, vocab, tied) = match name {
        "small" => (512, 1536, 4, 8, 4104, false),
        "0.6B" => (1024, 3072, 28, 16, 151_936, true),
        "1.7B" => (2048, 6144, 28, 16, 151_936, true),
        "4B" => (2560, 9728, 36, 32, 151_936, true),
        "8B" => (4096, 12_288, 36, 32, 151_936, false),
        _ => return Err("models: small, 0.6B, 1.7B, 4B, 8B".into()),
    };
    let kv = if name == "small" { 4 } else { 8 };
    let config = json!({
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_act": "silu", "attention_bias": false,
        "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": 128, "max_position_embeddings": 40_960,
        "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": tied, "initializer_range": 0.02,
    });
    let config = HfConfig::new("config.json", config)?;
    Ok(Arc::new(from_config(&config)?))
}

/// Fixed numbers of variance about `scale²`, the same for every caller.
fn weight(param: &ParamSpec) -> Vec<f32> {
    if param.kind.is_norm() {
        return vec![1.0; param.len()];
    }
    let mut state = param
        .name
        .bytes()
        .fold(7u64, |h, b| h.wrapping_mul(31).wrapping_add(u64::from(b)));
    (0..param.len())
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * 0.035
        })
        .collect()
}

fn records(count: usize, prompt: usize, response: usize, vocab: usize) -> Vec<RolloutRecord> {
    let mut state = 5u64;
    let mut token = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % vocab as u64) as u32
    };
    (0..count)
        .map(|i| RolloutRecord {
            group_id: GroupId(i as u64 / 4),
            rollout_id: RolloutId(i as u64),
            tokens: (0..prompt + response).map(|_| token()).collect(),
            response_length: response,
            loss_mask: vec![1; response],
            rollout_log_probs: vec![-8.0; response],
            reward: Some([1.0, 0.25, 0.0, 0.6][i % 4]),
            outcome: "scored".into(),
            ..RolloutRecord::default()
        })
        .collect()
}

fn config(tokens: usize) -> TrainConfig {
    TrainConfig {
        lr: 1e-4,
        entropy_coef: 0.01,
        max_tokens_per_gpu: tokens,
        ..TrainConfig::default()
    }
}

/// What else has to hold, of the models that can be laid out so.
fn more_layouts(name: &str) -> Vec<ParallelConfig> {
    let none = ParallelConfig::default();
    match name {
        "small-moe" => vec![ParallelConfig {
            data_parallel_size: 2,
            expert_model_parallel_size: 2,
            ..none
        }],
        _ => vec![ParallelConfig {
            context_parallel_size: 2,
            ..none
        }],
    }
}

fn layouts() -> Vec<ParallelConfig> {
    let sizes = |tp, pp, dp, sequence_parallel| ParallelConfig {
        tensor_model_parallel_size: tp,
        pipeline_model_parallel_size: pp,
        data_parallel_size: dp,
        sequence_parallel,
        ..ParallelConfig::default()
    };
    vec![
        sizes(1, 1, 2, false),
        sizes(2, 1, 1, false),
        sizes(2, 1, 1, true),
        sizes(1, 2, 1, false),
    ]
}

/// Where ranks are and how they speak.
#[derive(Clone, Copy, PartialEq)]
enum Where {
    /// A GPU each, NCCL.
    Apart,
    /// GPU 0, NCCL.
    Together,
    /// GPU 0, through the host.
    Threads,
}

fn ranks(
    spec: &Arc<ModelSpec>,
    parallel: &ParallelConfig,
    config: &TrainConfig,
    place: Where,
) -> Result<ParallelTrainer<Cuda>, Failure> {
    let training = Training {
        spec: spec.clone(),
        config: config.clone(),
        parallel: parallel.clone(),
        vocab: spec.vocab,
    };
    let device = move |rank| {
        let ordinal = if place == Where::Apart { rank } else { 0 };
        Ok(Arc::new(Cuda::open(ordinal)?))
    };
    let launch = match place {
        Where::Threads => threads(&training, device),
        Where::Apart | Where::Together => gpus(&training, device),
    };
    let weights: Weights = Arc::new(|param| Ok(weight(param)));
    Ok(ParallelTrainer::start(
        training,
        weights,
        launch,
        Duration::from_secs(120),
    )?)
}

fn one(spec: &Arc<ModelSpec>, config: &TrainConfig) -> Result<Trainer<Cuda>, Failure> {
    let ops = Arc::new(Cuda::open(0)?);
    let mut tensors = Vec::new();
    for param in params(spec) {
        tensors.push(ops.tensor(param.rows, param.cols, &weight(&param))?);
    }
    Ok(Trainer::new(ops, spec.clone(), tensors, config.clone())?)
}

/// `|a - b| / |b|` in L2.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|v| v * v).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied()).max(1e-300)
}

/// One GRPO step of every layout against one GPU. The bounds are those of bf16 between layouts: 8e-3 for what a forward
/// gives, 1.5e-2 for gradients.
fn parity(name: &str, place: Where) -> Result<bool, Failure> {
    let spec = spec(name)?;
    let (config, records) = (config(2048), records(16, 64, 192, spec.vocab));
    let mut trainer = one(&spec, &config)?;
    let want: TrainMetrics = trainer.train(&records)?.swap_remove(0);
    let ops = trainer.network().ops().clone();
    let mut grads = Vec::new();
    for grad in &trainer.gradients().0 {
        grads.push(ops.read_float_f64(grad)?);
    }
    drop(trainer);
    let mut all_hold = true;
    for parallel in layouts().into_iter().chain(more_layouts(name)) {
        let mut trainer = ranks(&spec, &parallel, &config, place)?;
        let got = trainer.train(&records)?.swap_remove(0);
        let mut worst = (0.0, String::new());
        for (param, want) in trainer.params().clone().iter().zip(&grads) {
            let gap = distance(&trainer.read_gradient(param)?, want);
            if gap.is_nan() || gap > worst.0 {
                worst = (gap, param.name.clone());
            }
        }
        let gap = |a: f64, b: f64| (a - b).abs() / b.abs().max(1e-3);
        let norms = (
            got.grad_norm.unwrap_or(f64::NAN),
            want.grad_norm.unwrap_or(f64::NAN),
        );
        let entropy = gap(got.entropy, want.entropy);
        let holds = entropy < 8e-3 && gap(norms.0, norms.1) < 1.5e-2 && worst.0 < 3e-2;
        all_hold &= holds;
        println!(
            "{}",
            json!({
                "model": name, "layout": parallel.short(), "holds": holds, "loss": [got.loss, want.loss],
                "entropy": [got.entropy, want.entropy], "grad_norm": [norms.0, norms.1],
                "worst_gradient": worst.1, "worst_gradient_gap": worst.0,
            })
        );
    }
    Ok(all_hold)
}

/// Tokens a second of a train step of `micros` micro-batches a GPU: one GPU, and two of them in each layout.
fn speed(name: &str, micros: usize) -> Result<(), Failure> {
    let spec = spec(name)?;
    let length = 4096;
    let micro = if name == "0.6B" { 4 } else { 2 };
    let (each, config) = (micro * micros, config(micro * length));
    let timed = |label: &str,
                 count: usize,
                 train: &mut dyn FnMut(&[RolloutRecord]) -> Result<(), Failure>| {
        let records = records(count, 128, length - 128, spec.vocab.min(150_000));
        train(&records)?;
        let (began, steps) = (Instant::now(), 3);
        for _ in 0..steps {
            train(&records)?;
        }
        let seconds = began.elapsed().as_secs_f64() / f64::from(steps);
        let rate = (count * length) as f64 / seconds;
        println!(
            "{}",
            json!({"model": name, "layout": label, "sequences": count, "step_s": seconds, "tokens_per_s": rate})
        );
        Ok::<(), Failure>(())
    };
    let mut single = one(&spec, &config)?;
    timed("one GPU", each, &mut |r| Ok(single.train(r).map(drop)?))?;
    drop(single);
    for parallel in layouts() {
        let mut trainer = ranks(&spec, &parallel, &config, Where::Apart)?;
        timed(&parallel.short(), 2 * each, &mut |r| {
            Ok(trainer.train(r).map(drop)?)
        })?;
    }
    Ok(())
}

fn run() -> Result<bool, Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let at = words.iter().position(|w| w == name);
        at.and_then(|i| words.get(i + 1))
    };
    let place = match value("--one-gpu").map(String::as_str) {
        None => Where::Apart,
        Some("nccl") => Where::Together,
        Some("threads") => Where::Threads,
        Some(_) => return Err("--one-gpu: nccl or threads".into()),
    };
    if place != Where::Threads {
        println!("{}", json!({"nccl": nccl::version()?}));
    }
    let holds = parity("small", place)? & parity("small-moe", place)?;
    if !words.iter().any(|w| w == "--quick") {
        let named = value("--speed");
        let micros = value("--micros").map_or(Ok(1), |n| n.parse())?;
        speed(named.map_or("0.6B", String::as_str), micros)?;
    }
    Ok(holds)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("{}", json!({"error": error.to_string()}));
            ExitCode::FAILURE
        }
    }
}
