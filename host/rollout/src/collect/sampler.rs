//! A step's groups: claim draws, sample all of them at once, filter, and top up until enough are kept.
//!
//! Which prompts a step gets, in which order, and with which seeds never depends on what finishes first.
//! The sampler goes on while weights are published and while a step trains; how old a group may be is
//! the buffer's to judge.

use super::driver::{Assignment, Driver, KeepTurn};
use super::filter::{GroupFilter, Judgement};
use super::ledger::{Claim, Ledger};
use super::live::Tally;
use super::metrics::{self, Metrics};
use super::progress::{Progress, Silent};
use crate::RolloutError;
use slime_core::ports::Source;
use slime_core::{Group, Outcome, Rollout, Step, WeightVersion};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::task::JoinSet;
use tracing::Instrument;

/// Samples groups for steps.
pub struct Sampler {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) driver: Driver,
    source: Arc<dyn Source>,
    pub(super) ledger: Arc<dyn Ledger>,
    filters: Vec<Arc<dyn GroupFilter>>,
    pub(super) progress: Arc<dyn Progress>,
}

/// What a step's sampling gave.
#[derive(Debug)]
pub struct Collected {
    /// The groups kept, by id. The ledger has them already.
    pub groups: Vec<Group>,
    /// How many groups `metrics` are of: those kept and those that filters dropped.
    pub num_sampled: usize,
    /// Filters had a say in what was kept.
    pub is_filtered: bool,
    /// Of everything sampled, what filters dropped included.
    pub metrics: Metrics,
    /// Groups dropped, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// What the user should know, in sentences.
    pub warnings: Vec<String>,
}

/// Groups whose prompt fills the context are dropped for this reason, and other prompts are drawn.
const OVERLONG: &str = "overlong_prompt";

/// How one claim ended.
pub(super) enum End {
    Kept(Group),
    Dropped(Group, String),
    /// No rollout of it reached the policy; the draw was given back.
    NoEngine(String),
    /// It was given up; what it has is kept, and the draw was given back.
    Halted,
}

impl Sampler {
    /// A sampler that draws from `source` and keeps account in `ledger`.
    pub fn new(driver: Driver, source: Arc<dyn Source>, ledger: Arc<dyn Ledger>) -> Self {
        Self {
            inner: Arc::new(Inner {
                driver,
                source,
                ledger,
                filters: Vec::new(),
                progress: Arc::new(Silent),
            }),
        }
    }

    /// Drop groups that any of these refuses; the first reason counts.
    #[must_use]
    pub fn with_filters(self, filters: Vec<Arc<dyn GroupFilter>>) -> Self {
        self.map(|inner| inner.filters = filters)
    }

    /// Tell `progress` what happens.
    #[must_use]
    pub fn with_progress(self, progress: Arc<dyn Progress>) -> Self {
        self.map(|inner| inner.progress = progress)
    }

