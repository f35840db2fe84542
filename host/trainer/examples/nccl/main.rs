//! Ranks on several GPUs against one GPU: the same rollouts, the same weights, bf16; and how fast each layout is.
//!
//! ```text
//! cargo build --release -p slime-trainer --example nccl
//! target/release/examples/nccl                 parity of dp2, tp2, tp2 with sp, pp2, cp2 and, with experts, ep2 on GPUs 0
//!                                              and 1, then speed
//! target/release/examples/nccl --quick         parity only
//! target/release/examples/nccl --quick --tiny  the same of models that emulated GPUs can train (`kernels/tests/emulator/build.sh`)
//! target/release/examples/nccl --speed 1.7B --length 4096 --micro 2 --micros 8 --layouts 'dp tp2 pp2,first16' --trace DIR
//!                                              speed only, with 8 micro-batches of 2 sequences a GPU, and DIR/1.7B-dp2.json
//!     [--compact] [--recompute full]           16-bit optimizer states; layers computed again in the backward
//!     [--no-single]                            without one GPU to compare with
//! target/release/examples/nccl --bandwidth     collectives only; with SLIME_EXCHANGE=nccl all of them NCCL's
//! target/release/examples/nccl --hand-over 0.6B --layouts 'tp2 pp2'     parameters of ranks to an engine on GPU 0
//! target/release/examples/nccl --quick --one-gpu threads     both ranks on GPU 0, numbers meeting on the host
//! NCCL_MULTI_RANK_GPU_ENABLE=1 target/release/examples/nccl --quick --one-gpu nccl      the same through NCCL 2.30 or later
//! ```
//!
//! A line of JSON a measurement; ends with 1 where a layout is off. Read `slime_trainer::parallel` for what a layout is.
#![allow(clippy::print_stdout, reason = "its output is the result")]

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use slime_core::{GroupId, RolloutId, RolloutRecord};
use slime_kernels::Ops;
use slime_kernels::cuda::Cuda;
use slime_kernels::cuda::nccl;
use slime_model::families::{HfConfig, from_config};
use slime_model::{Ffn, ModelSpec, ParamSpec, params};
use slime_trainer::parallel::trainer::{Weights, gpus, threads};
use slime_trainer::parallel::{ParallelConfig, ParallelTrainer, Training};
use slime_trainer::{TrainConfig, Trainer};
use speed::Work;
use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

mod bandwidth;
mod hand_over;
mod parity;
mod speed;

type Failure = Box<dyn Error>;

/// hidden, feed-forward, layers, query heads, vocabulary, tied.
fn spec(name: &str) -> Result<Arc<ModelSpec>, Failure> {
    let with_experts = match name {
        "small-moe" => Some((512, 128, 4, 16, 4)),
        "tiny-moe" => Some((128, 64, 2, 4, 2)),
        _ => None,
    };
    if let Some((hidden, dim, layers, experts, chosen)) = with_experts {
        let config = json!({
            "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_act": "silu", "attention_bias": false,
            "vocab_size": 8 * hidden + 8, "hidden_size": hidden, "intermediate_size": 3 * hidden, "num_hidden_layers": layers,
            "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": dim, "max_position_embeddings": 40_960,
            "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": false, "moe_intermediate_size": hidden / 2,
            "num_experts": experts, "num_experts_per_tok": chosen, "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [],
        });
        return Ok(Arc::new(from_config(&HfConfig::new(
            "config.json",
            config,
        )?)?));
    }
    let (hidden, ffn, layers, heads, vocab, tied) = match name {
        "small" => (512, 1536, 4, 8, 4104, false),
        "tiny" => (128, 384, 2, 8, 1032, false),
        "0.6B" => (1024, 3072, 28, 16, 151_936, true),
        "1.7B" => (2048, 6144, 28, 16, 151_936, true),
        "4B" => (2560, 9728, 36, 32, 151_936, true),
        "8B" => (4096, 12_288, 36, 32, 151_936, false),
        _ => return Err("models: tiny, small, 0.6B, 1.7B, 4B, 8B".into()),
    };
    let (kv, dim) = match name {
        "small" => (4, 128),
        "tiny" => (4, 64),
        _ => (8, 128),
    };
    let config = json!({
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_act": "silu", "attention_bias": false,
        "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": dim, "max_position_embeddings": 40_960,
        "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": tied, "initializer_range": 0.02,
    });
    let config = HfConfig::new("config.json", config)?;
    Ok(Arc::new(from_config(&config)?))
}

/// A prime, so that no two rows of a matrix are the same.
const REPEATED: usize = 65_521;

