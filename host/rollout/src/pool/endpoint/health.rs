//! `GET /health`: 200 when the server samples, 503 while it starts. Never ask during a weight update:
//! a paused server holds the answer back for 20 s and calls itself unhealthy.

use crate::pool::server::{CallError, Server};

/// Whether the server is up.
///
/// # Errors
/// It is not, or cannot be reached.
pub async fn health(server: &Server) -> Result<(), CallError> {
    server.get_text("/health").await.map(drop)
}
