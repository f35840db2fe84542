//! A generation as `/generate` shows it: text, ids and `meta_info`.

use crate::generation::Generation;
use crate::request::{Finish, Token};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use slime_core::ports::TextCodec;
use std::time::{SystemTime, UNIX_EPOCH};

/// What the client asked to see.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shown {
    pub(super) logprobs: bool,
    pub(super) top: usize,
    pub(super) text_in_logprobs: bool,
    pub(super) prompt_ids: bool,
}

/// Seconds since 1970.
pub(super) fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |d| d.as_secs_f64())
}

/// The whole object; also what a stream's event holds, everything so far.
pub(super) fn generation(g: &Generation, codec: &dyn TextCodec, shown: Shown) -> Value {
    let mut answer = json!({"text": g.text(), "output_ids": g.output_ids(), "meta_info": meta_info(g, codec, shown)});
    if shown.prompt_ids {
        answer["prompt_token_ids"] = json!(g.prompt_ids());
    }
    answer
}

/// `meta_info`.
pub(super) fn meta_info(g: &Generation, codec: &dyn TextCodec, shown: Shown) -> Value {
    let finish = g
        .ending
        .as_ref()
        .map_or(Value::Null, |e| finish_reason(&e.finish));
    let mut meta = Map::new();
    meta.insert("id".into(), g.rid().into());
    meta.insert("finish_reason".into(), finish);
    meta.insert("prompt_tokens".into(), g.prompt_ids().len().into());
    meta.insert("weight_version".into(), (*g.version).into());
    meta.insert("num_retractions".into(), g.retractions.into());
    if shown.logprobs {
        let list = |tokens: &[Token]| {
            tokens
                .iter()
                .map(|t| entry(codec, t.logprob, t.id, shown))
                .collect::<Value>()
        };
        meta.insert("input_token_logprobs".into(), list(&g.prompt.logprobs));
        meta.insert("output_token_logprobs".into(), list(&g.tokens));
        if shown.top > 0 {
            let tops = |tokens: &[Token]| {
                tokens
                    .iter()
                    .map(|t| top(codec, t, shown))
                    .collect::<Value>()
            };
            meta.insert("input_top_logprobs".into(), tops(&g.prompt.logprobs));
            meta.insert("output_top_logprobs".into(), tops(&g.tokens));
        }
        meta.insert("output_token_logprobs_length".into(), g.tokens.len().into());
    }
    meta.insert("reasoning_tokens".into(), 0.into());
    meta.insert("completion_tokens".into(), g.tokens.len().into());
    meta.insert("cached_tokens".into(), g.prompt.cached_tokens.into());
    if g.ending.is_some() {
        let spans = g.spans();
        let spans = spans
            .iter()
            .map(|s| json!({"version": &*s.version, "start": s.start, "end": s.end}));
        meta.insert("weight_versions".into(), spans.collect());
    }
    if let Some(routes) = g.ending.as_ref().and_then(|e| e.routes.as_ref()) {
        // As SGLang writes them: 32-bit numbers, least significant byte first.
        let bytes: Vec<u8> = routes.iter().flat_map(|e| e.to_le_bytes()).collect();
        meta.insert("routed_experts".into(), STANDARD.encode(bytes).into());
    }
    let cached = g.prompt.cached_tokens;
    let details = if cached > 0 {
        json!({"device": cached, "host": 0})
    } else {
        Value::Null
    };
    meta.insert("cached_tokens_details".into(), details);
    meta.insert("dp_rank".into(), Value::Null);
    if g.ending.is_some() {
        meta.insert("e2e_latency".into(), g.seconds.into());
    }
    meta.insert("response_sent_to_client_ts".into(), now().into());
    meta.into()
}

/// `[log-prob, id, text]`.
fn entry(codec: &dyn TextCodec, logprob: Option<f32>, id: u32, shown: Shown) -> Value {
    let text = if shown.text_in_logprobs {
        Value::from(token_text(codec, id))
    } else {
        Value::Null
    };
    json!([logprob.map(f64::from), id, text])
}

fn top(codec: &dyn TextCodec, token: &Token, shown: Shown) -> Value {
    if token.logprob.is_none() && token.top.is_empty() {
        return Value::Null;
    }
    token
        .top
        .iter()
        .map(|&(lp, id)| entry(codec, Some(lp), id, shown))
        .collect()
}

/// A single token's text, special tokens shown.
pub(super) fn token_text(codec: &dyn TextCodec, id: u32) -> String {
    codec.decode(&[id], false)
}

fn finish_reason(finish: &Finish) -> Value {
    match finish {
        Finish::Length(length) => json!({"type": "length", "length": length}),
        Finish::StopToken(id) => json!({"type": "stop", "matched": id}),
        Finish::StopString(stop) => json!({"type": "stop", "matched": stop}),
        Finish::Abort(message) | Finish::Failed(message) => {
            json!({"type": "abort", "message": message, "status_code": null, "err_type": null})
        }
    }
}
