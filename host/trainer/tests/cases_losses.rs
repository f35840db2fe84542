//! Failures that other projects shipped in losses and their averaging, with the values that are right. The list, with what
//! became of each case, is docs/failure-cases.md.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod support;

use slime_core::RolloutRecord;
use slime_kernels::Ops;
use slime_trainer::algo::clip::{Clip, surrogate};
use slime_trainer::algo::importance::Truncation;
use slime_trainer::algo::kl::KlKind;
use slime_trainer::algo::mismatch::{Bounds, Level, Mismatch, Mode, Weighting};
use slime_trainer::algo::objective::{Objective, PolicyLoss, Token};
use slime_trainer::algo::ratio::ratio_of;
use slime_trainer::algo::weights::Aggregation;
use slime_trainer::algo::{cispo, gspo};
use slime_trainer::data::Batch;
use slime_trainer::step::{Evaluation, Scores, metrics};
use slime_trainer::{TrainConfig, TrainMetrics};
use support::{bits, distance, f64_cpu, records, trainer, weights};

const MODEL: &str = "qwen3-tiny";
const VOCAB: usize = 89;

#[track_caller]
fn close(got: f64, want: f64) {
    assert!(
        (got - want).abs() < 1e-6 * want.abs().max(1.0),
        "{got} is not {want}"
    );
}

const EVEN: Clip = Clip {
    low: 0.2,
    high: 0.2,
    dual: None,
};

#[test]
fn d01_the_clip_takes_the_larger_loss_and_stops_the_gradient_where_it_acts() {
    for (advantage, ratio, loss, slope) in [
        (1.0, 1.5, -1.2, 0.0),
        (-1.0, 1.5, 1.5, 1.5),
        (1.0, 0.5, -0.5, -0.5),
        (-1.0, 0.5, 0.8, 0.0),
    ] {
        let got = surrogate(ratio, advantage, EVEN);
        close(got.loss, loss);
        assert_eq!(got.dlogp, slope, "A {advantage}, ratio {ratio}");
    }
}

#[test]
fn d02_the_upper_bound_is_its_own() {
    let clip = Clip { high: 0.28, ..EVEN };
    close(surrogate(1.5, 1.0, clip).loss, -1.28);
    let swapped = Clip {
        low: 0.28,
        high: 0.2,
        dual: None,
    };
    close(surrogate(1.5, 1.0, swapped).loss, -1.2);
}

#[test]
fn d03_the_dual_clip_reaches_the_loss_and_only_where_the_advantage_is_negative() {
    let dual = Clip {
        dual: Some(3.0),
        ..EVEN
    };
    close(surrogate(10.0, -1.0, dual).loss, 3.0);
    close(surrogate(10.0, -1.0, EVEN).loss, 10.0);
    assert_eq!(surrogate(10.0, 1.0, dual), surrogate(10.0, 1.0, EVEN));
    let config = TrainConfig {
        eps_clip_c: Some(1.0),
        ..TrainConfig::default()
    };
    assert_eq!(config.validate().unwrap_err()[0].key, "eps_clip_c");
}

/// A batch of one plain sequence per list of log-ratios, whose log-probs are all -1.
fn evaluate(
    config: &TrainConfig,
    log_ratios: &[&[f64]],
    advantage: &[f64],
) -> (TrainMetrics, Vec<f64>) {
    let texts: Vec<(Vec<u32>, Vec<u8>)> = log_ratios
        .iter()
        .map(|r| (vec![1; r.len() + 1], vec![1; r.len() + 1]))
        .collect();
    let pairs: Vec<(&[u32], &[u8])> = texts.iter().map(|(t, m)| (&t[..], &m[..])).collect();
    let length = config.loss_constant_length.unwrap_or(0);
    let mut batch = Batch::from_masked(&pairs, config.loss_aggregation, length);
    batch.columns.old = log_ratios
        .iter()
        .flat_map(|r| r.iter().map(|d| -1.0 - d))
        .collect();
    for (sequence, advantage) in batch.sequences.iter().zip(advantage) {
        batch.columns.advantage[sequence.trained.clone()].fill(*advantage);
    }
    let num = batch.num_trained();
    let evaluation = Evaluation {
        objective: config.objective(),
        batch: &batch,
        old_is_engine: false,
    };
    let scores = Scores {
        logp: vec![-1.0; num],
        entropy: vec![0.5; num],
    };
    (metrics(&evaluation, &scores), evaluation.slopes(&scores).0)
}

