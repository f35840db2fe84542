//! `POST /update_weights_from_tensor`: tensors described by a pickle, one for each tensor-parallel rank.
//!
//! It must lie in a weight session (`weight_session.rs`). A payload the server cannot read kills it, so payloads
//! are made from a checked directory only. After any answer but 200 the server's weights are unknown.

use crate::pool::server::{CallError, Server};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Serialize)]
struct Body<'a> {
    serialized_named_tensors: Vec<String>,
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

/// Load one bucket; `payloads` has one for each rank. `label` names the version and goes with the last bucket,
/// whose arrival also flushes the prefix cache.
///
/// # Errors
/// Anything but success.
pub async fn update_weights_from_tensor(
    server: &Server,
    payloads: &[Vec<u8>],
    label: Option<&str>,
    deadline: Duration,
) -> Result<(), CallError> {
    let body = Body {
        serialized_named_tensors: payloads
            .iter()
            .map(|bytes| STANDARD.encode(bytes))
            .collect(),
        load_format: "flattened_bucket",
        flush_cache: label.is_some(),
        weight_version: label,
    };
    let answer: Answer = server
        .post_json("/update_weights_from_tensor", &body, deadline)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_gives_the_rfcs_vectors() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(STANDARD.encode(bytes), text);
        }
        assert_eq!(STANDARD.encode([0xfb, 0xff]), "+/8=");
    }
}
