//! The model's numbers and gradients against transformers in float64.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod support;

use serde_json::Value;
use slime_kernels::{Ops, Sequences};
use slime_model::layers::{Gradients, Recompute};
use slime_trainer::algo::weights::Aggregation;
use slime_trainer::{SftSequence, TokenScores, TrainConfig, TrainMetrics};
use std::sync::Arc;
use support::{
    Precision, by_name, distance, f32_cpu, f64_cpu, floats, golden, golden_grads, ids, models,
    network, run_grpo, tolerance, trainer,
};

fn sequences(golden: &Value) -> Vec<Vec<u32>> {
    golden["sequences"]
        .as_array()
        .unwrap()
        .iter()
        .map(ids)
        .collect()
}

fn forward_matches<O: Ops>(ops: &Arc<O>, precision: Precision) {
    for model in &models() {
        let allowed = match precision {
            Precision::F64 => 1e-9,
            Precision::F32 => tolerance(model, 2e-6, 1e-4),
        };
        let golden = golden(model);
        let all = sequences(&golden);
        let network = network(ops, model);
        let packed: Vec<u32> = all.concat();
        let layout = Sequences::from_lengths(all.iter().map(Vec::len));
        for entry in golden["logits"].as_array().unwrap() {
            let sequence = entry["sequence"].as_u64().unwrap() as usize;
            let row = layout.offsets[sequence] as u32 + entry["position"].as_u64().unwrap() as u32;
            let hidden = network.forward(&packed, &layout, &[row]).unwrap();
            let logits = ops
                .read_float_f64(&network.logits(&hidden).unwrap())
                .unwrap();
            let gap = distance(&logits, &floats(&entry["values"]));
            assert!(gap <= allowed, "{model} logits of row {row}: {gap:e}");
        }
        for temperature in ["1.0", "0.7"] {
            let config = TrainConfig {
                rollout_temperature: temperature.parse().unwrap(),
                ..TrainConfig::default()
            };
            let views: Vec<&[u32]> = all.iter().map(Vec::as_slice).collect();
            let got = trainer(ops, model, config).log_probs(&views).unwrap();
            let sides = |name: &str, got: fn(&TokenScores) -> &Vec<f64>, scores: &[TokenScores]| {
                let want = golden[name][temperature].as_array().unwrap().iter();
                let got: Vec<f64> = scores.iter().flat_map(got).copied().collect();
                let gap = distance(&got, &want.flat_map(floats).collect::<Vec<_>>());
                assert!(gap <= allowed, "{model} {name} at {temperature}: {gap:e}");
            };
            sides("logprobs", |s| &s.logprobs, &got);
            sides("entropy", |s| &s.entropy, &got);
        }
    }
}

#[test]
fn logits_log_probs_and_entropies_equal_transformers_in_f64() {
    forward_matches(&f64_cpu(), Precision::F64);
}

#[test]
fn logits_log_probs_and_entropies_equal_transformers_in_f32() {
    forward_matches(&f32_cpu(), Precision::F32);
}

fn compare_grads<O: Ops>(
    ops: &O,
    model: &str,
    prefix: &str,
    grads: &Gradients<O>,
    params: &[slime_model::ParamSpec],
    tolerance: f64,
) {
    let got = by_name(ops, params, grads);
    let want = golden_grads(model, prefix);
    assert!(!want.is_empty());
    let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
    let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
    let all: Vec<f64> = want.values().flat_map(|x| wide(x)).collect();
    let rounding = 1e-6 * norm(&all);
    for (name, want) in &want {
        let want = wide(want);
        // A router whose one expert's weight is brought to 1 has a gradient of 0 but for rounding, on both sides.
        if norm(&want) < rounding {
            let got = norm(&got[name]);
            assert!(got < rounding, "{model} {prefix} {name}: {got:e} for 0");
            continue;
        }
        let gap = distance(&got[name], &want);
        assert!(gap <= tolerance, "{model} {prefix} {name}: {gap:e}");
    }
}

