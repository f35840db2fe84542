//! `POST /generate`: token ids in, token ids and their log-probs out.
//!
//! With `stream` the server sends everything so far with every event, so only the last whole event is
//! parsed; when the connection breaks, that event is what was received. Stop strings are cut from the
//! text and not from the ids, end tokens stay in the ids.

use crate::pool::pair::{Meeting, Way};
use crate::pool::server::{CallError, Server, message_of};
use futures::StreamExt;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use slime_core::SamplingParams;
use slime_core::ports::SampleRequest;
use std::time::{Duration, Instant};

/// Why the server ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Finish {
    /// An end token, stop string or stop id.
    Stop,
    /// The token budget.
    Length,
    /// The server gave up; `status` is set where the request was at fault.
    Abort {
        /// In its words.
        message: String,
        /// An HTTP status, where it names one.
        status: Option<u16>,
    },
    /// The connection broke before the end.
    Unfinished,
}

/// What a server wrote.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The new tokens.
    pub tokens: Vec<u32>,
    /// One a token.
    pub logprobs: Vec<f32>,
    /// Labels of the weights that wrote them and how many tokens each, in order.
    pub versions: Vec<(String, usize)>,
    /// Why it ended.
    pub finish: Finish,
    /// Prompt tokens that the prefix cache served.
    pub cached_tokens: usize,
    /// As the server decoded it.
    pub text: String,
    /// Experts of every token but the last, where they were asked for: base64, as it came.
    pub routed_experts: Option<String>,
}

/// A call that failed, and what had arrived by then.
#[derive(Debug)]
pub struct Broken {
    /// Why.
    pub error: CallError,
    /// The last whole event of a stream.
    pub partial: Option<Answer>,
}

impl From<CallError> for Broken {
    fn from(error: CallError) -> Self {
        Self {
            error,
            partial: None,
        }
    }
}

#[derive(Serialize)]
struct Body<'a> {
    rid: &'a str,
    input_ids: &'a [u32],
    sampling_params: Params<'a>,
    return_logprob: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    return_routed_experts: bool,
    stream: bool,
    #[serde(flatten)]
    meeting: Option<&'a Meeting>,
}

impl<'a> Body<'a> {
    fn new(request: &'a SampleRequest, manner: Manner, meeting: Option<&'a Meeting>) -> Self {
        Self {
            rid: &request.rid,
            input_ids: &request.tokens,
            sampling_params: Params::new(&request.params),
            return_logprob: true,
            return_routed_experts: manner.routed_experts,
            stream: manner.stream,
            meeting,
        }
    }
}

/// SGLang refuses unknown members, and `stop: []` means different things to different versions.
#[derive(Serialize)]
struct Params<'a> {
    max_new_tokens: u32,
    temperature: f64,
    top_p: f64,
    top_k: i64,
    min_p: f64,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    stop: &'a [String],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    stop_token_ids: &'a [u32],
    #[serde(skip_serializing_if = "Option::is_none")]
    sampling_seed: Option<u64>,
    ignore_eos: bool,
}

impl<'a> Params<'a> {
    fn new(p: &'a SamplingParams) -> Self {
        Self {
            max_new_tokens: p.max_new_tokens,
            temperature: p.temperature,
            top_p: p.top_p,
            top_k: p.top_k,
            min_p: p.min_p,
            stop: &p.stop,
            stop_token_ids: &p.stop_token_ids,
            sampling_seed: p.sampling_seed,
            ignore_eos: p.ignore_eos,
        }
    }
}

/// How an answer is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manner {
    /// As it comes.
    pub stream: bool,
    /// With the experts that every token went to.
    pub routed_experts: bool,
}

/// Sample a continuation of `request.tokens`. In a stream, `so_far` hears of what came, now and then. With a `meeting` the
/// server is one that decodes, and another is told to [`prefill`] for it.
///
/// # Errors
/// The server refused, could not be reached, broke off, or sent an answer whose numbers do not fit
/// together.
pub async fn generate(
    server: &Server,
    request: &SampleRequest,
    manner: Manner,
    meeting: Option<&Meeting>,
    deadline: Duration,
    so_far: impl Fn(&Answer) + Send,
) -> Result<Answer, Broken> {
    let body = Body::new(request, manner, meeting);
    let session = request.session.to_string();
    let call = server
        .post("/generate", &body, deadline)
        .header("X-SMG-Routing-Key", &session);
    if manner.stream {
        return streamed(call, so_far).await;
    }
    let value: Value = server.read_promptly(call).await?;
    Ok(parse(value)?)
}

/// Read the prompt for the server that decodes it, and return once that has what it needs. `false` if the request was
/// given up.
///
/// # Errors
/// The server refused, could not be reached, or sent an answer that is none.
pub async fn prefill(
    server: &Server,
    request: &SampleRequest,
    meeting: &Meeting,
    deadline: Duration,
) -> Result<bool, CallError> {
    let body = Body::new(request, Manner::default(), Some(meeting));
    let value: Value = server.post_json("/generate", &body, deadline).await?;
    Ok(value["meta_info"]["finish_reason"]["type"] != "abort")
}

