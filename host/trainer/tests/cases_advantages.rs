//! Failures that other projects shipped in advantages and normalisation, with the values that are right. The list, with
//! what became of each case, is docs/failure-cases.md.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use slime_core::{GroupId, RolloutId, RolloutRecord};
use slime_trainer::TrainConfig;
use slime_trainer::advantages;
use slime_trainer::algo::grpo::{self, Std};
use slime_trainer::algo::weights::Aggregation;
use slime_trainer::algo::{Estimator, reinforce, rloo, whiten};
use slime_trainer::data::rollouts::{Limits, rollouts};
use slime_trainer::data::{Batch, Columns};

#[track_caller]
fn close(got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{got:?}");
    let apart = got.iter().zip(want).any(|(g, w)| (g - w).abs() > tolerance);
    assert!(!apart, "{got:?} is not {want:?}");
}

/// A record of `mask.len()` response tokens after `prompt` others.
fn record(
    group: u64,
    rollout: u64,
    reward: Option<f64>,
    prompt: usize,
    mask: &[u8],
) -> RolloutRecord {
    RolloutRecord {
        group_id: GroupId(group),
        rollout_id: RolloutId(rollout),
        tokens: vec![1; prompt + mask.len()],
        response_length: mask.len(),
        loss_mask: mask.to_vec(),
        reward,
        outcome: if reward.is_some() {
            "scored"
        } else {
            "invalid-reward"
        }
        .into(),
        ..RolloutRecord::default()
    }
}

/// Advantages of the trained tokens of the records, in `steps` train steps, whose old, reference and value columns are
/// filled by number.
fn advantages_of(
    config: &TrainConfig,
    records: &[RolloutRecord],
    steps: usize,
    fill: impl Fn(&mut Columns),
) -> Vec<Vec<f64>> {
    assert_eq!(config.validate(), Ok(()));
    let limits = Limits {
        vocab: 9,
        max_positions: 4096,
    };
    let all = rollouts(records, limits).unwrap();
    let per = all.len() / steps;
    let mut batches: Vec<Batch<'_>> = (0..steps)
        .map(|i| Batch::new(&all, i * per..(i + 1) * per, Aggregation::RolloutMean, 0))
        .collect();
    batches.iter_mut().for_each(|b| fill(&mut b.columns));
    advantages::fill(config, &all, &mut batches);
    batches.into_iter().map(|b| b.columns.advantage).collect()
}

