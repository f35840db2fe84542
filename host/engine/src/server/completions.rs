//! `POST /v1/completions`: text or ids continued, without a template.

use super::answer::{now, token_text};
use super::generate::{Ids, begin, progress};
use super::openai::{Common, finish, metadata, usage};
use super::refusal::{Refusal, read};
use super::sampling::{OneOrMany, unsupported};
use super::sse;
use crate::engine::{EngineHandle, Job};
use crate::generation::Generation;
use crate::request::{Token, Wanted};
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures::future::try_join_all;
use futures::{StreamExt, stream};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use slime_core::ports::TextCodec;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Debug, Deserialize)]
struct Body {
    prompt: Prompt,
    #[serde(flatten)]
    common: Common,
    max_tokens: Option<i64>,
    logprobs: Option<usize>,
    echo: Option<bool>,
    suffix: Option<String>,
    best_of: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Prompt {
    Text(OneOrMany<String>),
    Ids(Ids),
}

pub(super) async fn completions(
    State(engine): State<EngineHandle>,
    body: Bytes,
) -> Result<Response, Refusal> {
    let body: Body = read(&body)?;
    let unknown = [
        (
            "suffix",
            body.suffix.as_deref().is_some_and(|s| !s.is_empty()),
        ),
        ("best_of", body.best_of.is_some_and(|b| b > 1)),
    ];
    if let Some((name, _)) = unknown.iter().find(|(_, given)| *given) {
        return Err(unsupported(name).openai());
    }
    let max_tokens = body.max_tokens.unwrap_or(16);
    if max_tokens <= 0 {
        return Err(
            Refusal::invalid(format!("max_tokens must be positive, got {max_tokens}.")).openai(),
        );
    }
    let inner = &engine.inner;
    let params = body.common.params(
        Some(max_tokens),
        inner.config.sampling_defaults,
        inner.vocab_size,
    )?;
    let encode = |t: String| {
        engine
            .codec()
            .encode(&t)
            .map_err(|e| Refusal::invalid(e.to_string()).openai())
    };
    let prompts = match body.prompt {
        Prompt::Ids(ids) => ids.into_prompts(),
        Prompt::Text(text) => text
            .into_vec()
            .into_iter()
            .map(encode)
            .collect::<Result<Vec<_>, _>>()?,
    };
    if prompts.is_empty() {
        return Err(Refusal::invalid("prompt cannot be empty.").openai());
    }
    let prompt_tokens = prompts.iter().map(Vec::len).sum();
    let stream = body.common.stream.unwrap_or(false);
    let echo = body.echo.unwrap_or(false);
    let wanted = Wanted {
        output: body.logprobs.is_some(),
        input_from: (echo && body.logprobs.is_some()).then_some(0),
        top: body.logprobs.unwrap_or(0),
        routes_from: None,
    };
    let id = body
        .common
        .rid
        .clone()
        .unwrap_or_else(|| engine.fresh_rid());
    let several = prompts.len() > 1;
    let mut generations = Vec::new();
    for (i, prompt) in prompts.into_iter().enumerate() {
        let rid = if several {
            format!("{id}_{i}")
        } else {
            id.clone()
        };
        let job = Job {
            rid: Some(rid),
            prompt,
            params: params.clone(),
            wanted,
            stream,
        };
        generations.extend(begin(&engine, job).map_err(Refusal::openai)?);
    }
    let head = json!({"id": id, "object": "text_completion", "created": now() as u64, "model": body.common.model()});
    let show = Show {
        echo,
        logprobs: body.logprobs,
    };
    if stream {
        return Ok(respond_stream(
            &engine,
            generations,
            head,
            show,
            body.common.wants_usage(),
            prompt_tokens,
        ));
    }
    let generations = try_join_all(generations.into_iter().map(Generation::complete))
        .await
        .map_err(|e| Refusal::from(e).openai())?;
    let codec = &**engine.codec();
    let choices: Vec<Value> = generations
        .iter()
        .enumerate()
        .map(|(i, g)| show.choice(g, i, codec, 0, 0))
        .collect();
    let mut answer = head;
    answer["choices"] = choices.into();
    answer["usage"] = usage(
        prompt_tokens,
        generations.iter().map(|g| g.tokens.len()).sum(),
    );
    answer["metadata"] = metadata(&generations[0]);
    Ok(Json(answer).into_response())
}

#[derive(Clone, Copy)]
struct Show {
    echo: bool,
    logprobs: Option<usize>,
}

impl Show {
    /// A choice with the text and tokens from `bytes` and `tokens` on.
    fn choice(
        self,
        g: &Generation,
        index: usize,
        codec: &dyn TextCodec,
        bytes: usize,
        tokens: usize,
    ) -> Value {
        let echo = self.echo && tokens == 0;
        let mut text = if echo {
            codec.decode(g.prompt_ids(), true)
        } else {
            String::new()
        };
        text.push_str(&g.text()[bytes..]);
        let logprobs = self.logprobs.map(|top| {
            let input = if echo { &g.prompt.logprobs[..] } else { &[] };
            self.logprobs_of(input.iter().chain(&g.tokens[tokens..]), codec, top)
        });
        let (finish_reason, matched_stop) = finish(g);
        json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason, "matched_stop": matched_stop})
    }

    fn logprobs_of<'a>(
        self,
        all: impl Iterator<Item = &'a Token>,
        codec: &dyn TextCodec,
        top: usize,
    ) -> Value {
        let (mut offsets, mut logprobs, mut texts, mut tops) = (vec![], vec![], vec![], vec![]);
        for t in all {
            offsets.push(-1);
            logprobs.push(t.logprob.map(f64::from));
            texts.push(token_text(codec, t.id));
            let likely: Map<String, Value> = t
                .top
                .iter()
                .map(|&(lp, id)| (token_text(codec, id), f64::from(lp).into()))
                .collect();
            tops.push(if top == 0 || likely.is_empty() {
                Value::Null
            } else {
                likely.into()
            });
        }
        json!({"text_offset": offsets, "token_logprobs": logprobs, "tokens": texts, "top_logprobs": tops})
    }
}

fn respond_stream(
    engine: &EngineHandle,
    generations: Vec<Generation>,
    head: Value,
    show: Show,
    usage_wanted: bool,
    prompt_tokens: usize,
) -> Response {
    let completion = Arc::new(AtomicUsize::new(0));
    let all: Vec<_> = generations
        .into_iter()
        .enumerate()
        .map(|(index, g)| {
            let (head, codec, completion) =
                (head.clone(), engine.codec().clone(), completion.clone());
            let (mut bytes, mut tokens) = (0, 0);
            let events = progress(g, move |g| {
                let mut event = head.clone();
                event["choices"] = json!([show.choice(g, index, &*codec, bytes, tokens)]);
                completion.fetch_add(g.tokens.len() - tokens, Ordering::Relaxed);
                bytes = g.text().len();
                tokens = g.tokens.len();
                event
            });
            events.boxed()
        })
        .collect();
    let last = usage_wanted.then(|| {
        stream::once(async move {
            let mut last = head;
            last["choices"] = json!([]);
            last["usage"] = usage(prompt_tokens, completion.load(Ordering::Relaxed));
            last
        })
    });
    sse::respond(stream::select_all(all).chain(stream::iter(last).flatten()))
}
