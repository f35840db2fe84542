//! `POST /generate`: one prompt or many, as text or ids, whole or streamed.

use super::answer::{self, Shown};
use super::refusal::{Refusal, read};
use super::sampling::{OneOrMany, SamplingBody, unsupported};
use super::sse;
use crate::engine::{EngineHandle, Job};
use crate::generation::Generation;
use crate::request::{Params, Wanted};
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures::future::try_join_all;
use futures::{Stream, StreamExt, stream};
use serde::Deserialize;
use serde_json::Value;

/// Fields nobody knows are ignored, as SGLang does; those that would change the answer are refused.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Body {
    text: Option<OneOrMany<String>>,
    input_ids: Option<Ids>,
    sampling_params: Option<Value>,
    rid: Option<OneOrMany<String>>,
    return_logprob: Option<OneOrMany<bool>>,
    logprob_start_len: Option<OneOrMany<i64>>,
    top_logprobs_num: Option<OneOrMany<usize>>,
    return_text_in_logprobs: Option<bool>,
    return_prompt_token_ids: Option<bool>,
    stream: Option<bool>,
    // Known to SGLang, not to the embedded engine.
    input_embeds: Option<Value>,
    image_data: Option<Value>,
    video_data: Option<Value>,
    audio_data: Option<Value>,
    lora_path: Option<Value>,
    token_ids_logprob: Option<Value>,
    session_params: Option<Value>,
    custom_logit_processor: Option<Value>,
    return_hidden_states: Option<Value>,
    return_sampling_mask: Option<Value>,
    return_routed_experts: Option<OneOrMany<bool>>,
    routed_experts_start_len: Option<usize>,
}

/// Token ids of one prompt or several. Signed, so that a negative one is refused as an id and not as JSON.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Ids {
    One(Vec<i64>),
    Many(Vec<Vec<i64>>),
}

impl Ids {
    pub(super) fn into_prompts(self) -> Vec<Vec<u32>> {
        // What is no u32 is no token either; the engine says so with the vocabulary's size.
        let ids = |v: Vec<i64>| {
            v.into_iter()
                .map(|i| u32::try_from(i).unwrap_or(u32::MAX))
                .collect()
        };
        match self {
            Self::One(one) => vec![ids(one)],
            Self::Many(many) => many.into_iter().map(ids).collect(),
        }
    }
}

/// A checked request: what is run and how it is shown.
struct Asked {
    jobs: Vec<Job>,
    shown: Vec<Shown>,
    /// The answer is an array.
    many: bool,
    stream: bool,
}

pub(super) async fn generate(
    State(engine): State<EngineHandle>,
    body: Bytes,
) -> Result<Response, Refusal> {
    let Asked {
        jobs,
        shown,
        many,
        stream,
    } = asked(&engine, read(&body)?)?;
    let mut running = Vec::new();
    for (job, shown) in jobs.into_iter().zip(shown) {
        running.extend(begin(&engine, job)?.into_iter().map(|g| (g, shown)));
    }
    let codec = engine.codec().clone();
    if stream {
        let one = |(index, (g, shown)): (usize, (Generation, Shown))| {
            let codec = codec.clone();
            let events = progress(g, move |g| answer::generation(g, &*codec, shown));
            events.map(move |mut event| {
                if many {
                    event["index"] = index.into();
                }
                event
            })
        };
        let all = running
            .into_iter()
            .enumerate()
            .map(one)
            .map(StreamExt::boxed);
        return Ok(sse::respond(stream::select_all(all)));
    }
    let answers = running.into_iter().map(|(g, shown)| {
        let codec = codec.clone();
        async move {
            let g = g.complete().await?;
            Ok::<_, Refusal>(answer::generation(&g, &*codec, shown))
        }
    });
    let mut answers = try_join_all(answers).await?;
    let whole = if many {
        Value::from(answers)
    } else {
        answers.swap_remove(0)
    };
    Ok(Json(whole).into_response())
}

/// Queue a job: `n` generations.
pub(super) fn begin(engine: &EngineHandle, job: Job) -> Result<Vec<Generation>, Refusal> {
    let (params, stream) = (job.params.clone(), job.stream);
    let running = engine.submit(job)?;
    Ok(running
        .into_iter()
        .map(|r| Generation::new(r, &params, stream))
        .collect())
}

/// What `show` makes of a generation, each time it has grown; an error ends it.
pub(super) fn progress(
    g: Generation,
    show: impl FnMut(&Generation) -> Value + Send + 'static,
) -> impl Stream<Item = Value> + Send {
    stream::unfold(Some((g, show)), |state| async {
        let (mut g, mut show) = state?;
        match g.advance().await {
            Ok(more) => {
                let event = show(&g);
                Some((event, more.then_some((g, show))))
            }
            Err(e) => Some((Refusal::from(e).event(), None)),
        }
    })
}

/// One value for all, or one each.
fn spread<T: Clone>(
    name: &str,
    given: Option<OneOrMany<T>>,
    count: usize,
) -> Result<Vec<Option<T>>, Refusal> {
    match given {
        None => Ok(vec![None; count]),
        Some(OneOrMany::One(one)) => Ok(vec![Some(one); count]),
        Some(OneOrMany::Many(many)) if many.len() == count => {
            Ok(many.into_iter().map(Some).collect())
        }
        Some(OneOrMany::Many(many)) => {
            let have = many.len();
            Err(Refusal::invalid(format!(
                "{name} has {have} entries for {count} prompts: give one for all, or one each."
            )))
        }
    }
}

