//! Servers that this program launches: started together, watched, started again when they die, ended with it.
//!
//! A server is a command line and a port that stays its own through every restart, so the pool knows it by
//! one address. Its flags are handed through and never modelled. It refuses to know weights: a server that
//! comes back proves its version to the pool like any other. Read `group.rs` for how processes end.

mod group;
mod port;
mod sglang;
#[cfg(test)]
mod tests;
mod words;

pub use port::{HeldPorts, free_ports};
pub use sglang::{Sglang, hold_ports, seats, specs};

use super::{Address, Server};
use crate::pool::endpoint::{health, model_info};
use crate::{RolloutError, lock};
use group::Group;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How one server is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSpec {
    /// For people: `server-0`.
    pub name: String,
    /// Where it will listen.
    pub address: Address,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Environment, beside this program's own.
    pub env: Vec<(String, String)>,
    /// Its output is added to this file.
    pub log: PathBuf,
}

/// How servers are looked after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Care {
    /// From start to the first answer.
    pub start_timeout: Duration,
    /// Time between looks.
    pub interval: Duration,
    /// A server that is alive and has not answered for so long is started again.
    pub hang_timeout: Duration,
    /// Wait before a start that follows a death; doubled with every one that did not come up, at most a minute.
    pub backoff: Duration,
    /// Starts in a row that did not come up, after which a server is left alone.
    pub max_failed_starts: u32,
    /// From the request to end to the kill.
    pub grace: Duration,
}

impl Default for Care {
    fn default() -> Self {
        Self {
            start_timeout: Duration::from_secs(900),
            interval: Duration::from_millis(500),
            hang_timeout: Duration::from_secs(300),
            backoff: Duration::from_secs(1),
            max_failed_starts: 5,
            grace: Duration::from_secs(5),
        }
    }
}

/// What became of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Life {
    /// Process id, while it runs.
    pub pid: Option<u32>,
    /// Starts after the first.
    pub num_restarts: u64,
    /// Why it ended last.
    pub last_death: Option<String>,
}

/// Servers launched by this program. Dropping it ends them.
pub struct Fleet {
    servers: Vec<(ServerSpec, Arc<Mutex<Life>>)>,
    stop: CancellationToken,
    keepers: Vec<JoinHandle<()>>,
}

impl Fleet {
    /// Start every server and wait until all of them answer. One that does not ends them all.
    ///
    /// # Errors
    /// A server that cannot be started, or that died or was silent until the deadline: in its own words.
    pub async fn start(specs: Vec<ServerSpec>, care: Care) -> Result<Self, RolloutError> {
        let mut fleet = Self {
            servers: Vec::new(),
            stop: CancellationToken::new(),
            keepers: Vec::new(),
        };
        let client = reqwest::Client::builder().no_proxy().build();
        let client = client.map_err(|e| RolloutError::Launch {
            server: "servers".into(),
            reason: format!("no HTTP client: {e}"),
        })?;
        let mut first_answers = Vec::new();
        for spec in specs {
            let life = Arc::new(Mutex::new(Life::default()));
            let (up, answered) = tokio::sync::oneshot::channel();
            let keeper = Keeper {
                server: Server::new(
                    spec.address.clone(),
                    client.clone(),
                    Duration::from_secs(30),
                ),
                spec: spec.clone(),
                care,
                life: Arc::clone(&life),
                stop: fleet.stop.clone(),
            };
            fleet.keepers.push(tokio::spawn(keeper.keep(up)));
            first_answers.push((spec.name.clone(), answered));
            fleet.servers.push((spec, life));
        }
        let waiting = first_answers
            .into_iter()
            .map(|(server, answered)| async move {
                let reason = match answered.await {
                    Ok(Ok(())) => return Ok(()),
                    Ok(Err(reason)) => reason,
                    Err(_) => "its keeper is gone".into(),
                };
                Err(RolloutError::Launch { server, reason })
            });
        match futures::future::try_join_all(waiting).await {
            Ok(_) => Ok(fleet),
            Err(error) => {
                fleet.stop().await;
                Err(error)
            }
        }
    }

    /// Where they listen, in the order in which they were named.
    pub fn addresses(&self) -> Vec<Address> {
        let addresses = self.servers.iter().map(|(spec, _)| spec.address.clone());
        addresses.collect()
    }

    /// Each server's name and life.
    pub fn lives(&self) -> Vec<(String, Life)> {
        let lives = self.servers.iter();
        lives
            .map(|(spec, life)| (spec.name.clone(), lock(life).clone()))
            .collect()
    }

