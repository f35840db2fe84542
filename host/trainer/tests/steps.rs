//! Train steps: determinism, identities of the first step, what is masked, what is skipped, and that they learn.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod support;

use slime_kernels::Ops;
use slime_trainer::algo::Estimator;
use slime_trainer::{Error, SftSequence, TrainConfig};
use support::{bits, distance, f32_cpu, f64_cpu, golden_dir, records, trainer, weights};

fn config() -> TrainConfig {
    TrainConfig {
        lr: 1e-3,
        max_tokens_per_gpu: 40,
        ..TrainConfig::default()
    }
}

const MODEL: &str = "qwen3-tiny";
const VOCAB: usize = 89;

#[test]
fn the_same_records_give_the_same_bits_on_any_number_of_threads() {
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        pool.install(|| {
            let mut trainer = trainer(
                &f32_cpu(),
                MODEL,
                TrainConfig {
                    num_steps_per_rollout: Some(2),
                    ..config()
                },
            );
            let mut metrics = trainer.train(&records(3, VOCAB, 1)).unwrap();
            metrics.extend(trainer.train(&records(3, VOCAB, 2)).unwrap());
            (bits(&trainer), metrics)
        })
    };
    let one = run(1);
    assert_eq!(one.1.len(), 4);
    for threads in [2, 3] {
        assert!(run(threads) == one, "{threads} threads");
    }
}

#[test]
fn metrics_are_the_same_bits_however_the_batch_is_packed() {
    let run = |max_tokens_per_gpu| {
        let mut trainer = trainer(
            &f32_cpu(),
            MODEL,
            TrainConfig {
                max_tokens_per_gpu,
                ..config()
            },
        );
        let mut metrics = trainer.train(&records(3, VOCAB, 1)).unwrap().remove(0);
        let grad_norm = metrics.grad_norm.take().unwrap();
        (
            std::mem::take(&mut metrics.micro_batches),
            metrics,
            grad_norm,
        )
    };
    let (whole, pieces) = (run(10_000), run(20));
    assert!(whole.0 == 1 && pieces.0 > 5);
    assert_eq!(whole.1, pieces.1);
    assert!((whole.2 - pieces.2).abs() <= 1e-6 * whole.2);
}

#[test]
fn the_first_step_on_policy_has_ratio_one_and_no_kl() {
    for (num_steps_per_rollout, estimator) in [
        (None, Estimator::Grpo),
        (Some(2), Estimator::Grpo),
        (Some(3), Estimator::Gspo),
        (None, Estimator::Rloo),
    ] {
        let config = TrainConfig {
            num_steps_per_rollout,
            advantage_estimator: estimator,
            ..config()
        };
        let mut trainer = trainer(&f32_cpu(), MODEL, config);
        let metrics = trainer.train(&records(3, VOCAB, 1)).unwrap();
        assert_eq!(metrics[0].ppo_kl, Some(0.0), "{estimator:?}");
        assert_eq!(metrics[0].clipfrac, Some(0.0));
        if let Some(later) = metrics.get(1) {
            assert_ne!(later.ppo_kl, Some(0.0), "the second step is off-policy");
        }
    }
}

#[test]
fn old_log_probs_come_from_the_engine_only_when_asked() {
    let mut own = trainer(&f32_cpu(), MODEL, config());
    let mut engine = trainer(
        &f32_cpu(),
        MODEL,
        TrainConfig {
            use_rollout_logprobs: true,
            ..config()
        },
    );
    let records = records(2, VOCAB, 1);
    let own = own.train(&records).unwrap().remove(0);
    let other = engine.train(&records).unwrap().remove(0);
    assert_eq!(own.ppo_kl, Some(0.0));
    assert!(other.ppo_kl.unwrap().abs() > 1e-3);
    assert_eq!(
        own.train_rollout_logprob_abs_diff,
        other.train_rollout_logprob_abs_diff
    );
    assert!(own.train_rollout_logprob_abs_diff_max > own.train_rollout_logprob_abs_diff);

    let mut silent = records.clone();
    silent[2].rollout_log_probs.clear();
    let error = engine.train(&silent).unwrap_err().to_string();
    assert!(
        error.contains("record 2") && error.contains("use_rollout_logprobs"),
        "{error}"
    );
}