#[test]
fn d04_an_overflowing_ratio_stays_finite_is_counted_and_the_kl_is_told_as_it_is() {
    assert_eq!(ratio_of(200.0), (20f64.exp(), true));
    close(20f64.exp(), 485_165_195.409_790_3);
    let (got, slopes) = evaluate(&TrainConfig::default(), &[&[200.0]], &[0.0]);
    assert!(got.loss.is_finite() && slopes[0].is_finite());
    assert_eq!((got.ratio_clamped, got.ppo_kl), (1, Some(-200.0)));
}

#[test]
fn d04_a_ratio_that_is_no_number_masks_its_token_and_is_counted() {
    // Minus infinity less minus infinity: the old log-prob is there, and says nothing.
    let config = TrainConfig::default().objective();
    let token = Token {
        logp: f64::NEG_INFINITY,
        entropy: 0.5,
        log_ratio: f64::NEG_INFINITY - f64::NEG_INFINITY,
        old: f64::NEG_INFINITY,
        reference: f64::NAN,
        rollout: f64::NAN,
        advantage: 1.0,
        weight: 1.0,
        correction: None,
        drift: f64::NAN,
    };
    let got = config.token(&token);
    assert!(got.masked && got.dlogp == 0.0 && got.loss == 0.0);
}

#[test]
fn d05_each_kl_estimator_has_its_value_and_its_direction() {
    let estimate = |kind: KlKind, logp, reference| kind.estimate(logp, reference).0;
    close(estimate(KlKind::K1, -1.0, -1.5), 0.5);
    close(estimate(KlKind::K2, -1.0, -1.5), 0.125);
    close(estimate(KlKind::K3, -1.0, -1.5), 0.106531);
    close(estimate(KlKind::K3, -1.5, -1.0), 0.148721);
}

#[test]
fn d08_a_token_mean_divides_by_the_tokens_of_all_ranks() {
    let config = TrainConfig {
        loss_aggregation: Aggregation::TokenMean,
        ..TrainConfig::default()
    };
    // With ratio 1 a token's loss is minus its advantage: 4, and three times 1.
    let (got, _) = evaluate(&config, &[&[0.0], &[0.0; 3]], &[-4.0, -1.0]);
    close(got.loss, 1.75);
}

#[test]
fn d10_a_fully_masked_sequence_changes_nothing_of_the_other() {
    let config = TrainConfig {
        loss_aggregation: Aggregation::TokenMean,
        ..TrainConfig::default()
    };
    let (alone, _) = evaluate(&config, &[&[0.3, -0.1]], &[-1.0]);
    let (both, _) = evaluate(&config, &[&[], &[0.3, -0.1]], &[-1.0]);
    assert!(both.loss.is_finite());
    assert_eq!(both.loss, alone.loss);
    let mut trainer = trainer(
        &f64_cpu(),
        MODEL,
        TrainConfig {
            lr: 1e-3,
            ..TrainConfig::default()
        },
    );
    let before = bits(&trainer);
    let mut all = records(1, VOCAB, 1);
    all.iter_mut().for_each(|r| r.loss_mask.fill(0));
    let got = trainer.train(&all).unwrap().remove(0);
    assert_eq!((got.skipped, got.trained_tokens), (1, 0));
    assert!(bits(&trainer) == before);
}

#[test]
fn d12_importance_weights_are_truncated_and_constant() {
    let bounds = Truncation {
        low: 0.0,
        high: 2.0,
    };
    for (log_ratio, weight) in [(0.0, 1.0), (1.0, 2.0), (-1.0, 0.367879)] {
        close(bounds.weight(log_ratio).0, weight);
        let token = |logp: f64| Token {
            logp,
            entropy: 0.0,
            log_ratio: logp + 1.0,
            old: -1.0,
            reference: f64::NAN,
            rollout: -1.0 - log_ratio,
            advantage: 0.7,
            weight: 1.0,
            correction: None,
            drift: f64::NAN,
        };
        let objective = Objective {
            tis: Some(bounds),
            ..TrainConfig::default().objective()
        };
        let at = |logp| objective.token(&token(logp)).loss;
        let slope = (at(-1.0 + 1e-6) - at(-1.0 - 1e-6)) / 2e-6;
        close(slope, -weight * 0.7);
        close(objective.token(&token(-1.0)).dlogp, -weight * 0.7);
    }
}

#[test]
fn d13_a_sequence_is_weighted_by_the_product_or_by_the_geometric_mean() {
    let weight = |level| {
        let mismatch = Mismatch {
            weighting: Some(Weighting {
                level,
                mode: Mode::Truncate,
                bounds: Bounds {
                    low: 0.0,
                    high: 2.0,
                },
            }),
            ..Mismatch::default()
        };
        let all = mismatch.correct([&[-0.003; 1000][..]].into_iter());
        assert_eq!(mismatch.correct([&[0.0; 7][..]].into_iter())[3].weight, 1.0);
        all[17].weight
    };
    close(weight(Level::Sequence), 0.049787);
    close(weight(Level::Geometric), 0.997004);
}

