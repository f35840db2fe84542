//! Ranks against transformers in float64: the golden models under layouts that divide what is particular about them.

use super::cases::{experts, sequence_parallel, sizes};
use super::toy::distance;
use serde_json::Value;
use slime_kernels::Cpu;
use slime_model::hf::HfDir;
use slime_model::{Error, ParamSpec};
use slime_trainer::parallel::trainer::{PATIENCE, Weights};
use slime_trainer::parallel::{ParallelConfig, ParallelTrainer, Training};
use slime_trainer::{TokenScores, TrainConfig};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

fn dir(model: &str) -> PathBuf {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/models");
    PathBuf::from(root).join(model)
}

fn floats(value: &Value) -> Vec<f64> {
    let all = value.as_array().into_iter().flatten();
    all.map(|x| x.as_f64().unwrap()).collect()
}

/// Whole parameters of a golden model, by name.
fn weights(dir: &HfDir) -> Weights {
    let mut all: BTreeMap<String, Vec<f32>> = BTreeMap::new();
    dir.weights
        .load_params(&dir.spec, |param, data| {
            all.insert(param.name.clone(), data);
            Ok::<_, Error>(())
        })
        .unwrap();
    Arc::new(move |param: &ParamSpec| Ok(all[&param.name].clone()))
}

/// Layouts that divide each model as far as it goes.
fn layouts() -> Vec<(&'static str, ParallelConfig)> {
    let tp = |n| sequence_parallel(sizes(n, 1, 1, 1));
    let both = sequence_parallel(sizes(2, 1, 2, 1));
    vec![
        ("llama3-tiny", both.clone()),
        ("llama-tiny-tied", tp(2)),
        ("qwen2-tiny", both.clone()),
        ("qwen3-tiny", sequence_parallel(sizes(2, 2, 1, 1))),
        ("glm4-tiny", both.clone()),
        ("qwen3-moe-tiny", experts(2, 1, both.clone())),
        ("glm4-moe-tiny", experts(2, 1, both.clone())),
        ("deepseek-v3-tiny", experts(1, 3, tp(3))),
        ("deepseek-v3-tiny", experts(2, 1, sizes(1, 3, 2, 1))),
        ("moonlight-tiny", experts(1, 2, both)),
        ("glm4-moe-lite-tiny", experts(3, 1, tp(3))),
        ("glm5-tiny", experts(3, 1, tp(3))),
        ("qwen3-next-tiny", experts(5, 1, sizes(1, 1, 1, 5))),
        ("qwen3-next-tiny", experts(1, 2, tp(2))),
        ("qwen3.5-moe-tiny", experts(5, 1, sizes(1, 2, 1, 5))),
        ("qwen3.5-moe-tiny", experts(1, 2, tp(2))),
        ("qwen3.5-tiny", tp(2)),
    ]
}

/// The largest gaps of log-probs and entropies, relative in L2.
fn gap_at(model: &str, parallel: &ParallelConfig, temperature: &str) -> f64 {
    let golden = std::fs::read_to_string(dir(model).join("golden.json")).unwrap();
    let golden: Value = serde_json::from_str(&golden).unwrap();
    let sequences: Vec<Vec<u32>> = golden["sequences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| floats(s).iter().map(|&t| t as u32).collect())
        .collect();
    let hf = HfDir::open(&dir(model)).unwrap();
    let weights = weights(&hf);
    let training = Training {
        vocab: hf.spec.vocab,
        spec: Arc::new(hf.spec),
        config: TrainConfig {
            rollout_temperature: temperature.parse().unwrap(),
            ..TrainConfig::default()
        },
        parallel: parallel.clone(),
    };
    let device = |_| Ok(Arc::new(Cpu::<f64>::new()));
    let trainer = ParallelTrainer::of_threads(training, weights, device, PATIENCE)
        .unwrap_or_else(|error| panic!("{model} {}: {error}", parallel.short()));
    let views: Vec<&[u32]> = sequences.iter().map(Vec::as_slice).collect();
    let scores = trainer.log_probs(&views).unwrap();
    let side = |name: &str, of: fn(&TokenScores) -> &Vec<f64>| {
        let want = golden[name][temperature].as_array().unwrap().iter();
        let want: Vec<f64> = want.flat_map(floats).collect();
        let got: Vec<f64> = scores.iter().flat_map(of).copied().collect();
        distance(&got, &want)
    };
    side("logprobs", |s| &s.logprobs).max(side("entropy", |s| &s.entropy))
}

#[test]
fn pitfall_25_rotation_norms_and_head_layouts_on_ranks_are_transformers() {
    for (model, parallel) in layouts() {
        let gap = gap_at(model, &parallel, "1.0");
        assert!(gap < 1e-9, "{model} {}: {gap:e}", parallel.short());
    }
}

#[test]
fn pitfall_26_log_probs_on_ranks_are_those_of_the_rollouts_temperature() {
    for (model, parallel) in layouts().into_iter().step_by(3) {
        let gap = gap_at(model, &parallel, "0.7");
        assert!(gap < 1e-9, "{model} {}: {gap:e}", parallel.short());
    }
}
