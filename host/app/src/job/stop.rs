//! Ctrl-C: once asks the run to finish and save, twice kills it. SIGTERM asks too.

use crate::telemetry::Console;
use std::time::Duration;
use tokio::sync::watch;

/// What a run says when it is asked to stop.
pub const SAVING: &str = "stopping: this step is finished or given up, then everything is saved";
/// What shorter work says.
pub const ENDING: &str = "stopping: what is done so far is kept";

/// Schedulers signal every process they find, and whoever started a process hands on what it was told: within this time, two
/// requests are one.
pub const SAME: Duration = Duration::from_secs(1);

/// Whether the person wants to stop. Cheap to clone.
#[derive(Clone)]
pub struct Stop(watch::Receiver<bool>);

impl Stop {
    /// Listen from now on; `notice` is what the person is told the first time.
    pub fn listen(console: Console, notice: &'static str) -> Self {
        let (sender, receiver) = watch::channel(false);
        tokio::spawn(async move {
            signal().await;
            console.line(&format!(" {notice}. Ctrl-C again kills."));
            // Nobody listens any more once the run has ended.
            let _ = sender.send(true);
            tokio::time::sleep(SAME).await;
            signal().await;
            console.line(" killed; what was saved before is safe: continue with --resume");
            std::process::exit(130);
        });
        Self(receiver)
    }

    /// Let requests to stop pass while the task lives; the second one kills.
    pub fn ignore() -> tokio::task::JoinHandle<()> {
        tokio::spawn(async {
            // An agent hands every signal on to every rank; what is rank 0's business must not end the others.
            #[cfg(unix)]
            let _heard =
                tokio::signal::unix::signal(tokio::signal::unix::SignalKind::user_defined1());
            signal().await;
            tokio::time::sleep(SAME).await;
            signal().await;
            std::process::exit(130);
        })
    }

    /// One that is asked by its sender, for tests; a dropped sender never asks.
    #[cfg(test)]
    pub fn by_hand() -> (watch::Sender<bool>, Self) {
        let (sender, receiver) = watch::channel(false);
        (sender, Self(receiver))
    }

    /// Whether it was asked.
    pub fn is_asked(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns once it is asked.
    pub async fn asked(&self) {
        let mut receiver = self.0.clone();
        if receiver.wait_for(|asked| *asked).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(unix)]
async fn signal() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
        }
        Err(_) => drop(tokio::signal::ctrl_c().await),
    }
}

#[cfg(not(unix))]
async fn signal() {
    // Without signals there is no stopping, only killing.
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