#[test]
fn d14_c13_masked_tokens_stay_out_of_a_trajectorys_ratio() {
    close(gspo::log_ratio(&[0.2, 0.4]).exp(), 1.349859);
    let config = TrainConfig {
        advantage_estimator: slime_trainer::algo::Estimator::Gspo,
        ..TrainConfig::default()
    };
    let loss = |masked_old: f64| {
        let mask = [0, 1, 1, 0, 0];
        let mut batch = Batch::from_masked(&[(&[1; 5], &mask)], Aggregation::RolloutMean, 0);
        assert_eq!(
            batch.num_trained(),
            2,
            "a masked token has no number anywhere, not even {masked_old}"
        );
        batch.columns.old = vec![-1.0, -1.0];
        batch.columns.advantage.fill(1.0);
        let scores = Scores {
            logp: vec![-1.0, -1.0],
            entropy: vec![0.0; 2],
        };
        metrics(
            &Evaluation {
                objective: config.objective(),
                batch: &batch,
                old_is_engine: false,
            },
            &scores,
        )
        .loss
    };
    assert_eq!(loss(-1.0), -1.0);
}

#[test]
fn d15_cispo_keeps_the_gradient_of_a_clipped_token() {
    let clip = Clip {
        low: 0.2,
        high: 0.28,
        dual: None,
    };
    let got = cispo::surrogate(-2.0, 3.0, 1.0, clip);
    close(got.dlogp, -1.28);
    close(got.loss, 2.56);
}

#[test]
fn d16_means_are_means_whatever_tokens_weigh() {
    let of = |how, constant| {
        let config = TrainConfig {
            loss_aggregation: how,
            loss_constant_length: constant,
            ..TrainConfig::default()
        };
        evaluate(&config, &[&[0.0], &[0.0; 3]], &[1.0, -1.0]).0
    };
    let short = of(Aggregation::ConstantLength, Some(4096));
    // Every token has the entropy 0.5 and the advantage 1 or -1.
    close(short.entropy, 0.5);
    close(short.advantage_abs.unwrap(), 1.0);
    close(short.loss, (3.0 - 1.0) / (4096.0 * 2.0));
    close(of(Aggregation::TokenMean, None).entropy, 0.5);
}

#[test]
fn d16_on_policy_a_loss_of_zero_or_not_says_nothing_about_the_gradient() {
    let of = |how| {
        let config = TrainConfig {
            loss_aggregation: how,
            ..TrainConfig::default()
        };
        evaluate(&config, &[&[0.0], &[0.0; 3]], &[1.0, -1.0])
    };
    let (by_sequence, slopes) = of(Aggregation::SequenceMean);
    close(by_sequence.loss, 0.0);
    assert!(slopes.iter().all(|s| *s != 0.0));
    let (by_token, slopes) = of(Aggregation::TokenMean);
    close(by_token.loss, 0.5);
    assert!(slopes.iter().all(|s| *s != 0.0));
}

#[test]
fn d17_slopes_are_those_by_the_policys_log_prob_alone() {
    let config = TrainConfig {
        use_kl_loss: true,
        kl_loss_coef: 0.3,
        use_tis: true,
        ..TrainConfig::default()
    };
    let token = |logp: f64, old: f64| Token {
        logp,
        entropy: 0.0,
        log_ratio: logp - old,
        old,
        reference: -1.4,
        rollout: -1.2,
        advantage: 0.7,
        weight: 1.0,
        correction: None,
        drift: f64::NAN,
    };
    let objective = config.objective();
    let at = |logp: f64| objective.token(&token(logp, -1.05)).loss;
    let slope = (at(-1.0 + 1e-6) - at(-1.0 - 1e-6)) / 2e-6;
    close(objective.token(&token(-1.0, -1.05)).dlogp, slope);
    // The loss does depend on the old log-prob; nothing of that is in the slope.
    let plain = Objective {
        tis: None,
        ..objective
    };
    let gap = plain.token(&token(-1.0, -1.06)).loss - plain.token(&token(-1.0, -1.05)).loss;
    assert!(gap.abs() > 1e-3);
}