/// Sample by one way through the pool.
///
/// # Errors
/// As [`generate`] and [`prefill`].
pub async fn by_way(
    way: &Way,
    request: &SampleRequest,
    deadline: Duration,
) -> Result<Answer, CallError> {
    let meeting = way.prefill.as_ref().map(|(_, meeting)| meeting);
    let answer = generate(
        &way.server,
        request,
        Manner::default(),
        meeting,
        deadline,
        |_| (),
    );
    let answer = async { answer.await.map_err(|broken| broken.error) };
    let Some((server, meeting)) = &way.prefill else {
        return answer.await;
    };
    let failed = async {
        match prefill(server, request, meeting, deadline).await {
            Ok(_) => std::future::pending().await,
            Err(error) => error,
        }
    };
    tokio::select! {
        answer = answer => answer,
        error = failed => Err(error),
    }
}

/// Time between two looks at a stream: an event holds all that came before it, so reading each would cost more than
/// sampling.
const LOOK: Duration = Duration::from_secs(1);

async fn streamed(
    call: reqwest::RequestBuilder,
    so_far: impl Fn(&Answer) + Send,
) -> Result<Answer, Broken> {
    let mut chunks = Server::open(call).await?.bytes_stream();
    let mut pending = Vec::new();
    let mut last: Option<Vec<u8>> = None;
    let mut done = false;
    let mut failure = None;
    let mut looked = Instant::now();
    while let Some(chunk) = chunks.next().await {
        match chunk {
            Ok(bytes) => pending.extend_from_slice(&bytes),
            Err(e) => {
                failure = Some(CallError::from_reqwest(&e));
                break;
            }
        }
        let mut start = 0;
        while let Some(len) = pending[start..].iter().position(|&b| b == b'\n') {
            let line = &pending[start..start + len];
            start += len + 1;
            if let Some(data) = line.strip_prefix(b"data:") {
                match data.trim_ascii() {
                    b"[DONE]" => done = true,
                    data => last = Some(data.to_vec()),
                }
            }
        }
        pending.drain(..start);
        if looked.elapsed() >= LOOK
            && let Some(event) = &last
        {
            looked = Instant::now();
            let value = serde_json::from_slice::<Value>(event);
            if let Some(answer) = value.ok().and_then(|value| parse(value).ok()) {
                so_far(&answer);
            }
        }
    }
    let event = last.as_deref().map(serde_json::from_slice::<Value>);
    if let Some(Ok(value)) = &event
        && value.get("error").is_some()
    {
        let status = value["error"]["code"]
            .as_u64()
            .and_then(|c| u16::try_from(c).ok())
            .unwrap_or(500);
        return Err(CallError::Status {
            status,
            message: message_of(&value.to_string()),
        }
        .into());
    }
    let answer = match event {
        Some(Ok(value)) => Some(parse(value)?),
        _ => None,
    };
    match (answer, failure) {
        (Some(answer), None) if done && answer.finish != Finish::Unfinished => Ok(answer),
        (partial, failure) => {
            let error = failure.unwrap_or_else(|| {
                CallError::Transport("the stream ended before its last event".into())
            });
            Err(Broken { error, partial })
        }
    }
}

#[derive(Deserialize)]
struct Raw {
    #[serde(default)]
    text: String,
    output_ids: Option<Vec<u32>>,
    meta_info: Meta,
}

#[derive(Deserialize)]
struct Meta {
    finish_reason: Option<RawFinish>,
    #[serde(default)]
    output_token_logprobs: Vec<(Option<f32>, u32, Value)>,
    #[serde(default)]
    cached_tokens: usize,
    weight_version: Option<String>,
    weight_versions: Option<Vec<Span>>,
    routed_experts: Option<String>,
}

#[derive(Deserialize)]
struct RawFinish {
    r#type: String,
    #[serde(default)]
    message: String,
    status_code: Option<u16>,
}

#[derive(Deserialize)]
struct Span {
    version: String,
    start: usize,
    end: usize,
}

