//! Asynchronous generators: many rollouts in one instance, each with books of its own.
//!
//! At most 64 rollouts share an instance, so that what one of them breaks stays with 64; an instance that has served
//! 1,024 is replaced. A trap, an endless loop or a memory bomb ends all rollouts of its instance and no other. One
//! rollout cannot return, or sample, the trajectories of another. Read [`crate::context`] for the books.

use crate::bindings::generator_async::GeneratorAsync;
use crate::bindings::types::Error;
use crate::call::{self, Ended, Left};
use crate::context::Context;
use crate::host::trajectories::Held;
use crate::plugin::Loaded;
use crate::units;
use futures::stream::{FuturesUnordered, StreamExt};
use slime_core::ports::LiveTrajectory;
use slime_core::{Accounting, Outcome};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{SetOnce, oneshot};
use wasmtime::component::{Accessor, Resource};

/// Rollouts that one instance drives at once, and all in all.
const AT_ONCE: usize = 64;
const IN_ALL: usize = 1024;
/// How long an instance waits for more.
const IDLE: Duration = Duration::from_millis(500);

type Answer = Result<Vec<Arc<dyn LiveTrajectory>>, Error>;

/// The instances of one plugin that take rollouts.
#[derive(Default)]
pub(crate) struct Shards(Mutex<Vec<Shard>>);

struct Shard {
    requests: UnboundedSender<Request>,
    running: Arc<AtomicUsize>,
    taken: usize,
    /// Why the instance ended, for rollouts that it took with it.
    ended: Arc<SetOnce<Outcome>>,
}

struct Request {
    start: Arc<dyn LiveTrajectory>,
    seed: u64,
    caller: Option<tokio::runtime::Handle>,
    answer: oneshot::Sender<Ended<Answer>>,
    running: Running,
}

/// Counted while a rollout runs.
struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Drive one rollout in an instance that has room, or a new one.
pub(crate) async fn dispatch(
    plugin: &Arc<Loaded>,
    start: Arc<dyn LiveTrajectory>,
    seed: u64,
) -> Ended<Answer> {
    let caller = if plugin.shared.is_inside() {
        None
    } else {
        tokio::runtime::Handle::try_current().ok()
    };
    let (answer, wait) = oneshot::channel();
    let begun = Instant::now();
    let ended = plugin.shards.place(plugin, start, seed, caller, answer);
    if let Ok(done) = wait.await {
        return done;
    }
    Ended {
        answer: Err(ended.wait().await.clone()),
        cost: Accounting {
            wall: begun.elapsed(),
            ..Accounting::default()
        },
        left: None,
    }
}

impl Shards {
    fn place(
        &self,
        plugin: &Arc<Loaded>,
        start: Arc<dyn LiveTrajectory>,
        seed: u64,
        caller: Option<tokio::runtime::Handle>,
        answer: oneshot::Sender<Ended<Answer>>,
    ) -> Arc<SetOnce<Outcome>> {
        let mut shards = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shards.retain(|shard| !shard.requests.is_closed() && shard.taken < IN_ALL);
        let free = shards
            .iter()
            .position(|shard| shard.running.load(Relaxed) < AT_ONCE);
        let at = free.unwrap_or_else(|| {
            shards.push(Shard::start(plugin));
            shards.len() - 1
        });
        let shard = &mut shards[at];
        shard.taken += 1;
        shard.running.fetch_add(1, Relaxed);
        let request = Request {
            start,
            seed,
            caller,
            answer,
            running: Running(Arc::clone(&shard.running)),
        };
        // An instance that closes at this instant drains what it was sent; one that has ended says why.
        let _ = shard.requests.send(request);
        Arc::clone(&shard.ended)
    }
}

impl Shard {
    fn start(plugin: &Arc<Loaded>) -> Self {
        let (requests, receiver) = unbounded_channel();
        let ended = Arc::new(SetOnce::new());
        // Owned by the rollouts that wait for it, not by the plugin: with the plugin go its senders, and so the task.
        let (owner, told) = (Arc::clone(plugin), Arc::clone(&ended));
        plugin.shared.threads.spawn(async move {
            let outcome = serve(&owner, receiver).await;
            let _ = told.set(outcome);
        });
        Self {
            requests,
            running: Arc::default(),
            taken: 0,
            ended,
        }
    }
}

