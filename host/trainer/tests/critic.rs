//! The critic: its gradients against finite differences, its packing, its warm-up, its place in a checkpoint, and that it
//! learns.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod support;

use slime_core::Step;
use slime_kernels::Ops;
use slime_model::layers::Recompute;
use slime_trainer::algo::Estimator;
use slime_trainer::algo::weights::Aggregation;
use slime_trainer::critic::Critic;
use slime_trainer::data::rollouts::{Limits, rollouts};
use slime_trainer::data::{Batch, MicroBatch};
use slime_trainer::{Error, TrainConfig};
use support::{Numbers, bits, f32_cpu, f64_cpu, network, records, trainer};

/// One of each dense family: a router's choice has no slope to compare with.
const MODELS: [&str; 4] = ["llama3-tiny", "llama-tiny-tied", "qwen2-tiny", "qwen3-tiny"];
const MODEL: &str = "qwen3-tiny";
const VOCAB: usize = 89;
const LIMITS: Limits = Limits {
    vocab: VOCAB,
    max_positions: 64,
};

fn config() -> TrainConfig {
    TrainConfig {
        advantage_estimator: Estimator::Ppo,
        lr: 1e-3,
        max_tokens_per_gpu: 40,
        ..TrainConfig::default()
    }
}

/// A critic whose value head is not 0, so that gradients reach the network.
fn critic<O: Ops>(ops: &std::sync::Arc<O>, model: &str) -> Critic<O> {
    let mut critic = Critic::new(&network(ops, model), &config()).unwrap();
    let hidden = critic.network().spec().hidden;
    let mut numbers = Numbers(23);
    let mut random = || numbers.below(1000) as f64 / 500.0 - 1.0;
    let weight: Vec<f64> = (0..hidden).map(|_| random()).collect();
    critic.value_head().0[0] = ops.tensor_f64(1, hidden, &weight).unwrap();
    critic.value_head().0[1] = ops.tensor_f64(1, 1, &[0.25]).unwrap();
    critic
}

fn fill(batch: &mut Batch<'_>, values: &[f64]) {
    let columns = &mut batch.columns;
    for (i, value) in values.iter().enumerate() {
        // Half of them beyond the clip, on either side of their target.
        columns.value[i] = value + [0.05, -0.3, 0.3, 0.0][i % 4];
        columns.returns[i] = value + [1.0, 0.5, -0.7][i % 3];
    }
}

#[test]
fn its_gradients_are_the_slopes_of_the_value_loss() {
    for model in MODELS {
        let ops = f64_cpu();
        let mut critic = critic(&ops, model);
        let all = records(1, VOCAB, 5);
        let grouped = rollouts(&all, LIMITS).unwrap();
        let mut batch = Batch::new(&grouped, 0..4, Aggregation::RolloutMean, 0);
        let packed = MicroBatch::pack(&batch, 30);
        assert!(packed.len() > 1);
        let values = critic.values(&batch, &packed).unwrap();
        fill(&mut batch, &values);
        let recompute = [Recompute::Selective];
        let loss = |critic: &mut Critic<_>| {
            let report = critic.gradients(&batch, &packed, &recompute, 0.2).unwrap();
            assert!(report.clipfrac > 0.3 && report.clipfrac < 0.7);
            report.loss
        };
        loss(&mut critic);
        let read = |grads: &slime_model::layers::Gradients<_>| -> Vec<Vec<f64>> {
            let all = grads.0.iter();
            all.map(|g| ops.read_float_f64(g).unwrap()).collect()
        };
        let (body, head) = critic.last_gradients();
        let (body, head) = (read(body), read(head));
        let mut numbers = Numbers(3);
        let params = critic.network().params().clone();
        let mut checked = 0;
        for (index, slopes) in head.iter().enumerate() {
            let (rows, cols) = ops.shape(&critic.value_head().0[index]);
            let values = ops.read_f64(&critic.value_head().0[index]).unwrap();
            let at = numbers.below(values.len());
            let mut loss_at = |step: f64| {
                let mut moved = values.clone();
                moved[at] += step;
                critic.value_head().0[index] = ops.tensor_f64(rows, cols, &moved).unwrap();
                let loss = loss(&mut critic);
                critic.value_head().0[index] = ops.tensor_f64(rows, cols, &values).unwrap();
                loss
            };
            let slope = (loss_at(1e-6) - loss_at(-1e-6)) / 2e-6;
            assert!((slope - slopes[at]).abs() < 1e-6, "{model} head {index}");
            checked += 1;
        }
        for (index, param) in params.iter().enumerate() {
            let values = ops.read_f64(&critic.network().weights().0[index]).unwrap();
            let at = numbers.below(values.len());
            let mut loss_at = |step: f64| {
                let mut moved = values.clone();
                moved[at] += step;
                let tensor = ops.tensor_f64(param.rows, param.cols, &moved).unwrap();
                critic.set_weight(index, tensor);
                let loss = loss(&mut critic);
                let tensor = ops.tensor_f64(param.rows, param.cols, &values).unwrap();
                critic.set_weight(index, tensor);
                loss
            };
            let slope = (loss_at(1e-6) - loss_at(-1e-6)) / 2e-6;
            let gap = (slope - body[index][at]).abs();
            assert!(
                gap < 1e-6 * body[index][at].abs().max(1.0),
                "{model} {}: {slope} is not {}",
                param.name,
                body[index][at]
            );
            checked += usize::from(slope != 0.0);
        }
        assert!(checked > 10, "{model}: {checked}");
    }
}

