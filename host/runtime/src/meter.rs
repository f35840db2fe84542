//! How much processor time one call used, by the clock of the thread that polls it.
//!
//! The thread's clock, not the wall's: a guest is not billed for time in which another process had the core, or in
//! which the call waited for the policy. Wall time is a budget of its own.

use rustix::time::{ClockId, clock_gettime};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The stopwatch of one call. Only the thread that polls the call touches it, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// Nanoseconds of finished polls.
    finished_ns: AtomicU64,
    /// The thread's clock when the poll in progress began.
    began_ns: AtomicU64,
}

impl Meter {
    /// Time used so far, asked for from inside the call.
    pub(crate) fn running(&self) -> Duration {
        let poll = thread_cpu_ns().saturating_sub(self.began_ns.load(Relaxed));
        Duration::from_nanos(self.finished_ns.load(Relaxed) + poll)
    }

    /// Time used, once the call is over or waits.
    pub(crate) fn used(&self) -> Duration {
        Duration::from_nanos(self.finished_ns.load(Relaxed))
    }

    /// Run `future` under this stopwatch.
    pub(crate) async fn time<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        std::future::poll_fn(|context| {
            let began = thread_cpu_ns();
            self.began_ns.store(began, Relaxed);
            let poll = future.as_mut().poll(context);
            self.finished_ns
                .fetch_add(thread_cpu_ns().saturating_sub(began), Relaxed);
            poll
        })
        .await
    }
}

fn thread_cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[tokio::test]
    async fn waiting_is_not_billed_and_working_is() {
        let meter = Meter::default();
        meter
            .time(async {
                tokio::time::sleep(Duration::from_millis(60)).await;
                let start = Instant::now();
                let began = thread_cpu_ns();
                while thread_cpu_ns() - began < 20_000_000
                    && start.elapsed() < Duration::from_secs(20)
                {
                    std::hint::spin_loop();
                }
            })
            .await;
        assert!(
            meter.used() >= Duration::from_millis(20),
            "{:?}",
            meter.used()
        );
        assert!(
            meter.used() < Duration::from_millis(40),
            "{:?}",
            meter.used()
        );
    }
}
