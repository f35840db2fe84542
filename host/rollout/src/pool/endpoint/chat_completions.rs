//! `POST /v1/chat/completions`: a conversation in, text out. The server renders it by its own model's template.
//!
//! Only for models whose tokens nobody trains on: what trains goes through `generate`, token ids in and out.

use crate::pool::server::{CallError, Server};
use serde::Deserialize;
use serde_json::json;
use slime_core::FinishReason;
use slime_core::ports::{Ask, ModelAnswer};
use std::time::Duration;

#[derive(Deserialize)]
struct Answer {
    choices: Vec<Choice>,
    usage: Usage,
}

#[derive(Deserialize)]
struct Choice {
    message: Said,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Said {
    content: Option<String>,
}

#[derive(Deserialize)]
struct Usage {
    completion_tokens: u32,
}

/// One answer.
///
/// # Errors
/// The server refused, could not be reached, or gave no answer.
pub async fn chat_completions(
    server: &Server,
    ask: &Ask,
    deadline: Duration,
) -> Result<ModelAnswer, CallError> {
    let body = json!({
        "model": ask.model,
        "messages": ask.messages,
        "max_tokens": ask.max_tokens,
        "temperature": ask.temperature,
        // Servers keep seeds in 63 bits.
        "seed": ask.seed >> 1,
    });
    let call = server.post("/v1/chat/completions", &body, deadline);
    let answer: Answer = server.read_promptly(call).await?;
    let malformed = |what: &str| CallError::Malformed(what.to_owned());
    let mut choices = answer.choices.into_iter();
    let choice = choices.next().ok_or_else(|| malformed("no choice"))?;
    let finish = match choice.finish_reason.as_deref() {
        Some("length") => FinishReason::Length,
        Some("abort") => return Err(malformed("the server gave up on the request")),
        _ => FinishReason::Stop,
    };
    Ok(ModelAnswer {
        text: choice.message.content.unwrap_or_default(),
        finish,
        num_tokens: answer.usage.completion_tokens,
    })
}
