//! A step in numbers, with slime's names where it has one. What was not measured is absent, never 0.
//!
//! | name | what |
//! |---|---|
//! | `rollout/reward` | mean reward of scored rollouts, as the verifier gave it, before filters and shaping |
//! | `rollout/source/NAME/{reward,groups,constant_groups,none_ratio,response_len}` | each source's mean reward, groups, groups of one reward, share of rollouts without a verdict and sampled tokens, where there are several |
//! | `rollout/response_len/{mean,median,max,min}` | tokens the policy wrote in a rollout |
//! | `rollout/truncated_ratio` | rollouts whose last turn ran out of tokens |
//! | `rollout/zero_std/count_R` | groups whose rewards all equal R, to one decimal |
//! | `rollout/outcome/KIND` | rollouts by outcome; `rollout/outcome/KIND/PLUGIN` for failed verifications |
//! | `rollout/dynamic_filter/drop_REASON` | groups that filters dropped |
//! | `rollout/prefix_cache_hit_rate`, `rollout/avg_cached_tokens_per_sample` | context tokens the engines' caches served |
//! | `rollout/verdict/NAME` | mean of a verifier's named part |
//! | `rollout/retokenised_turns`, `rollout/rewritten_histories` | turns whose template did not simply append |
//! | `passrate/pass@K` | unbiased pass@k, a reward of 1 being a pass |
//! | `perf/rollout_time` | seconds from the first claim to the last group |
//! | `perf/tokens_per_sec`, `perf/longest_sample_tokens_per_sec` | sampled tokens a second, all and of the longest rollout |
//! | `perf/verifier_cpu_ms`, `perf/verifier_wall_ms` | mean cost of a verification |

use super::filter::{constant_reward, rounded};
use super::live::Tally;
use super::scoring::Scoring;
use serde::Serialize;
use slime_core::{FinishReason, Group, Outcome, Rollout, Step, Trajectory, WeightVersion};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Names and finite values, in order of name.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Metrics(pub BTreeMap<String, f64>);

impl Metrics {
    /// Set a value; one that is not finite was not measured.
    pub fn set(&mut self, name: impl Into<String>, value: f64) {
        if value.is_finite() {
            self.0.insert(name.into(), value);
        }
    }

    /// The value, where it was measured.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }

    fn add(&mut self, name: String, value: f64) {
        *self.0.entry(name).or_default() += value;
    }
}

/// 1 − C(n−c, k)/C(n, k): the chance that `k` of `n` rollouts, `c` of which passed, hold a pass
/// (arXiv:2107.03374, eq. 1).
pub fn pass_at_k(n: usize, c: usize, k: usize) -> f64 {
    if n - c < k {
        return 1.0;
    }
    1.0 - (n - c + 1..=n)
        .map(|i| 1.0 - k as f64 / i as f64)
        .product::<f64>()
}

/// Mean lag over sampled tokens and the lag of the oldest, at `served`; `None` where nothing was sampled.
pub fn lag<'a>(
    groups: impl IntoIterator<Item = &'a Group>,
    served: WeightVersion,
) -> Option<(f64, u64)> {
    let (mut total, mut count, mut max) = (0u64, 0u64, 0u64);
    for trajectory in groups
        .into_iter()
        .flat_map(|g| &g.rollouts)
        .flat_map(|r| &r.trajectories)
    {
        for segment in trajectory.segments() {
            if let slime_core::Origin::Policy { version, .. } = segment.origin {
                let (lag, len) = (version.lag(served), segment.tokens.len() as u64);
                total += lag * len;
                count += len;
                max = max.max(lag);
            }
        }
    }
    (count > 0).then(|| (total as f64 / count as f64, max))
}

/// Sampled tokens by how far behind `served` their version is.
pub fn lag_histogram<'a>(
    groups: impl IntoIterator<Item = &'a Group>,
    served: WeightVersion,
) -> BTreeMap<u64, u64> {
    let mut counts = BTreeMap::new();
    let rollouts = groups.into_iter().flat_map(|g| &g.rollouts);
    for trajectory in rollouts.flat_map(|r| &r.trajectories) {
        for segment in trajectory.segments() {
            if let slime_core::Origin::Policy { version, .. } = segment.origin {
                *counts.entry(version.lag(served)).or_default() += segment.tokens.len() as u64;
            }
        }
    }
    counts
}

pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        (sorted[middle - 1] + sorted[middle]) / 2.0
    }
}

fn num_sampled(rollout: &Rollout) -> usize {
    rollout
        .trajectories
        .iter()
        .map(Trajectory::num_sampled)
        .sum()
}

/// Reward, lengths, truncation, outcomes and pass rates, each name after `prefix`.
pub(super) fn of_rollouts(
    metrics: &mut Metrics,
    prefix: &str,
    groups: &[&Group],
    scoring: &Scoring,
) {
    let rollouts: Vec<&Rollout> = groups.iter().flat_map(|g| &g.rollouts).collect();
    for kind in Outcome::KINDS {
        metrics.set(format!("{prefix}/outcome/{kind}"), 0.0);
    }
    let mut parts: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for group in groups {
        let verifier = scoring.name(&group.prompt.id.source);
        for rollout in &group.rollouts {
            let kind = rollout.outcome.kind();
            metrics.add(format!("{prefix}/outcome/{kind}"), 1.0);
            if rollout.outcome.verdict().is_none() {
                metrics.add(format!("{prefix}/outcome/{kind}/{verifier}"), 1.0);
            }
            for (name, value) in rollout.outcome.verdict().map_or(&[][..], |v| &v.metrics) {
                parts.entry(name).or_default().push(*value);
            }
        }
    }
    for (name, values) in parts {
        metrics.set(format!("{prefix}/verdict/{name}"), mean(&values));
    }
    // Only rollouts that reached the policy have a length.
    let ran: Vec<_> = rollouts
        .iter()
        .filter(|r| r.trajectories.iter().any(|t| t.finish.is_some()))
        .collect();
    let mut lengths: Vec<f64> = ran.iter().map(|r| num_sampled(r) as f64).collect();
    lengths.sort_by(f64::total_cmp);
    if let (Some(min), Some(max)) = (lengths.first(), lengths.last()) {
        metrics.set(format!("{prefix}/response_len/mean"), mean(&lengths));
        metrics.set(format!("{prefix}/response_len/median"), median(&lengths));
        metrics.set(format!("{prefix}/response_len/max"), *max);
        metrics.set(format!("{prefix}/response_len/min"), *min);
        let truncated = ran
            .iter()
            .filter(|r| r.trajectories.last().and_then(|t| t.finish) == Some(FinishReason::Length))
            .count();
        metrics.set(
            format!("{prefix}/truncated_ratio"),
            truncated as f64 / ran.len() as f64,
        );
    }
}

/// Mean over groups of the unbiased estimate, for every power of two up to the rollouts a group was to have. A group in
/// which fewer than k were scored says nothing about pass@k and stays out of it.
pub(super) fn pass_rates(metrics: &mut Metrics, name: impl Fn(usize) -> String, groups: &[&Group]) {
    let counts: Vec<(usize, usize)> = groups
        .iter()
        .map(|g| g.rewards())
        .filter(|rewards| !rewards.is_empty())
        .map(|rewards| (rewards.len(), rewards.iter().filter(|&&r| r == 1.0).count()))
        .collect();
    let asked = groups.iter().map(|g| g.rollouts.len()).max().unwrap_or(0);
    for k in std::iter::successors(Some(1), |k| Some(k * 2)).take_while(|&k| k <= asked) {
        let known = counts.iter().filter(|(n, _)| *n >= k);
        let rates: Vec<f64> = known.map(|&(n, c)| pass_at_k(n, c, k)).collect();
        metrics.set(name(k), mean(&rates));
    }
}

/// What each source gave, where there are several.
fn by_source(metrics: &mut Metrics, groups: &[&Group]) {
    let mut sources: BTreeMap<&str, Vec<&Group>> = BTreeMap::new();
    for group in groups {
        let own = sources.entry(&group.prompt.id.source).or_default();
        own.push(group);
    }
    if sources.len() < 2 {
        return;
    }
    for (name, groups) in sources {
        let rollouts: Vec<&Rollout> = groups.iter().flat_map(|g| &g.rollouts).collect();
        let rewards: Vec<f64> = rollouts.iter().filter_map(|r| r.outcome.reward()).collect();
        let lengths: Vec<f64> = rollouts.iter().map(|r| num_sampled(r) as f64).collect();
        let constant = groups.iter().filter(|g| constant_reward(g).is_some());
        let unscored = (rollouts.len() - rewards.len()) as f64 / rollouts.len() as f64;
        for (what, value) in [
            ("reward", mean(&rewards)),
            ("groups", groups.len() as f64),
            ("constant_groups", constant.count() as f64),
            ("none_ratio", unscored),
            ("response_len", mean(&lengths)),
        ] {
            metrics.set(format!("rollout/source/{name}/{what}"), value);
        }
    }
}

