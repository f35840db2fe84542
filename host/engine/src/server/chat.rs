//! `POST /v1/chat/completions`: the model's own chat template, the tools passed to it.
//!
//! It reads no tool calls out of answers: the text is returned as it was written, as SGLang does without a parser.

use super::answer::{self, Shown, now};
use super::generate::begin;
use super::openai::{Common, chat_logprobs, finish, metadata, usage};
use super::refusal::{Refusal, read};
use super::sampling::unsupported;
use super::sse;
use crate::engine::{EngineHandle, Job};
use crate::generation::Generation;
use crate::request::Wanted;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures::future::try_join_all;
use futures::{Stream, StreamExt, stream};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use slime_core::{Message, Tool};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Debug, Deserialize)]
struct Body {
    messages: Vec<Message>,
    #[serde(flatten)]
    common: Common,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
    tools: Option<Vec<Tool>>,
    tool_choice: Option<Value>,
    chat_template_kwargs: Option<Map<String, Value>>,
    return_meta_info: Option<bool>,
    return_prompt_token_ids: Option<bool>,
    continue_final_message: Option<bool>,
}

/// How this request's choices are shown.
struct View {
    model: String,
    created: u64,
    logprobs: bool,
    meta: Option<Shown>,
    prompt_ids: bool,
}

pub(super) async fn chat(
    State(engine): State<EngineHandle>,
    body: Bytes,
) -> Result<Response, Refusal> {
    let mut body: Body = read(&body)?;
    let prompt = render(&engine, &mut body)?;
    let asked = body.max_completion_tokens.or(body.max_tokens);
    let inner = &engine.inner;
    let params = body
        .common
        .params(asked, inner.config.sampling_defaults, inner.vocab_size)?;
    let logprobs = body.logprobs.unwrap_or(false);
    let top = if logprobs {
        body.top_logprobs.unwrap_or(0)
    } else {
        0
    };
    let stream = body.common.stream.unwrap_or(false);
    let shown = Shown {
        logprobs,
        top,
        text_in_logprobs: true,
        prompt_ids: false,
    };
    let view = View {
        model: body.common.model(),
        created: now() as u64,
        logprobs,
        meta: body.return_meta_info.unwrap_or(false).then_some(shown),
        prompt_ids: body.return_prompt_token_ids.unwrap_or(false),
    };
    let id = body
        .common
        .rid
        .clone()
        .unwrap_or_else(|| engine.fresh_rid());
    let wanted = Wanted {
        output: logprobs,
        input_from: None,
        top,
        routes_from: None,
    };
    let prompt_tokens = prompt.len();
    let job = Job {
        rid: Some(id.clone()),
        prompt,
        params,
        wanted,
        stream,
    };
    let generations = begin(&engine, job).map_err(Refusal::openai)?;
    if stream {
        let usage_wanted = body.common.wants_usage();
        return Ok(sse::respond(events(
            engine,
            generations,
            id,
            view,
            usage_wanted,
            prompt_tokens,
        )));
    }
    let generations = try_join_all(generations.into_iter().map(Generation::complete))
        .await
        .map_err(|e| Refusal::from(e).openai())?;
    let choices: Vec<Value> = generations
        .iter()
        .enumerate()
        .map(|(i, g)| choice(g, i, &view, &engine))
        .collect();
    let completion = generations.iter().map(|g| g.tokens.len()).sum();
    Ok(Json(json!({
        "id": id,
        "object": "chat.completion",
        "created": view.created,
        "model": view.model,
        "choices": choices,
        "usage": usage(prompt_tokens, completion),
        "metadata": metadata(&generations[0]),
    }))
    .into_response())
}

