//! One rollout and one group: generator, then verifier, then a record of what became of it.
//!
//! Every random choice is fixed by the seed, which is fixed by (run seed, prompt, draw, index). What
//! goes wrong is an outcome of that rollout; its siblings and the run go on.

use super::live::{Live, Origin, Tally};
use super::render::{prompt_text, prompt_tokens};
use super::scoring::Scoring;
use super::turns::{Sink, TurnRecord, Turns};
use crate::RolloutError;
use crate::seed::{hash64, rollout_seed};
use serde_json::{Map, Value};
use slime_core::ports::{
    CodecError, Generated, Generator, Policy, ScoreRequest, Scored, TextCodec, Verifier,
};
use slime_core::{
    Accounting, Group, GroupId, Outcome, Prompt, Rollout, RolloutId, SamplingParams, Step,
    Trajectory, WeightVersion,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What one rollout may use up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Prompt and response together.
    pub context_tokens: u32,
    /// Everything after the prompt, whoever wrote it. `None`: the context is the limit. One turn is
    /// bounded by `max_new_tokens`.
    pub response_tokens: Option<u32>,
    /// Turns of the policy.
    pub max_turns: u32,
}

/// How a run samples.
#[derive(Clone, Debug)]
pub struct SamplerConfig {
    /// Every seed derives from it.
    pub run_seed: u64,
    /// Written before every request id, so that two runs may share a server.
    pub rid_prefix: String,
    /// Rollouts of one prompt.
    pub n_samples_per_prompt: u32,
    /// How the policy is asked.
    pub params: SamplingParams,
    /// What one rollout may use up.
    pub limits: Limits,
    /// Handed to the chat template (`apply_chat_template_kwargs`).
    pub template_kwargs: Map<String, Value>,
    /// How often a rollout that the engine or the host failed starts again from its prompt.
    pub infra_retries: u32,
    /// How often a step draws more prompts because its filters dropped groups.
    pub max_refills: u32,
    /// Prompts that a round draws at least; what a step does not need waits for the next.
    pub over_sampling: usize,
}

impl SamplerConfig {
    /// The defaults, for a model of this context.
    pub fn new(
        run_seed: u64,
        n_samples_per_prompt: u32,
        params: SamplingParams,
        context_tokens: u32,
    ) -> Self {
        Self {
            run_seed,
            rid_prefix: "run".into(),
            n_samples_per_prompt,
            params,
            limits: Limits {
                context_tokens,
                response_tokens: None,
                max_turns: 1024,
            },
            template_kwargs: Map::new(),
            infra_retries: 2,
            max_refills: 20,
            over_sampling: 0,
        }
    }
}

/// Drives rollouts. Cheap to clone.
#[derive(Clone)]
pub struct Driver {
    /// Who samples.
    pub policy: Arc<dyn Policy>,
    /// The model's tokenizer and template.
    pub codec: Arc<dyn TextCodec>,
    /// Who drives a rollout.
    pub generator: Arc<dyn Generator>,
    /// Who scores it.
    pub scoring: Arc<Scoring>,
    /// How.
    pub config: Arc<SamplerConfig>,
    pub(super) served: Arc<AtomicU64>,
    pub(super) halted: Arc<AtomicBool>,
    /// Who drives and scores the groups that begin from now on, where that has changed.
    pub(super) relief: Arc<Mutex<Option<Crew>>>,
}

/// Who drives rollouts, and who scores them one by one.
#[derive(Clone)]
pub(super) struct Crew {
    generator: Arc<dyn Generator>,
    verifier: Option<Arc<dyn Verifier>>,
    by_source: BTreeMap<String, Arc<dyn Verifier>>,
}

/// What a group starts from.
pub(super) struct Assignment {
    pub(super) step: Step,
    pub(super) group: GroupId,
    pub(super) draw: u64,
    pub(super) attempt: u32,
    pub(super) prompt: Prompt,
    /// Rollouts that exist already.
    pub(super) done: Vec<Rollout>,
    /// Turns of rollouts that were cut off, by index.
    pub(super) begun: Vec<(u32, TurnRecord)>,
    /// Where turns are kept.
    pub(super) keep: Option<KeepTurn>,
}

