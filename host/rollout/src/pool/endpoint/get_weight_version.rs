//! The label of the served weights: in `/model_info` (0.5.23 has no `/get_weight_version` any more), in
//! `/get_weight_version` on servers whose `/model_info` does not say.

use super::model_info::model_info;
use crate::pool::server::{CallError, Server};
use serde::Deserialize;

#[derive(Deserialize)]
struct Answer {
    weight_version: String,
}

/// Ask. The label is what the last update named, `default` before the first.
///
/// # Errors
/// The server cannot be reached or does not say.
pub async fn get_weight_version(server: &Server) -> Result<String, CallError> {
    if let Some(label) = model_info(server).await?.weight_version {
        return Ok(label);
    }
    server
        .get_json::<Answer>(&["/get_weight_version", "/weight_version"])
        .await
        .map(|a| a.weight_version)
}
