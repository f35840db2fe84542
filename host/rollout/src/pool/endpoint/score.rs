//! `POST /generate` that samples nothing: log-probs of tokens given, at temperature 1.

use crate::pool::server::{CallError, Server};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

#[derive(Deserialize)]
struct Answer {
    meta_info: Meta,
}

#[derive(Deserialize)]
struct Meta {
    input_token_logprobs: Vec<(Option<f32>, u32, Value)>,
}

/// Log-probs of every token of `tokens` but the first, from logits that nothing has divided.
///
/// # Errors
/// The server refused, cannot be reached, or scored other tokens.
pub async fn score(
    server: &Server,
    tokens: &[u32],
    deadline: Duration,
) -> Result<Vec<f32>, CallError> {
    let body = json!({
        "input_ids": tokens,
        "sampling_params": { "max_new_tokens": 0, "temperature": 0 },
        "return_logprob": true,
        "logprob_start_len": 0,
    });
    let answer: Answer = server.post_json("/generate", &body, deadline).await?;
    let scored = answer.meta_info.input_token_logprobs;
    if !scored.iter().map(|(_, id, _)| id).eq(tokens) {
        return Err(CallError::Malformed(
            "log-probs came for other tokens".into(),
        ));
    }
    let logprobs = scored.iter().skip(1).map(|(p, ..)| *p);
    logprobs
        .collect::<Option<_>>()
        .ok_or_else(|| CallError::Malformed("a log-prob is missing".into()))
}
