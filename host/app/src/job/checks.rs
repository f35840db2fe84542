//! Checks that tell a defect of the system from a task that is hard: on by default, each with its likely cause.
//!
//! They look at numbers that every step has, say a sentence and change nothing. A sentence is said when it becomes true
//! and again at the 10th, 100th, … step in a row. What a step's rewards alone tell (all equal, none scored) is the sampler's
//! to say.

use slime_core::{Group, Outcome, Step};
use slime_rollout::Taken;
use slime_trainer::{TrainConfig, TrainMetrics};
use std::collections::{BTreeMap, BTreeSet};

/// Mean difference of log-probs from which trainer and engine are not the same policy: bf16 engines stay below it.
pub const GAP: f64 = 0.02;
/// `old - logp` of a policy that did not move, from which its two passes do not agree.
const DRIFT: f64 = 1e-4;
/// Steps in a row with one reward before that is no accident.
const CONSTANT_STEPS: u64 = 10;

/// What was seen in earlier steps.
#[derive(Debug, Default)]
pub struct Checks {
    /// Steps in a row in which a check found something.
    streaks: BTreeMap<&'static str, u64>,
    /// The gap of the first step, in which no update had been made.
    first_gap: Option<f64>,
    /// The one reward of all steps so far, and how many they were.
    constant: Option<(f64, u64)>,
}

impl Checks {
    /// Look at a step that trained → what to say.
    pub fn look(
        &mut self,
        step: Step,
        config: &TrainConfig,
        taken: &Taken,
        trained: &[TrainMetrics],
    ) -> Vec<String> {
        let mut found = Vec::new();
        let on_policy = taken.lag_max == Some(0);
        let first = trained.first();
        if let Some(gap) = first
            .and_then(|m| m.train_rollout_logprob_abs_diff)
            .filter(|_| on_policy)
        {
            let before = *self.first_gap.get_or_insert(gap);
            if gap > GAP {
                found.push((
                    "gap",
                    gap_sentence(step, gap, before, config.rollout_temperature),
                ));
            }
        }
        if let Some(kl) = first
            .and_then(|m| m.ppo_kl)
            .filter(|_| on_policy && !config.use_rollout_logprobs)
            && kl.abs() > DRIFT
        {
            found.push(("ratio", format!(
                "step {step}: the first train step's ratio is not 1 (mean old - logp is {kl:.1e}) although no weight has changed since the old \
                 log-probs were computed: two passes over the same tokens disagree. Likely a kernel that depends on how a batch is packed, or \
                 weights that changed between the passes"
            )));
        }
        let trained_tokens: usize = trained.iter().map(|m| m.trained_tokens).sum();
        let masked: usize = trained.iter().map(|m| m.masked_tokens).sum();
        if trained_tokens == 0 || trained_tokens == masked {
            found.push(("no token", no_token_sentence(step, &taken.groups, masked)));
        }
        let advantages: Vec<f64> = trained.iter().filter_map(|m| m.advantage_abs).collect();
        let is_flat = |group: &Group| {
            let mut rewards = group.rewards().into_iter();
            let first = rewards.next();
            rewards.all(|reward| Some(reward) == first)
        };
        // That rewards do not differ was told when they were sampled.
        let differ = !taken.groups.iter().all(is_flat);
        let zero = !advantages.is_empty() && advantages.iter().all(|a| *a == 0.0);
        if trained_tokens > 0 && differ && zero {
            found.push(("advantages", format!(
                "step {step}: every advantage is 0 although rewards differ within groups: a shaper evens them out, or what differs is masked"
            )));
        }
        found.extend(self.constant_reward(step, &taken.groups));
        found.extend(one_outcome(step, &taken.groups));
        self.count(found)
    }