/// Keeps a turn of the rollout of this index.
pub(super) type KeepTurn = Arc<dyn Fn(u32, &TurnRecord) + Send + Sync>;

impl Driver {
    /// A driver that serves nothing yet.
    pub fn new(
        policy: Arc<dyn Policy>,
        codec: Arc<dyn TextCodec>,
        generator: Arc<dyn Generator>,
        scoring: impl Into<Scoring>,
        config: SamplerConfig,
    ) -> Self {
        Self {
            policy,
            codec,
            generator,
            scoring: Arc::new(scoring.into()),
            config: Arc::new(config),
            served: Arc::default(),
            halted: Arc::default(),
            relief: Arc::default(),
        }
    }

    /// Let others drive and score the groups that begin from now on. A group that has begun ends with those that it
    /// began with; group verifiers and shapers stay.
    pub fn relieve(&self, generator: Arc<dyn Generator>, scoring: &Scoring) {
        *crate::lock(&self.relief) = Some(Crew {
            generator,
            verifier: scoring.verifier.clone(),
            by_source: scoring.by_source.clone(),
        });
    }

    /// This driver as it is now, whoever comes later.
    fn pinned(&self) -> Self {
        let mut pinned = self.clone();
        pinned.relief = Arc::default();
        if let Some(crew) = crate::lock(&self.relief).clone() {
            pinned.generator = crew.generator;
            pinned.scoring = Arc::new(Scoring {
                verifier: crew.verifier,
                by_source: crew.by_source,
                ..(*self.scoring).clone()
            });
        }
        pinned
    }

    /// The same driver under other request ids, so that both may be at work.
    pub(super) fn renamed(&self, suffix: &str) -> Self {
        let mut config = (*self.config).clone();
        config.rid_prefix = format!("{}-{suffix}", config.rid_prefix);
        Self {
            config: Arc::new(config),
            ..self.clone()
        }
    }

    /// The version that the pool serves.
    pub fn served(&self) -> WeightVersion {
        WeightVersion(self.served.load(Ordering::Relaxed))
    }

    /// The pool serves `version` from now on.
    pub fn serve(&self, version: WeightVersion) {
        self.served.store(version.0, Ordering::Relaxed);
    }

    pub(super) fn seeds(&self, prompt: &Prompt, draw: u64) -> Vec<u64> {
        (0..self.config.n_samples_per_prompt)
            .map(|index| rollout_seed(self.config.run_seed, &prompt.id, draw, index))
            .collect()
    }