#[test]
fn rollouts_without_a_verdict_change_nothing() {
    let all = records(2, VOCAB, 1);
    let scored: Vec<_> = all.iter().filter(|r| r.is_scored()).cloned().collect();
    assert!(scored.len() < all.len());
    let mut with = trainer(&f32_cpu(), MODEL, config());
    let mut without = trainer(&f32_cpu(), MODEL, config());
    let metrics = with.train(&all).unwrap().remove(0);
    let fewer = without.train(&scored).unwrap().remove(0);
    assert_eq!((metrics.masked_rollouts, fewer.masked_rollouts), (1, 0));
    assert_eq!(
        (metrics.rollouts, metrics.loss),
        (fewer.rollouts + 1, fewer.loss)
    );
    assert!(bits(&with) == bits(&without));
}

#[test]
fn a_step_with_nothing_to_train_is_skipped_and_counted() {
    let mut trainer = trainer(&f32_cpu(), MODEL, config());
    let before = bits(&trainer);
    let mut lost = records(2, VOCAB, 1);
    for record in &mut lost {
        record.outcome = "infra-failed".into();
        record.reward = None;
    }
    let metrics = trainer.train(&lost).unwrap().remove(0);
    assert_eq!(
        (metrics.skipped, metrics.grad_norm, metrics.num_updates),
        (1, None, 0)
    );
    assert_eq!(metrics.masked_rollouts, metrics.rollouts);
    assert!(bits(&trainer) == before);
    assert!(matches!(trainer.train(&[]), Err(Error::Empty)));
}

#[test]
fn a_gradient_that_is_not_finite_leaves_the_weights_alone() {
    let config = TrainConfig {
        disable_grpo_std_normalization: true,
        ..config()
    };
    let mut trainer = trainer(&f32_cpu(), MODEL, config);
    let before = bits(&trainer);
    let mut records = records(2, VOCAB, 1);
    // Finite, but its gradient is not a number that f32 has.
    records
        .iter_mut()
        .filter(|r| r.reward == Some(1.0))
        .for_each(|r| r.reward = Some(1e42));
    let metrics = trainer.train(&records).unwrap().remove(0);
    assert_eq!(
        (metrics.skipped, metrics.num_updates, metrics.masked_tokens),
        (1, 0, 0)
    );
    assert!(!metrics.grad_norm.unwrap().is_finite());
    assert!(bits(&trainer) == before);
    assert_eq!(trainer.lr(), 1e-3);
}

#[test]
fn equal_rewards_teach_nothing() {
    let mut records = records(2, VOCAB, 1);
    records
        .iter_mut()
        .filter(|r| r.is_scored())
        .for_each(|r| r.reward = Some(0.1));
    let mut trainer = trainer(&f32_cpu(), MODEL, config());
    let metrics = trainer.train(&records).unwrap().remove(0);
    assert_eq!(
        (metrics.advantage_abs, metrics.grad_norm),
        (Some(0.0), Some(0.0))
    );
}

#[test]
fn kl_needs_a_reference_and_is_zero_against_oneself() {
    for config in [
        TrainConfig {
            use_kl_loss: true,
            kl_loss_coef: 0.1,
            ..config()
        },
        TrainConfig {
            kl_coef: 0.1,
            num_steps_per_rollout: Some(2),
            ..config()
        },
    ] {
        let ops = f64_cpu();
        let mut alone = trainer(&ops, MODEL, config.clone());
        assert!(matches!(
            alone.train(&records(2, VOCAB, 1)),
            Err(Error::NoReference(_))
        ));
        let mut trainer = trainer(&ops, MODEL, config.clone())
            .with_reference(weights(&*ops, MODEL).1)
            .unwrap();
        let first = trainer.train(&records(2, VOCAB, 1)).unwrap();
        let second = trainer.train(&records(2, VOCAB, 1)).unwrap();
        if config.use_kl_loss {
            assert_eq!(first[0].kl_loss, Some(0.0));
            assert!(second[0].kl_loss.unwrap() > 0.0);
        } else {
            assert_eq!(first[0].kl_loss, None);
        }
    }
}

