//! `POST /weights_checker`: a checksum of the weights as loaded, the best proof that servers agree.

use crate::pool::server::{CallError, Server};
use serde::Deserialize;
use serde_json::json;
use std::time::Duration;

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    ranks: Vec<Rank>,
}

#[derive(Deserialize)]
struct Rank {
    per_gpu_checksum: String,
}

/// The checksum of every rank, in the server's order; `None` from a server without the endpoint. Comparable
/// between servers of the same layout only.
///
/// # Errors
/// The server cannot be reached or answers nonsense.
pub async fn weights_checker(
    server: &Server,
    deadline: Duration,
) -> Result<Option<Vec<String>>, CallError> {
    match server
        .post_json::<Answer>(
            "/weights_checker",
            &json!({ "action": "checksum" }),
            deadline,
        )
        .await
    {
        Ok(answer) if answer.ranks.is_empty() => Ok(None),
        Ok(answer) => Ok(Some(
            answer
                .ranks
                .into_iter()
                .map(|rank| rank.per_gpu_checksum)
                .collect(),
        )),
        Err(CallError::Status {
            status: 404 | 405, ..
        }) => Ok(None),
        Err(error) => Err(error),
    }
}
