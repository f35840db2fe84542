//! `POST /abort_request`: the request answers with its partial output. 200 even for an unknown rid.
//! The rid must match exactly. An abort of a request that a paused server holds back is lost.

use crate::pool::server::{CallError, Server};
use serde_json::json;

/// Abort one request.
///
/// # Errors
/// The server did not take it.
pub async fn one(server: &Server, rid: &str) -> Result<(), CallError> {
    server
        .post_text("/abort_request", &json!({ "rid": rid }))
        .await
        .map(drop)
}

/// Abort everything the server runs or queues.
///
/// # Errors
/// The server did not take it.
pub async fn all(server: &Server) -> Result<(), CallError> {
    server
        .post_text("/abort_request", &json!({ "abort_all": true }))
        .await
        .map(drop)
}
