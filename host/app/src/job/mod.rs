//! The one loop: sample, score, train, publish, repeat.
//!
//! It knows the others only through the traits below, so its order is tested with fakes. What they are in a real run
//! is put together in `open`; what a step's row says is `row`'s.

pub mod cast;
pub mod checks;
pub mod curriculum;
pub mod evals;
pub mod hand_over;
pub mod journal;
pub mod learner;
pub mod open;
pub mod opened;
pub mod publish;
pub mod ranks;
pub mod reload;
pub mod row;
pub mod run_dir;
pub mod self_check;
pub mod shape;
pub mod start;
pub mod stop;
pub mod team;
pub mod warm_up;
pub mod watch;

#[cfg(test)]
mod tests;

use crate::error::{Failure, Result};
use crate::telemetry::Row;
use cast::{Buckets, Kept, Seen};
use checks::Checks;
use curriculum::Dials;
use shape::Shaping;
use slime_core::ports::BoxFuture;
use slime_core::{Group, RolloutRecord, Step, WeightVersion};
use slime_model::hf;
use slime_rollout::publish::Handed;
use slime_rollout::{Collected, Conservation, Taken};
use slime_trainer::{TrainConfig, TrainMetrics};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stop::Stop;
use tokio::task::JoinHandle;
use tracing::Instrument;

/// Samples a step's groups into the buffer.
pub trait Sample: Send + Sync {
    /// Until `n` groups are kept.
    fn groups(&self, step: Step, n: usize) -> BoxFuture<'_, Result<Collected>>;
    /// Give up on what is being sampled, and keep its tokens for a resumed run.
    fn halt(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
    /// The pool serves `version` from now on.
    fn serve(&self, version: WeightVersion);
    /// Sampling never pauses: it is asked for a step's groups even where none is missing, and told when a step takes them.
    fn is_continuous(&self) -> bool {
        false
    }
    /// A step takes its groups now, and trains on them until the next version is served.
    fn taking(&self) {}
}

/// The Data Buffer.
pub trait Queue: Send + Sync {
    /// Groups still to be sampled before `n` can be taken.
    fn missing(&self, step: Step, n: usize, served: WeightVersion) -> Result<usize>;
    /// The step's groups.
    fn take(&self, step: Step, n: usize, served: WeightVersion) -> Result<Taken>;
    /// They are in the weights.
    fn trained(&self, step: Step) -> Result<()>;
    /// The mean reward that steps had from each of their sources.
    fn rewards(&self, steps: Range<u64>) -> Result<Vec<(Step, String, f64)>>;
    /// What became of every rollout that was ever sampled; it must add up.
    fn conservation(&self) -> Result<Conservation>;
}

/// The trainer, whatever it computes on.
pub trait Learn: Send + Sync {
    /// Train on one rollout step's records.
    fn train(&mut self, records: &[RolloutRecord]) -> Result<Vec<TrainMetrics>>;
    /// Write a checkpoint that says so many rollout steps are finished.
    fn save(&mut self, finished: Step) -> Result<()>;
    /// Write the present weights to a directory, and nothing else. Returns the time in which they were read off the
    /// device, which is not writing.
    fn write_weights(&self, dir: &Path, form: &hf::Form) -> Result<Duration>;
    /// The present weights, for an engine of this process to take over as they are; `None` where none is beside the trainer.
    fn hand_over(&self) -> Result<Option<Arc<dyn Handed>>> {
        Ok(None)
    }
    /// What a broadcast of the present weights from the device would carry in this form; `None` where they cannot be sent
    /// as they lie there.
    fn buckets(&self, _form: &hf::Form) -> Result<Option<Arc<Buckets>>> {
        Ok(None)
    }
    /// Send them to the group that was joined. The inner error is the group's, and the trainer goes on.
    fn send(&self, _seen: &Seen) -> Result<std::result::Result<(), String>> {
        Ok(Err("there is nobody to send them".into()))
    }
    /// The present weights in this process's memory.
    fn keep(&self, _seen: &Seen) -> Result<Kept> {
        Err(Failure::run("weights of this trainer are not kept"))
    }
    /// Write the present model as an HF directory.
    fn write_model(&self, dir: &Path) -> Result<()>;
    /// Log-probs of every token but the first, at the run's temperature.
    fn log_probs(&self, tokens: &[u32]) -> Result<Vec<f64>>;
}

/// Hands the trainer's weights to the pool.
pub trait Publish: Send {
    /// As `version`. What it took goes into the step's row.
    fn publish<'a>(
        &'a mut self,
        learner: &'a dyn Learn,
        version: WeightVersion,
    ) -> BoxFuture<'a, Result<Row>>;
}