#[test]
fn a_penalty_in_the_reward_changes_what_is_learned() {
    let learned = |kl_coef| {
        let ops = f64_cpu();
        let config = TrainConfig {
            kl_coef,
            ..config()
        };
        // Another model's weights as the reference, so that the KL is not 0.
        let (_, mut reference) = weights(&*ops, MODEL);
        let embedding = ops.read(&reference[0]).unwrap();
        let moved: Vec<f32> = embedding.iter().map(|x| x * 1.5 + 0.01).collect();
        let (rows, cols) = ops.shape(&reference[0]);
        reference[0] = ops.tensor(rows, cols, &moved).unwrap();
        let mut trainer = trainer(&ops, MODEL, config)
            .with_reference(reference)
            .unwrap();
        trainer.train(&records(2, VOCAB, 1)).unwrap();
        bits(&trainer)
            .into_iter()
            .map(f64::from_bits)
            .collect::<Vec<_>>()
    };
    assert!(distance(&learned(0.0), &learned(0.5)) > 1e-6);
}

#[test]
fn fine_tuning_memorises_a_few_sequences() {
    let mut trainer = trainer(
        &f32_cpu(),
        MODEL,
        TrainConfig {
            lr: 3e-3,
            ..config()
        },
    );
    let texts: Vec<Vec<u32>> = (0..4u32)
        .map(|i| (0..9).map(|t| (i * 13 + t * 7) % 89).collect())
        .collect();
    let mask = [1u8; 9];
    let sequences: Vec<SftSequence<'_>> = texts
        .iter()
        .map(|tokens| SftSequence {
            tokens,
            loss_mask: &mask,
        })
        .collect();
    let losses: Vec<f64> = (0..60)
        .map(|_| trainer.sft_step(&sequences).unwrap().loss)
        .collect();
    assert!(
        losses[0] > 3.0 && losses[59] < 0.3,
        "{} to {}",
        losses[0],
        losses[59]
    );
    assert_eq!(trainer.num_updates(), 60);
}

#[test]
fn rewarded_tokens_become_likelier_with_every_estimator() {
    for (advantage_estimator, normalize_advantages) in [
        (Estimator::Grpo, false),
        (Estimator::Gspo, false),
        (Estimator::Cispo, false),
        (Estimator::Rloo, false),
        (Estimator::ReinforcePlusPlus, true),
        (Estimator::ReinforcePlusPlusBaseline, true),
    ] {
        let config = TrainConfig {
            advantage_estimator,
            normalize_advantages,
            ..config()
        };
        let mut trainer = trainer(&f32_cpu(), MODEL, config);
        let records = records(2, VOCAB, 7);
        let likelihood = |trainer: &slime_trainer::Trainer<_>, reward: f64| {
            let views: Vec<&[u32]> = records
                .iter()
                .filter(|r| r.reward == Some(reward))
                .map(|r| &r.tokens[..])
                .collect();
            let scores = trainer.log_probs(&views).unwrap();
            scores.iter().flat_map(|s| &s.logprobs).sum::<f64>()
        };
        let before = likelihood(&trainer, 1.0) - likelihood(&trainer, 0.0);
        for _ in 0..5 {
            trainer.train(&records).unwrap();
        }
        let after = likelihood(&trainer, 1.0) - likelihood(&trainer, 0.0);
        assert!(
            after > before + 1.0,
            "{advantage_estimator:?}: {before} to {after}"
        );
    }
}

#[test]
fn a_refused_record_trains_nothing() {
    let mut trainer = trainer(&f32_cpu(), MODEL, config());
    let before = bits(&trainer);
    let mut bad = records(2, VOCAB, 1);
    bad[3].tokens[0] = VOCAB as u32;
    let error = trainer.train(&bad).unwrap_err().to_string();
    assert!(
        error.contains("record 3") && error.contains("vocabulary of 89"),
        "{error}"
    );
    assert!(bits(&trainer) == before);
    assert!(golden_dir(MODEL).is_dir());
}
