//! A step's row in `metrics.jsonl`: what sampling, training and the clock said, under slime's names.

use super::seconds;
use crate::error::{Failure, Result};
use crate::telemetry::Row;
use serde_json::{Map, Value};
use slime_core::{Group, Step};
use slime_rollout::{Collected, Conservation, Taken};
use slime_trainer::TrainMetrics;
use std::collections::BTreeMap;
use std::time::Duration;

/// The axis of a run's rows.
pub const AXIS: &str = "rollout/step";

/// Counts add up over the train steps of one rollout step.
const SUMS: [&str; 8] = [
    "train/tokens",
    "train/trained_tokens",
    "train/masked_tokens",
    "train/ratio_clamped",
    "train/rollouts",
    "train/masked_rollouts",
    "train/micro_batches",
    "train/skipped",
];
/// What rounds of sampling count, by how its names begin.
const COUNTS: [&str; 6] = [
    "rollout/outcome/",
    "rollout/zero_std/",
    "rollout/dynamic_filter/",
    "rollout/retokenised_turns",
    "rollout/rewritten_histories",
    "perf/rollout_time",
];
/// The last train step's value stands for all.
const LAST: [&str; 2] = ["train/lr", "train/num_updates"];
/// The worst train step's value stands for all.
const MAXIMA: [&str; 1] = ["train/train_rollout_logprob_abs_diff_max"];

/// The row of one rollout step.
pub fn of_step(
    step: Step,
    sampled: &[Collected],
    taken: &Taken,
    trained: &[TrainMetrics],
    train: Duration,
) -> Row {
    let mut row = Row::at(AXIS, step.0);
    for (name, value) in of_rounds(sampled) {
        row.set(name, value);
    }
    // Groups that a killed run had collected are sampled by nobody now: the step's reward is then that of what it trains on,
    // unless filters chose that.
    let kept: usize = sampled.iter().map(|c| c.groups.len()).sum();
    let num_sampled: usize = sampled.iter().map(|c| c.num_sampled).sum();
    let chosen = num_sampled > 0 && sampled.iter().any(|c| c.is_filtered);
    if kept < taken.groups.len() && !chosen {
        row.set_some("rollout/reward", mean_reward(&taken.groups));
    }
    row.set_count("rollout/stale_groups", taken.stale);
    row.set_some("rollout/lag/mean", taken.lag_mean);
    if let Some(lag) = taken.lag_max {
        row.set_count("rollout/lag/max", lag);
    }
    for (lag, tokens) in &taken.lags {
        row.set_count(format!("rollout/lag/tokens_{lag}"), *tokens);
    }
    row.0.extend(together(trained));
    row.set("perf/train_time", seconds(train));
    if let Some(tokens) = row.get("train/tokens") {
        row.set("perf/actor_train_tok_per_s", tokens / seconds(train));
    }
    row
}

/// What a step's rounds of sampling say together: counts and times add up, the rest is a mean over groups.
fn of_rounds(rounds: &[Collected]) -> BTreeMap<String, f64> {
    let mut all: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for round in rounds {
        for (name, value) in &round.metrics.0 {
            let weight = round.num_sampled.max(1) as f64;
            all.entry(name.clone()).or_default().push((*value, weight));
        }
    }
    let is_count = |name: &str| {
        COUNTS.iter().any(|prefix| name.starts_with(prefix)) || name.ends_with("groups")
    };
    let together = |(name, values): (String, Vec<(f64, f64)>)| {
        let only = values.iter().map(|(value, _)| *value);
        let weights: f64 = values.iter().map(|(_, weight)| weight).sum();
        let value = match name.as_str() {
            name if is_count(name) => only.sum(),
            name if name.ends_with("/max") => only.fold(f64::NEG_INFINITY, f64::max),
            name if name.ends_with("/min") => only.fold(f64::INFINITY, f64::min),
            _ if values.len() == 1 => values[0].0,
            _ => {
                values
                    .iter()
                    .map(|(value, weight)| value * weight)
                    .sum::<f64>()
                    / weights
            }
        };
        (name, value)
    };
    all.into_iter().map(together).collect()
}

/// What became of every rollout, in the step's row.
///
/// # Errors
/// It does not add up: a rollout was lost or counted twice, and nothing that follows could be trusted.
pub fn conserve(row: &mut Row, step: Step, all: Conservation) -> Result<()> {
    if !all.holds() {
        return Err(Failure::run(format!(
            "step {step}: rollouts do not add up: {all}. This is a defect of the program; please report it with the run's database"
        )));
    }
    tracing::info!(target: "slime", "step {step}: {all}");
    for (name, count) in [
        ("sampled", all.sampled),
        ("trained", all.trained),
        ("filtered", all.filtered),
        ("masked", all.masked),
        ("pending", all.pending),
    ] {
        row.set_count(format!("rollout/total/{name}"), count);
    }
    Ok(())
}