fn asked(engine: &EngineHandle, body: Body) -> Result<Asked, Refusal> {
    refuse_unsupported(&body)?;
    let (prompts, many) = match (body.text, body.input_ids) {
        (Some(_), Some(_)) => {
            return Err(Refusal::invalid("Give either text or input_ids, not both."));
        }
        (None, None) => {
            return Err(Refusal::invalid(
                "Either text, input_ids or input_embeds should be provided.",
            ));
        }
        (None, Some(ids)) => {
            let many = matches!(ids, Ids::Many(_));
            (ids.into_prompts(), many)
        }
        (Some(text), None) => {
            let many = matches!(text, OneOrMany::Many(_));
            let encode = |t: String| {
                engine
                    .codec()
                    .encode(&t)
                    .map_err(|e| Refusal::invalid(e.to_string()))
            };
            (
                text.into_vec()
                    .into_iter()
                    .map(encode)
                    .collect::<Result<Vec<_>, _>>()?,
                many,
            )
        }
    };
    let count = prompts.len();
    if count == 0 {
        return Err(Refusal::invalid("input_ids cannot be empty."));
    }
    let params = match body.sampling_params {
        Some(Value::Array(list)) => spread("sampling_params", Some(OneOrMany::Many(list)), count)?,
        one => vec![one; count],
    };
    let params: Vec<Params> = params
        .into_iter()
        .map(|p| SamplingBody::read(p)?.check(engine.inner.vocab_size))
        .collect::<Result<_, _>>()?;
    let rids = match body.rid {
        // One name for several prompts is the beginning of each one's.
        Some(OneOrMany::One(rid)) if many => {
            (0..count).map(|i| Some(format!("{rid}_{i}"))).collect()
        }
        rid => spread("rid", rid, count)?,
    };
    let logprobs = spread("return_logprob", body.return_logprob, count)?;
    let starts = spread("logprob_start_len", body.logprob_start_len, count)?;
    let tops = spread("top_logprobs_num", body.top_logprobs_num, count)?;
    let routes = spread("return_routed_experts", body.return_routed_experts, count)?;
    let routes_from = body.routed_experts_start_len.unwrap_or(0);
    let stream = body.stream.unwrap_or(false);
    let many = many || params.iter().any(|p| p.n > 1);
    let (mut jobs, mut shown) = (Vec::new(), Vec::new());
    let rows = prompts
        .into_iter()
        .zip(params)
        .zip(rids)
        .zip(logprobs)
        .zip(starts)
        .zip(tops)
        .zip(routes);
    for ((((((prompt, params), rid), logprob), start), top), routes) in rows {
        let routes = routes.unwrap_or(false);
        if routes && !engine.inner.has_experts {
            return Err(Refusal::invalid(
                "return_routed_experts is set, but the model has no experts.",
            ));
        }
        if routes && routes_from > prompt.len() {
            return Err(Refusal::invalid(format!(
                "routed_experts_start_len ({routes_from}) must be at most the number of input tokens ({}).",
                prompt.len()
            )));
        }
        let logprobs = logprob.unwrap_or(false);
        let start = start.unwrap_or(-1);
        if logprobs && start >= prompt.len() as i64 && !prompt.is_empty() {
            return Err(Refusal::invalid(format!(
                "logprob_start_len ({start}) must be below the number of input tokens ({}); -1 asks for output tokens only.",
                prompt.len()
            )));
        }
        let top = if logprobs { top.unwrap_or(0) } else { 0 };
        let input_from = usize::try_from(start).ok().filter(|_| logprobs);
        shown.push(Shown {
            logprobs,
            top,
            text_in_logprobs: body.return_text_in_logprobs.unwrap_or(false),
            prompt_ids: body.return_prompt_token_ids.unwrap_or(false),
        });
        jobs.push(Job {
            rid,
            prompt,
            params,
            wanted: Wanted {
                output: logprobs,
                input_from,
                top,
                routes_from: routes.then_some(routes_from),
            },
            stream,
        });
    }
    Ok(Asked {
        jobs,
        shown,
        many,
        stream,
    })
}

fn refuse_unsupported(body: &Body) -> Result<(), Refusal> {
    let fields = [
        ("input_embeds", &body.input_embeds),
        ("image_data", &body.image_data),
        ("video_data", &body.video_data),
        ("audio_data", &body.audio_data),
        ("lora_path", &body.lora_path),
        ("token_ids_logprob", &body.token_ids_logprob),
        ("session_params", &body.session_params),
        ("custom_logit_processor", &body.custom_logit_processor),
        ("return_hidden_states", &body.return_hidden_states),
        ("return_sampling_mask", &body.return_sampling_mask),
    ];
    let given = |v: &Option<Value>| !matches!(v, None | Some(Value::Null | Value::Bool(false)));
    match fields.iter().find(|(_, value)| given(value)) {
        Some((name, _)) => Err(unsupported(name)),
        None => Ok(()),
    }
}