/// Take rollouts until none comes any more, or one breaks the instance. Says why it ended.
async fn serve(plugin: &Arc<Loaded>, mut requests: UnboundedReceiver<Request>) -> Outcome {
    let shared = &plugin.shared;
    let cancelled = shared.cancelled.notified();
    let home = plugin.home();
    let Ok(_slots) = home.slots.acquire_many(plugin.weight).await else {
        return Outcome::Cancelled("the host shut down".into());
    };
    let mut store = call::store(plugin, 0);
    let meter = Arc::clone(&store.data().meter);
    let running = home.ticker.running();
    let work = meter.time(async {
        let Some(world) = &plugin.worlds.generator_async else {
            return Err(wasmtime::Error::msg("no asynchronous generator"));
        };
        let world = world.instantiate_async(&mut store).await?;
        store
            .run_concurrent(async |accessor| drive(accessor, &world, plugin, &mut requests).await)
            .await?
    });
    let ended = tokio::select! {
        biased;
        () = cancelled => None,
        result = work => Some(result),
    };
    drop(running);
    requests.close();
    match ended {
        None => Outcome::Cancelled("the host gave up on the call".into()),
        Some(Ok(())) => Outcome::Cancelled("the instance was closed".into()),
        Some(Err(error)) => together(call::why(&error, plugin, store.data())),
    }
}

/// An ending that others share says so.
fn together(outcome: Outcome) -> Outcome {
    let note = |text: String| format!("{text} (an instance drives up to {AT_ONCE} rollouts)");
    match outcome {
        Outcome::Timeout(text) => Outcome::Timeout(note(text)),
        Outcome::OutOfMemory(text) => Outcome::OutOfMemory(note(text)),
        Outcome::LimitExceeded(text) => Outcome::LimitExceeded(note(text)),
        Outcome::Trapped(text) => Outcome::Trapped(note(text)),
        other => other,
    }
}

async fn drive(
    accessor: &Accessor<Context>,
    world: &GeneratorAsync,
    plugin: &Loaded,
    requests: &mut UnboundedReceiver<Request>,
) -> wasmtime::Result<()> {
    let mut running = FuturesUnordered::new();
    let (mut rollout, mut open) = (0, true);
    loop {
        tokio::select! {
            request = requests.recv(), if open => match request {
                Some(request) => {
                    rollout += 1;
                    running.push(one(accessor, world, plugin, request, rollout));
                }
                None => open = false,
            },
            Some(well) = running.next() => {
                if !well? {
                    // Its guest may go on for ever: let the others finish, and the instance go.
                    requests.close();
                }
            }
            () = tokio::time::sleep(IDLE), if open && running.is_empty() => requests.close(),
            else => return Ok(()),
        }
    }
}

/// Drive one rollout. `false`: nobody waits for it any more, and it may still run.
async fn one(
    accessor: &Accessor<Context>,
    world: &GeneratorAsync,
    plugin: &Loaded,
    request: Request,
    rollout: u64,
) -> wasmtime::Result<bool> {
    let Request {
        start,
        seed,
        caller,
        answer,
        running,
    } = request;
    let (begun, wall) = (Instant::now(), plugin.limits.rollout_wall);
    let (handle, calls, cpu) = accessor.with(|mut access| {
        let context = access.get();
        context.open_rollout(rollout, seed, caller);
        let handle = context.hold(start)?;
        let cpu = context.meter.running();
        Ok::<_, wasmtime::Error>((handle, context.host_calls.used, cpu))
    })?;
    let call = world
        .slime_plugin_generation_async()
        .call_generate(accessor, handle);
    let returned = match tokio::time::timeout(wall, call).await {
        Ok(returned) => Some(returned?),
        Err(_elapsed) => None,
    };
    let well = returned.is_some();
    let ended = accessor.with(|mut access| {
        let context = access.get();
        let done = match returned {
            Some(Ok(handles)) => match collect(context, handles, rollout)? {
                Ok(done) => Ok(Ok(done)),
                Err(outcome) => Err(outcome),
            },
            Some(Err(error)) => Ok(Err(error)),
            None => Err(Outcome::Timeout(format!(
                "no answer after {} (wall time limit)",
                units::duration::text(wall)
            ))),
        };
        let left = context.close_rollout(rollout).map(|books| Left {
            opened: books.opened,
            given: books.given,
        });
        // Of an instance that others use too: what it used meanwhile, shared out among those that ran.
        let others = running.0.load(Relaxed).max(1) as u32;
        let cost = Accounting {
            cpu: context.meter.running().saturating_sub(cpu) / others,
            wall: begun.elapsed(),
            peak_memory_bytes: context.memory.peak,
            host_calls: (context.host_calls.used - calls) / u64::from(others),
        };
        Ok::<_, wasmtime::Error>(Ended {
            answer: done,
            cost,
            left,
        })
    })?;
    let _ = answer.send(ended);
    Ok(well)
}

/// The trajectories behind the handles, if all of them are the rollout's own.
fn collect(
    context: &mut Context,
    handles: Vec<Resource<Held>>,
    rollout: u64,
) -> wasmtime::Result<Result<Vec<Arc<dyn LiveTrajectory>>, Outcome>> {
    let mut done = Vec::with_capacity(handles.len());
    let mut strange = false;
    for handle in handles {
        let held = context.table.delete(handle)?;
        strange |= held.rollout != rollout;
        done.push(held.live);
    }
    Ok(if strange {
        Err(Outcome::Error(
            "the generator returned a trajectory of another rollout".into(),
        ))
    } else {
        Ok(done)
    })
}
