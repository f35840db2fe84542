//! `GET /model_info`, `/get_model_info` on older servers: which weights, tokenizer and version. It
//! answers at once, also while the server is paused.

use crate::pool::server::{CallError, Server};
use serde::Deserialize;

/// What a server serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ModelInfo {
    /// Where the weights were loaded from.
    pub model_path: String,
    /// Where the tokenizer was loaded from.
    pub tokenizer_path: String,
    /// The label of the served weights; `default` before the first update.
    pub weight_version: Option<String>,
}

/// Ask.
///
/// # Errors
/// The server cannot be reached or answers nonsense.
pub async fn model_info(server: &Server) -> Result<ModelInfo, CallError> {
    server.get_json(&["/model_info", "/get_model_info"]).await
}
