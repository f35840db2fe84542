//! A real model: log-probs and gradients of SmolLM2-135M-Instruct against transformers in float32.
//!
//! Its weights are not in the repository; set `SLIME_SMOLLM2` to its HF directory to run this.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod support;

use slime_kernels::Ops;
use slime_model::Network;
use slime_model::layers::Recompute;
use slime_trainer::{TrainConfig, Trainer};
use std::path::PathBuf;
use support::{by_name, f32_cpu, floats, golden_dir, ids, run_grpo, weights_at};

fn model_dir() -> Option<PathBuf> {
    let dir = std::env::var_os("SLIME_SMOLLM2").map(PathBuf::from);
    if dir.is_none() {
        eprintln!("skipped: SLIME_SMOLLM2 does not name the HF directory of SmolLM2-135M-Instruct");
    }
    dir
}

#[test]
fn log_probs_and_a_grpo_gradient_equal_transformers() {
    let Some(dir) = model_dir() else { return };
    let text = std::fs::read_to_string(golden_dir("smollm2.json")).unwrap();
    let golden: serde_json::Value = serde_json::from_str(&text).unwrap();
    let texts = golden["texts"].as_array().unwrap();
    let tokens: Vec<Vec<u32>> = texts.iter().map(|t| ids(&t["ids"])).collect();
    let views: Vec<&[u32]> = tokens.iter().map(Vec::as_slice).collect();
    let ops = f32_cpu();
    for temperature in ["1.0", "0.7"] {
        let (spec, weights) = weights_at(&*ops, &dir);
        let config = TrainConfig {
            rollout_temperature: temperature.parse().unwrap(),
            ..TrainConfig::default()
        };
        let trainer = Trainer::new(ops.clone(), spec, weights, config).unwrap();
        let scores = trainer.log_probs(&views).unwrap();
        let mut largest: f64 = 0.0;
        for (scores, text) in scores.iter().zip(texts) {
            for (name, got) in [("logprobs", &scores.logprobs), ("entropy", &scores.entropy)] {
                let want = floats(&text[format!("{name}_{temperature}")]);
                assert_eq!(got.len(), want.len());
                got.iter()
                    .zip(&want)
                    .for_each(|(a, b)| largest = largest.max((a - b).abs()));
            }
        }
        println!("largest difference at temperature {temperature}: {largest:e}");
        assert!(largest < 1e-4, "{largest:e}");
    }

    let (spec, weights) = weights_at(&*ops, &dir);
    let network = Network::new(ops.clone(), spec, weights).unwrap();
    let (grads, metrics) = run_grpo(&network, &golden["grpo"], Recompute::Selective, 4096);
    let want = &golden["grpo"]["expected"];
    assert!((metrics.loss - want["loss"].as_f64().unwrap()).abs() < 1e-4);
    let squares: f64 = grads.0.iter().map(|g| ops.sum_squares(g).unwrap()).sum();
    let norm = want["grad_norm"].as_f64().unwrap();
    assert!((squares.sqrt() - norm).abs() < 1e-3 * norm);
    let mut largest: f64 = 0.0;
    for (name, grad) in by_name(&*ops, network.params(), &grads) {
        let print = &golden["fingerprints"][&name];
        let norm = print["norm"].as_f64().unwrap();
        let own = grad.iter().map(|x| x * x).sum::<f64>().sqrt();
        largest = largest.max((own - norm).abs() / norm);
        let stride = grad.len() / 16;
        for (i, want) in floats(&print["at"]).iter().enumerate() {
            // An entry alone may be tiny; its error is measured against a typical entry.
            let typical = norm / (grad.len() as f64).sqrt();
            largest = largest.max((grad[i * stride] - want).abs() / want.abs().max(typical));
        }
    }
    println!("largest relative difference of a gradient: {largest:e}");
    assert!(largest < 1e-3, "{largest:e}");
}
