//! What the OpenAI paths share: sampling fields by their names there, usage, log-probs, and the tokenizer's paths.

use super::answer::token_text;
use super::generate::Ids;
use super::refusal::{Refusal, read};
use super::sampling::{OneOrMany, SamplingBody, Seed, unsupported};
use crate::engine::{EngineHandle, SamplingDefaults};
use crate::generation::Generation;
use crate::request::{Finish, Params};
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};
use slime_core::ports::TextCodec;
use std::collections::BTreeMap;

/// Fields that chat and completion requests have in common.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Common {
    pub(super) model: Option<String>,
    pub(super) rid: Option<String>,
    pub(super) stream: Option<bool>,
    pub(super) stream_options: Option<StreamOptions>,
    n: Option<i64>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<i64>,
    min_p: Option<f64>,
    frequency_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    repetition_penalty: Option<f64>,
    seed: Option<Seed>,
    sampling_seed: Option<Seed>,
    stop: Option<OneOrMany<String>>,
    stop_token_ids: Option<Vec<i64>>,
    min_tokens: Option<i64>,
    logit_bias: Option<BTreeMap<String, f32>>,
    ignore_eos: Option<bool>,
    no_stop_trim: Option<bool>,
    skip_special_tokens: Option<bool>,
    // Known to SGLang, not to the embedded engine.
    response_format: Option<Value>,
    json_schema: Option<Value>,
    regex: Option<Value>,
    ebnf: Option<Value>,
    stop_regex: Option<Value>,
    lora_path: Option<Value>,
    custom_logit_processor: Option<Value>,
}

/// `stream_options`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StreamOptions {
    pub(super) include_usage: bool,
}

impl Common {
    pub(super) fn model(&self) -> String {
        self.model.clone().unwrap_or_else(|| "default".into())
    }

    pub(super) fn wants_usage(&self) -> bool {
        self.stream_options.is_some_and(|o| o.include_usage)
    }

    /// Checked parameters for an answer of at most `max_tokens`.
    pub(super) fn params(
        &self,
        max_tokens: Option<i64>,
        defaults: SamplingDefaults,
        vocab: usize,
    ) -> Result<Params, Refusal> {
        self.refuse_unsupported()?;
        let body = SamplingBody {
            max_new_tokens: max_tokens,
            temperature: self.temperature.or(defaults.temperature),
            top_p: self.top_p.or(defaults.top_p),
            top_k: self.top_k.or(defaults.top_k),
            min_p: self.min_p.or(defaults.min_p),
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            repetition_penalty: self.repetition_penalty.or(defaults.repetition_penalty),
            min_new_tokens: self.min_tokens,
            n: self.n,
            stop: self.stop.clone(),
            stop_token_ids: self.stop_token_ids.clone(),
            logit_bias: self.logit_bias.clone(),
            ignore_eos: self.ignore_eos,
            no_stop_trim: self.no_stop_trim,
            skip_special_tokens: self.skip_special_tokens,
            sampling_seed: self.seed.or(self.sampling_seed),
            ..SamplingBody::default()
        };
        body.check(vocab).map_err(Refusal::openai)
    }

    fn refuse_unsupported(&self) -> Result<(), Refusal> {
        let plain_text = |v: &Value| v.is_null() || v["type"] == "text";
        let fields = [
            (
                "response_format",
                self.response_format
                    .as_ref()
                    .is_some_and(|v| !plain_text(v)),
            ),
            ("json_schema", self.json_schema.is_some()),
            ("regex", self.regex.is_some()),
            ("ebnf", self.ebnf.is_some()),
            ("stop_regex", self.stop_regex.is_some()),
            ("lora_path", self.lora_path.is_some()),
            (
                "custom_logit_processor",
                self.custom_logit_processor.is_some(),
            ),
        ];
        match fields.iter().find(|(_, given)| *given) {
            Some((name, _)) => Err(unsupported(name).openai()),
            None => Ok(()),
        }
    }
}

