//! Sampling without pause: groups are in flight while steps train and while weights are published.
//!
//! At any time at most `capacity` groups are claimed, wait to be taken or train with weights that are not served yet. So of
//! groups that end in the order they began none is too old when it trains: the one that begins now is preceded by
//! `capacity` others, and by as many steps as these make. How old a group may be is the buffer's to judge. Which groups a step gets depends on which finish first: a run that
//! must repeat bit for bit samples and trains in turn. It refuses to know a trainer. Read [`super::Sampler`] first.

use super::live::Tally;
use super::sampler::{Collected, End, Held, Inner, Sampler};
use crate::{RolloutError, lock};
use slime_core::{Group, Step, WeightVersion};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinHandle, JoinSet};

/// After an attempt that reached no engine, before the next.
const NO_ENGINE_PAUSE: Duration = Duration::from_millis(200);

/// Keeps groups in flight. Dropping it gives up: requests are aborted, and draws that are not complete come again.
pub struct Continuous {
    shared: Arc<Shared>,
    ends: tokio::sync::Mutex<mpsc::UnboundedReceiver<Result<End, RolloutError>>>,
    task: JoinHandle<()>,
    groups_per_step: usize,
}

struct Shared {
    inner: Arc<Inner>,
    capacity: usize,
    /// The step that asks now.
    step: AtomicU64,
    /// Groups that a step has taken, until its weights are served.
    training: AtomicUsize,
    /// Counters of the requests since the last step was told.
    tally: Mutex<Arc<Tally>>,
    wake: Notify,
}

impl Continuous {
    /// Begin to sample, for steps of `groups_per_step` groups. `capacity` groups are in flight, wait or train, at least a step's.
    ///
    /// Must be called inside a tokio runtime.
    pub fn start(sampler: &Sampler, first: Step, groups_per_step: usize, capacity: usize) -> Self {
        let shared = Arc::new(Shared {
            inner: Arc::clone(&sampler.inner),
            capacity: capacity.max(groups_per_step),
            step: AtomicU64::new(first.0),
            training: AtomicUsize::new(0),
            tally: Mutex::default(),
            wake: Notify::new(),
        });
        let (sender, ends) = mpsc::unbounded_channel();
        let task = tokio::spawn(keep_going(Arc::clone(&shared), sender));
        Self {
            shared,
            ends: tokio::sync::Mutex::new(ends),
            task,
            groups_per_step,
        }
    }

    /// The pool serves `version` from now on: what it trained on makes room. Requests in flight go on.
    pub fn serve(&self, version: WeightVersion) {
        self.shared.inner.driver.serve(version);
        self.shared.training.store(0, Ordering::Relaxed);
        self.shared.wake.notify_one();
    }

    /// Give up on what is in flight, and keep its tokens: [`Self::groups`] returns when all of it has ended, and the
    /// draws that are not complete go on from them next time. Nothing is sampled any more.
    pub async fn halt(&self) {
        self.shared.inner.halt().await;
        self.shared.wake.notify_one();
    }

    /// A step takes its groups now, and trains on them until the next version is served. Said before they leave the
    /// buffer, so that at no moment there seems to be room.
    pub fn taking(&self) {
        let groups = self.groups_per_step;
        self.shared.training.store(groups, Ordering::Relaxed);
    }

    /// Wait until `step` can take its groups, and tell what ended since the last call.
    ///
    /// # Errors
    /// As [`Sampler::groups`].
    #[tracing::instrument(name = "collect", skip_all, fields(%step))]
    pub async fn groups(&self, step: Step) -> Result<Collected, RolloutError> {
        let Shared { inner, .. } = &*self.shared;
        let begin = Instant::now();
        self.shared.step.store(step.0, Ordering::Relaxed);
        let mut ends = self.ends.lock().await;
        let mut told = Told::default();
        inner.progress.begin(
            step,
            self.groups_per_step,
            inner.driver.config.n_samples_per_prompt,
        );
        loop {
            while let Ok(end) = ends.try_recv() {
                told.add(end?);
            }
            let served = inner.driver.served();
            if inner.ledger.missing(step, self.groups_per_step, served)? == 0 {
                break;
            }
            // What was too old is dropped now, and there is room.
            self.shared.wake.notify_one();
            told.starves(step, self.groups_per_step, inner.driver.config.max_refills)?;
            match ends.recv().await {
                Some(end) => told.add(end?),
                None if inner.is_halted() => return Err(RolloutError::Halted),
                None => return Err(gone()),
            }
        }
        inner.progress.end(step);
        let tally = std::mem::take(&mut *lock(&self.shared.tally));
        let Told {
            kept,
            refused,
            dropped,
            ..
        } = told;
        let collected = inner.told(step, kept, refused, dropped, &tally, begin);
        for warning in &collected.warnings {
            tracing::warn!("{warning}");
        }
        Ok(collected)
    }
}

