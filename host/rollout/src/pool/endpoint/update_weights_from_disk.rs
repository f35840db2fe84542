//! `POST /update_weights_from_disk`: load safetensors from a directory both sides see.
//!
//! A torn file or a wrong shape kills a stock server, so the publisher checks the directory first. Not
//! retried here: after any answer but 200 the server's weights are unknown.

use crate::pool::server::{CallError, Server};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

#[derive(Serialize)]
struct Body<'a> {
    model_path: &'a str,
    weight_version: &'a str,
    flush_cache: bool,
}

#[derive(Deserialize)]
struct Answer {
    success: bool,
    #[serde(default)]
    message: String,
}

/// Load `dir` and call it `label`; the prefix cache of the old weights is flushed with it.
///
/// # Errors
/// Anything but success.
pub async fn update_weights_from_disk(
    server: &Server,
    dir: &Path,
    label: &str,
    deadline: Duration,
) -> Result<(), CallError> {
    let path = dir.to_string_lossy();
    let body = Body {
        model_path: &path,
        weight_version: label,
        flush_cache: true,
    };
    let answer: Answer = server
        .post_json("/update_weights_from_disk", &body, deadline)
        .await?;
    if answer.success {
        Ok(())
    } else {
        Err(CallError::Malformed(format!(
            "the update failed: {}",
            answer.message
        )))
    }
}