    /// All rollouts of one prompt, concurrently. `on_rollout` hears of each as it ends.
    pub(super) async fn group(
        &self,
        from: Assignment,
        tally: &Arc<Tally>,
        on_rollout: impl Fn(&Rollout) -> Result<(), RolloutError>,
    ) -> Result<Group, RolloutError> {
        let pinned = &self.pinned();
        let Assignment {
            step,
            group,
            draw,
            attempt,
            prompt,
            mut done,
            begun,
            keep,
        } = from;
        let prompt = Arc::new(prompt);
        let rendered = match prompt_tokens(
            pinned.codec.as_ref(),
            &prompt,
            &pinned.config.template_kwargs,
        ) {
            // No row of this run will do any better.
            Err(error @ CodecError::NoTemplate) => {
                return Err(RolloutError::Render {
                    prompt: prompt.id.to_string(),
                    reason: error.to_string(),
                });
            }
            other => pinned.fits(&prompt, other),
        };
        let seeds = pinned.seeds(&prompt, draw);
        done.retain(|r| seeds.get(r.index as usize) == Some(&r.seed));
        let first = group.0 * u64::from(pinned.config.n_samples_per_prompt);
        let missing = (0u32..)
            .zip(&seeds)
            .filter(|(index, _)| !done.iter().any(|r| r.index == *index));
        let runs: Vec<_> = missing
            .map(|(index, &seed)| {
                let id = RolloutId(first + u64::from(index));
                let (prompt, rendered, on_rollout) = (&prompt, &rendered, &on_rollout);
                let of_this = begun.iter().filter(|(i, _)| *i == index);
                let sink = keep.clone().map(|keep| -> Sink {
                    Box::new(move |record: &TurnRecord| keep(index, record))
                });
                let turns = Arc::new(Turns::new(of_this.map(|(_, r)| r.clone()).collect(), sink));
                Box::pin(async move {
                    let (rollout, waits) = match rendered {
                        Ok(tokens) => {
                            pinned
                                .rollout(prompt, tokens, id, index, attempt, seed, tally, &turns)
                                .await
                        }
                        Err((tokens, outcome)) => {
                            let rollout = Rollout {
                                id,
                                index,
                                seed,
                                trajectories: vec![Trajectory::from_prompt(tokens.clone())],
                                outcome: outcome.clone(),
                                scoring: Accounting::default(),
                                shaped: None,
                            };
                            (rollout, false)
                        }
                    };
                    // What waits for its group has not ended: should the process die, it goes on from its turns.
                    if !waits {
                        on_rollout(&rollout)?;
                    }
                    Ok::<_, RolloutError>((rollout, waits))
                })
            })
            .collect();
        let ended = futures::future::try_join_all(runs).await?;
        let waiting = ended.iter().filter(|(_, waits)| *waits);
        let waiting: BTreeSet<u32> = waiting.map(|(rollout, _)| rollout.index).collect();
        let mut rollouts: Vec<Rollout> = ended.into_iter().map(|(rollout, _)| rollout).collect();
        rollouts.append(&mut done);
        rollouts.sort_by_key(|r| r.index);
        let mut group = Group {
            id: group,
            step,
            prompt: Arc::unwrap_or_clone(prompt),
            rollouts,
        };
        if !pinned.gave_up(&group) {
            let codec = pinned.codec.as_ref();
            pinned
                .scoring
                .judge(codec, &mut group, waiting.clone())
                .await;
            let waited = |r: &&Rollout| waiting.contains(&r.index);
            group
                .rollouts
                .iter()
                .filter(waited)
                .try_for_each(on_rollout)?;
        }
        Ok(group)
    }

    /// Whether the run was stopped before every rollout of the group had ended.
    pub(super) fn gave_up(&self, group: &Group) -> bool {
        let cancelled = |r: &Rollout| matches!(r.outcome, Outcome::Cancelled(_));
        self.halted.load(Ordering::Relaxed) && group.rollouts.iter().any(cancelled)
    }

    /// A prompt that cannot be sampled from is an outcome that names its row.
    fn fits(
        &self,
        prompt: &Prompt,
        tokens: Result<Vec<u32>, CodecError>,
    ) -> Result<Vec<u32>, (Vec<u32>, Outcome)> {
        let id = &prompt.id;
        let tokens = tokens
            .map_err(|error| (Vec::new(), Outcome::Error(format!("prompt {id}: {error}"))))?;
        let (len, context) = (tokens.len(), self.config.limits.context_tokens);
        if len == 0 {
            return Err((
                tokens,
                Outcome::Error(format!(
                    "prompt {id} renders to no tokens; give it some text"
                )),
            ));
        }
        if len >= context as usize {
            let reason = format!(
                "prompt {id} is {len} tokens, and the context holds {context}: no room for a response. Shorten or leave out that row, or raise the context length"
            );
            return Err((tokens, Outcome::LimitExceeded(reason)));
        }
        Ok(tokens)
    }