/// A teacher in servers of its own.
pub trait Teach: Send + Sync {
    /// Fill in how likely each trained token was to it.
    fn fill<'a>(&'a self, records: &'a mut [RolloutRecord]) -> BoxFuture<'a, Result<()>>;
}

/// Held-out prompts.
pub trait Evaluate: Send + Sync {
    /// Score what the pool serves, after `finished` steps.
    fn evaluate(&self, finished: Step, served: WeightVersion) -> BoxFuture<'_, Result<Row>>;
}

/// Plugins that can be loaded anew.
pub trait Reload: Send + Sync {
    /// Do so, where somebody has asked; the groups that begin from now on are theirs.
    fn before(&self, step: Step) -> Result<()>;
}

/// Where a step's numbers go.
pub trait Journal: Send {
    /// One finished step.
    fn record(&mut self, row: &Row, groups: &[Group]) -> Result<()>;
    /// What takes a while now, for people who watch; nothing when it is over.
    fn says(&self, _: &str) {}
}

/// A loop and what it runs on.
pub struct Job {
    /// Steps still to be done; a resumed run does not begin at 0.
    pub steps: Range<u64>,
    /// Groups a step trains on.
    pub groups_per_step: usize,
    /// Versions a trained token may be behind; above 0, the next step is sampled while this one trains.
    pub max_lag: u64,
    /// Makes prompts harder and easier.
    pub curriculum: Option<Dials>,
    /// What is done to records on their way to the trainer.
    pub shaping: Shaping,
    /// What the trainer was told, for the checks.
    pub train: TrainConfig,
    /// Steps between checkpoints; the last step is always saved.
    pub save_interval: u64,
    /// Steps between evaluations, and whether there is one before the first step.
    pub eval_interval: Option<(u64, bool)>,
    /// Samples.
    pub sampler: Arc<dyn Sample>,
    /// Keeps what was sampled.
    pub queue: Arc<dyn Queue>,
    /// Learns.
    pub learner: Box<dyn Learn>,
    /// Publishes.
    pub publisher: Box<dyn Publish>,
    /// Says how likely the student's tokens are to it, before they train.
    pub teacher: Option<Arc<dyn Teach>>,
    /// Evaluates.
    pub evaluator: Option<Arc<dyn Evaluate>>,
    /// Loads plugins anew.
    pub reload: Option<Box<dyn Reload>>,
    /// Takes the numbers.
    pub journal: Box<dyn Journal>,
    /// Tells that the person wants to stop.
    pub stop: Stop,
}

/// How a loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Every step is done.
    Finished,
    /// The person stopped it after so many steps; they are saved.
    Stopped(u64),
}

/// The next step's groups, being sampled.
type Ahead = JoinHandle<Result<Collected>>;

/// What goes from one step to the next.
struct State {
    served: WeightVersion,
    ahead: Option<Ahead>,
    /// What sampling ahead gave, once it was waited for.
    ready: Vec<Collected>,
    /// Evaluated before the first step; told in its row.
    baseline: Option<Row>,
    finished: u64,
    saved: u64,
    checks: Checks,
}

