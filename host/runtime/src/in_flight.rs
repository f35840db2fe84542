//! What generators hold while they wait for the policy: `plugin bench` of a generator.

use crate::generator::ComponentGenerator;
use crate::scripted::Scripted;
use crate::{Plugin, RuntimeError};
use slime_core::ports::{BoxFuture, Generator, LiveError, LiveTrajectory, Turn};
use slime_core::{Message, Prompt, PromptBody, PromptId, Trajectory};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, Semaphore};

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct InFlight {
    /// Rollouts that waited at once.
    pub count: usize,
    /// What the process grew by until all of them waited.
    pub resident_bytes: u64,
    /// From the first start to the last wait.
    pub started_in: Duration,
    /// From the policy's answer to the last end.
    pub ended_in: Duration,
    /// How they ended, the first that did not go well if any.
    pub outcome: String,
}

/// Turns that the policy writes at most.
const TURNS: usize = 8;
/// The most that is waited for all of them to reach the policy.
const PATIENCE: Duration = Duration::from_secs(300);

impl Plugin {
    /// Start `count` rollouts, let each of them wait for its first turn, and then answer all. Every turn says `turn`.
    ///
    /// # Errors
    /// It is no generator; or not all of them got as far as waiting, as where slots are fewer.
    pub fn bench_in_flight(&self, count: usize, turn: &str) -> Result<InFlight, RuntimeError> {
        self.generator()?;
        let loaded = Arc::clone(self.loaded());
        let generator = Arc::new(ComponentGenerator(loaded));
        let gate = Arc::new(Gate::default());
        let failed = |reason: String| RuntimeError::Engine(reason);
        let turn = turn.to_owned();
        let threads = self.threads().clone();
        let work = async move {
            // Made before anything is measured: the script stands for the policy, and is no part of the host.
            let scripts: Vec<_> = (0..count)
                .map(|_| Waiting {
                    inner: Scripted::new(prompt(), vec![turn.clone(); TURNS], 4096),
                    gate: Arc::clone(&gate),
                })
                .collect();
            let (before, begin) = (resident_bytes(), Instant::now());
            let mut rollouts = Vec::with_capacity(count);
            for script in scripts {
                let (start, generator) = (Arc::new(script), Arc::clone(&generator));
                rollouts.push(tokio::spawn(
                    async move { generator.generate(start, 0).await },
                ));
            }
            let all = async {
                while gate.arrived.load(Relaxed) < count {
                    gate.arrival.notified().await;
                }
            };
            if tokio::time::timeout(PATIENCE, all).await.is_err() {
                let there = gate.arrived.load(Relaxed);
                return Err(format!("{there} of {count} rollouts reached the policy"));
            }
            let (started_in, resident_bytes) = (begin.elapsed(), resident_bytes());
            let answer = Instant::now();
            gate.open.add_permits(Semaphore::MAX_PERMITS / 2);
            let mut outcome = "went well".to_owned();
            for rollout in rollouts {
                let done = rollout.await.map_err(|error| error.to_string())?;
                if let Some(failure) = done.failure {
                    outcome = failure.to_string();
                }
            }
            Ok(InFlight {
                count,
                resident_bytes: resident_bytes.saturating_sub(before),
                started_in,
                ended_in: answer.elapsed(),
                outcome,
            })
        };
        let task = threads.spawn(work);
        futures::executor::block_on(task)
            .map_err(|error| failed(error.to_string()))?
            .map_err(failed)
    }
}

fn prompt() -> Prompt {
    Prompt {
        id: PromptId {
            source: "bench".into(),
            row: 0,
        },
        body: PromptBody::Text("2 + 2 = ".into()),
        label: None,
        tools: Vec::new(),
        metadata: serde_json::Map::new(),
    }
}

/// Memory that this process holds; 0 where the system does not say.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
}

struct Gate {
    arrived: AtomicUsize,
    arrival: Notify,
    open: Semaphore,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            arrived: AtomicUsize::new(0),
            arrival: Notify::new(),
            open: Semaphore::new(0),
        }
    }
}

/// A trajectory whose policy answers when the gate opens.
struct Waiting {
    inner: Arc<Scripted>,
    gate: Arc<Gate>,
}

impl LiveTrajectory for Waiting {
    fn prompt(&self) -> Arc<Prompt> {
        self.inner.prompt()
    }

    fn response(&self) -> String {
        self.inner.response()
    }

    fn append(&self, message: Message) -> BoxFuture<'_, Result<(), LiveError>> {
        self.inner.append(message)
    }

    fn sample(&self, max_tokens: u32, stop: Vec<String>) -> BoxFuture<'_, Result<Turn, LiveError>> {
        Box::pin(async move {
            self.gate.arrived.fetch_add(1, Relaxed);
            // A permit is kept where nobody waits yet, so no arrival is missed.
            self.gate.arrival.notify_one();
            if let Ok(permit) = self.gate.open.acquire().await {
                drop(permit);
            }
            self.inner.sample(max_tokens, stop).await
        })
    }

    fn remaining_tokens(&self) -> u32 {
        self.inner.remaining_tokens()
    }

    fn fork(&self) -> Result<Arc<dyn LiveTrajectory>, LiveError> {
        self.inner.fork()
    }

    fn finish(&self) -> Vec<Trajectory> {
        self.inner.finish()
    }
}
