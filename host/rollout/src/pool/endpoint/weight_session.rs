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

/// Open a session. A second one is refused.
///
/// # Errors
/// The server did not take it.
pub async fn begin(server: &Server, deadline: Duration) -> Result<(), CallError> {
    post(
        server,
        "/begin_weight_update",
        json!({ "selector": "all" }),
        deadline,
    )
    .await
}

/// Close it.
///
/// # Errors
/// The server did not take it, or none is open.
pub async fn end(server: &Server, deadline: Duration) -> Result<(), CallError> {
    post(server, "/end_weight_update", json!({}), deadline).await
}
