//! Scaling on paper: the best layout of each model on each number of GPUs, as a table.
//!
//! ```text
//! cargo run -p slime-trainer --example scaling                          the table of docs/book/scaling.md
//! cargo run -p slime-trainer --example scaling -- 8B,70B 8,64 [SVG]     some of it; the last layout's stages as a picture
//! ```
//!
//! Every layout is the trainer's own code run over shapes; read `slime_trainer::plan` for what is measured and what is
//! assumed.
#![allow(clippy::print_stdout, reason = "its output is the result")]

use serde_json::json;
use slime_model::ModelSpec;
use slime_model::families::{HfConfig, from_config};
use slime_model::layers::Recompute;
use slime_trainer::TrainConfig;
use slime_trainer::plan::search::{Candidate, search};
use slime_trainer::plan::{Machine, Workload, picture};
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

/// Name, family, hidden, feed-forward, layers, query heads, vocabulary, tied.
type Shape = (
    &'static str,
    &'static str,
    usize,
    usize,
    usize,
    usize,
    usize,
    bool,
);

const SHAPES: [Shape; 6] = [
    ("0.6B", "qwen3", 1024, 3072, 28, 16, 151_936, true),
    ("1.7B", "qwen3", 2048, 6144, 28, 16, 151_936, true),
    ("4B", "qwen3", 2560, 9728, 36, 32, 151_936, true),
    ("8B", "qwen3", 4096, 12_288, 36, 32, 151_936, false),
    ("32B", "qwen3", 5120, 25_600, 64, 64, 151_936, false),
    ("70B", "llama", 8192, 28_672, 80, 64, 128_256, false),
];

const WORKLOAD: Workload = Workload {
    sequences: 256,
    length: 4096,
    prompt: 256,
};

fn spec(shape: &Shape) -> Result<Arc<ModelSpec>, Box<dyn Error>> {
    let &(_, family, hidden, ffn, layers, heads, vocab, tied) = shape;
    let config = json!({
        "model_type": family, "hidden_act": "silu", "attention_bias": false, "vocab_size": vocab,
        "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": 8, "head_dim": 128,
        "max_position_embeddings": WORKLOAD.length, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "tie_word_embeddings": tied, "initializer_range": 0.02,
    });
    Ok(Arc::new(from_config(&HfConfig::new(
        "config.json",
        config,
    )?)?))
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let models: Vec<&str> = match words.first() {
        Some(list) => list.split(',').collect(),
        None => SHAPES.iter().map(|s| s.0).collect(),
    };
    let gpus: Vec<usize> = match words.get(1) {
        Some(list) => list.split(',').map(str::parse).collect::<Result<_, _>>()?,
        None => vec![1, 8, 64, 512],
    };
    let machine = Machine::h200();
    println!(
        "A train step of {} sequences of {} tokens ({} of them prompt), at most 8,192 tokens a micro-batch, on nodes of {} {}.\n",
        WORKLOAD.sequences, WORKLOAD.length, WORKLOAD.prompt, machine.gpus_per_node, machine.name
    );
    println!(
        "| model | GPUs | layout | micro-batches | computed again | weights | gradients | optimizer | activations | GB in all | bubble | exchange | step, s | tokens/s a GPU | MFU |"
    );
    println!(
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    );
    let mut pictured = None;
    for name in models {
        let shape = SHAPES.iter().find(|s| s.0 == name);
        let shape = shape.ok_or("models: 0.6B, 1.7B, 4B, 8B, 32B, 70B")?;
        let spec = spec(shape)?;
        let config = TrainConfig {
            max_tokens_per_gpu: 8192,
            global_batch_size: Some(WORKLOAD.sequences),
            ..TrainConfig::default()
        };
        for &gpus in &gpus {
            let began = Instant::now();
            let found = search(&spec, &config, gpus, WORKLOAD, &machine)?;
            eprintln!(
                "{name} on {gpus}: {} layouts in {:.1?}",
                found.len(),
                began.elapsed()
            );
            if let Some(best) = found.into_iter().next() {
                row(name, gpus, &best);
                pictured = Some((name, gpus, best));
            }
        }
    }
    if let (Some(path), Some((name, gpus, best))) = (words.get(2), pictured) {
        let title = format!(
            "{name} on {gpus} GPUs, {}: one train step",
            best.parallel.short()
        );
        let stride = best.parallel.world() / best.parallel.pipeline_model_parallel_size;
        let svg = picture::timeline(&best.outcome, &title, |rank| {
            format!("stage {}", rank / stride)
        });
        std::fs::write(path, svg)?;
    }
    Ok(())
}

fn row(name: &str, gpus: usize, c: &Candidate) {
    let gb = |bytes: usize| bytes as f64 / 1e9;
    let again = match c.recompute {
        (Recompute::None, _) => "nothing".to_owned(),
        (Recompute::Selective, _) => "elementwise".to_owned(),
        (Recompute::Full, Some(layers)) => format!("{layers} layers"),
        (Recompute::Full, None) => "all layers".to_owned(),
    };
    if !c.fits {
        let need = gb(c.memory.peak());
        println!(
            "| {name} | {gpus} | does not fit: {need:.0} GB at least | | | | | | | | | | | | |"
        );
        return;
    }
    let m = &c.memory;
    println!(
        "| {name} | {gpus} | {} | {} | {again} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.0} % | {:.0} % | {:.2} | {:.0} | {:.0} % |",
        c.parallel.short(),
        c.micro_batches,
        gb(m.weights),
        gb(m.gradients),
        gb(m.optimizer),
        gb(m.activations),
        gb(m.peak()),
        100.0 * c.outcome.bubble(),
        100.0 * c.outcome.exchanging(),
        c.outcome.step_s,
        c.tokens_per_s(WORKLOAD) / gpus as f64,
        100.0 * c.mfu,
    );
}