/// Fixed numbers of variance about `scale²`, the same for every caller.
fn weight(param: &ParamSpec) -> Vec<f32> {
    if param.kind.is_norm() {
        return vec![1.0; param.len()];
    }
    let mut state = param
        .name
        .bytes()
        .fold(7u64, |h, b| h.wrapping_mul(31).wrapping_add(u64::from(b)));
    let drawn: Vec<f32> = (0..REPEATED.min(param.len()))
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * 0.035
        })
        .collect();
    let mut all = drawn.repeat(param.len().div_ceil(drawn.len().max(1)));
    all.truncate(param.len());
    all
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

/// The same with experts for every token, so that rounding chooses no others.
fn routed(mut records: Vec<RolloutRecord>, spec: &ModelSpec) -> Vec<RolloutRecord> {
    let mut sizes = spec.layers.iter().filter_map(|layer| match &layer.ffn {
        Ffn::Moe(moe) => Some((moe.routing.experts, moe.routing.top_k)),
        Ffn::SwiGlu { .. } => None,
    });
    let Some((experts, top_k)) = sizes.next() else {
        return records;
    };
    for record in &mut records {
        let mut chosen = Vec::new();
        for token in 0..record.tokens.len() - 1 {
            for layer in 0..spec.layers.len() {
                let first = 7 * token + 5 * layer + record.tokens[token] as usize;
                chosen.extend((0..top_k).map(|k| ((first + k) % experts) as u32));
            }
        }
        let bytes: Vec<u8> = chosen.into_iter().flat_map(u32::to_le_bytes).collect();
        record.routed_experts = Some(STANDARD.encode(bytes));
    }
    records
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
) -> Result<(ParallelTrainer<Cuda>, Vec<Arc<Cuda>>), Failure> {
    let training = Training {
        spec: spec.clone(),
        config: config.clone(),
        parallel: parallel.clone(),
        vocab: spec.vocab,
    };
    let opened: Arc<Mutex<BTreeMap<usize, Arc<Cuda>>>> = Arc::default();
    let all = opened.clone();
    let device = move |rank| {
        let ordinal = if place == Where::Apart { rank } else { 0 };
        let cuda = Arc::new(Cuda::open(ordinal)?);
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(rank, cuda.clone());
        Ok(cuda)
    };
    let launch = match place {
        Where::Threads => threads(&training, device),
        Where::Apart | Where::Together => gpus(&training, device),
    };
    let weights: Weights = Arc::new(|param| Ok(weight(param)));
    let trainer = ParallelTrainer::start(training, weights, launch, Duration::from_secs(120))?;
    let mut opened = opened.lock().unwrap_or_else(PoisonError::into_inner);
    let devices = std::mem::take(&mut *opened).into_values().collect();
    Ok((trainer, devices))
}

fn one(spec: &Arc<ModelSpec>, config: &TrainConfig) -> Result<Trainer<Cuda>, Failure> {
    let ops = Arc::new(Cuda::open(0)?);
    let mut tensors = Vec::new();
    for param in params(spec) {
        tensors.push(ops.tensor(param.rows, param.cols, &weight(&param))?);
    }
    Ok(Trainer::new(ops, spec.clone(), tensors, config.clone())?)
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
    let has = |word: &str| words.iter().any(|w| w == word);
    if has("--bandwidth") {
        bandwidth::measure()?;
        return Ok(true);
    }
    let layouts = value("--layouts").map_or("dp tp2 pp2", String::as_str);
    let layouts: Vec<&str> = layouts.split_whitespace().collect();
    if let Some(model) = value("--hand-over") {
        hand_over::measure(model, &layouts, place)?;
        return Ok(true);
    }
    let holds = value("--speed").is_some()
        || if has("--tiny") {
            parity::check("tiny", place)? & parity::check("tiny-moe", place)?
        } else {
            parity::check("small", place)? & parity::check("small-moe", place)?
        };
    if has("--quick") {
        return Ok(holds);
    }
    let number = |name: &str, or: usize| value(name).map_or(Ok(or), |n| n.parse());
    let model = value("--speed").map_or("0.6B", String::as_str);
    let trace = value("--trace").map(Path::new);
    trace.map_or(Ok(()), std::fs::create_dir_all)?;
    speed::measure(&Work {
        model,
        length: number("--length", 4096)?,
        micro: number("--micro", if model == "0.6B" { 4 } else { 2 })?,
        micros: number("--micros", 1)?,
        layouts,
        single: !has("--no-single"),
        compact: has("--compact"),
        recompute: value("--recompute").map_or("selective", String::as_str),
        trace,
    })?;
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
