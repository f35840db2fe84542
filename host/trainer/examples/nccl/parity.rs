//! One GRPO step of every layout against one GPU.

use super::{Failure, Where, config, one, ranks, records, routed, spec};
use serde_json::json;
use slime_core::Step;
use slime_kernels::Ops;
use slime_trainer::TrainMetrics;
use slime_trainer::parallel::ParallelConfig;

/// What else has to hold, of the models that can be laid out so.
fn more_layouts(name: &str) -> Vec<ParallelConfig> {
    let none = ParallelConfig::default();
    match name {
        name if name.ends_with("moe") => vec![ParallelConfig {
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

fn layouts(name: &str) -> Vec<ParallelConfig> {
    let sizes = |tp, pp, dp, sequence_parallel| ParallelConfig {
        tensor_model_parallel_size: tp,
        pipeline_model_parallel_size: pp,
        data_parallel_size: dp,
        sequence_parallel,
        ..ParallelConfig::default()
    };
    let mut all = vec![
        sizes(1, 1, 2, false),
        sizes(2, 1, 1, true),
        sizes(1, 2, 1, false),
    ];
    // Experts want rows of their own on every rank.
    if !name.ends_with("moe") {
        all.push(sizes(2, 1, 1, false));
    }
    all
}

/// `|a - b| / |b|` in L2.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|v| v * v).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied()).max(1e-300)
}

/// One GRPO step of every layout against one GPU; the same step once more, for the same bits; and the next step on one GPU
/// that resumes from the layout's checkpoint. The bounds are those of bf16 between layouts: 8e-3 for what a forward gives,
/// 1.5e-2 for gradients.
pub(crate) fn check(name: &str, place: Where) -> Result<bool, Failure> {
    let spec = spec(name)?;
    let (count, prompt, response) = match name.starts_with("tiny") {
        true => (4, 9, 30),
        false => (16, 64, 192),
    };
    let tokens = count / 2 * (prompt + response);
    let mut config = config(tokens);
    config.use_rollout_routing_replay = name.ends_with("moe");
    let records = routed(records(count, prompt, response, spec.vocab), &spec);
    let mut trainer = one(&spec, &config)?;
    let want = trainer.train(&records)?.swap_remove(0);
    let ops = trainer.network().ops().clone();
    let mut grads = Vec::new();
    for grad in &trainer.gradients().0 {
        grads.push(ops.read_float_f64(grad)?);
    }
    drop(trainer);
    let mut all_hold = true;
    for parallel in layouts(name).into_iter().chain(more_layouts(name)) {
        let (mut trainer, _) = ranks(&spec, &parallel, &config, place)?;
        let got = trainer.train(&records)?.swap_remove(0);
        let mut worst = (0.0, String::new());
        for (param, want) in trainer.params().clone().iter().zip(&grads) {
            let gap = distance(&trainer.read_gradient(param)?, want);
            if gap.is_nan() || gap > worst.0 {
                worst = (gap, param.name.clone());
            }
        }
        let folder = std::env::temp_dir().join(format!("slime-nccl-{}", std::process::id()));
        trainer.save(&folder, Step(1))?;
        let next = trainer.train(&records)?.swap_remove(0);
        drop(trainer);
        let mut resumed = one(&spec, &config)?;
        resumed.load(&folder)?;
        std::fs::remove_dir_all(&folder)?;
        let after = resumed.train(&records)?.swap_remove(0);
        drop(resumed);
        let (mut again, _) = ranks(&spec, &parallel, &config, place)?;
        let repeated = again.train(&records)?.swap_remove(0);
        let repeats = bits(&repeated) == bits(&got);
        let holds = near(&got, &want) && worst.0 < 3e-2 && near(&after, &next) && repeats;
        all_hold &= holds;
        println!(
            "{}",
            json!({
                "model": name, "layout": parallel.short(), "holds": holds, "loss": [got.loss, want.loss],
                "entropy": [got.entropy, want.entropy], "grad_norm": [got.grad_norm, want.grad_norm],
                "worst_gradient": worst.1, "worst_gradient_gap": worst.0, "repeats": repeats,
                "resumed_on_one": [[after.entropy, next.entropy], [after.grad_norm, next.grad_norm]],
            })
        );
    }
    Ok(all_hold)
}

fn near(a: &TrainMetrics, b: &TrainMetrics) -> bool {
    let gap = |a: f64, b: f64| (a - b).abs() / b.abs().max(1e-3);
    let norm = |metrics: &TrainMetrics| metrics.grad_norm.unwrap_or(f64::NAN);
    gap(a.entropy, b.entropy) < 8e-3 && gap(norm(a), norm(b)) < 1.5e-2
}

fn bits(metrics: &TrainMetrics) -> [u64; 3] {
    let norm = metrics.grad_norm.unwrap_or(f64::NAN);
    [metrics.loss, metrics.entropy, norm].map(f64::to_bits)
}
