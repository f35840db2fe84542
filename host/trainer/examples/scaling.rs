//! Scaling on paper: the best layout of each model on each number of GPUs, as a table.
//!
//! ```text
//! cargo run -p slime-trainer --example scaling                        the table of docs/book/scaling.md
//! cargo run -p slime-trainer --example scaling -- 8B,355B-A32B 8,64   some of it
//! … -- 355B-A32B 512 step.svg [tp4,pp8,ep32,etp1 [64]]                the last layout rank by rank, its stages as a picture;
//!                                                                     this layout instead of a search, so many sequences
//! ```
//!
//! Every layout is the trainer's own code run over shapes; read `slime_trainer::plan` for what is measured and what is
//! assumed.
#![allow(clippy::print_stdout, reason = "its output is the result")]

use slime_model::ModelSpec;
use slime_model::families::{HfConfig, from_config};
use slime_model::layers::Recompute;
use slime_trainer::TrainConfig;
use slime_trainer::parallel::ParallelConfig;
use slime_trainer::plan::search::{Candidate, evaluate, search};
use slime_trainer::plan::{Machine, Workload, everyone, picture};
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

/// Models by what they are called here, and the published `config.json` of each in tests/golden/published.
const MODELS: [(&str, &str); 9] = [
    ("0.6B", "qwen3-0.6b"),
    ("1.7B", "qwen3-1.7b"),
    ("4B", "qwen3-4b"),
    ("8B", "qwen3-8b"),
    ("32B", "glm-4-32b-0414"),
    ("30B-A3B", "qwen3-30b-a3b"),
    ("235B-A22B", "qwen3-235b-a22b"),
    ("355B-A32B", "glm-4.5"),
    ("671B-A37B", "deepseek-v3"),
];

/// The table's; a fifth word says how many sequences otherwise.
const WORKLOAD: Workload = Workload {
    sequences: 256,
    length: 4096,
    prompt: 256,
};

fn spec(file: &str) -> Result<Arc<ModelSpec>, Box<dyn Error>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/published");
    let text = std::fs::read_to_string(format!("{folder}/{file}.json"))?;
    let spec = from_config(&HfConfig::new(file, serde_json::from_str(&text)?)?)?;
    // Rotation tables as long as what is planned.
    Ok(Arc::new(ModelSpec {
        max_positions: WORKLOAD.length,
        ..spec
    }))
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let models: Vec<&str> = match words.first() {
        Some(list) => list.split(',').collect(),
        None => MODELS.iter().map(|m| m.0).collect(),
    };
    let gpus: Vec<usize> = match words.get(1) {
        Some(list) => list.split(',').map(str::parse).collect::<Result<_, _>>()?,
        None => vec![1, 8, 64, 512],
    };
    let workload = Workload {
        sequences: match words.get(4) {
            Some(number) => number.parse()?,
            None => WORKLOAD.sequences,
        },
        ..WORKLOAD
    };
    let machine = Machine::h200();
    println!(
        "A train step of {} sequences of {} tokens ({} of them prompt), at most 8,192 tokens a micro-batch, on nodes of {} {}.\n",
        workload.sequences, workload.length, workload.prompt, machine.gpus_per_node, machine.name
    );
    println!(
        "| model | GPUs | layout | micro-batches | computed again | weights | gradients | optimizer | activations | GB in all | bubble | exchange | step, s | tokens/s a GPU | MFU |"
    );
    println!(
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    );
    let mut pictured = None;
    for name in models {
        let Some((_, file)) = MODELS.iter().find(|m| m.0 == name) else {
            let known: Vec<&str> = MODELS.iter().map(|m| m.0).collect();
            return Err(format!("{name} is none of {}", known.join(", ")).into());
        };
        let spec = spec(file)?;
        let config = TrainConfig {
            max_tokens_per_gpu: 8192,
            global_batch_size: Some(workload.sequences),
            ..TrainConfig::default()
        };
        for &gpus in &gpus {
            let began = Instant::now();
            let found = match words.get(3) {
                Some(said) => {
                    let parallel = ParallelConfig::from_words(said, gpus)?;
                    vec![evaluate(&spec, &config, &parallel, workload, &machine)?]
                }
                None => search(&spec, &config, gpus, workload, &machine)?,
            };
            eprintln!(
                "{name} on {gpus}: {} layouts in {:.1?}",
                found.len(),
                began.elapsed()
            );
            if let Some(best) = found.into_iter().next() {
                row(name, gpus, &best, workload);
                pictured = Some((name, gpus, best));
            }
        }
    }
    if let (Some(path), Some((name, gpus, best))) = (words.get(2), pictured) {
        let spec = spec(MODELS.iter().find(|m| m.0 == name).map_or("", |m| m.1))?;
        let config = TrainConfig {
            max_tokens_per_gpu: 8192,
            global_batch_size: Some(workload.sequences),
            recompute_granularity: best.recompute.0,
            recompute_num_layers: best.recompute.1,
            ..TrainConfig::default()
        };
        let began = Instant::now();
        let all = everyone(&spec, &config, &best.parallel, workload, &machine)?;
        println!(
            "\n{name} on {gpus}, every rank: {} events in {} groups, {:.3} s a step, {}; in {:.0} s here",
            all.events,
            all.groups,
            all.outcome.step_s,
            all.outcome
                .halted
                .as_deref()
                .unwrap_or("no rank waits for ever"),
            began.elapsed().as_secs_f64()
        );
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

fn row(name: &str, gpus: usize, c: &Candidate, workload: Workload) {
    let gb = |bytes: usize| bytes as f64 / 1e9;
    let again = match c.recompute {
        (Recompute::None, _) => "nothing".to_owned(),
        (Recompute::Selective, _) => "elementwise".to_owned(),
        (Recompute::Mlp, Some(layers)) => format!("{layers} MLPs"),
        (Recompute::Mlp, None) => "MLPs".to_owned(),
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
        c.tokens_per_s(workload) / gpus as f64,
        100.0 * c.mfu,
    );
}
