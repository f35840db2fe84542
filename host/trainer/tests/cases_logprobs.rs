//! Failures that other projects shipped in log-probs, temperature, packing and checkpoints, with the values that are right.
//! The list, with what became of each case, is docs/failure-cases.md.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod support;

use slime_core::{RolloutRecord, Step};
use slime_kernels::{Ops, Sequences};
use slime_trainer::algo::weights::Aggregation;
use slime_trainer::data::rollouts::{Limits, rollouts};
use slime_trainer::data::{Batch, MicroBatch, first_fit};
use slime_trainer::{TrainConfig, checkpoint};
use support::{bits, distance, f32_cpu, f64_cpu, records, trainer, weights};

const MODEL: &str = "qwen3-tiny";
const VOCAB: usize = 89;

fn stats(logits: &[f64], target: u32, temperature: f64) -> f64 {
    let ops = f64_cpu();
    let float = ops.float_f64(1, logits.len(), logits).unwrap();
    ops.token_stats(
        &float,
        &ops.ids(&[target]).unwrap(),
        1.0 / temperature,
        logits.len(),
    )
    .unwrap()
    .logprob[0]
}

#[track_caller]
fn close(got: f64, want: f64, tolerance: f64) {
    assert!((got - want).abs() < tolerance, "{got} is not {want}");
}

#[test]
fn e01_a_row_of_logits_predicts_the_next_token() {
    let logits = [[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [1.0, 1.0, 1.0]];
    let batch = Batch::from_masked(&[(&[0, 2, 1], &[1, 1, 1])], Aggregation::TokenMean, 0);
    let packed = MicroBatch::pack(&batch, 10);
    assert_eq!(
        (&packed[0].rows[..], &packed[0].targets[..]),
        (&[0, 1][..], &[2, 1][..])
    );
    let got: Vec<f64> = packed[0]
        .rows
        .iter()
        .zip(&packed[0].targets)
        .map(|(&row, &t)| stats(&logits[row as usize], t, 1.0))
        .collect();
    close(got[0], -2.407606, 1e-6);
    close(got[1], -0.169846, 1e-6);
}

#[test]
fn e02_the_first_response_token_is_predicted_by_the_prompts_last_row() {
    let record = |response: usize| RolloutRecord {
        tokens: vec![1; 3 + response],
        response_length: response,
        loss_mask: vec![1; response],
        reward: Some(1.0),
        outcome: "scored".into(),
        ..RolloutRecord::default()
    };
    let limits = Limits {
        vocab: 9,
        max_positions: 9,
    };
    let rows = |response| {
        let records = [record(response)];
        let all = rollouts(&records, limits).unwrap();
        let batch = Batch::new(&all, 0..1, Aggregation::RolloutMean, 0);
        batch
            .sequences
            .iter()
            .flat_map(|s| s.rows.clone())
            .collect::<Vec<u32>>()
    };
    assert_eq!(rows(2), [2, 3]);
    assert!(rows(0).is_empty());
}

#[test]
fn e03_the_temperature_is_applied_on_both_sides() {
    let logits = [2.0, 1.0, 0.0];
    close(stats(&logits, 0, 1.0), -0.407606, 1e-6);
    close(stats(&logits, 0, 0.7), -0.260118, 1e-6);
    close(
        (stats(&logits, 0, 0.6) - stats(&logits, 0, 1.0)).exp(),
        1.227565,
        1e-6,
    );
    // On policy the ratio is 1 at any temperature, and an engine that reports untempered log-probs shows at once.
    for temperature in [0.6, 1.0, 1.3] {
        let gap = |engine: f64| {
            let config = TrainConfig {
                rollout_temperature: engine,
                ..TrainConfig::default()
            };
            let engine = trainer(&f64_cpu(), MODEL, config);
            let mut all = records(2, VOCAB, 1);
            for record in &mut all {
                let scores = engine
                    .log_probs(&[&record.tokens])
                    .unwrap()
                    .remove(0)
                    .logprobs;
                let first = record.tokens.len() - record.response_length;
                for (offset, mask) in record.loss_mask.iter().enumerate() {
                    record.rollout_log_probs[offset] = if *mask == 1 {
                        scores[first + offset - 1] as f32
                    } else {
                        0.0
                    };
                }
            }
            let config = TrainConfig {
                rollout_temperature: temperature,
                use_rollout_logprobs: true,
                ..TrainConfig::default()
            };
            let got = trainer(&f64_cpu(), MODEL, config)
                .train(&all)
                .unwrap()
                .remove(0);
            (
                got.train_rollout_logprob_abs_diff.unwrap(),
                got.ppo_kl.unwrap(),
            )
        };
        let (same, kl) = gap(temperature);
        assert!(same < 1e-6 && kl.abs() < 1e-6, "{temperature}: {same}");
        if temperature != 1.0 {
            assert!(gap(1.0).0 > 0.02, "{temperature}");
        }
    }
}

#[test]
fn e04_a_temperature_of_zero_or_less_is_refused_for_training() {
    for rollout_temperature in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let config = TrainConfig {
            rollout_temperature,
            ..TrainConfig::default()
        };
        assert_eq!(config.validate().unwrap_err()[0].key, "rollout_temperature");
    }
}