    fn map(self, change: impl FnOnce(&mut Inner)) -> Self {
        let old = &self.inner;
        let mut inner = Inner {
            driver: old.driver.clone(),
            source: Arc::clone(&old.source),
            ledger: Arc::clone(&old.ledger),
            filters: old.filters.clone(),
            progress: Arc::clone(&old.progress),
        };
        change(&mut inner);
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Who drives this sampler's rollouts; also what [`super::evaluate`] takes.
    pub fn driver(&self) -> &Driver {
        &self.inner.driver
    }

    /// The pool serves `version` from now on. Requests in flight go on.
    pub fn serve(&self, version: WeightVersion) {
        self.inner.driver.serve(version);
    }

    /// Give up on what is being sampled, and keep its tokens: [`Self::groups`] returns, and the draws that are not
    /// complete go on from them next time. Nothing is sampled any more.
    pub async fn halt(&self) {
        self.inner.halt().await;
    }

    /// Sample until `n` groups are kept. Dropping the future gives up: requests are aborted, and the
    /// draws that are not complete come again.
    ///
    /// # Errors
    /// No engine can be reached, the source is at its end, the ledger cannot be written, no prompt can be
    /// rendered or fits, or the filters dropped too much ([`RolloutError::Starved`]). Groups that were complete by then are in the ledger.
    #[tracing::instrument(name = "collect", skip_all, fields(%step, n))]
    pub async fn groups(&self, step: Step, n: usize) -> Result<Collected, RolloutError> {
        let inner = &self.inner;
        let begin = Instant::now();
        let tally = Arc::new(Tally::default());
        let (mut kept, mut refused) = (Vec::new(), Vec::new());
        let mut dropped: BTreeMap<String, u64> = BTreeMap::new();
        // A prompt that was left out, and why.
        let mut overlong: Option<(String, String)> = None;
        let mut refills = 0;
        inner
            .progress
            .begin(step, n, inner.driver.config.n_samples_per_prompt);
        while kept.len() < n {
            if refills > inner.driver.config.max_refills {
                if let Some((prompt, reason)) =
                    overlong.filter(|_| dropped.len() == 1 && kept.is_empty())
                {
                    return Err(RolloutError::Render { prompt, reason });
                }
                let reasons: Vec<_> = dropped
                    .iter()
                    .map(|(reason, count)| format!("{reason} {count}×"))
                    .collect();
                return Err(RolloutError::Starved {
                    step,
                    kept: kept.len(),
                    wanted: n,
                    refills: refills - 1,
                    dropped: reasons.join(", "),
                });
            }
            let before = kept.len() + refused.len();
            let mut unreached = None;
            let round = (n - kept.len()).max(inner.driver.config.over_sampling);
            for end in self.round(step, round, &tally).await? {
                match end {
                    End::Kept(group) => kept.push(group),
                    End::Dropped(group, reason) => {
                        if reason == OVERLONG && overlong.as_ref().is_none() {
                            let prompt = group.prompt.id.to_string();
                            let detail = group.rollouts.first().map_or("", |r| r.outcome.detail());
                            let detail = detail.trim_start_matches(&format!("prompt {prompt} "));
                            overlong = Some((prompt, format!("it {detail}")));
                        }
                        *dropped.entry(reason).or_default() += 1;
                        refused.push(group);
                    }
                    End::NoEngine(reason) => unreached = Some(reason),
                    End::Halted => return Err(RolloutError::Halted),
                }
            }
            if let Some(reason) = unreached
                && before == kept.len() + refused.len()
            {
                return Err(RolloutError::NoEngine { reason });
            }
            refills += 1;
        }
        inner.progress.end(step);
        let mut collected = inner.told(step, kept, refused, dropped, &tally, begin);
        if let (Some((prompt, reason)), Some(count)) = (overlong, collected.dropped.get(OVERLONG)) {
            collected.warnings.push(format!("step {step}: {count} prompts did not fit and were left out, {prompt} among them: {reason}"));
        }
        for warning in &collected.warnings {
            tracing::warn!("{warning}");
        }
        Ok(collected)
    }

    async fn round(
        &self,
        step: Step,
        n: usize,
        tally: &Arc<Tally>,
    ) -> Result<Vec<End>, RolloutError> {
        let mut tasks = JoinSet::new();
        for claim in self.inner.ledger.claim(step, n)? {
            let (inner, tally) = (Arc::clone(&self.inner), Arc::clone(tally));
            let held = Held::new(&inner.ledger, claim);
            let task = async move { inner.one(step, held, &tally).await };
            tasks.spawn(task.instrument(tracing::Span::current()));
        }
        let mut ends = Vec::with_capacity(tasks.len());
        while let Some(end) = tasks.join_next().await {
            match end {
                Ok(end) => ends.push(end?),
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                // Nobody cancels these tasks but the drop of this future.
                Err(_) => {}
            }
        }
        Ok(ends)
    }
}

impl Inner {
    /// One claim, from its prompt to its place in the ledger.
    pub(super) async fn one(
        &self,
        step: Step,
        mut held: Held,
        tally: &Arc<Tally>,
    ) -> Result<End, RolloutError> {
        let mut done = std::mem::take(&mut held.claim.done);
        let mut begun = std::mem::take(&mut held.claim.begun);
        let claim = held.claim.clone();
        let prompt = self
            .source
            .draw(claim.draw, self.driver.config.run_seed)
            .await?;
        let seeds = self.driver.seeds(&prompt, claim.draw);
        if !self.ledger.begin(&claim, &prompt, &seeds)? {
            done.clear();
            begun.clear();
        }
        let from = Assignment {
            step,
            group: claim.group,
            draw: claim.draw,
            attempt: claim.attempt,
            prompt,
            done,
            begun,
            keep: Some(self.keeper(&claim)),
        };
        let on_rollout = |rollout: &Rollout| {
            let num_tokens = rollout
                .trajectories
                .iter()
                .map(slime_core::Trajectory::num_sampled)
                .sum();
            self.progress.rollout(step, &rollout.outcome, num_tokens);
            self.ledger.rollout(&claim, rollout)
        };
        let mut group = self.driver.group(from, tally, on_rollout).await?;
        if self.driver.gave_up(&group) {
            return Ok(End::Halted);
        }
        if let Some(reason) = unreached(&group) {
            return Ok(End::NoEngine(reason));
        }
        if let Some(reason) = self.refusal(&mut group).await {
            self.ledger.discard(&claim, &group, &reason)?;
            held.complete = true;
            self.progress.group(step, Some(&reason));
            return Ok(End::Dropped(group, reason));
        }
        self.ledger.keep(&claim, &group)?;
        held.complete = true;
        self.progress.group(step, None);
        Ok(End::Kept(group))
    }
}

impl Inner {
    pub(super) async fn halt(&self) {
        self.driver.halted.store(true, Ordering::Relaxed);
        self.driver.policy.halt().await;
    }