    /// Only a sentence that is new, or has been true for a power of ten of steps.
    fn count(&mut self, found: Vec<(&'static str, String)>) -> Vec<String> {
        let names: BTreeSet<&str> = found.iter().map(|(name, _)| *name).collect();
        self.streaks.retain(|name, _| names.contains(name));
        let mut said = Vec::new();
        for (name, sentence) in found {
            let streak = self.streaks.entry(name).or_default();
            *streak += 1;
            if streak.ilog10() > 0 && *streak == 10u64.pow(streak.ilog10()) {
                said.push(format!("{sentence} (for {streak} steps now)"));
            } else if *streak == 1 {
                said.push(sentence);
            }
        }
        said
    }

    fn constant_reward(&mut self, step: Step, groups: &[Group]) -> Option<(&'static str, String)> {
        let mut rewards = groups.iter().flat_map(Group::rewards);
        let first = rewards.next()?;
        let same = rewards.all(|r| r == first);
        self.constant = match self.constant {
            Some((reward, steps)) if same && reward == first => Some((reward, steps + 1)),
            _ if same => Some((first, 1)),
            _ => None,
        };
        let (reward, steps) = self.constant?;
        let usual = if reward == 0.0 {
            "the verifier may not find the answer in the response (wrong format, a label that does not parse), or max_response_len cuts every \
             response short"
        } else {
            "the verifier may accept anything"
        };
        (steps >= CONSTANT_STEPS).then(|| {
            ("constant", format!(
                "step {step}: every rollout of {steps} steps has reward {reward}. A hard task gives some variety; {usual}. Score a right and a \
                 wrong answer by hand: slime-host score PLUGIN --input FILE"
            ))
        })
    }
}

fn gap_sentence(step: Step, gap: f64, before: f64, temperature: f64) -> String {
    let cause = if step.0 > 0 && before <= GAP {
        "It was small before the first update, so the engine serves other weights than the trainer has, or a prefix cache of older ones: a \
         publish that did not arrive everywhere, or an engine that does not flush its cache".to_owned()
    } else if temperature != 1.0 {
        format!(
            "Likely the engine reports log-probs without the temperature of {temperature} (SGLang needs them at the sampling temperature), or it \
             computes in another precision, or serves another checkpoint"
        )
    } else {
        "Likely the engine serves another checkpoint or computes in a much lower precision, or its top_p or top_k renormalise what it reports".to_owned()
    };
    format!(
        "step {step}: trainer and engine disagree about the log-probs of the same tokens by {gap:.3} in the mean (up to {GAP} is rounding). {cause}"
    )
}

fn no_token_sentence(step: Step, groups: &[Group], masked: usize) -> String {
    let rollouts = || groups.iter().flat_map(|g| &g.rollouts);
    let sampled: usize = rollouts()
        .flat_map(|r| &r.trajectories)
        .map(slime_core::Trajectory::num_sampled)
        .sum();
    let scored = rollouts().filter(|r| r.outcome.verdict().is_some()).count();
    let cause = if masked > 0 {
        "all log-probs are NaN: the weights have been destroyed, see train/grad_norm of the steps before"
    } else if sampled == 0 {
        "the policy wrote nothing at all: prompts may fill the context, or the first token may be an end token"
    } else if scored == 0 {
        "no rollout was scored, see rollout/outcome/… for why"
    } else {
        "masks leave nothing: see mask_truncated, mask_offpolicy and the generator's appended messages"
    };
    format!("step {step}: not one token was trained; {cause}")
}

/// One failure that befell every rollout is not chance.
fn one_outcome(step: Step, groups: &[Group]) -> Option<(&'static str, String)> {
    let mut outcomes = groups.iter().flat_map(|g| &g.rollouts).map(|r| &r.outcome);
    let first = outcomes.next()?;
    if first.verdict().is_some() || outcomes.any(|o| o.kind() != first.kind()) {
        return None;
    }
    let cause = match first {
        Outcome::Timeout(_) => {
            "the plugin's time budget is too small ([limits] cpu, wall), or it never ends"
        }
        Outcome::OutOfMemory(_) => "the plugin's memory budget is too small ([limits] memory)",
        Outcome::InvalidGold(_) => {
            "the gold answers have another format than the verifier reads, see label_key"
        }
        Outcome::InvalidReward(_) => "the verifier's rewards leave the range it declares",
        Outcome::InfraFailed(_) | Outcome::Cancelled(_) => {
            "the engines or the host failed, not the policy"
        }
        _ => "the plugin fails on every input",
    };
    Some((
        "outcome",
        format!(
            "step {step}: every rollout ended as `{}`: {cause}. The first one: {}",
            first.kind(),
            first.detail()
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use slime_core::{
        GroupId, Origin, Prompt, PromptBody, PromptId, Rollout, RolloutId, Segment, Trajectory,
        Verdict, WeightVersion,
    };

    fn scored(reward: f64) -> Outcome {
        Outcome::Scored(Verdict {
            reward,
            metrics: vec![],
        })
    }

    fn taken(lag: u64, outcomes: Vec<Outcome>) -> Taken {
        let rollouts = outcomes.into_iter().enumerate().map(|(index, outcome)| {
            let mut trajectory = Trajectory::from_prompt(vec![1]);
            let origin = Origin::Policy {
                logprobs: vec![-1.0],
                version: WeightVersion(1),
            };
            trajectory
                .push(Segment {
                    origin,
                    tokens: vec![2],
                })
                .unwrap();
            Rollout {
                id: RolloutId(index as u64),
                index: index as u32,
                seed: 0,
                trajectories: vec![trajectory],
                outcome,
                scoring: Default::default(),
                shaped: None,
            }
        });
        let id = PromptId {
            source: "s".into(),
            row: 0,
        };
        let prompt = Prompt {
            id,
            body: PromptBody::Text("p".into()),
            label: None,
            tools: vec![],
            metadata: Default::default(),
        };
        let group = Group {
            id: GroupId(0),
            step: Step(0),
            prompt,
            rollouts: rollouts.collect(),
        };
        Taken {
            groups: vec![group],
            lag_mean: Some(lag as f64),
            lag_max: Some(lag),
            lags: BTreeMap::new(),
            stale: 0,
        }
    }

    fn well() -> TrainMetrics {
        TrainMetrics {
            trained_tokens: 10,
            advantage_abs: Some(0.5),
            ppo_kl: Some(0.0),
            train_rollout_logprob_abs_diff: Some(0.001),
            ..TrainMetrics::default()
        }
    }

    fn one(config: &TrainConfig, taken: &Taken, metrics: TrainMetrics) -> Vec<String> {
        Checks::default().look(Step(0), config, taken, &[metrics])
    }

    #[test]
    fn a_healthy_step_says_nothing() {
        let taken = taken(0, vec![scored(0.0), scored(1.0)]);
        assert!(one(&TrainConfig::default(), &taken, well()).is_empty());
    }

    #[test]
    fn e06_engine_log_probs_without_the_temperature_are_named_as_the_likely_cause() {
        let config = TrainConfig {
            rollout_temperature: 0.7,
            ..TrainConfig::default()
        };
        let wide = TrainMetrics {
            train_rollout_logprob_abs_diff: Some(0.15),
            ..well()
        };
        let said = one(
            &config,
            &taken(0, vec![scored(0.0), scored(1.0)]),
            wide.clone(),
        );
        assert_eq!(said.len(), 1);
        assert!(
            said[0].contains("0.150") && said[0].contains("without the temperature of 0.7"),
            "{}",
            said[0]
        );
        // Tokens of older weights are expected to differ.
        assert!(one(&config, &taken(1, vec![scored(0.0), scored(1.0)]), wide).is_empty());
    }

    #[test]
    fn a_gap_that_opens_after_an_update_is_a_publish_or_a_stale_prefix_cache() {
        let mut checks = Checks::default();
        let config = TrainConfig::default();
        let taken = taken(0, vec![scored(0.0), scored(1.0)]);
        assert!(checks.look(Step(0), &config, &taken, &[well()]).is_empty());
        let wide = TrainMetrics {
            train_rollout_logprob_abs_diff: Some(0.4),
            ..well()
        };
        let said = checks.look(Step(1), &config, &taken, &[wide]);
        assert!(
            said[0].contains("prefix cache") && said[0].contains("publish"),
            "{}",
            said[0]
        );
    }

    #[test]
    fn a_ratio_that_is_not_one_before_any_update_is_told() {
        let moved = TrainMetrics {
            ppo_kl: Some(0.01),
            ..well()
        };
        let taken = taken(0, vec![scored(0.0), scored(1.0)]);
        assert!(one(&TrainConfig::default(), &taken, moved.clone())[0].contains("ratio is not 1"));
        let engine = TrainConfig {
            use_rollout_logprobs: true,
            ..TrainConfig::default()
        };
        assert!(
            one(&engine, &taken, moved).is_empty(),
            "the engine's log-probs are allowed to differ"
        );
    }

    #[test]
    fn c19_advantages_that_are_all_zero_are_told() {
        let flat = TrainMetrics {
            advantage_abs: Some(0.0),
            ..well()
        };
        assert!(
            one(
                &TrainConfig::default(),
                &taken(0, vec![scored(0.0), scored(1.0)]),
                flat
            )[0]
            .contains("every advantage is 0")
        );
    }

    #[test]
    fn a_reward_that_never_changes_is_told_at_the_tenth_step_and_not_before() {
        let mut checks = Checks::default();
        let taken = taken(0, vec![scored(0.0), scored(0.0)]);
        let said: Vec<usize> = (0..30)
            .map(|step| {
                checks
                    .look(Step(step), &TrainConfig::default(), &taken, &[well()])
                    .len()
            })
            .collect();
        assert_eq!(said.iter().position(|n| *n > 0), Some(9));
        assert_eq!(
            said.iter().sum::<usize>(),
            2,
            "and once more after ten more"
        );
    }

    #[test]
    fn one_failure_of_all_names_its_budget() {
        let slow = || Outcome::Timeout("2 s".into());
        let none = TrainMetrics {
            trained_tokens: 0,
            advantage_abs: None,
            ..well()
        };
        let said = one(
            &TrainConfig::default(),
            &taken(0, vec![slow(), slow()]),
            none,
        );
        assert!(
            said.iter()
                .any(|s| s.contains("every rollout ended as `timeout`")
                    && s.contains("[limits] cpu")),
            "{said:?}"
        );
        assert!(
            said.iter()
                .any(|s| s.contains("not one token was trained; no rollout was scored")),
            "{said:?}"
        );
        assert!(
            one(
                &TrainConfig::default(),
                &taken(0, vec![slow(), scored(1.0)]),
                well()
            )
            .is_empty()
        );
    }
}
