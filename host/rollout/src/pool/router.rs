//! `sglang_router` in front of the members, for those who run one: it picks the worker, and that is all.
//!
//! Requests to sample go through it; everything else goes to the members themselves, because a router proxies no
//! control endpoint. It drops fields it does not know, and counts a worker's refusals as faults, so routing inside the
//! host is the default. One that does not answer is passed by for a while: no request depends on it.

use super::server::{CallError, Server};
use super::{Address, RolloutError};
use crate::lock;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long a router has to take a worker into its list.
const JOINING: Duration = Duration::from_secs(60);

/// A router, and whether it answers.
pub(crate) struct Router {
    pub(crate) server: Server,
    passed_by: Duration,
    /// Until when it is passed by, since it last answered.
    down_until: Mutex<Option<Instant>>,
}

#[derive(Deserialize)]
struct Workers {
    workers: Vec<Worker>,
}

#[derive(Deserialize)]
struct Worker {
    url: String,
}

impl Router {
    /// One that failed is passed by for so long.
    pub(crate) fn new(server: Server, passed_by: Duration) -> Self {
        Self {
            server,
            passed_by,
            down_until: Mutex::default(),
        }
    }

    /// Whether to go through it now.
    pub(crate) fn is_up(&self) -> bool {
        lock(&self.down_until).is_none_or(|until| Instant::now() >= until)
    }

    /// It failed, and not because of a request.
    pub(crate) fn pass_by(&self, why: &CallError) {
        let until = lock(&self.down_until).replace(Instant::now() + self.passed_by);
        if until.is_none() {
            tracing::warn!(router = %self.server.address(), %why, "the router is passed by until it answers again; servers are asked themselves");
        }
    }

    /// It did what it is there for.
    pub(crate) fn answered(&self) {
        if lock(&self.down_until).take().is_some() {
            tracing::info!(router = %self.server.address(), "the router answers again");
        }
    }

    /// Make it know every member that it does not know.
    pub(crate) async fn introduce(&self, members: &[Address]) -> Result<(), RolloutError> {
        let bad = |reason: String| RolloutError::Config {
            what: format!("router {}", self.server.address()),
            reason,
        };
        let known = self
            .known()
            .await
            .map_err(|e| bad(format!("{e}; start it, or leave it out")))?;
        for member in members.iter().filter(|m| !known.contains(&m.to_string())) {
            self.server
                .post_text("/workers", &json!({ "url": member.to_string() }))
                .await
                .map_err(|e| bad(format!("it does not take {member}: {e}")))?;
        }
        let until = Instant::now() + JOINING;
        loop {
            let known = self.known().await.map_err(|e| bad(e.to_string()))?;
            let Some(missing) = members.iter().find(|m| !known.contains(&m.to_string())) else {
                return Ok(());
            };
            if Instant::now() >= until {
                return Err(bad(format!(
                    "it did not take {missing} in {} s",
                    JOINING.as_secs()
                )));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn known(&self) -> Result<Vec<String>, CallError> {
        let answer: Value = self.server.get_json(&["/workers"]).await?;
        let workers: Workers = serde_json::from_value(answer)
            .map_err(|e| CallError::Malformed(format!("/workers: {e}")))?;
        Ok(workers.workers.into_iter().map(|w| w.url).collect())
    }
}