#[test]
fn d18_a_train_step_normalises_by_its_own_rollouts() {
    let all = records(4, VOCAB, 3);
    let step_of = |records: &[RolloutRecord], global_batch_size| {
        let config = TrainConfig {
            global_batch_size,
            lr: 0.0,
            disable_rewards_normalization: true,
            ..TrainConfig::default()
        };
        let mut trainer = trainer(&f64_cpu(), MODEL, config);
        trainer.train(records).unwrap().remove(0).grad_norm.unwrap()
    };
    let first: Vec<RolloutRecord> = all.iter().filter(|r| r.rollout_id.0 < 8).cloned().collect();
    close(step_of(&all, Some(8)), step_of(&first, None));
}

#[test]
fn d19_every_numeric_option_changes_the_loss_or_is_refused() {
    let base = TrainConfig {
        eps_clip: 0.2,
        eps_clip_high: Some(0.28),
        eps_clip_c: Some(2.0),
        use_kl_loss: true,
        kl_loss_coef: 0.1,
        entropy_coef: 0.01,
        use_tis: true,
        use_rs: true,
        rs_clip: 1.5,
        rs_veto_threshold: Some(0.2),
        use_opsm: true,
        ..TrainConfig::default()
    };
    let ppo = TrainConfig {
        advantage_estimator: slime_trainer::algo::Estimator::Ppo,
        kl_coef: 0.1,
        use_kl_loss: false,
        kl_loss_coef: 0.0,
        ..base.clone()
    };
    let opd = TrainConfig {
        use_opd: true,
        ..base.clone()
    };
    type Change = (&'static str, fn(&mut TrainConfig));
    let changes: [Change; 18] = [
        ("eps_clip", |c| c.eps_clip = 0.05),
        ("eps_clip_high", |c| c.eps_clip_high = Some(0.05)),
        ("eps_clip_c", |c| c.eps_clip_c = Some(1.05)),
        ("kl_coef", |c| c.kl_coef = 0.3),
        ("kl_loss_coef", |c| c.kl_loss_coef = 0.3),
        ("entropy_coef", |c| c.entropy_coef = 0.1),
        ("gamma", |c| c.gamma = 0.7),
        ("lambd", |c| c.lambd = 0.7),
        ("value_clip", |c| c.value_clip = 0.01),
        ("tis_clip", |c| c.tis_clip = 1.05),
        ("tis_clip_low", |c| c.tis_clip_low = 0.95),
        ("rs_clip", |c| c.rs_clip = 1.02),
        ("rs_clip_low", |c| c.rs_clip_low = Some(0.99)),
        ("rs_veto_threshold", |c| c.rs_veto_threshold = Some(0.99)),
        ("opsm_delta", |c| c.opsm_delta = 10.0),
        ("opd_kl_coef", |c| c.opd_kl_coef = 0.2),
        ("loss_constant_length", |c| c.loss_constant_length = Some(9)),
        ("rollout_temperature", |c| c.rollout_temperature = 0.7),
    ];
    let learned = |config: &TrainConfig| {
        let ops = f64_cpu();
        let config = TrainConfig {
            lr: 1e-2,
            num_steps_per_rollout: Some(3),
            adam_beta1: 0.0,
            ..config.clone()
        };
        let (spec, other) = weights(&*ops, MODEL);
        let mut trainer = trainer(&ops, MODEL, config.clone());
        // What the engine says differs from what the trainer says, a little.
        let mut all = records(2, VOCAB, 4);
        for (at, record) in all.iter_mut().enumerate() {
            let scores = trainer
                .log_probs(&[&record.tokens])
                .unwrap()
                .remove(0)
                .logprobs;
            let first = record.tokens.len() - record.response_length;
            for offset in 0..record.response_length {
                let noise = [0.3, -0.2, 0.05, -0.4][(at + offset) % 4];
                record.rollout_log_probs[offset] =
                    ((scores[first + offset - 1] + noise) as f32).min(0.0);
            }
        }
        let moved = |scale: f32| -> Vec<_> {
            let mut all = other.clone();
            let data: Vec<f32> = ops
                .read(&all[0])
                .unwrap()
                .iter()
                .map(|x| x * scale + 0.01)
                .collect();
            let (rows, cols) = ops.shape(&all[0]);
            all[0] = ops.tensor(rows, cols, &data).unwrap();
            all
        };
        if config.needs_reference().is_some() {
            trainer = trainer.with_reference(moved(1.5)).unwrap();
        }
        if config.use_opd {
            trainer = trainer.with_teacher(spec, moved(0.7)).unwrap();
        }
        for _ in 0..2 {
            trainer.train(&all).unwrap();
        }
        let policy = bits(&trainer).into_iter();
        let mut all: Vec<f64> = policy.map(f64::from_bits).collect();
        if let Some(critic) = trainer.critic() {
            all.extend(ops.read_f64(&critic.value_head().0[0]).unwrap());
        }
        all
    };
    let bases = [base, ppo, opd].map(|config| (learned(&config), config));
    for (name, change) in changes {
        let moved = bases.iter().any(|(before, config)| {
            let mut changed = config.clone();
            change(&mut changed);
            changed.validate().is_ok() && distance(&learned(&changed), before) > 1e-12
        });
        let refused = bases.iter().all(|(_, config)| {
            let mut changed = config.clone();
            change(&mut changed);
            changed
                .validate()
                .is_err_and(|problems| problems.iter().any(|p| p.key == name))
        });
        assert!(moved || refused, "{name} is accepted and changes nothing");
        assert_eq!(refused, name == "loss_constant_length", "{name}");
    }
}

#[test]
fn d20_a_log_sum_of_large_exponents_does_not_overflow() {
    let ops = f64_cpu();
    let stats = |logits: &[f64], target: u32| {
        let float = ops.float_f64(1, logits.len(), logits).unwrap();
        ops.token_stats(&float, &ops.ids(&[target]).unwrap(), 1.0, logits.len())
            .unwrap()
    };
    let got = stats(&[1000.0, 1000.0], 0);
    close(got.lse[0], 1000.693147);
    close(got.logprob[0], -std::f64::consts::LN_2);
    assert!(stats(&[-1e4, 0.0], 0).logprob[0].is_finite());
}

#[test]
fn m05_a_mean_over_micro_batches_is_neither_scaled_again_nor_the_last_ones() {
    let config = TrainConfig {
        loss_aggregation: Aggregation::SequenceMean,
        ..TrainConfig::default()
    };
    // Four sequences of loss 2; then 1, 2, 3 and 6.
    for (advantages, want) in [([-2.0; 4], 2.0), ([-1.0, -2.0, -3.0, -6.0], 3.0)] {
        let (got, _) = evaluate(&config, &[&[0.0; 2][..]; 4], &advantages);
        close(got.loss, want);
    }
}

#[test]
fn m01_the_kl_is_told_as_it_is_and_not_as_a_part_of_the_reward() {
    let config = TrainConfig {
        use_kl_loss: true,
        kl_loss_type: Some(KlKind::K2),
        kl_loss_coef: 0.25,
        ..TrainConfig::default()
    };
    let mut batch = Batch::from_masked(&[(&[1, 2], &[1, 1])], Aggregation::RolloutMean, 0);
    batch.columns.reference = vec![-1.0 - 0.4f64.sqrt()];
    batch.columns.advantage = vec![3.0];
    let evaluation = Evaluation {
        objective: config.objective(),
        batch: &batch,
        old_is_engine: false,
    };
    let got = metrics(
        &evaluation,
        &Scores {
            logp: vec![-1.0],
            entropy: vec![0.0],
        },
    );
    close(got.kl_loss.unwrap(), 0.2);
    assert_eq!(evaluation.objective.loss, PolicyLoss::Clipped);
}

#[test]
fn m07_masked_and_unscored_tokens_stay_out_of_the_advantages_statistics() {
    let mut all = records(1, VOCAB, 2);
    let config = TrainConfig {
        lr: 0.0,
        disable_rewards_normalization: true,
        ..TrainConfig::default()
    };
    let of = |all: &[RolloutRecord]| {
        trainer(&f64_cpu(), MODEL, config.clone())
            .train(all)
            .unwrap()
            .remove(0)
            .advantage_abs
            .unwrap()
    };
    let before = of(&all);
    // Rewards 1, 0.25, 0; the fourth was not scored, whatever it carries.
    close(before, 1.25 / 3.0);
    all.iter_mut()
        .filter(|r| !r.is_scored())
        .for_each(|r| r.tokens.iter_mut().for_each(|t| *t = 1));
    assert_eq!(of(&all), before);
}

#[test]
fn m11_what_was_not_measured_is_null_and_not_zero() {
    let mut all = records(1, VOCAB, 2);
    all.iter_mut().for_each(|r| r.rollout_log_probs.clear());
    let got = trainer(&f64_cpu(), MODEL, TrainConfig::default())
        .train(&all)
        .unwrap()
        .remove(0);
    let json = serde_json::to_value(&got).unwrap();
    for name in [
        "train/kl_loss",
        "train/tis",
        "train/train_rollout_logprob_abs_diff",
        "train/mismatch_kl",
        "train/value_loss",
        "train/dual_clipfrac",
    ] {
        assert!(json[name].is_null(), "{name}");
    }
    assert_eq!(json["train/clipfrac"], 0.0);
}