/// Run every step of `job`.
///
/// Weights are published before the first sample and after every update, so every token's version is one that the
/// pool really served. Where something fails, what was learned is saved before the error is returned.
///
/// # Errors
/// Whatever stopped the run.
pub async fn run(job: &mut Job) -> Result<End> {
    let start = job.steps.start;
    let mut state = State {
        served: WeightVersion(start),
        ahead: None,
        ready: Vec::new(),
        baseline: None,
        finished: start,
        saved: start,
        checks: Checks::default(),
    };
    if let Some(dials) = &job.curriculum {
        // The step before is taken in once the first one has its groups, as in a run that was not interrupted.
        dials.follow(&job.queue.rewards(0..start.saturating_sub(1))?);
    }
    let result = steps(job, &mut state).await;
    if let Some(ahead) = state.ahead.take() {
        ahead.abort();
    }
    match result {
        Ok(end) => {
            save(job, &mut state)?;
            Ok(end)
        }
        // Without the others there is nothing to save with, and a run that was taken over is not this process's to save.
        Err(error) if error.is_elsewhere() => Err(error),
        Err(error) => Err(match save(job, &mut state) {
            Ok(()) if state.finished > 0 => error.and_help(&format!(
                "{} steps are saved: continue with --resume",
                state.finished
            )),
            Ok(()) => error,
            Err(second) => error.and_help(&format!(
                "the last steps could not be saved either: {second}"
            )),
        }),
    }
}

async fn steps(job: &mut Job, state: &mut State) -> Result<End> {
    publish(job, state).await?;
    if state.finished == 0 && job.eval_interval.is_some_and(|(_, before)| before) {
        state.baseline = evaluate(job, state).await?;
    }
    for step in job.steps.clone() {
        if job.stop.is_asked() {
            return Ok(End::Stopped(state.finished));
        }
        if let Some(reload) = &job.reload {
            tokio::task::block_in_place(|| reload.before(Step(step)))?;
        }
        let span = tracing::info_span!(target: "slime", "step", step, served = state.served.0);
        if !one(job, state, Step(step)).instrument(span).await? {
            return Ok(End::Stopped(state.finished));
        }
        if state.finished.is_multiple_of(job.save_interval) {
            save(job, state)?;
        }
    }
    Ok(End::Finished)
}

/// One step; false where the person stopped it before it trained.
async fn one(job: &mut Job, state: &mut State, step: Step) -> Result<bool> {
    let begin = Instant::now();
    let n = job.groups_per_step;
    let Some(sampled) = collect(job, state, step).await? else {
        return Ok(false);
    };
    job.sampler.taking();
    let taken = job.queue.take(step, n, state.served)?;
    let mut difficulties = Row::default();
    if let Some(dials) = &job.curriculum {
        dials.tell(&mut difficulties);
        dials.follow(&job.queue.rewards(step.0.saturating_sub(1)..step.0)?);
    }
    let ahead_pays = job.max_lag > 0 && !job.sampler.is_continuous();
    if ahead_pays && step.0 + 1 < job.steps.end && !job.stop.is_asked() {
        state.ahead = ahead(job, state, Step(step.0 + 1))?;
    }

    let (mut records, shaped) = job.shaping.records(&taken.groups);
    if let Some(teacher) = &job.teacher {
        teacher.fill(&mut records).await?;
    }
    let train = Instant::now();
    let trained = tokio::task::block_in_place(|| job.learner.train(&records))?;
    let train = train.elapsed();
    job.queue.trained(step)?;
    state.finished = step.0 + 1;

    let mut row = row::of_step(step, &sampled, &taken, &trained, train);
    shaped.tell(&job.shaping, &mut row);
    row.0.extend(difficulties.0);
    for sentence in state.checks.look(step, &job.train, &taken, &trained) {
        tracing::warn!(target: "slime", "{sentence}");
    }
    row::conserve(&mut row, step, job.queue.conservation()?)?;
    let after = publish_and_evaluate(job, state, &mut row).await;
    row.set("perf/step_time", begin.elapsed().as_secs_f64());
    // What was trained is told even where the publish failed: a resumed run begins after it.
    job.journal.record(&row, &taken.groups)?;
    after.map(|()| true)
}

