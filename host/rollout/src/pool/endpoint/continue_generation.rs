//! `POST /continue_generation`: undo a pause. Idempotent.

use crate::pool::server::{CallError, Server};
use serde_json::json;

/// Let a paused server go on.
///
/// # Errors
/// The server did not take it.
pub async fn continue_generation(server: &Server) -> Result<(), CallError> {
    server
        .post_text("/continue_generation", &json!({}))
        .await
        .map(drop)
}
