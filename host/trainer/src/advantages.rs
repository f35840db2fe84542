//! From rewards to one advantage per token, by the configured estimator.
//!
//! KL in the reward, where asked for, is taken off token by token by the REINFORCE++ estimators and PPO. Those that compare
//! a group's rollouts take off how far a rollout's sum is from the group's, after the comparison: before it, GRPO's division
//! would blow up what little KL tells apart in a group of equal rewards, whatever the coefficient. A teacher's penalty comes
//! after the estimator and before whitening. Read [`crate::algo`] for formulas.

use crate::algo::gae::{self, Discount};
use crate::algo::{Estimator, distill, grpo, max_rl, reinforce, rloo, whiten};
use crate::config::TrainConfig;
use crate::data::{Batch, Rollout};
use slime_core::GroupId;

/// Fill the advantage column of every batch of a rollout step, and with a critic its returns. With `kl_coef`, old and
/// reference log-probs are there; with `use_opd`, old and the teacher's; for PPO, values.
pub fn fill(config: &TrainConfig, rollouts: &[Rollout<'_>], batches: &mut [Batch<'_>]) {
    let estimator = config.advantage_estimator;
    let penalties = (config.kl_coef != 0.0).then(|| kl_of_tokens(config, batches));
    let rewards: Vec<(GroupId, Option<f64>)> =
        rollouts.iter().map(|r| (r.group, r.reward)).collect();
    let mut base = match estimator {
        _ if config.disable_rewards_normalization => {
            rewards.iter().map(|(_, reward)| *reward).collect()
        }
        Estimator::Grpo | Estimator::Gspo | Estimator::Cispo => {
            grpo::by_group(&rewards, |group| grpo::advantages(group, config.std()))
        }
        Estimator::ReinforcePlusPlusBaseline => {
            grpo::by_group(&rewards, |group| grpo::advantages(group, grpo::Std::None))
        }
        Estimator::Rloo => grpo::by_group(&rewards, rloo::advantages),
        Estimator::MaxRl => grpo::by_group(&rewards, max_rl::advantages),
        Estimator::ReinforcePlusPlus | Estimator::Ppo => {
            rewards.iter().map(|(_, reward)| *reward).collect()
        }
    };
    if let Some(kl) = penalties.as_ref().filter(|_| !estimator.has_token_kl()) {
        let excess = excess_kl(config, rewards, batches, kl);
        for (base, excess) in base.iter_mut().zip(excess) {
            *base = base.zip(excess).map(|(a, kl)| a - config.kl_coef * kl);
        }
    }
    for (index, batch) in batches.iter_mut().enumerate() {
        for sequence in &batch.sequences {
            let range = sequence.trained.clone();
            let base = base[sequence.rollout].unwrap_or(0.0);
            let kl = || match &penalties {
                Some(all) => all[index][range.clone()].to_vec(),
                None => vec![0.0; range.len()],
            };
            let slots = &mut batch.columns.advantage[range.clone()];
            match estimator {
                Estimator::ReinforcePlusPlus => {
                    slots.copy_from_slice(&reinforce::returns(
                        &kl(),
                        config.kl_coef,
                        config.gamma,
                        base,
                    ));
                }
                Estimator::ReinforcePlusPlusBaseline => {
                    slots.copy_from_slice(&reinforce::with_baseline(&kl(), config.kl_coef, base));
                }
                Estimator::Ppo => {
                    let values = &batch.columns.value[range.clone()];
                    let discount = Discount {
                        gamma: config.gamma,
                        lambd: config.lambd,
                        kl_coef: config.kl_coef,
                    };
                    let (advantages, returns) = gae::advantages(&kl(), values, base, discount);
                    slots.copy_from_slice(&advantages);
                    batch.columns.returns[range].copy_from_slice(&returns);
                }
                _ => slots.fill(base),
            }
        }
        if config.use_opd {
            let columns = &mut batch.columns;
            let (old, teacher) = (&columns.old, &columns.teacher);
            distill::penalise(&mut columns.advantage, old, teacher, config.opd_kl_coef);
        }
    }
    if config.normalize_advantages {
        let mut all: Vec<f64> = batches
            .iter()
            .flat_map(|b| b.columns.advantage.iter().copied())
            .collect();
        whiten::whiten(&mut all);
        let mut rest = &all[..];
        for batch in batches {
            let (head, tail) = rest.split_at(batch.columns.advantage.len());
            batch.columns.advantage.copy_from_slice(head);
            rest = tail;
        }
    }
}