impl Drop for Continuous {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The sampling task ended without a word: it panicked.
fn gone() -> RolloutError {
    RolloutError::NoEngine {
        reason: "the sampling task has ended".into(),
    }
}

/// What ended since a step began to wait.
#[derive(Default)]
struct Told {
    kept: Vec<Group>,
    refused: Vec<Group>,
    dropped: BTreeMap<String, u64>,
    /// The last reason why no engine was reached, and how often in a row.
    unreached: Option<(String, usize)>,
}

impl Told {
    fn add(&mut self, end: End) {
        match end {
            End::Kept(group) => {
                self.kept.push(group);
                self.unreached = None;
            }
            End::Dropped(group, reason) => {
                *self.dropped.entry(reason).or_default() += 1;
                self.refused.push(group);
                self.unreached = None;
            }
            End::NoEngine(reason) => {
                let count = self.unreached.take().map_or(0, |(_, count)| count);
                self.unreached = Some((reason, count + 1));
            }
            End::Halted => {}
        }
    }

    /// Filters that drop everything, or engines that are gone, end the run.
    fn starves(&self, step: Step, wanted: usize, max_refills: u32) -> Result<(), RolloutError> {
        if let Some((reason, count)) = &self.unreached
            && *count >= wanted
        {
            return Err(RolloutError::NoEngine {
                reason: reason.clone(),
            });
        }
        if self.refused.len() > wanted * max_refills as usize + wanted {
            let reasons = self
                .dropped
                .iter()
                .map(|(reason, count)| format!("{reason} {count}×"));
            return Err(RolloutError::Starved {
                step,
                kept: self.kept.len(),
                wanted,
                refills: max_refills,
                dropped: reasons.collect::<Vec<_>>().join(", "),
            });
        }
        Ok(())
    }
}

/// Keep `capacity` groups in flight, waiting or training until nobody listens any more.
async fn keep_going(shared: Arc<Shared>, ends: mpsc::UnboundedSender<Result<End, RolloutError>>) {
    let mut tasks: JoinSet<Result<End, RolloutError>> = JoinSet::new();
    loop {
        if shared.inner.is_halted() {
            if tasks.is_empty() {
                return;
            }
        } else if let Err(error) = top_up(&shared, &mut tasks) {
            let _ = ends.send(Err(error));
            return;
        }
        tokio::select! {
            Some(end) = tasks.join_next() => match end {
                Ok(end) => {
                    let lost = matches!(end, Ok(End::NoEngine(_)));
                    if ends.send(end).is_err() {
                        return;
                    }
                    if lost {
                        tokio::time::sleep(NO_ENGINE_PAUSE).await;
                    }
                }
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                Err(_) => {}
            },
            () = shared.wake.notified() => {}
        }
    }
}

fn top_up(
    shared: &Arc<Shared>,
    tasks: &mut JoinSet<Result<End, RolloutError>>,
) -> Result<(), RolloutError> {
    let ledger = &shared.inner.ledger;
    let training = shared.training.load(Ordering::Relaxed);
    let busy = tasks.len() + ledger.queued()? + training;
    let room = shared.capacity.saturating_sub(busy);
    if room == 0 {
        return Ok(());
    }
    let step = Step(shared.step.load(Ordering::Relaxed));
    for claim in ledger.claim(step, room)? {
        let inner = Arc::clone(&shared.inner);
        let tally = Arc::clone(&lock(&shared.tally));
        let held = Held::new(ledger, claim);
        tasks.spawn(async move { inner.one(step, held, &tally).await });
    }
    Ok(())
}