/// The conversation as ids.
fn render(engine: &EngineHandle, body: &mut Body) -> Result<Vec<u32>, Refusal> {
    if body.messages.is_empty() {
        return Err(Refusal::invalid("Messages cannot be empty.").openai());
    }
    if body.continue_final_message == Some(true) {
        return Err(unsupported("continue_final_message").openai());
    }
    for message in &mut body.messages {
        flatten(message)?;
    }
    let mut tools = body.tools.take().unwrap_or_default();
    match &body.tool_choice {
        None | Some(Value::Null) => {}
        Some(Value::String(choice)) if choice == "auto" => {}
        Some(Value::String(choice)) if choice == "none" => tools.clear(),
        Some(_) => return Err(unsupported("a tool_choice other than auto and none").openai()),
    }
    let kwargs = body.chat_template_kwargs.take().unwrap_or_default();
    engine
        .codec()
        .render_chat(&body.messages, &tools, true, &kwargs)
        .map_err(|e| Refusal::invalid(e.to_string()).openai())
}

/// Text parts become one text; other parts cannot be served.
fn flatten(message: &mut Message) -> Result<(), Refusal> {
    let Value::Array(parts) = &message.content else {
        return Ok(());
    };
    let mut text = String::new();
    for part in parts {
        match (part["type"].as_str(), part["text"].as_str()) {
            (Some("text"), Some(piece)) => text.push_str(piece),
            (kind, _) => {
                let kind = kind.unwrap_or("unknown");
                return Err(unsupported(&format!("a message part of type {kind}")).openai());
            }
        }
    }
    message.content = Value::String(text);
    Ok(())
}

fn choice(g: &Generation, index: usize, view: &View, engine: &EngineHandle) -> Value {
    let codec = &**engine.codec();
    let (finish_reason, matched_stop) = finish(g);
    let mut choice = json!({
        "index": index,
        "message": {"role": "assistant", "content": g.text(), "reasoning_content": null},
        "logprobs": if view.logprobs { chat_logprobs(g, codec, 0) } else { Value::Null },
        "finish_reason": finish_reason,
        "matched_stop": matched_stop,
    });
    if let Some(shown) = view.meta {
        choice["meta_info"] = answer::meta_info(g, codec, shown);
    }
    if view.prompt_ids {
        choice["prompt_token_ids"] = json!(g.prompt_ids());
    }
    choice
}

/// A role chunk, deltas, a chunk with the reason, and the usage where it was asked for.
fn events(
    engine: EngineHandle,
    generations: Vec<Generation>,
    id: String,
    view: View,
    usage_wanted: bool,
    prompt_tokens: usize,
) -> impl Stream<Item = Value> + Send + 'static {
    let view = Arc::new(view);
    let completion = Arc::new(AtomicUsize::new(0));
    let head = json!({"id": id, "object": "chat.completion.chunk", "created": view.created, "model": view.model});
    let chunk = move |head: &Value, choices: Value| {
        let mut chunk = head.clone();
        chunk["choices"] = choices;
        chunk
    };
    let per_choice = generations.into_iter().enumerate().map({
        let (head, completion) = (head.clone(), completion.clone());
        move |(index, g)| {
            let (head, view, engine, completion) = (head.clone(), view.clone(), engine.clone(), completion.clone());
            let role = json!([{"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null, "matched_stop": null}]);
            let first = stream::once(std::future::ready(chunk(&head, role)));
            let (mut shown_bytes, mut shown_tokens) = (0, 0);
            let rest = super::generate::progress(g, move |g| {
                let delta = &g.text()[shown_bytes..];
                let (finish_reason, matched_stop) = finish(g);
                let logprobs =
                    if view.logprobs { chat_logprobs(g, &**engine.codec(), shown_tokens) } else { Value::Null };
                completion.fetch_add(g.tokens.len() - shown_tokens, Ordering::Relaxed);
                let delta_json = if delta.is_empty() { json!({}) } else { json!({"content": delta}) };
                shown_bytes += delta.len();
                shown_tokens = g.tokens.len();
                let choice = json!([{"index": index, "delta": delta_json, "logprobs": logprobs, "finish_reason": finish_reason, "matched_stop": matched_stop}]);
                chunk(&head, choice)
            });
            first.chain(rest).boxed()
        }
    });
    let usage_event = usage_wanted.then(|| {
        stream::once(async move {
            let mut last = chunk(&head, json!([]));
            last["usage"] = usage(prompt_tokens, completion.load(Ordering::Relaxed));
            last
        })
    });
    stream::select_all(per_choice.collect::<Vec<_>>()).chain(stream::iter(usage_event).flatten())
}