fn sft_matches<O: Ops>(ops: &Arc<O>, precision: Precision) {
    for model in &models() {
        let (scalar, of_gradients) = losses_may_differ_by(model, precision);
        let golden = golden(model);
        let all = sequences(&golden);
        let config = TrainConfig {
            loss_aggregation: Aggregation::TokenMean,
            ..TrainConfig::default()
        };
        let mut trainer = trainer(ops, model, config);
        let masks: Vec<Vec<u8>> = all.iter().map(|s| vec![1; s.len()]).collect();
        let sequences: Vec<SftSequence<'_>> = all
            .iter()
            .zip(&masks)
            .map(|(tokens, loss_mask)| SftSequence { tokens, loss_mask })
            .collect();
        let metrics = trainer.sft_step(&sequences).unwrap();
        let want = &golden["sft"];
        close(metrics.loss, &want["loss"], scalar, model);
        close(
            metrics.grad_norm.unwrap(),
            &want["grad_norm"],
            scalar,
            model,
        );
        assert_eq!(
            metrics.trained_tokens as u64,
            want["num_tokens"].as_u64().unwrap()
        );
        let params = trainer.network().params().clone();
        compare_grads(
            &**ops,
            model,
            "sft",
            trainer.gradients(),
            &params,
            of_gradients,
        );
    }
}

/// Scalars and gradients; gradients are stored in f32.
fn losses_may_differ_by(model: &str, precision: Precision) -> (f64, f64) {
    match precision {
        Precision::F64 => (1e-9, 1e-7),
        Precision::F32 => (tolerance(model, 1e-5, 1e-3), tolerance(model, 1e-5, 1e-3)),
    }
}

#[track_caller]
fn close(got: f64, want: &Value, tolerance: f64, what: &str) {
    let want = want.as_f64().unwrap();
    assert!(
        (got - want).abs() <= tolerance * want.abs().max(1e-3),
        "{what}: {got} is not {want}"
    );
}

#[test]
fn fine_tuning_gradients_equal_pytorch_in_f64() {
    sft_matches(&f64_cpu(), Precision::F64);
}

#[test]
fn fine_tuning_gradients_equal_pytorch_in_f32() {
    sft_matches(&f32_cpu(), Precision::F32);
}

fn grpo_matches<O: Ops>(ops: &Arc<O>, recompute: Recompute, precision: Precision) {
    for model in &models() {
        let (scalar, of_gradients) = losses_may_differ_by(model, precision);
        let golden = golden(model);
        let network = network(ops, model);
        let (grads, metrics) = run_grpo(&network, &golden["grpo"], recompute, 40);
        let want = &golden["grpo"]["expected"];
        check_metrics(&metrics, want, scalar, model);
        let squares: f64 = grads.0.iter().map(|g| ops.sum_squares(g).unwrap()).sum();
        close(squares.sqrt(), &want["grad_norm"], scalar, model);
        compare_grads(
            &**ops,
            model,
            "grpo",
            &grads,
            network.params(),
            of_gradients,
        );
    }
}

fn check_metrics(got: &TrainMetrics, want: &Value, tolerance: f64, model: &str) {
    let pairs = [
        ("loss", got.loss),
        ("pg_loss", got.pg_loss.unwrap()),
        ("kl_loss", got.kl_loss.unwrap()),
        ("entropy", got.entropy),
        ("ppo_kl", got.ppo_kl.unwrap()),
        ("clipfrac", got.clipfrac.unwrap()),
        ("dual_clipfrac", got.dual_clipfrac.unwrap()),
    ];
    for (name, got) in pairs {
        close(got, &want[name], tolerance, &format!("{model} {name}"));
    }
}

#[test]
fn grpo_losses_and_gradients_equal_pytorch_in_f64() {
    for recompute in [
        Recompute::None,
        Recompute::Selective,
        Recompute::Mlp,
        Recompute::Full,
    ] {
        grpo_matches(&f64_cpu(), recompute, Precision::F64);
    }
}

#[test]
fn grpo_losses_and_gradients_equal_pytorch_in_f32() {
    grpo_matches(&f32_cpu(), Recompute::Selective, Precision::F32);
}
