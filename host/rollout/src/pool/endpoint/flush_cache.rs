//! `POST /flush_cache`: forget every cached prefix. 400 while requests are frozen on their cache.

use crate::pool::server::{CallError, Server};
use serde_json::json;

/// Flush the prefix cache.
///
/// # Errors
/// The server refused, or did not answer.
pub async fn flush_cache(server: &Server) -> Result<(), CallError> {
    server.post_text("/flush_cache", &json!({})).await.map(drop)
}
