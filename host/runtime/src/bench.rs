//! What a plugin's calls cost on this machine: `plugin bench`.

use crate::call::{self, Job};
use crate::context::Context;
use crate::plugin::Loaded;
use crate::{Plugin, RuntimeError};
use futures::stream::{FuturesUnordered, StreamExt};
use slime_core::Outcome;
use slime_core::ports::ScoreRequest;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wasmtime::Store;

/// Calls that one task makes, so that what is measured is calls and not tasks.
const CALLS_PER_TASK: u64 = 16;

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// A fresh instance and nothing else: median, 99th percentile.
    pub start: (Duration, Duration),
    /// A call in a fresh instance, by the accounting: median, 99th percentile.
    pub call: (Duration, Duration),
    /// Time in which the guest and its instantiation ran, of the median call.
    pub cpu: Duration,
    /// Calls a second with every thread at work.
    pub calls_per_second: f64,
    /// Threads.
    pub threads: usize,
    /// The most memory that a call held.
    pub peak_memory_bytes: u64,
    /// Calls into the host, of the last call.
    pub host_calls: u64,
    /// How late a timer of another runtime was at worst while every thread was at work.
    pub timers_late: Duration,
    /// How the calls ended, the first that was not `scored` if any.
    pub outcome: String,
}

impl Plugin {
    /// Score `items` in turn for about `time`: one after the other, then with every thread.
    ///
    /// # Errors
    /// It is no verifier, or there are no items.
    pub fn bench(&self, items: &[ScoreRequest], time: Duration) -> Result<Costs, RuntimeError> {
        let verifier = self.verifier()?;
        let Some(first) = items.first() else {
            return Err(RuntimeError::BadRow {
                line: 0,
                reason: "there are no cases to measure with".into(),
            });
        };
        let threads = self.threads().metrics().num_workers();
        let (loaded, first) = (Arc::clone(self.loaded()), first.clone());
        let all = items.to_vec();
        let work = async move {
            let mut starts = Vec::new();
            let until = Instant::now() + time / 4;
            while starts.is_empty() || Instant::now() < until {
                let ended = call::dispatch(&loaded, Start, 0, loaded.limits.wall).await;
                starts.push(ended.cost.wall);
            }
            let (mut walls, mut cpus) = (Vec::new(), Vec::new());
            let (mut peak, mut host_calls, mut outcome) = (0, 0, Outcome::Cancelled(String::new()));
            let until = Instant::now() + time / 4;
            while walls.is_empty() || Instant::now() < until {
                let scored = verifier.score(all[walls.len() % all.len()].clone()).await;
                walls.push(scored.cost.wall);
                cpus.push(scored.cost.cpu);
                peak = peak.max(scored.cost.peak_memory_bytes);
                host_calls = scored.cost.host_calls;
                if walls.len() == 1 || scored.outcome.verdict().is_none() {
                    outcome = scored.outcome;
                }
            }
            let heartbeat = std::thread::spawn(move || latest_heartbeat(time / 2));
            let (begin, mut done) = (Instant::now(), 0u64);
            let mut running = FuturesUnordered::new();
            let start = |running: &mut FuturesUnordered<_>| {
                let (verifier, item) = (Arc::clone(&verifier), first.clone());
                running.push(tokio::spawn(async move {
                    let mut scored = 0;
                    // One call may take as long as its budgets allow.
                    while scored == 0 || scored < CALLS_PER_TASK && begin.elapsed() < time / 2 {
                        verifier.score(item.clone()).await;
                        scored += 1;
                    }
                    scored
                }));
            };
            (0..2 * threads).for_each(|_| start(&mut running));
            while let Some(scored) = running.next().await {
                done += scored.unwrap_or(0);
                if begin.elapsed() < time / 2 {
                    start(&mut running);
                }
            }
            let calls_per_second = done as f64 / begin.elapsed().as_secs_f64();
            let late = tokio::task::spawn_blocking(|| heartbeat.join()).await;
            Costs {
                start: quantiles(&mut starts),
                call: quantiles(&mut walls),
                cpu: quantiles(&mut cpus).0,
                calls_per_second,
                threads,
                peak_memory_bytes: peak,
                host_calls,
                timers_late: late.ok().and_then(Result::ok).unwrap_or_default(),
                outcome: outcome.to_string(),
            }
        };
        let task = self.threads().spawn(work);
        futures::executor::block_on(task).map_err(|error| RuntimeError::Engine(error.to_string()))
    }
}

/// How late a 10 ms timer of a runtime of its own fires at worst.
fn latest_heartbeat(during: Duration) -> Duration {
    let every = Duration::from_millis(10);
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
    else {
        return Duration::ZERO;
    };
    runtime.block_on(async {
        let (start, mut late) = (Instant::now(), Duration::ZERO);
        while start.elapsed() < during {
            let asked = Instant::now();
            tokio::time::sleep(every).await;
            late = late.max(asked.elapsed().saturating_sub(every));
        }
        late
    })
}

fn quantiles(times: &mut [Duration]) -> (Duration, Duration) {
    times.sort_unstable();
    let at = |part: usize| times[(times.len() * part / 100).min(times.len() - 1)];
    (at(50), at(99))
}

/// Instantiates and does nothing.
struct Start;

impl Job for Start {
    type Answer = ();

    async fn run(self, plugin: &Loaded, store: &mut Store<Context>) -> wasmtime::Result<()> {
        if let Some(world) = &plugin.worlds.verifier {
            world.instantiate_async(store).await?;
        }
        Ok(())
    }
}
