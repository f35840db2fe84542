//! `POST /update_weights_from_distributed`: the server's ranks receive tensors that rank 0 of their group broadcasts.
//!
//! It must lie in a weight session (`weight_session.rs`), and answers when the bytes have come. A server whose bytes do
//! not come waits until torch gives up, and takes no requests meanwhile.

use crate::pool::server::{CallError, Server};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Tensors that come as one run of bytes, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bucket {
    /// HF names.
    pub names: Vec<String>,
    /// As PyTorch calls them: `bfloat16`.
    pub dtypes: Vec<&'static str>,
    /// Rows and columns of each.
    pub shapes: Vec<Vec<u64>>,
}

#[derive(Serialize)]
struct Body<'a> {
    #[serde(flatten)]
    bucket: &'a Bucket,
    group_name: &'a str,
    load_format: &'a str,
    flush_cache: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    weight_version: Option<&'a str>,
}

#[derive(Deserialize)]
struct Answer {
    success: bool,
    #[serde(default)]
    message: String,
}

/// Receive one bucket in the group `group`. `label` names the version and goes with the last bucket, whose arrival also
/// flushes the prefix cache.
///
/// # Errors
/// Anything but success; the server's weights are unknown then.
pub async fn update_weights_from_distributed(
    server: &Server,
    group: &str,
    bucket: &Bucket,
    label: Option<&str>,
    deadline: Duration,
) -> Result<(), CallError> {
    let body = Body {
        bucket,
        group_name: group,
        load_format: "flattened_bucket",
        flush_cache: label.is_some(),
        weight_version: label,
    };
    let answer: Answer = server
        .post_json("/update_weights_from_distributed", &body, deadline)
        .await?;
    match answer.success {
        true => Ok(()),
        false => Err(CallError::Malformed(format!(
            "the update failed: {}",
            answer.message
        ))),
    }
}
