//! One call of a plugin: a slot, a fresh store, the budgets, and the ending as an outcome.
//!
//! Nothing survives a call: the store goes with it, however it ended. Read [`crate::context`] for the books.

use crate::bindings::types::ErrorCode;
use crate::context::{Context, Exhausted};
use crate::host::clip;
use crate::plugin::Loaded;
use crate::units;
use slime_core::{Accounting, Outcome};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::task::AbortOnDropHandle;
use wasmtime::{Store, Trap, UpdateDeadline};

/// Bytes of a guest's message that are kept.
const MESSAGE_BYTES: usize = 2048;

/// What is called, and with what.
pub(crate) trait Job: Send + 'static {
    type Answer: Send + 'static;

    /// Instantiate and call. A guest's `err` is part of the answer; an error here stopped the guest.
    fn run(
        self,
        plugin: &Loaded,
        store: &mut Store<Context>,
    ) -> impl Future<Output = wasmtime::Result<Self::Answer>> + Send;
}

/// How a call ended and what it cost.
pub(crate) struct Ended<T> {
    pub(crate) answer: Result<T, Outcome>,
    pub(crate) cost: Accounting,
    /// What the call left behind for the host; never the guest's own state.
    pub(crate) left: Option<Left>,
}

pub(crate) struct Left {
    pub(crate) opened: Vec<Arc<dyn slime_core::ports::LiveTrajectory>>,
    pub(crate) given: Vec<ErrorCode>,
}

/// Run a job on the plugins' threads and wait for it. Dropping the future ends the call.
pub(crate) async fn dispatch<J: Job>(
    plugin: &Arc<Loaded>,
    job: J,
    seed: u64,
    wall: Duration,
) -> Ended<J::Answer> {
    if plugin.shared.is_inside() {
        return execute(plugin, job, seed, wall, None).await;
    }
    let caller = tokio::runtime::Handle::try_current().ok();
    let plugin = Arc::clone(plugin);
    let threads = plugin.shared.threads.clone();
    let task = threads.spawn(async move { execute(&plugin, job, seed, wall, caller).await });
    AbortOnDropHandle::new(task)
        .await
        .unwrap_or_else(|failure| {
            let outcome = if failure.is_panic() {
                Outcome::InfraFailed(
                    "the host failed while it ran the plugin; this is a bug in slime-host".into(),
                )
            } else {
                Outcome::Cancelled("the host shut down".into())
            };
            Ended {
                answer: Err(outcome),
                cost: Accounting::default(),
                left: None,
            }
        })
}

async fn execute<J: Job>(
    plugin: &Arc<Loaded>,
    job: J,
    seed: u64,
    wall: Duration,
    caller: Option<tokio::runtime::Handle>,
) -> Ended<J::Answer> {
    let shared = &plugin.shared;
    let cancelled = shared.cancelled.notified();
    let Ok(_slots) = plugin.home().slots.acquire_many(plugin.weight).await else {
        return failed(Outcome::Cancelled("the host shut down".into()));
    };
    let start = Instant::now();
    let mut store = store(plugin, seed);
    store.data_mut().caller = caller;
    let meter = Arc::clone(&store.data().meter);
    let running = plugin.home().ticker.running();
    let ending = {
        let work = tokio::time::timeout(wall, meter.time(job.run(plugin, &mut store)));
        tokio::select! {
            biased;
            () = cancelled => Err(Stopped::Cancelled),
            result = work => result.map_err(|_elapsed| Stopped::Wall),
        }
    };
    drop(running);
    let context = store.data_mut();
    let cost = Accounting {
        cpu: meter.used(),
        wall: start.elapsed(),
        peak_memory_bytes: context.memory.peak,
        host_calls: context.host_calls.used,
    };
    let answer = match ending {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(why(&error, plugin, context)),
        Err(Stopped::Wall) => Err(Outcome::Timeout(format!(
            "no answer after {} (wall time limit); the guest itself ran for {} ms",
            units::duration::text(wall),
            cost.cpu.as_millis()
        ))),
        Err(Stopped::Cancelled) => Err(Outcome::Cancelled("the host gave up on the call".into())),
    };
    let left = Left {
        opened: std::mem::take(&mut context.opened),
        given: std::mem::take(&mut context.given),
    };
    Ended {
        answer,
        cost,
        left: Some(left),
    }
}