/// Fill the buffer for `step`; `None` where the person stopped it.
async fn collect(job: &Job, state: &mut State, step: Step) -> Result<Option<Vec<Collected>>> {
    let mut sampled = std::mem::take(&mut state.ready);
    let missing = job.queue.missing(step, job.groups_per_step, state.served)?;
    if missing > 0 || job.sampler.is_continuous() {
        let mut groups = job.sampler.groups(step, missing);
        tokio::select! {
            collected = &mut groups => sampled.push(collected?),
            () = job.stop.asked() => {
                give_up(job, groups).await;
                return Ok(None);
            }
        }
    }
    Ok(Some(sampled))
}

/// How long requests have to come back with what they have.
const GIVING_UP: Duration = Duration::from_secs(10);

/// Let what is being sampled come back with its tokens, so that a resumed run goes on from them.
async fn give_up<T>(job: &Job, sampling: impl Future<Output = T>) {
    let both = async { tokio::join!(job.sampler.halt(), sampling) };
    // Servers that do not answer keep nobody from stopping.
    let _ = tokio::time::timeout(GIVING_UP, both).await;
}

/// Begin to sample `step` with the weights served now.
fn ahead(job: &Job, state: &State, step: Step) -> Result<Option<Ahead>> {
    // It trains a version later than it is sampled: what is too old by then is missing now.
    let missing = job
        .queue
        .missing(step, job.groups_per_step, state.served.next())?;
    let sampler = Arc::clone(&job.sampler);
    let work = async move { sampler.groups(step, missing).await };
    Ok((missing > 0).then(|| tokio::spawn(work.in_current_span())))
}

async fn publish_and_evaluate(job: &mut Job, state: &mut State, row: &mut Row) -> Result<()> {
    if let Some(mut ahead) = state.ahead.take() {
        // Weights never change under a request in flight: which tokens they would write would depend on timing.
        let wait = Instant::now();
        tokio::select! {
            collected = &mut ahead => state.ready.push(joined(collected)?),
            () = job.stop.asked() => {
                give_up(job, &mut ahead).await;
                ahead.abort();
            }
        }
        row.set("perf/train_wait_time", wait.elapsed().as_secs_f64());
    }
    let begin = Instant::now();
    let parts = publish(job, state).await?;
    row.set("perf/update_weights_time", begin.elapsed().as_secs_f64());
    row.0.extend(parts.0);
    let is_last = state.finished == job.steps.end;
    let due = job
        .eval_interval
        .is_some_and(|(interval, _)| is_last || state.finished.is_multiple_of(interval));
    let baseline = state.baseline.take();
    let evaluated = if due && !job.stop.is_asked() {
        evaluate(job, state).await?
    } else {
        None
    };
    if let Some(evaluated) = evaluated.or(baseline) {
        row.0.extend(evaluated.0);
    }
    Ok(())
}

async fn publish(job: &mut Job, state: &mut State) -> Result<Row> {
    let next = state.served.next();
    let parts = job.publisher.publish(&*job.learner, next).await?;
    job.sampler.serve(next);
    state.served = next;
    Ok(parts)
}

async fn evaluate(job: &Job, state: &State) -> Result<Option<Row>> {
    let Some(evaluator) = &job.evaluator else {
        return Ok(None);
    };
    let begin = Instant::now();
    let span = tracing::info_span!(target: "slime", "eval", finished = state.finished);
    tokio::select! {
        row = evaluator.evaluate(Step(state.finished), state.served).instrument(span) => {
            let mut row = row?;
            row.set("perf/eval_time", begin.elapsed().as_secs_f64());
            Ok(Some(row))
        }
        () = job.stop.asked() => Ok(None),
    }
}

fn save(job: &mut Job, state: &mut State) -> Result<()> {
    if state.finished > state.saved {
        let span = tracing::info_span!(target: "slime", "save", finished = state.finished);
        job.journal.says("· save");
        tokio::task::block_in_place(|| span.in_scope(|| job.learner.save(Step(state.finished))))?;
        job.journal.says("");
        state.saved = state.finished;
    }
    Ok(())
}

fn joined(result: Result<Result<Collected>, tokio::task::JoinError>) -> Result<Collected> {
    result.unwrap_or_else(|e| Err(Failure::run(format!("sampling ahead stopped: {e}"))))
}

/// Seconds as a number for a row.
pub fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}