    /// End every server and all of its children.
    pub async fn stop(mut self) {
        self.stop.cancel();
        futures::future::join_all(std::mem::take(&mut self.keepers)).await;
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Looks after one server.
struct Keeper {
    spec: ServerSpec,
    server: Server,
    care: Care,
    life: Arc<Mutex<Life>>,
    stop: CancellationToken,
}

/// Why a server is no longer watched.
enum End {
    Asked,
    Died(String),
}

impl Keeper {
    /// Start the server until it is asked to end. `up` hears of the first start.
    async fn keep(self, up: tokio::sync::oneshot::Sender<Result<(), String>>) {
        let mut up = Some(up);
        let mut failed_starts = 0;
        loop {
            let reason = match self.once(&mut up).await {
                Ok(End::Asked) => return,
                Ok(End::Died(reason)) => {
                    failed_starts = 0;
                    reason
                }
                Err(reason) => {
                    failed_starts += 1;
                    if let Some(up) = up.take() {
                        let _ = up.send(Err(reason));
                        return;
                    }
                    reason
                }
            };
            let name = &self.spec.name;
            lock(&self.life).last_death = Some(reason.clone());
            if failed_starts >= self.care.max_failed_starts {
                tracing::error!(server = name, reason, log = %self.spec.log.display(), "a server did not come up {failed_starts} times and is left alone");
                return;
            }
            tracing::warn!(server = name, reason, log = %self.spec.log.display(), "a server is gone and is started again");
            let wait = self.care.backoff * 2u32.pow(failed_starts.min(6));
            tokio::select! {
                () = tokio::time::sleep(wait.min(Duration::from_secs(60))) => {}
                () = self.stop.cancelled() => return,
            }
            lock(&self.life).num_restarts += 1;
        }
    }

    /// One start, to its end. An error is a start that did not come up.
    async fn once(
        &self,
        up: &mut Option<tokio::sync::oneshot::Sender<Result<(), String>>>,
    ) -> Result<End, String> {
        let mut group = Group::spawn(&self.spec)
            .map_err(|e| format!("`{}` cannot be started: {e}", self.spec.argv.join(" ")))?;
        lock(&self.life).pid = group.pid();
        let begin = Instant::now();
        tracing::info!(server = self.spec.name, address = %self.spec.address, log = %self.spec.log.display(), "starting a server");
        let result = tokio::select! {
            () = self.stop.cancelled() => Ok(End::Asked),
            how = group.ended() => Err(format!("it ended ({how}) before it answered: {}", self.words(&group))),
            answer = self.first_answer() => match answer {
                Err(reason) => Err(format!("{reason}; its last words: {}", self.words(&group))),
                Ok(()) => {
                    tracing::info!(server = self.spec.name, seconds = begin.elapsed().as_secs(), "a server is up");
                    if let Some(up) = up.take() {
                        let _ = up.send(Ok(()));
                    }
                    Ok(self.watch(&mut group).await)
                }
            },
        };
        lock(&self.life).pid = None;
        let grace = match &result {
            Ok(End::Asked) => self.care.grace,
            // What is left of it holds the port and the memory.
            _ => Duration::ZERO,
        };
        group.end(grace).await;
        result
    }

    async fn first_answer(&self) -> Result<(), String> {
        let until = Instant::now() + self.care.start_timeout;
        loop {
            let error = match health::health(&self.server).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if Instant::now() >= until {
                return Err(format!(
                    "it did not come up in {} s ({error})",
                    self.care.start_timeout.as_secs()
                ));
            }
            tokio::time::sleep(self.care.interval).await;
        }
    }

    /// Watch a server that is up.
    async fn watch(&self, group: &mut Group) -> End {
        let hung = async {
            let mut answered = Instant::now();
            loop {
                tokio::time::sleep(self.care.interval.max(self.care.hang_timeout / 10)).await;
                // Not `/health`: a paused server holds that answer back.
                match model_info::model_info(&self.server).await {
                    Ok(_) => answered = Instant::now(),
                    Err(error) if answered.elapsed() >= self.care.hang_timeout => {
                        break format!("it has not answered for {:?}: {error}", answered.elapsed());
                    }
                    Err(_) => {}
                }
            }
        };
        let reason = tokio::select! {
            () = self.stop.cancelled() => return End::Asked,
            how = group.ended() => format!("it ended ({how}): {}", self.words(group)),
            reason = hung => reason,
        };
        End::Died(reason)
    }

    fn words(&self, group: &Group) -> String {
        words::last_words(&self.spec.log, group.log_start)
    }
}
