//! `POST /generate` without generating: the log-probs of tokens that are there already.
//!
//! A stock server computes them at temperature 1, whatever the request says.

use crate::pool::server::{CallError, Server};
use serde::Deserialize;
use serde_json::json;
use std::time::Duration;

#[derive(Deserialize)]
struct Answer {
    meta_info: Meta,
}

#[derive(Deserialize)]
struct Meta {
    /// Log-prob (null for the first token), id, text.
    input_token_logprobs: Vec<(Option<f64>, u32, Option<serde_json::Value>)>,
}

/// Log-probs of all tokens but the first, `[tokens - 1]`.
///
/// # Errors
/// The server cannot be reached, or answers for other tokens.
pub async fn input_logprobs(
    server: &Server,
    tokens: &[u32],
    deadline: Duration,
) -> Result<Vec<f64>, CallError> {
    let body = json!({
        "input_ids": tokens,
        "sampling_params": { "max_new_tokens": 0, "temperature": 1.0, "skip_special_tokens": false },
        "return_logprob": true,
        "logprob_start_len": 0,
    });
    let answer: Answer = server.post_json("/generate", &body, deadline).await?;
    let given = answer.meta_info.input_token_logprobs;
    if !given.iter().map(|(_, id, _)| id).eq(tokens) {
        let what = format!("log-probs of {} tokens for {}", given.len(), tokens.len());
        return Err(CallError::Malformed(what));
    }
    let values = given.into_iter().skip(1).map(|(logprob, ..)| logprob);
    let missing = || CallError::Malformed("a token has no log-prob".into());
    values.map(|logprob| logprob.ok_or_else(missing)).collect()
}