#[test]
fn a11_lengths_are_counted_and_never_read_off_the_ids() {
    // The end token is also what others pad with: nothing here is padding.
    let end = 9;
    let record = RolloutRecord {
        tokens: vec![1, 5, 6, end, end, end],
        response_length: 5,
        loss_mask: vec![1, 1, 1, 0, 0],
        reward: Some(1.0),
        outcome: "scored".into(),
        ..RolloutRecord::default()
    };
    let records = [record];
    let all = rollouts(
        &records,
        Limits {
            vocab: 10,
            max_positions: 9,
        },
    )
    .unwrap();
    let batch = Batch::new(&all, 0..1, Aggregation::RolloutMean, 0);
    let targets: Vec<u32> = batch.sequences[0].targets().collect();
    assert_eq!(targets, [5, 6, end]);
    assert_eq!(batch.sequences[0].inputs(), [1, 5, 6]);
}

#[test]
fn d10_j08_a_sequence_whose_training_lies_at_its_very_end_has_the_gradient_it_has_alone() {
    // Prompt-heavy: one trained token after a long prompt, packed with others or in a micro-batch of its own.
    let mut all = records(1, VOCAB, 3);
    let prompt = vec![7; 60];
    all[0].tokens.splice(0..0, prompt);
    let last = all[0].loss_mask.len() - 1;
    all[0].loss_mask.fill(0);
    all[0].loss_mask[last] = 1;
    let gradient = |max_tokens_per_gpu| {
        let ops = f64_cpu();
        let config = TrainConfig {
            max_tokens_per_gpu,
            ..TrainConfig::default()
        };
        let mut trainer = trainer(&ops, MODEL, config);
        trainer.train(&all).unwrap();
        let grads = trainer.gradients().0.iter();
        grads
            .flat_map(|g| ops.read_float_f64(g).unwrap())
            .collect::<Vec<f64>>()
    };
    assert!(distance(&gradient(1), &gradient(1000)) < 1e-12);
}

#[test]
fn j03_offsets_begin_at_zero_end_at_the_number_of_tokens_and_never_fall() {
    let offsets = Sequences::from_lengths([3, 4]).offsets;
    assert_eq!(
        offsets,
        [0, 3, 7],
        "a micro-batch holds its sequences and no padding"
    );
    assert_eq!(Sequences::from_lengths([3, 0, 4]).offsets, [0, 3, 3, 7]);
}

#[test]
fn l05_a_bin_exceeds_the_limit_only_for_a_single_long_sequence() {
    let bins = first_fit(&[9000, 9000, 300, 300], 9216);
    assert_eq!(bins, [vec![0], vec![1], vec![2, 3]]);
    assert_eq!(first_fit(&[205_280, 100], 9216), [vec![0], vec![1]]);
}