/// Everything about one step's sampling.
pub(super) fn step(
    groups: &[&Group],
    dropped: &BTreeMap<String, u64>,
    tally: &Tally,
    wall: Duration,
    scoring: &Scoring,
) -> Metrics {
    let mut m = Metrics::default();
    let rollouts: Vec<&Rollout> = groups.iter().flat_map(|g| &g.rollouts).collect();
    let rewards: Vec<f64> = rollouts.iter().filter_map(|r| r.outcome.reward()).collect();
    m.set("rollout/reward", mean(&rewards));
    by_source(&mut m, groups);
    of_rollouts(&mut m, "rollout", groups, scoring);
    pass_rates(&mut m, |k| format!("passrate/pass@{k}"), groups);
    for reward in groups.iter().filter_map(|g| constant_reward(g)) {
        m.add(format!("rollout/zero_std/count_{}", rounded(reward)), 1.0);
    }
    for (reason, count) in dropped {
        m.set(
            format!("rollout/dynamic_filter/drop_{reason}"),
            *count as f64,
        );
    }
    let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed) as f64;
    m.set(
        "rollout/prefix_cache_hit_rate",
        load(&tally.cached_tokens) / load(&tally.context_tokens),
    );
    m.set(
        "rollout/avg_cached_tokens_per_sample",
        load(&tally.cached_tokens) / rollouts.len() as f64,
    );
    m.set("rollout/retokenised_turns", load(&tally.retokenised_turns));
    m.set(
        "rollout/rewritten_histories",
        load(&tally.rewritten_histories),
    );

    let seconds = wall.as_secs_f64();
    let lengths = rollouts.iter().map(|r| num_sampled(r));
    m.set("perf/rollout_time", seconds);
    m.set(
        "perf/tokens_per_sec",
        lengths.clone().sum::<usize>() as f64 / seconds,
    );
    m.set(
        "perf/longest_sample_tokens_per_sec",
        lengths.max().unwrap_or(0) as f64 / seconds,
    );
    let scored: Vec<_> = rollouts
        .iter()
        .filter(|r| !r.scoring.wall.is_zero())
        .collect();
    let ms = |cost: fn(&Rollout) -> Duration| {
        mean(
            &scored
                .iter()
                .map(|r| cost(r).as_secs_f64() * 1e3)
                .collect::<Vec<_>>(),
        )
    };
    m.set("perf/verifier_cpu_ms", ms(|r| r.scoring.cpu));
    m.set("perf/verifier_wall_ms", ms(|r| r.scoring.wall));
    m
}

/// What a step's numbers mean where they mean trouble.
pub(super) fn warnings(step: Step, groups: &[&Group]) -> Vec<String> {
    let mut warnings = Vec::new();
    let constant: Vec<f64> = groups.iter().filter_map(|g| constant_reward(g)).collect();
    let comparable = groups.iter().filter(|g| g.rewards().len() > 1).count();
    if comparable > 0 && constant.len() == comparable {
        let mut values: Vec<String> = constant.iter().map(|&r| rounded(r)).collect();
        values.sort();
        values.dedup();
        warnings.push(format!(
            "step {step}: in each of the {comparable} groups all rewards are equal (to {}), so every advantage is 0 and this step teaches nothing. \
             If it stays so, the task is too hard or too easy for this policy, the temperature is too low for rollouts to differ, or the verifier ignores the response",
            values.join(", ")
        ));
    }
    let num_rollouts: usize = groups.iter().map(|g| g.rollouts.len()).sum();
    if num_rollouts > 0 && groups.iter().all(|g| g.rewards().is_empty()) {
        let first = groups
            .iter()
            .flat_map(|g| &g.rollouts)
            .next()
            .map(|r| r.outcome.to_string())
            .unwrap_or_default();
        warnings.push(format!("step {step}: none of {num_rollouts} rollouts was scored, so this step trains nothing; the first one: {first}"));
    }
    warnings
}
