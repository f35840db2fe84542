//! Runs that were continued elsewhere: their older processes are not listened to any more.
//!
//! A run's requests say in a header which epoch of it they belong to. Once a newer one was heard, an older one is answered 409
//! on every path, whatever it asks. Requests without the header are everybody's; SGLang has no such thing, and a client of
//! its API needs none.

use super::refusal::Refusal;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// `<run>:<epoch>`.
const HEADER: &str = "x-slime-epoch";
/// Runs remembered; a server that outlives so many forgets them all.
const MAX_RUNS: usize = 1024;

/// The newest epoch of every run that was heard of.
#[derive(Clone, Default)]
pub(super) struct Newest(Arc<Mutex<HashMap<String, u64>>>);

impl Newest {
    /// The newer epoch, where a run's `epoch` is over.
    fn over(&self, run: &str, epoch: u64) -> Option<u64> {
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if runs.len() >= MAX_RUNS && !runs.contains_key(run) {
            runs.clear();
        }
        let newest = runs.entry(run.to_owned()).or_insert(epoch);
        *newest = epoch.max(*newest);
        (*newest > epoch).then_some(*newest)
    }
}

/// Answer 409 to what comes from an epoch that is over.
pub(super) async fn refuse_older(
    State(newest): State<Newest>,
    request: Request,
    next: Next,
) -> Response {
    let said = request
        .headers()
        .get(HEADER)
        .and_then(|said| said.to_str().ok());
    let said = said.and_then(|said| said.rsplit_once(':'));
    if let Some((run, Ok(epoch))) = said.map(|(run, epoch)| (run, epoch.parse()))
        && let Some(by) = newest.over(run, epoch)
    {
        let message = format!("epoch {epoch} of this run is over: epoch {by} has taken it over");
        return Refusal::Object(StatusCode::CONFLICT, message).into_response();
    }
    next.run(request).await
}