    pub(super) fn is_halted(&self) -> bool {
        self.driver.halted.load(Ordering::Relaxed)
    }

    /// Keeps turns of a claim's rollouts in the ledger.
    fn keeper(&self, claim: &Claim) -> KeepTurn {
        let (ledger, claim) = (Arc::clone(&self.ledger), claim.clone());
        Arc::new(move |index, record| {
            if let Err(error) = ledger.turn(&claim, index, record) {
                // The rollout's end is written too, and stops the run.
                tracing::warn!(%error, "tokens of an unfinished rollout could not be kept");
            }
        })
    }

    /// Why the group is not trained on: its prompt left no room for a response, a filter said so, or no shaper could say
    /// what it is worth. Filters read rewards as they were given, before any shaping.
    async fn refusal(&self, group: &mut Group) -> Option<String> {
        let context = self.driver.config.limits.context_tokens as usize;
        let prompts = group.rollouts.iter().map(|r| r.trajectories.first());
        if prompts.flatten().any(|t| t.prompt_length() >= context) {
            return Some(OVERLONG.to_owned());
        }
        for filter in &self.filters {
            if let Judgement::Drop(reason) = filter.judge(group).await {
                return Some(reason);
            }
        }
        let codec = self.driver.codec.as_ref();
        self.driver.scoring.shape(codec, group).await.err()
    }
}

impl Inner {
    /// A step's groups and numbers, in order.
    pub(super) fn told(
        &self,
        step: Step,
        mut kept: Vec<Group>,
        mut refused: Vec<Group>,
        dropped: BTreeMap<String, u64>,
        tally: &Tally,
        begin: Instant,
    ) -> Collected {
        kept.sort_by_key(|group| group.id);
        refused.sort_by_key(|group| group.id);
        let sampled: Vec<&Group> = kept.iter().chain(&refused).collect();
        let scoring = &self.driver.scoring;
        let metrics = metrics::step(&sampled, &dropped, tally, begin.elapsed(), scoring);
        let warnings = metrics::warnings(step, &sampled);
        Collected {
            num_sampled: sampled.len(),
            is_filtered: !self.filters.is_empty(),
            groups: kept,
            metrics,
            dropped,
            warnings,
        }
    }
}

/// Why no rollout of the group was sampled at all, if none was.
fn unreached(group: &Group) -> Option<String> {
    let mut reasons = group.rollouts.iter().map(|r| match &r.outcome {
        Outcome::InfraFailed(reason) => Some(reason.clone()),
        _ => None,
    });
    let first = reasons.next()??;
    reasons.all(|r| r.is_some()).then_some(first)
}

/// A claim that goes back when it is dropped before it is complete.
pub(super) struct Held {
    ledger: Arc<dyn Ledger>,
    claim: Claim,
    complete: bool,
}

impl Held {
    pub(super) fn new(ledger: &Arc<dyn Ledger>, claim: Claim) -> Self {
        Self {
            ledger: Arc::clone(ledger),
            claim,
            complete: false,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.complete {
            self.ledger.release(&self.claim);
        }
    }
}
