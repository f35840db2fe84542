//! `POST /pause_generation`: the mode is always stated, because servers differ in the default.
//!
//! `in_place` is for the embedded engine only: a stock server cannot flush its cache then, answers an update with 400
//! and half of its state new, and would go on with a cache of old weights.

use crate::pool::server::{CallError, Server};
use serde::{Deserialize, Serialize};

/// What becomes of running requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PauseMode {
    /// They return their partial output; the pool continues them after the update.
    Abort,
    /// They queue again and go on afterwards from a fresh prefill, under the new weights.
    #[default]
    Retract,
    /// They freeze, and go on where they were. The embedded engine only.
    InPlace,
}

#[derive(Serialize)]
struct Body {
    mode: PauseMode,
}

/// Pause a server. Idempotent. While it is paused `/health` blocks for 20 s: probe `/model_info`.
///
/// # Errors
/// The server did not take it.
pub async fn pause_generation(server: &Server, mode: PauseMode) -> Result<(), CallError> {
    server
        .post_text("/pause_generation", &Body { mode })
        .await
        .map(drop)
}