/// Mean reward of the scored rollouts; none where no rollout was scored.
fn mean_reward(groups: &[Group]) -> Option<f64> {
    let rewards: Vec<f64> = groups.iter().flat_map(Group::rewards).collect();
    (!rewards.is_empty()).then(|| rewards.iter().sum::<f64>() / rewards.len() as f64)
}

/// One train step as a row of its own.
pub fn of_train(axis: &str, step: u64, metrics: &TrainMetrics, train: Duration) -> Row {
    let mut row = Row::at(axis, step);
    row.0.extend(together(std::slice::from_ref(metrics)));
    row.set("perf/train_time", seconds(train));
    row.set(
        "perf/actor_train_tok_per_s",
        metrics.tokens as f64 / seconds(train),
    );
    row
}

/// Several train steps' numbers as one.
fn together(steps: &[TrainMetrics]) -> Map<String, Value> {
    let maps: Vec<Map<String, Value>> = steps
        .iter()
        .filter_map(|metrics| serde_json::to_value(metrics).ok()?.as_object().cloned())
        .collect();
    let mut all = Map::new();
    for (name, last) in maps.last().into_iter().flatten() {
        let values: Vec<f64> = maps
            .iter()
            .filter_map(|map| map.get(name)?.as_f64())
            .collect();
        let counts: Option<u64> = maps.iter().map(|map| map.get(name)?.as_u64()).sum();
        let value = match name.as_str() {
            _ if maps.len() == 1 => last.clone(),
            name if LAST.contains(&name) => last.clone(),
            name if SUMS.contains(&name) => counts.map_or(Value::Null, Value::from),
            name if MAXIMA.contains(&name) => values
                .iter()
                .copied()
                .reduce(f64::max)
                .map_or(Value::Null, Value::from),
            _ if values.is_empty() => Value::Null,
            _ => Value::from(values.iter().sum::<f64>() / values.len() as f64),
        };
        all.insert(name.clone(), value);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(num_sampled: usize, is_filtered: bool, metrics: &[(&str, f64)]) -> Collected {
        let mut told = slime_rollout::collect::Metrics::default();
        for (name, value) in metrics {
            told.set(*name, *value);
        }
        Collected {
            groups: Vec::new(),
            num_sampled,
            is_filtered,
            metrics: told,
            dropped: BTreeMap::new(),
            warnings: Vec::new(),
        }
    }

    #[test]
    fn rounds_of_sampling_are_told_as_one() {
        let first = [
            ("rollout/reward", 0.8),
            ("rollout/outcome/scored", 24.0),
            ("rollout/response_len/max", 9.0),
            ("perf/rollout_time", 2.0),
        ];
        let second = [
            ("rollout/reward", 0.2),
            ("rollout/outcome/scored", 8.0),
            ("rollout/response_len/max", 4.0),
            ("perf/rollout_time", 1.0),
        ];
        let all = of_rounds(&[round(3, true, &first), round(1, true, &second)]);
        let want = [0.65, 32.0, 9.0, 3.0];
        for ((name, _), want) in first.iter().zip(want) {
            assert!((all[*name] - want).abs() < 1e-12, "{name}: {}", all[*name]);
        }
    }

    #[test]
    fn a_reward_before_filters_is_never_replaced_by_one_after_them() {
        let taken = Taken {
            groups: vec![super::super::tests::group(Step(0))],
            lag_mean: None,
            lag_max: None,
            lags: BTreeMap::new(),
            stale: 0,
        };
        let sampled = [round(4, true, &[("rollout/reward", 0.25)])];
        let row = of_step(Step(0), &sampled, &taken, &[], Duration::ZERO);
        assert_eq!(row.get("rollout/reward"), Some(0.25));
    }

    #[test]
    fn several_train_steps_are_told_as_one() {
        let step = |loss: f64, tokens: usize, lr: f64, gap: Option<f64>| TrainMetrics {
            loss,
            tokens,
            lr,
            train_rollout_logprob_abs_diff_max: gap,
            ..TrainMetrics::default()
        };
        let all = together(&[
            step(1.0, 10, 0.1, Some(3e-6)),
            step(2.0, 30, 0.2, Some(1e-6)),
            step(6.0, 2, 0.3, None),
        ]);
        assert_eq!(
            (&all["train/loss"], &all["train/tokens"], &all["train/lr"]),
            (&3.0.into(), &42.into(), &0.3.into())
        );
        assert_eq!(
            all["train/train_rollout_logprob_abs_diff_max"],
            Value::from(3e-6)
        );
        assert_eq!(
            all["train/kl_loss"],
            Value::Null,
            "what no step measured is not 0"
        );
    }
}
