//! Who scores: the verifier of a prompt's source, then whoever looks at the whole group.
//!
//! Group verifiers follow one another, each reading what the one before said. What failed stays failed: nobody gives a
//! verdict to a rollout that timed out. Shapers change the reward that trains and nothing that is told. It refuses to
//! decide what is kept (`filter.rs`).

use super::plugins::request;
use slime_core::ports::{GroupVerifier, ScoreRequest, Scored, Shaper, TextCodec, Verifier};
use slime_core::{Accounting, Group, Outcome, Rollout, Verdict};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Everybody who has a say about rewards.
#[derive(Clone, Default)]
pub struct Scoring {
    /// Where a source has none of its own. Without any, rollouts wait for the first group verifier.
    pub verifier: Option<Arc<dyn Verifier>>,
    /// By the prompt's source.
    pub by_source: BTreeMap<String, Arc<dyn Verifier>>,
    /// In order.
    pub groups: Vec<Arc<dyn GroupVerifier>>,
    /// In order.
    pub shapers: Vec<Arc<dyn Shaper>>,
}

impl<V: Verifier + 'static> From<Arc<V>> for Scoring {
    fn from(verifier: Arc<V>) -> Self {
        let verifier: Arc<dyn Verifier> = verifier;
        verifier.into()
    }
}

impl From<Arc<dyn Verifier>> for Scoring {
    fn from(verifier: Arc<dyn Verifier>) -> Self {
        Self {
            verifier: Some(verifier),
            ..Self::default()
        }
    }
}

impl Scoring {
    /// Who scores the rollouts of this source one by one.
    pub fn verifier(&self, source: &str) -> Option<&Arc<dyn Verifier>> {
        self.by_source.get(source).or(self.verifier.as_ref())
    }

    /// The name under which this source's failed verdicts are counted.
    pub(super) fn name(&self, source: &str) -> &str {
        match (self.verifier(source), self.groups.first()) {
            (Some(verifier), _) => verifier.name(),
            (None, Some(group)) => group.name(),
            (None, None) => "nobody",
        }
    }

    /// Score one rollout; `None` where it waits for its group.
    pub(super) async fn score(&self, source: &str, item: ScoreRequest) -> Option<Scored> {
        let verifier = self.verifier(source)?;
        let mut scored = verifier.score(item).await;
        scored.outcome = usable(scored.outcome, verifier.name());
        Some(scored)
    }

    /// Let every group verifier look at a complete group. `waiting` are the indexes that nobody has scored yet.
    pub(super) async fn judge(
        &self,
        codec: &dyn TextCodec,
        group: &mut Group,
        mut waiting: BTreeSet<u32>,
    ) {
        let single = self.verifier(&group.prompt.id.source);
        let mut earlier = single.map(|verifier| verifier.name().to_owned());
        let speaks = |r: &Rollout| r.outcome.verdict().is_some() || waiting.contains(&r.index);
        if !group.rollouts.iter().any(speaks) {
            return;
        }
        for verifier in &self.groups {
            let (outcomes, cost) = verifier.score_group(request(codec, group)).await;
            let open = |index: u32, outcome: &Outcome| {
                outcome.verdict().is_some() || waiting.contains(&index)
            };
            let judged = group.rollouts.iter_mut().zip(outcomes);
            let judged: Vec<_> = judged
                .filter(|(rollout, _)| open(rollout.index, &rollout.outcome))
                .collect();
            let share = share(cost, judged.len());
            for (rollout, outcome) in judged {
                rollout.scoring = add(rollout.scoring, share);
                let before =
                    std::mem::replace(&mut rollout.outcome, usable(outcome, verifier.name()));
                if let (Outcome::Scored(now), Outcome::Scored(before), Some(name)) =
                    (&mut rollout.outcome, before, &earlier)
                {
                    now.metrics = together(before, name, std::mem::take(&mut now.metrics));
                }
            }
            waiting.clear();
            earlier = Some(verifier.name().to_owned());
        }
    }

    /// Let every shaper change the rewards that train.
    ///
    /// # Errors
    /// A shaper failed: the reason why the group is not trained on.
    pub(super) async fn shape(
        &self,
        codec: &dyn TextCodec,
        group: &mut Group,
    ) -> Result<(), String> {
        for shaper in &self.shapers {
            let mut asked = request(codec, group);
            for ((_, outcome), rollout) in asked.rollouts.iter_mut().zip(&group.rollouts) {
                if let (Outcome::Scored(verdict), Some(reward)) =
                    (outcome, rollout.training_reward())
                {
                    verdict.reward = reward;
                }
            }
            let name = shaper.name();
            match shaper.shape(asked).await.answer {
                Ok(rewards) => {
                    for (rollout, reward) in group.rollouts.iter_mut().zip(rewards) {
                        rollout.shaped = reward;
                    }
                }
                Err(outcome) => {
                    tracing::warn!(shaper = name, %outcome, "a shaper failed; its group is dropped");
                    return Err(format!("{name}_{}", outcome.kind()));
                }
            }
        }
        Ok(())
    }
}

/// A verdict that may be counted with: finite, its parts too.
fn usable(mut outcome: Outcome, name: &str) -> Outcome {
    if let Some(reward) = outcome.reward()
        && !reward.is_finite()
    {
        return Outcome::InvalidReward(format!("verifier {name} gave {reward}"));
    }
    if let Outcome::Scored(verdict) = &mut outcome {
        // Files hold numbers only.
        verdict.metrics.retain(|(_, value)| value.is_finite());
    }
    outcome
}

/// The parts of both verdicts; what the earlier one gave stands under its plugin's name.
fn together(before: Verdict, name: &str, now: Vec<(String, f64)>) -> Vec<(String, f64)> {
    let mut all = before.metrics;
    all.push((name.to_owned(), before.reward));
    all.retain(|(name, _)| now.iter().all(|(other, _)| other != name));
    all.extend(now);
    all
}

/// What each of `n` rollouts has to bear of a call for all of them.
fn share(cost: Accounting, n: usize) -> Accounting {
    let n = u32::try_from(n).unwrap_or(u32::MAX).max(1);
    Accounting {
        cpu: cost.cpu / n,
        wall: cost.wall / n,
        host_calls: cost.host_calls / u64::from(n),
        ..cost
    }
}

fn add(a: Accounting, b: Accounting) -> Accounting {
    Accounting {
        cpu: a.cpu + b.cpu,
        wall: a.wall + b.wall,
        peak_memory_bytes: a.peak_memory_bytes.max(b.peak_memory_bytes),
        host_calls: a.host_calls + b.host_calls,
    }
}