#[test]
fn i04_the_learning_rate_continues_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("step_2");
    let config = TrainConfig {
        lr: 1e-3,
        lr_warmup_iters: 6,
        global_batch_size: Some(4),
        ..TrainConfig::default()
    };
    let ops = f32_cpu();
    let mut whole = trainer(&ops, MODEL, config.clone());
    for step in 0..2 {
        whole.train(&records(2, VOCAB, step)).unwrap();
    }
    whole.save(&at, Step(2)).unwrap();
    let mut resumed = trainer(&ops, MODEL, config);
    resumed.load(&at).unwrap();
    assert_eq!(resumed.lr(), whole.lr());
    assert_eq!(resumed.num_updates(), 4);
    // Loading again counts nothing twice.
    resumed.load(&at).unwrap();
    assert_eq!(resumed.lr(), whole.lr());
    assert!(
        (whole.lr() - 1e-3 * 4.0 / 6.0).abs() < 1e-12,
        "{}",
        whole.lr()
    );
}

#[test]
fn i10_checkpoints_are_ordered_by_step_and_not_by_name_or_age() {
    let dir = tempfile::tempdir().unwrap();
    let mut trainer = trainer(&f32_cpu(), MODEL, TrainConfig::default());
    trainer.train(&records(1, VOCAB, 1)).unwrap();
    // 50 is written after 100, as a run that went back would.
    for step in [9, 100, 50] {
        trainer
            .save(&dir.path().join(format!("step_{step}")), Step(step))
            .unwrap();
    }
    assert_eq!(
        checkpoint::latest(dir.path()).unwrap().unwrap().0,
        Step(100)
    );
    checkpoint::keep_last(dir.path(), 1).unwrap();
    assert_eq!(
        checkpoint::latest(dir.path()).unwrap().unwrap().0,
        Step(100)
    );
}

#[test]
fn i11_loading_a_reference_changes_nothing_of_the_policy() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("step_7");
    let config = TrainConfig {
        use_kl_loss: true,
        lr: 1e-3,
        ..TrainConfig::default()
    };
    let ops = f32_cpu();
    let mut policy = trainer(&ops, MODEL, config.clone())
        .with_reference(weights(&*ops, MODEL).1)
        .unwrap();
    policy.train(&records(1, VOCAB, 1)).unwrap();
    policy.save(&at, Step(7)).unwrap();
    let mut loaded = trainer(&ops, MODEL, config);
    loaded.load(&at).unwrap();
    let (before, updates, lr) = (bits(&loaded), loaded.num_updates(), loaded.lr());
    let loaded = loaded.with_reference(weights(&*ops, MODEL).1).unwrap();
    assert!(bits(&loaded) == before);
    assert_eq!((loaded.num_updates(), loaded.lr()), (updates, lr));
}

#[test]
fn m02_the_largest_gap_is_a_maximum_and_no_mean() {
    let mut all = records(2, VOCAB, 1);
    for record in &mut all {
        record.rollout_log_probs.fill(-4.0);
    }
    let got = trainer(&f64_cpu(), MODEL, TrainConfig::default())
        .train(&all)
        .unwrap()
        .remove(0);
    let (mean, max) = (
        got.train_rollout_logprob_abs_diff.unwrap(),
        got.train_rollout_logprob_abs_diff_max.unwrap(),
    );
    let engine = trainer(&f64_cpu(), MODEL, TrainConfig::default());
    let mut worst: f64 = 0.0;
    for record in all.iter().filter(|r| r.is_scored()) {
        let scores = engine
            .log_probs(&[&record.tokens])
            .unwrap()
            .remove(0)
            .logprobs;
        let first = record.tokens.len() - record.response_length;
        for (offset, _) in record
            .loss_mask
            .iter()
            .enumerate()
            .filter(|(_, m)| **m == 1)
        {
            worst = worst.max((scores[first + offset - 1] + 4.0).abs());
        }
    }
    assert!((max - worst).abs() < 1e-12 && mean < max);
}

#[test]
fn m03_every_reward_stays_with_its_own_trajectory() {
    let mut all = records(2, VOCAB, 1);
    let config = TrainConfig {
        lr: 1e-3,
        ..TrainConfig::default()
    };
    let learned = |all: &[RolloutRecord]| {
        let mut trainer = trainer(&f64_cpu(), MODEL, config.clone());
        let got = trainer.train(all).unwrap().remove(0);
        let all: Vec<f64> = bits(&trainer).into_iter().map(f64::from_bits).collect();
        (got.loss, all)
    };
    let before = learned(&all);
    all.reverse();
    let after = learned(&all);
    assert!((before.0 - after.0).abs() < 1e-12);
    assert!(distance(&before.1, &after.1) < 1e-12);
}