#[test]
fn c01_the_std_is_a_named_option_and_the_samples_by_default() {
    let rewards = [1.0, 1.0, 0.0, 0.0];
    let plus = |x: f64| [x, x, -x, -x];
    close(
        &grpo::advantages(&rewards, Std::Sample),
        &plus(0.866024),
        1e-6,
    );
    close(
        &grpo::advantages(&rewards, Std::Population),
        &plus(0.999998),
        1e-6,
    );
    close(&grpo::advantages(&rewards, Std::None), &plus(0.5), 0.0);
    assert_eq!(TrainConfig::default().std(), Std::Sample);
    let said: TrainConfig = serde_json::from_str(r#"{"grpo_std": "population"}"#).unwrap();
    assert_eq!(said.std(), Std::Population);
}

#[test]
fn c02_a_constant_group_gets_exactly_zero() {
    for n in [3, 7, 8, 16] {
        for reward in [0.1, 0.35, 0.7, 0.95] {
            let rewards = vec![reward; n];
            for std in [Std::Sample, Std::Population, Std::None] {
                assert_eq!(grpo::advantages(&rewards, std), vec![0.0; n]);
            }
            assert_eq!(rloo::advantages(&rewards), vec![0.0; n]);
        }
    }
}

#[test]
fn c05_groups_go_by_id_after_records_were_interleaved_and_one_removed() {
    let config = TrainConfig {
        grpo_std: Some(Std::Population),
        ..TrainConfig::default()
    };
    // a1, b1, a2; b2 is gone.
    let records = [
        record(0, 0, Some(1.0), 1, &[1]),
        record(1, 2, Some(4.0), 1, &[1]),
        record(0, 1, Some(3.0), 1, &[1]),
    ];
    let got = advantages_of(&config, &records, 1, |_| {});
    close(&got[0], &[-1.0, 0.0, 1.0], 1e-5);
}

#[test]
fn c06_a_group_of_one_gets_zero_and_stays_finite() {
    for std in [Std::Sample, Std::Population, Std::None] {
        assert_eq!(grpo::advantages(&[0.7], std), [0.0]);
    }
    assert_eq!(rloo::advantages(&[0.7]), [0.0]);
    let got = advantages_of(
        &TrainConfig::default(),
        &[record(0, 0, Some(0.7), 1, &[1, 1])],
        1,
        |_| {},
    );
    assert_eq!(got, [[0.0, 0.0]]);
}

#[test]
fn c07_a_reward_that_is_no_number_is_masked_and_its_siblings_keep_their_baseline() {
    let config = TrainConfig {
        grpo_std: Some(Std::Population),
        ..TrainConfig::default()
    };
    // The host made an outcome of the NaN before it came here.
    let records = [
        record(0, 0, Some(1.0), 1, &[1]),
        record(0, 1, None, 1, &[1]),
        record(0, 2, Some(3.0), 1, &[1]),
    ];
    let got = advantages_of(&config, &records, 1, |_| {});
    close(&got[0], &[-1.0, 1.0], 1e-5);
    let nan = record(0, 1, Some(f64::NAN), 1, &[1]);
    assert!(nan.validate().unwrap_err().contains("not finite"));
}

#[test]
fn c09_returns_leave_out_the_kl_of_masked_tokens() {
    let config = TrainConfig {
        advantage_estimator: Estimator::ReinforcePlusPlus,
        normalize_advantages: true,
        kl_coef: 0.1,
        ..TrainConfig::default()
    };
    let returns = reinforce::returns(&[0.1, 0.2, 0.3], 0.1, 1.0, 1.0);
    close(&returns, &[0.94, 0.95, 0.97], 1e-12);
    // Through the batch: the masked token's KL of 5 is in no column at all.
    let records = [record(0, 0, Some(1.0), 1, &[1, 0, 1, 1])];
    let got = advantages_of(&config, &records, 1, |columns| {
        columns.old = vec![-1.0; 3];
        columns.reference = vec![-1.1, -1.2, -1.3];
    });
    let mut want = returns.clone();
    whiten::whiten(&mut want);
    close(&got[0], &want, 1e-9);
}

#[test]
fn c11_the_reward_comes_once_at_the_last_trained_token_however_long_the_prompt() {
    let config = TrainConfig {
        advantage_estimator: Estimator::Ppo,
        lambd: 0.0,
        gamma: 0.5,
        ..TrainConfig::default()
    };
    // The trained tokens lie at the end of a long sequence, with masked ones after them.
    for prompt in [1, 1000] {
        let records = [record(0, 0, Some(1.0), prompt, &[1, 1, 1, 0])];
        let got = advantages_of(&config, &records, 1, |columns| columns.value = vec![0.0; 3]);
        assert_eq!(got, [[0.0, 0.0, 1.0]], "{prompt}");
    }
}

#[test]
fn c12_whitening_takes_its_statistics_over_all_parts_of_the_step() {
    let config = TrainConfig {
        advantage_estimator: Estimator::ReinforcePlusPlus,
        normalize_advantages: true,
        ..TrainConfig::default()
    };
    let records: Vec<_> = (0..4)
        .map(|i| record(i, i, Some(i as f64 + 1.0), 1, &[1]))
        .collect();
    let got = advantages_of(&config, &records, 2, |_| {});
    // Population deviations would be 1.341641 and 0.447214; the deviation with n - 1 is slime's.
    let to_population = (4.0f64 / 3.0).sqrt();
    let flat: Vec<f64> = got.concat().iter().map(|a| a * to_population).collect();
    close(&flat, &[-1.341641, -0.447214, 0.447214, 1.341641], 1e-6);
    // A part without a trained token takes part all the same.
    let records = [
        record(0, 0, Some(1.0), 1, &[1, 1]),
        record(1, 1, Some(3.0), 1, &[0, 0]),
    ];
    assert_eq!(
        advantages_of(&config, &records, 2, |_| {}),
        [vec![0.0, 0.0], vec![]]
    );
}

#[test]
fn c14_each_group_is_normalised_by_itself_and_without_its_masked_members() {
    let rollouts = [
        (0, Some(1.0)),
        (0, Some(2.0)),
        (0, Some(3.0)),
        (1, Some(10.0)),
        (1, Some(20.0)),
        (1, None),
    ];
    let rollouts = rollouts.map(|(group, reward)| (GroupId(group), reward));
    let got = grpo::by_group(&rollouts, |r| grpo::advantages(r, Std::Population));
    assert_eq!(got[5], None);
    let got: Vec<f64> = got.into_iter().flatten().collect();
    close(&got, &[-1.224745, 0.0, 1.224745, -1.0, 1.0], 1e-5);
}

#[test]
fn c15_no_group_is_skipped() {
    let rewards = [1.0, 0.0, 0.0, 1.0, 3.0, 1.0, 1.0, 3.0];
    let rollouts: Vec<_> = rewards
        .iter()
        .enumerate()
        .map(|(i, r)| (GroupId(i as u64 / 4), Some(*r)))
        .collect();
    let got = grpo::by_group(&rollouts, |r| grpo::advantages(r, Std::None));
    let got: Vec<f64> = got.into_iter().flatten().collect();
    assert_eq!(got, [0.5, -0.5, -0.5, 0.5, 1.0, -1.0, -1.0, 1.0]);
}