    /// One rollout, and whether it waits for a verdict of its group. Infrastructure failures start its generator again;
    /// turns that were kept are not sampled again.
    #[expect(
        clippy::too_many_arguments,
        reason = "every one of them names the rollout"
    )]
    #[tracing::instrument(level = "debug", name = "trajectory", skip_all, fields(rollout = %id, prompt = %prompt.id, index))]
    pub(super) async fn rollout(
        &self,
        prompt: &Arc<Prompt>,
        tokens: &[u32],
        id: RolloutId,
        index: u32,
        attempt: u32,
        seed: u64,
        tally: &Arc<Tally>,
        turns: &Arc<Turns>,
    ) -> (Rollout, bool) {
        let mut tries = 0;
        loop {
            let origin = Origin {
                policy: Arc::clone(&self.policy),
                codec: Arc::clone(&self.codec),
                prompt: Arc::clone(prompt),
                template_kwargs: Arc::new(self.config.template_kwargs.clone()),
                params: self.config.params.clone(),
                limits: self.config.limits,
                seed,
                rid: format!("{}-{id}-{attempt}-{tries}", self.config.rid_prefix),
                session: hash64(
                    "session",
                    &[self.config.rid_prefix.as_bytes(), &id.0.to_le_bytes()],
                ),
                served: Arc::clone(&self.served),
                tally: Arc::clone(tally),
                ownership: Default::default(),
                turns: Arc::clone(turns),
                next_id: AtomicU64::new(0),
            };
            let live = Arc::new(Live::start(Arc::new(origin), tokens.to_vec()));
            let Generated {
                trajectories,
                failure,
                ..
            } = self.generator.generate(live, seed).await;
            if matches!(failure, Some(Outcome::InfraFailed(_))) && tries < self.config.infra_retries
            {
                tracing::debug!(rollout = %id, tries, "an infrastructure failure; the rollout starts again");
                tries += 1;
                continue;
            }
            let mut waits = false;
            let (outcome, scoring) = match failure {
                Some(outcome) => (outcome, Accounting::default()),
                None if trajectories.is_empty() => (
                    Outcome::Error(format!(
                        "generator {} returned no trajectory",
                        self.generator.name()
                    )),
                    Accounting::default(),
                ),
                None => match self.score(prompt, &trajectories, seed).await {
                    Some(scored) => (scored.outcome, scored.cost),
                    None => {
                        waits = true;
                        (
                            Outcome::Error("not scored yet".into()),
                            Accounting::default(),
                        )
                    }
                },
            };
            let trajectories =
                if trajectories.is_empty() && !matches!(outcome, Outcome::InfraFailed(_)) {
                    vec![Trajectory::from_prompt(tokens.to_vec())]
                } else {
                    trajectories
                };
            let rollout = Rollout {
                id,
                index,
                seed,
                trajectories,
                outcome,
                scoring,
                shaped: None,
            };
            return (rollout, waits);
        }
    }

    #[tracing::instrument(level = "debug", name = "score", skip_all)]
    async fn score(
        &self,
        prompt: &Prompt,
        trajectories: &[Trajectory],
        seed: u64,
    ) -> Option<Scored> {
        let request = ScoreRequest {
            prompt: prompt_text(self.codec.as_ref(), prompt),
            response: self.written(trajectories),
            label: prompt.label.clone(),
            metadata: prompt.metadata.clone(),
            finish: trajectories.last().and_then(|t| t.finish),
            seed,
        };
        self.scoring.score(&prompt.id.source, request).await
    }

    pub(super) fn written(&self, trajectories: &[Trajectory]) -> String {
        written(&*self.codec, trajectories)
    }
}

/// What the policy wrote, one line a turn: special tokens and end tokens are left out, and what tools
/// said is too, so that no tool can write the answer.
pub(super) fn written(codec: &dyn TextCodec, trajectories: &[Trajectory]) -> String {
    let mut turns: Vec<Vec<u32>> = Vec::new();
    for trajectory in trajectories {
        let mut inside = false;
        for segment in trajectory.segments() {
            let policy = matches!(segment.origin, slime_core::Origin::Policy { .. });
            match turns.last_mut() {
                Some(turn) if policy && inside => turn.extend_from_slice(&segment.tokens),
                _ if policy => turns.push(segment.tokens.clone()),
                _ => {}
            }
            inside = policy;
        }
    }
    let ends = codec.eos_token_ids();
    let text = turns.iter().map(|turn| {
        let end = usize::from(turn.last().is_some_and(|token| ends.contains(token)));
        codec.decode(&turn[..turn.len() - end], true)
    });
    text.collect::<Vec<_>>().join("\n")
}
