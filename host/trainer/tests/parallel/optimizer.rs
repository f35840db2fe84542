//! The distributed optimizer against the formula written out for one number, and what needs memory linear in the length.

use super::cases::{experts, sequence_parallel, sizes};
use super::toy::{
    Toy, config, gaps, mixed, on_many, on_one, outcome, ranks, records, routed, weight,
};
use super::{DOUBLE, holds_within};
use slime_core::Step;
use slime_kernels::{Cpu, Heads, Ops, Sequences};
use slime_model::{ParamKind, params};
use slime_trainer::TrainConfig;
use std::sync::Arc;

type F64 = Cpu<f64>;

const EXPERTS: Toy = Toy {
    family: "deepseek_v3",
    kv: 8,
    tied: false,
};

/// `p ← p - lr (m̂ / (√v̂ + eps) + wd p)`, clipped by the norm of everything, ten times over.
#[test]
fn pitfall_27_ten_steps_of_adam_are_the_formulas_for_every_number_and_vectors_do_not_decay() {
    let config = TrainConfig {
        lr: 3e-3,
        weight_decay: 0.1,
        num_steps_per_rollout: Some(1),
        use_kl_loss: false,
        kl_loss_coef: 0.0,
        ..config()
    };
    let layout = experts(2, 1, sequence_parallel(sizes(2, 2, 1, 2)));
    let mut trainer = ranks(F64::new, EXPERTS, &config, &layout).unwrap();
    let all = params(&EXPERTS.spec());
    let first = |p| -> Vec<f64> { weight(p).into_iter().map(f64::from).collect() };
    let mut p: Vec<Vec<f64>> = all.iter().map(first).collect();
    let zeros: Vec<Vec<f64>> = all.iter().map(|param| vec![0.0; param.len()]).collect();
    let (mut m, mut v) = (zeros.clone(), zeros);
    let (b1, b2) = (config.adam_beta1, config.adam_beta2);
    for step in 1..=10 {
        let rollouts = records(&[(3, 7), (4, 9), (2, 5), (6, 3)], step);
        let metrics = trainer.train(&rollouts).unwrap();
        let norm = metrics[0].grad_norm.unwrap();
        let found = outcome(&trainer, metrics).unwrap();
        let squares: f64 = found.gradients.values().flatten().map(|g| g * g).sum();
        assert!((norm / squares.sqrt() - 1.0).abs() < 1e-11, "step {step}");
        let scale = (config.clip_grad / (norm + 1e-6)).min(1.0);
        let corrections = (1.0 - b1.powi(step as i32), 1.0 - b2.powi(step as i32));
        for (i, param) in all.iter().enumerate() {
            let decay = match param.kind.is_vector() {
                true => 0.0,
                false => config.weight_decay,
            };
            assert_eq!(param.decay, !param.kind.is_vector(), "{}", param.name);
            let got = &found.weights[&param.name];
            for (j, grad) in found.gradients[&param.name].iter().enumerate() {
                let g = grad * scale;
                m[i][j] = b1 * m[i][j] + (1.0 - b1) * g;
                v[i][j] = b2 * v[i][j] + (1.0 - b2) * g * g;
                let root = (v[i][j] / corrections.1).sqrt() + config.adam_eps;
                let direction = m[i][j] / corrections.0 / root;
                p[i][j] -= config.lr * (direction + decay * p[i][j]);
                assert!(
                    (got[j] - p[i][j]).abs() < 1e-12,
                    "step {step}, {} {j}: {} is not {}",
                    param.name,
                    got[j],
                    p[i][j]
                );
            }
        }
    }
    // A bias that only chooses has no gradient and does not decay: it stays as it is.
    let frozen = all.iter().position(|p| p.kind == ParamKind::RouterBias);
    let frozen = frozen.unwrap();
    assert!(p[frozen] == first(&all[frozen]));
}