fn parse(value: Value) -> Result<Answer, CallError> {
    let bad = |reason: String| CallError::Malformed(format!("/generate: {reason}"));
    let raw: Raw = serde_json::from_value(value).map_err(|e| bad(e.to_string()))?;
    let meta = raw.meta_info;
    let listed: Vec<u32> = meta
        .output_token_logprobs
        .iter()
        .map(|(_, id, _)| *id)
        .collect();
    let tokens = raw.output_ids.unwrap_or_else(|| listed.clone());
    if tokens != listed {
        return Err(bad(format!(
            "{} ids came with {} log-probs, or for other ids",
            tokens.len(),
            listed.len()
        )));
    }
    let logprobs = meta
        .output_token_logprobs
        .iter()
        .map(|(p, ..)| p.filter(|p| p.is_finite()))
        .collect::<Option<Vec<f32>>>();
    let logprobs = logprobs.ok_or_else(|| bad("a log-prob is missing or not finite".into()))?;
    let finish = match meta.finish_reason {
        None => Finish::Unfinished,
        Some(f) => match f.r#type.as_str() {
            "stop" => Finish::Stop,
            "length" => Finish::Length,
            "abort" => Finish::Abort {
                message: f.message,
                status: f.status_code,
            },
            other => return Err(bad(format!("unknown finish reason `{other}`"))),
        },
    };
    Ok(Answer {
        versions: spans(meta.weight_version, meta.weight_versions, tokens.len()).map_err(bad)?,
        tokens,
        logprobs,
        finish,
        cached_tokens: meta.cached_tokens,
        text: raw.text,
        routed_experts: meta.routed_experts,
    })
}

/// Which weights wrote which tokens. Servers before spans existed, and events before the last, name one label.
fn spans(
    label: Option<String>,
    spans: Option<Vec<Span>>,
    len: usize,
) -> Result<Vec<(String, usize)>, String> {
    let spans = spans.unwrap_or_default();
    if spans.is_empty() {
        return Ok(if len == 0 {
            Vec::new()
        } else {
            vec![(label.unwrap_or_default(), len)]
        });
    }
    let mut at = 0;
    let mut versions = Vec::with_capacity(spans.len());
    for Span {
        version,
        start,
        end,
    } in spans
    {
        if start != at || end < start {
            return Err(format!("weight_versions has a gap at token {at}"));
        }
        if end > start {
            versions.push((version, end - start));
        }
        at = end;
    }
    if at != len {
        return Err(format!("weight_versions covers {at} tokens of {len}"));
    }
    Ok(versions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answer(ids: &[u32], meta: Value) -> Value {
        let logprobs: Vec<_> = ids.iter().map(|id| json!([-0.5, id, null])).collect();
        let mut all = json!({ "output_token_logprobs": logprobs, "finish_reason": { "type": "length", "length": ids.len() }, "weight_version": "3" });
        for (key, value) in meta.as_object().unwrap() {
            all[key] = value.clone();
        }
        json!({ "text": "t", "output_ids": ids, "meta_info": all })
    }

    #[test]
    fn spans_say_which_weights_wrote_which_tokens() {
        let spans = json!([{ "version": "3", "start": 0, "end": 2 }, { "version": "4", "start": 2, "end": 3 }]);
        let got = parse(answer(&[1, 2, 3], json!({ "weight_versions": spans }))).unwrap();
        assert_eq!(got.versions, [("3".into(), 2), ("4".into(), 1)]);
        assert_eq!(
            parse(answer(&[1, 2, 3], json!({}))).unwrap().versions,
            [("3".into(), 3)]
        );
        for bad in [
            json!([{ "version": "3", "start": 0, "end": 2 }]),
            json!([{ "version": "3", "start": 1, "end": 3 }]),
        ] {
            assert!(parse(answer(&[1, 2, 3], json!({ "weight_versions": bad }))).is_err());
        }
    }

    #[test]
    fn ids_and_logprobs_must_agree() {
        let mut short = answer(&[1, 2, 3], json!({}));
        short["output_ids"] = json!([1, 2]);
        assert!(
            parse(short)
                .unwrap_err()
                .to_string()
                .contains("2 ids came with 3 log-probs")
        );
        let null = answer(&[1], json!({ "output_token_logprobs": [[null, 1, null]] }));
        assert!(parse(null).unwrap_err().to_string().contains("log-prob"));
    }

    #[test]
    fn what_a_real_server_answered_is_understood() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/client/captured.json"
        );
        let captured: Vec<Value> =
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let named =
            |name: &str| captured.iter().find(|c| c["name"] == name).unwrap()["response"].clone();
        let got = parse(named("generate with log-probs")).unwrap();
        assert_eq!(
            (got.tokens.as_slice(), got.finish),
            ([7042, 30, 198, 198, 504, 2988].as_slice(), Finish::Length)
        );
        assert_eq!(
            (got.versions, got.cached_tokens, got.logprobs[0]),
            (vec![("default".into(), 6)], 4, -0.260_597_65)
        );
        let events = named("stream");
        let got = parse(events[1].clone()).unwrap();
        assert_eq!(
            (got.tokens.as_slice(), got.finish),
            ([7042, 30].as_slice(), Finish::Unfinished)
        );
    }

    #[test]
    fn an_abort_in_the_queue_has_no_counts_and_no_tokens() {
        let got = parse(json!({ "text": "", "output_ids": [], "meta_info": { "id": "x", "finish_reason": { "type": "abort", "message": "Abort in waiting queue" } } })).unwrap();
        assert_eq!(
            (got.tokens.len(), got.versions.len(), got.cached_tokens),
            (0, 0, 0)
        );
        assert!(matches!(got.finish, Finish::Abort { status: None, .. }));
    }
}
