//! AdamW with clipping and schedule against torch in float64.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod support;

use serde_json::Value;
use slime_kernels::Ops;
use slime_model::layers::{Gradients, Weights};
use slime_model::{ParamKind, ParamSpec};
use slime_trainer::TrainConfig;
use slime_trainer::optim::Optimizer;
use slime_trainer::optim::schedule::DecayStyle;
use support::{f64_cpu, golden_dir};

fn flat(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(items) => items.iter().flat_map(flat).collect(),
        other => vec![other.as_f64().unwrap()],
    }
}

#[test]
fn five_steps_equal_torch() {
    let text = std::fs::read_to_string(golden_dir("adam.json")).unwrap();
    let golden: Value = serde_json::from_str(&text).unwrap();
    let number = |key: &str| golden["config"][key].as_f64().unwrap();
    let config = TrainConfig {
        lr: number("lr"),
        min_lr: number("min_lr"),
        lr_decay_style: DecayStyle::Cosine,
        lr_warmup_iters: number("warmup_steps") as u64,
        lr_decay_iters: Some(number("decay_steps") as u64),
        weight_decay: number("weight_decay"),
        adam_beta1: number("beta1"),
        adam_beta2: number("beta2"),
        adam_eps: number("eps"),
        clip_grad: number("clip_grad"),
        // The schedule counts samples; its lengths are given in steps.
        global_batch_size: Some(16),
        ..TrainConfig::default()
    };
    config.validate().unwrap();
    let ops = f64_cpu();
    let shapes = [
        ("w", 3, 4, ParamKind::Qkv, true),
        ("b", 1, 5, ParamKind::QkvBias, false),
    ];
    let params = shapes.map(|(name, rows, cols, kind, decay)| ParamSpec {
        name: name.into(),
        kind,
        layer: None,
        rows,
        cols,
        parts: Vec::new(),
        decay,
    });
    let tensors = params.iter().map(|p| {
        ops.tensor_f64(p.rows, p.cols, &flat(&golden["initial"][&p.name]))
            .unwrap()
    });
    let mut weights = Weights(tensors.collect());
    let mut optimizer = Optimizer::new(&*ops, &weights, &config).unwrap();
    for (index, step) in golden["steps"].as_array().unwrap().iter().enumerate() {
        let grads = params.iter().map(|p| {
            ops.float_f64(p.rows, p.cols, &flat(&step["grad"][&p.name]))
                .unwrap()
        });
        let report = optimizer
            .step(&*ops, &params, &mut weights, &Gradients(grads.collect()))
            .unwrap();
        let near = |got: f64, want: f64, what: &str| {
            assert!(
                (got - want).abs() <= 1e-12 * want.abs().max(1e-3),
                "step {index} {what}: {got} is not {want}"
            );
        };
        near(report.lr, step["lr"].as_f64().unwrap(), "lr");
        near(
            report.grad_norm,
            step["grad_norm"].as_f64().unwrap(),
            "grad_norm",
        );
        for (i, param) in params.iter().enumerate() {
            let got = [
                ops.read_f64(&weights.0[i]).unwrap(),
                ops.read_float_f64(&optimizer.m[i]).unwrap(),
                ops.read_float_f64(&optimizer.v[i]).unwrap(),
            ];
            let state = &step["state"][&param.name];
            let want = [&step["after"][&param.name], &state["m"], &state["v"]].map(flat);
            for (got, want) in got.iter().flatten().zip(want.iter().flatten()) {
                near(*got, *want, &param.name);
            }
        }
    }
    assert_eq!(optimizer.progress.num_samples, 5 * 16);
}