#[test]
fn pitfall_27_a_run_that_was_resumed_at_step_five_makes_the_same_bits() {
    let layout = experts(2, 2, sequence_parallel(sizes(2, 1, 1, 2)));
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("step_5");
    let plain = TrainConfig {
        num_steps_per_rollout: Some(1),
        ..config()
    };
    let fresh = || ranks(F64::new, EXPERTS, &plain, &layout).unwrap();
    let mut whole = fresh();
    for _ in 0..5 {
        whole.train(&mixed()).unwrap();
    }
    whole.save(&dir, Step(5)).unwrap();
    let mut resumed = fresh();
    assert_eq!(resumed.load(&dir).unwrap(), Step(5));
    for trainer in [&mut whole, &mut resumed] {
        for seed in 0..3 {
            trainer.train(&records(&[(3, 7), (4, 9)], seed)).unwrap();
        }
    }
    for param in params(&EXPERTS.spec()) {
        let bits = |trainer: &slime_trainer::parallel::ParallelTrainer<F64>| -> Vec<u64> {
            let read = trainer.read_param_f64(&param).unwrap();
            read.into_iter().map(f64::to_bits).collect()
        };
        assert!(bits(&whole) == bits(&resumed), "{}", param.name);
    }
}

/// cuDNN's deterministic backward kept a number for every pair of tokens. Ours keeps none, so there is nothing to refuse:
/// four times the length needs four times the memory.
#[test]
fn pitfall_21_attentions_backward_needs_memory_linear_in_the_length() {
    let heads = Heads {
        query: 4,
        kv: 2,
        dim: 16,
    };
    let peak = |tokens: usize| {
        let ops = Cpu::<f32>::new();
        let sequences = Sequences::from_lengths([tokens]);
        let rows = |cols: usize| {
            ops.tensor(tokens, cols, &vec![0.01; tokens * cols])
                .unwrap()
        };
        let (qkv, dout) = (rows(heads.qkv_cols()), rows(heads.out_cols()));
        let (out, lse) = ops.attention(&qkv, heads, &sequences, 0.25).unwrap();
        ops.attention_backward(&dout, &qkv, &out, &lse, heads, &sequences, 0.25)
            .unwrap();
        ops.peak_bytes() as f64
    };
    let (short, long) = (peak(512), peak(2048));
    assert!(long / short < 4.5, "{short} B, then {long} B");
    // A number a pair and head would be 64 MiB.
    assert!(long < 16e6, "{long}");
}

/// Where a gradient is near nothing, its rounding says which way Adam steps, and the step is a whole one: at a high learning
/// rate f32 on ranks drifts from f32 on one rank by what that changes. In f64 it does not, nor in f32 with an epsilon above
/// the rounding.
#[test]
fn what_adam_makes_of_rounding_is_no_error_of_ranks() {
    let toy = Toy {
        family: "qwen3_moe",
        ..Toy::PLAIN
    };
    let layout = experts(2, 1, sequence_parallel(sizes(2, 2, 1, 1)));
    let with = |adam_eps| TrainConfig {
        lr: 0.02,
        adam_eps,
        entropy_coef: 0.5,
        num_steps_per_rollout: Some(2),
        use_rollout_routing_replay: true,
        ..config()
    };
    for seed in 0..5 {
        let lengths = [
            (4, 9),
            (6, 3),
            (3, 12),
            (5, 7),
            (4, 1),
            (7, 5),
            (2, 8),
            (5, 4),
        ];
        let told = routed(records(&lengths, 100 + seed), toy);
        let one = on_one(&Arc::new(F64::new()), toy, &with(1e-8), &told);
        let many = on_many(F64::new, toy, &with(1e-8), &layout, &told).unwrap();
        holds_within(&format!("seed {seed}, f64"), &gaps(&many, &one), DOUBLE);
        let one = on_one(&Arc::new(Cpu::<f32>::new()), toy, &with(1e-3), &told);
        let many = on_many(Cpu::<f32>::new, toy, &with(1e-3), &layout, &told).unwrap();
        for (step, (many, one)) in many.metrics.iter().zip(&one.metrics).enumerate() {
            let gap = (many.loss - one.loss).abs();
            assert!(gap < 2e-6, "seed {seed}, f32, step {step}: {gap}");
        }
    }
}