/// `finish_reason` and `matched_stop`.
pub(super) fn finish(g: &Generation) -> (Value, Value) {
    match g.ending.as_ref().map(|e| &e.finish) {
        None => (Value::Null, Value::Null),
        Some(Finish::Length(_)) => ("length".into(), Value::Null),
        Some(Finish::StopToken(id)) => ("stop".into(), (*id).into()),
        Some(Finish::StopString(s)) => ("stop".into(), s.as_str().into()),
        Some(Finish::Abort(_) | Finish::Failed(_)) => ("abort".into(), Value::Null),
    }
}

/// Token counts of an answer; a prompt with several samples counts once.
pub(super) fn usage(prompt_tokens: usize, completion_tokens: usize) -> Value {
    json!({
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": null,
        "reasoning_tokens": 0,
        "completion_tokens_details": null,
    })
}

/// Which weights an answer came from.
pub(super) fn metadata(g: &Generation) -> Value {
    let spans = g.spans();
    let spans: Value = spans
        .iter()
        .map(|s| json!({"version": &*s.version, "start": s.start, "end": s.end}))
        .collect();
    json!({"weight_version": &*g.version, "weight_versions": spans})
}

/// Chat's log-probs of the tokens from `first` on.
pub(super) fn chat_logprobs(g: &Generation, codec: &dyn TextCodec, first: usize) -> Value {
    let one = |id: u32, logprob: Option<f32>| {
        let text = token_text(codec, id);
        json!({"token": text, "bytes": text.as_bytes(), "logprob": logprob.map(f64::from)})
    };
    let content = g.tokens[first..].iter().map(|t| {
        let mut entry = one(t.id, t.logprob);
        entry["top_logprobs"] = t.top.iter().map(|&(lp, id)| one(id, Some(lp))).collect();
        entry
    });
    json!({"content": content.collect::<Vec<_>>()})
}

#[derive(Debug, Deserialize)]
pub(super) struct TokenizeBody {
    prompt: OneOrMany<String>,
}

pub(super) async fn tokenize(
    State(engine): State<EngineHandle>,
    body: Bytes,
) -> Result<Json<Value>, Refusal> {
    let body: TokenizeBody = read(&body)?;
    let encode = |text: &String| {
        engine
            .codec()
            .encode(text)
            .map_err(|e| Refusal::invalid(e.to_string()).openai())
    };
    let max_model_len = engine.context_length();
    Ok(Json(match &body.prompt {
        OneOrMany::One(text) => {
            let tokens = encode(text)?;
            json!({"count": tokens.len(), "tokens": tokens, "max_model_len": max_model_len})
        }
        OneOrMany::Many(texts) => {
            let tokens = texts.iter().map(encode).collect::<Result<Vec<_>, _>>()?;
            let count: Vec<usize> = tokens.iter().map(Vec::len).collect();
            json!({"tokens": tokens, "count": count, "max_model_len": max_model_len})
        }
    }))
}

#[derive(Debug, Deserialize)]
pub(super) struct DetokenizeBody {
    tokens: Ids,
    #[serde(default = "yes")]
    skip_special_tokens: bool,
}

fn yes() -> bool {
    true
}

pub(super) async fn detokenize(
    State(engine): State<EngineHandle>,
    body: Bytes,
) -> Result<Json<Value>, Refusal> {
    let body: DetokenizeBody = read(&body)?;
    let many = matches!(body.tokens, Ids::Many(_));
    let prompts = body.tokens.into_prompts();
    if let Some(id) = prompts
        .iter()
        .flatten()
        .find(|id| **id as usize >= engine.inner.vocab_size)
    {
        let message = format!(
            "token {id} lies beyond the vocabulary of {} tokens.",
            engine.inner.vocab_size
        );
        return Err(Refusal::invalid(message).openai());
    }
    let texts: Vec<String> = prompts
        .iter()
        .map(|ids| engine.codec().decode(ids, body.skip_special_tokens))
        .collect();
    Ok(Json(if many {
        json!({"text": texts})
    } else {
        json!({"text": texts.concat()})
    }))
}