enum Stopped {
    Wall,
    Cancelled,
}

fn failed<T>(outcome: Outcome) -> Ended<T> {
    Ended {
        answer: Err(outcome),
        cost: Accounting::default(),
        left: None,
    }
}

/// A store for one call, with every budget set.
pub(crate) fn store(plugin: &Arc<Loaded>, seed: u64) -> Store<Context> {
    let context = Context::new(Arc::clone(plugin), seed);
    let limits = &plugin.limits;
    let mut store = Store::new(&plugin.home().engine, context);
    store.limiter(|context| &mut context.memory);
    store.set_hostcall_fuel(usize::try_from(limits.hostcall_bytes).unwrap_or(usize::MAX));
    let cpu = limits.cpu;
    store.set_epoch_deadline(1);
    store.epoch_deadline_callback(move |context| {
        let (used, since) = (context.data().meter.running(), context.data().since);
        if used.saturating_sub(since) >= cpu || used >= context.data().cpu {
            return Err(Exhausted::Cpu.into());
        }
        Ok(UpdateDeadline::Yield(1))
    });
    store
}

/// Why the guest stopped, as an outcome that a person understands.
pub(crate) fn why(error: &wasmtime::Error, plugin: &Loaded, context: &Context) -> Outcome {
    let limits = &plugin.limits;
    match error.downcast_ref::<Exhausted>() {
        Some(Exhausted::Cpu) => {
            return Outcome::Timeout(format!(
                "the guest ran for {} (CPU time limit)",
                units::duration::text(limits.cpu)
            ));
        }
        Some(Exhausted::HostCalls(most)) => {
            return Outcome::LimitExceeded(format!("the guest made more than {most} host calls"));
        }
        Some(Exhausted::Outgoing(bytes, most)) => {
            return Outcome::LimitExceeded(format!(
                "the guest asked for a text of {}, the limit is {}",
                units::bytes::text(*bytes),
                units::bytes::text(*most)
            ));
        }
        None => {}
    }
    // The engine's error for this has no public type.
    if format!("{error:#}").contains("fuel allocated for hostcalls has been exhausted") {
        let most = units::bytes::text(limits.hostcall_bytes);
        return Outcome::LimitExceeded(format!(
            "the guest handed the host more than {most} in one call"
        ));
    }
    if context.memory.refused {
        let most = units::bytes::text(limits.memory_bytes);
        return Outcome::OutOfMemory(format!("the guest needs more than {most} of memory"));
    }
    if let Some(exit) = error.downcast_ref::<wasmtime_wasi::I32Exit>() {
        return Outcome::Trapped(format!(
            "the guest ended its process with status {}",
            exit.0
        ));
    }
    let mut reason = match error.downcast_ref::<Trap>() {
        Some(Trap::StackOverflow) => "the guest's stack overflowed (endless recursion?)".into(),
        Some(trap) => trap.to_string(),
        None => error.root_cause().to_string(),
    };
    let stderr = context.stderr.line();
    if !stderr.is_empty() {
        reason = format!("{reason}; it said: {stderr}");
    }
    Outcome::Trapped(clip(&reason, MESSAGE_BYTES).to_owned())
}

/// What a guest's own error makes of the rollout. Kinds that only the host can know count as such only where the
/// host did give the guest that error.
pub(crate) fn of_guest(error: &crate::bindings::types::Error, given: &[ErrorCode]) -> Outcome {
    let mut text = clip(&error.message, MESSAGE_BYTES).to_owned();
    if text.is_empty() {
        text = "the plugin failed without a message".into();
    }
    match error.code {
        ErrorCode::InvalidGold => Outcome::InvalidGold(text),
        ErrorCode::LimitExceeded if given.contains(&error.code) => Outcome::LimitExceeded(text),
        ErrorCode::Cancelled if given.contains(&error.code) => Outcome::Cancelled(text),
        ErrorCode::Unavailable if given.contains(&error.code) => Outcome::InfraFailed(text),
        _ => Outcome::Error(text),
    }
}