/// How much more KL each scored rollout has than its group, as its rewards are compared but for divisions.
fn excess_kl(
    config: &TrainConfig,
    rewards: Vec<(GroupId, Option<f64>)>,
    batches: &[Batch<'_>],
    kl: &[Vec<f64>],
) -> Vec<Option<f64>> {
    let mut totals = rewards;
    for (_, total) in &mut totals {
        *total = total.map(|_| 0.0);
    }
    for (batch, kl) in batches.iter().zip(kl) {
        for sequence in &batch.sequences {
            if let Some(total) = totals[sequence.rollout].1.as_mut() {
                *total += kl[sequence.trained.clone()].iter().sum::<f64>();
            }
        }
    }
    match config.advantage_estimator {
        _ if config.disable_rewards_normalization => {
            totals.into_iter().map(|(_, total)| total).collect()
        }
        Estimator::Rloo => grpo::by_group(&totals, rloo::advantages),
        _ => grpo::by_group(&totals, |group| grpo::advantages(group, grpo::Std::None)),
    }
}

/// The KL of every token that trains, one list a batch. A token without a log-prob adds nothing.
fn kl_of_tokens(config: &TrainConfig, batches: &[Batch<'_>]) -> Vec<Vec<f64>> {
    let kind = config.kl_kind();
    let of = |(&old, &reference): (&f64, &f64)| {
        let kl = kind.estimate(old, reference).0;
        if kl.is_finite() { kl } else { 0.0 }
    };
    batches
        .iter()
        .map(|batch| {
            batch
                .columns
                .old
                .iter()
                .zip(&batch.columns.reference)
                .map(of)
                .collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algo::weights::Aggregation;
    use slime_core::{RolloutId, RolloutRecord};

    fn record(reward: f64, rollout: u64) -> RolloutRecord {
        RolloutRecord {
            rollout_id: RolloutId(rollout),
            tokens: vec![1, 2, 3, 4],
            response_length: 3,
            loss_mask: vec![1, 0, 1],
            reward: Some(reward),
            outcome: "scored".into(),
            ..RolloutRecord::default()
        }
    }

    fn advantages(config: &TrainConfig, old: f64, reference: f64) -> Vec<f64> {
        let records = [record(1.0, 0), record(0.0, 1), record(0.0, 1)];
        let limits = crate::data::rollouts::Limits {
            vocab: 9,
            max_positions: 9,
        };
        let rollouts = crate::data::rollouts::rollouts(&records, limits).unwrap();
        let mut batches = [Batch::new(&rollouts, 0..2, Aggregation::RolloutMean, 0)];
        batches[0].columns.old.fill(old);
        batches[0].columns.reference.fill(reference);
        fill(config, &rollouts, &mut batches);
        batches[0].columns.advantage.clone()
    }

    #[test]
    fn a_rollout_that_fans_out_votes_once() {
        let config = TrainConfig {
            disable_grpo_std_normalization: true,
            ..TrainConfig::default()
        };
        assert_eq!(
            advantages(&config, 0.0, 0.0),
            [0.5, 0.5, -0.5, -0.5, -0.5, -0.5]
        );
    }

    #[test]
    fn kl_in_the_reward_is_summed_over_the_rollouts_tokens() {
        let config = TrainConfig {
            disable_grpo_std_normalization: true,
            kl_coef: 0.5,
            ..TrainConfig::default()
        };
        // k1 = 0.25 a token: 2 tokens cost 0.25, 4 tokens cost 0.5.
        let got = advantages(&config, -1.0, -1.25);
        assert_eq!(got, [0.625, 0.625, -0.625, -0.625, -0.625, -0.625]);
    }

    #[test]
    fn whitened_advantages_have_mean_zero_and_unit_variance() {
        let config = TrainConfig {
            advantage_estimator: Estimator::ReinforcePlusPlus,
            normalize_advantages: true,
            kl_coef: 0.5,
            ..TrainConfig::default()
        };
        let got = advantages(&config, -1.0, -1.25);
        let mean = got.iter().sum::<f64>() / 6.0;
        let var = got.iter().map(|a| (a - mean).powi(2)).sum::<f64>() / 5.0;
        assert!(mean.abs() < 1e-12 && (var - 1.0).abs() < 1e-6, "{got:?}");
    }
}
