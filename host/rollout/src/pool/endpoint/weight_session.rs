//! `POST /begin_weight_update` and `/end_weight_update`: since 0.5.23 an update from tensors must lie between
//! them. Older servers know neither path and need none.

use crate::pool::server::{CallError, Server};
use serde_json::json;
use std::time::Duration;

async fn post(
    server: &Server,
    path: &str,
    body: serde_json::Value,
    deadline: Duration,
) -> Result<(), CallError> {
    match Server::read_text(server.post(path, &body, deadline)).await {
        Err(CallError::Status { status: 404, .. }) => Ok(()),
        other => other.map(drop),
    }
}

/// Open a session, do `work` in it, and close it whatever became of that: one left open would refuse the next.
///
/// # Errors
/// In words: the server did not open or close it, or what `work` says.
pub async fn within(
    server: &Server,
    deadline: Duration,
    work: impl Future<Output = Result<(), String>>,
) -> Result<(), String> {
    let begin = json!({ "selector": "all" });
    post(server, "/begin_weight_update", begin, deadline)
        .await
        .map_err(|e| format!("begin: {e}"))?;
    let result = work.await;
    let ended = post(server, "/end_weight_update", json!({}), deadline)
        .await
        .map_err(|e| format!("end: {e}"));
    result.and(ended)
}