#[test]
fn e05_values_are_never_divided_by_the_temperature() {
    let values = |rollout_temperature| {
        let ops = f64_cpu();
        let config = TrainConfig {
            rollout_temperature,
            ..config()
        };
        let mut critic = Critic::new(&network(&ops, MODEL), &config).unwrap();
        critic.value_head().0[1] = ops.tensor_f64(1, 1, &[3.0]).unwrap();
        let all = records(1, VOCAB, 5);
        let grouped = rollouts(&all, LIMITS).unwrap();
        let batch = Batch::new(&grouped, 0..4, Aggregation::RolloutMean, 0);
        critic
            .values(&batch, &MicroBatch::pack(&batch, 100))
            .unwrap()
    };
    assert!(
        values(0.5).iter().all(|v| *v == 3.0),
        "the head's weight is 0, its bias 3"
    );
    assert_eq!(values(0.5), values(1.0));
}

#[test]
fn it_begins_at_zero_and_learns_to_explain_the_returns() {
    let config = TrainConfig {
        critic_lr: Some(5e-3),
        lr: 0.0,
        value_clip: 5.0,
        ..config()
    };
    let mut trainer = trainer(&f32_cpu(), MODEL, config);
    let all = records(3, VOCAB, 1);
    let reports: Vec<_> = (0..25)
        .map(|_| trainer.train(&all).unwrap().remove(0))
        .collect();
    let (first, last) = (&reports[0], &reports[24]);
    assert_eq!(first.value_clipfrac, Some(0.0));
    let explained = |m: &slime_trainer::TrainMetrics| m.value_explained.unwrap();
    assert!(explained(first).abs() < 1e-9, "{}", explained(first));
    assert!(explained(last) > 0.9, "{}", explained(last));
    assert!(last.value_loss < first.value_loss);
    assert!(last.advantage_abs.unwrap() < first.advantage_abs.unwrap() / 2.0);
}

#[test]
fn while_the_critic_warms_up_the_policy_stays_as_it_is() {
    let config = TrainConfig {
        num_critic_only_steps: 2,
        num_steps_per_rollout: Some(2),
        ..config()
    };
    let mut trainer = trainer(&f32_cpu(), MODEL, config);
    let before = bits(&trainer);
    for _ in 0..2 {
        for metrics in trainer.train(&records(2, VOCAB, 1)).unwrap() {
            assert!(metrics.loss.is_nan() && metrics.pg_loss.is_none());
            assert!(metrics.critic_grad_norm.unwrap() > 0.0);
        }
        assert!(bits(&trainer) == before);
    }
    let metrics = trainer.train(&records(2, VOCAB, 1)).unwrap();
    assert!(metrics[0].loss.is_finite() && metrics[1].num_updates == 2);
    assert!(bits(&trainer) != before);
}

#[test]
fn i13_a_checkpoint_holds_the_critic_and_a_resumed_run_repeats_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("step_2");
    let config = TrainConfig {
        num_critic_only_steps: 1,
        ..config()
    };
    let ops = f32_cpu();
    let mut whole = trainer(&ops, MODEL, config.clone());
    for step in 1..=2 {
        whole.train(&records(2, VOCAB, step)).unwrap();
    }
    whole.save(&at, Step(2)).unwrap();
    let last = whole.train(&records(2, VOCAB, 3)).unwrap();
    assert!(at.join("critic.safetensors").is_file());

    let mut resumed = trainer(&ops, MODEL, config);
    assert_eq!(resumed.load(&at).unwrap(), Step(2));
    assert_eq!(resumed.train(&records(2, VOCAB, 3)).unwrap(), last);
    assert!(bits(&resumed) == bits(&whole));

    let mut other = trainer(&ops, MODEL, TrainConfig::default());
    let error = other.load(&at).unwrap_err();
    assert!(matches!(error, Error::Checkpoint { .. }));
    assert!(error.to_string().contains("holds a critic"), "{error}");
}

#[test]
fn ppo_makes_rewarded_tokens_likelier() {
    let mut trainer = trainer(&f32_cpu(), MODEL, config());
    let all = records(2, VOCAB, 7);
    let likelihood = |trainer: &slime_trainer::Trainer<_>, reward: f64| {
        let chosen = all.iter().filter(|r| r.reward == Some(reward));
        let views: Vec<&[u32]> = chosen.map(|r| &r.tokens[..]).collect();
        let scores = trainer.log_probs(&views).unwrap();
        scores.iter().flat_map(|s| &s.logprobs).sum::<f64>()
    };
    let before = likelihood(&trainer, 1.0) - likelihood(&trainer, 0.0);
    for _ in 0..8 {
        trainer.train(&all).unwrap();
    }
    let after = likelihood(&trainer, 1.0) - likelihood(&trainer, 0.0);
    assert!(after > before + 1.0, "{before} to {after}");
}
