//! The gateway's paths. JSON in and out, as OpenAI's clients expect it.

use super::conversation::Refused;
use super::{Ending, MAX_METRICS, Request, Said, Shared};
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use slime_core::ports::LiveError;
use slime_core::{FinishReason, Message, Verdict};
use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, oneshot};

const MAX_BODY_BYTES: usize = 64 << 20;
/// How long an agent waits for a session before it is told to ask again.
const PATIENCE: Duration = Duration::from_secs(20);

/// Serve on a thread of its own until told to stop: agents must be answered while rollouts keep others busy.
pub(super) fn start(
    listener: TcpListener,
    run: Run,
    stopped: oneshot::Receiver<()>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let routes = Router::new()
        .route("/v1/models", get(models))
        .route("/v1/sessions", post(take))
        .route("/v1/sessions/end", post(end))
        .route("/v1/chat/completions", post(chat))
        .method_not_allowed_fallback(no_such_path)
        .fallback(no_such_path)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(run);
    std::thread::Builder::new()
        .name("gateway".into())
        .spawn(move || {
            runtime.block_on(async move {
                let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
                    return;
                };
                tokio::select! {
                    served = axum::serve(listener, routes) => drop(served),
                    _ = stopped => {}
                }
            });
        })?;
    Ok(())
}

async fn no_such_path(method: Method, uri: Uri) -> Refusal {
    let message = format!(
        "{method} {} is not served: an agent uses POST /v1/sessions, /v1/chat/completions and /v1/sessions/end",
        uri.path()
    );
    Refusal(StatusCode::NOT_FOUND, "not_found", message)
}

/// The run behind the paths, as long as there is one.
#[derive(Clone)]
pub(super) struct Run {
    pub(super) shared: Weak<Shared>,
    pub(super) offered: Arc<Notify>,
}

impl Run {
    fn open(&self) -> Result<Arc<Shared>, Refusal> {
        self.shared.upgrade().ok_or_else(|| {
            let message = "the run is over".into();
            Refusal(StatusCode::GONE, "run_over", message)
        })
    }
}

/// OpenAI's shape of an error.
struct Refusal(StatusCode, &'static str, String);

impl Refusal {
    fn invalid(message: impl Into<String>) -> Self {
        Self(
            StatusCode::BAD_REQUEST,
            "invalid_request_error",
            message.into(),
        )
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self(status, kind, message) = self;
        let body =
            json!({"error": {"message": message, "type": kind, "param": null, "code": kind}});
        (status, Json(body)).into_response()
    }
}

fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refusal> {
    let body = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice(body).map_err(|e| Refusal::invalid(format!("the body: {e}")))
}

/// The session that a request speaks for.
fn session(
    shared: &Shared,
    headers: &HeaderMap,
) -> Result<mpsc::UnboundedSender<Request>, Refusal> {
    let header = headers.get("authorization").and_then(|v| v.to_str().ok());
    let key = header.and_then(|text| text.strip_prefix("Bearer "));
    let state = crate::lock(&shared.state);
    match key.and_then(|key| state.sessions.get(key.trim())) {
        Some(session) => Ok(session.requests.clone()),
        None => Err(Refusal(
            StatusCode::UNAUTHORIZED,
            "no_such_session",
            "the API key is no open session: POST /v1/sessions gives one, and it ends with its rollout".into(),
        )),
    }
}

async fn models(State(run): State<Run>) -> Result<Json<Value>, Refusal> {
    run.open()?;
    let model = json!({"id": "policy", "object": "model", "created": 0, "owned_by": "slime-host"});
    Ok(Json(json!({"object": "list", "data": [model]})))
}

/// Give an agent a session; 204 where none waits.
async fn take(State(run): State<Run>) -> Result<Response, Refusal> {
    let until = tokio::time::Instant::now() + PATIENCE;
    loop {
        let offered = run.offered.notified();
        if let Some(offer) = offer(&*run.open()?) {
            return Ok(Json(Value::Object(offer)).into_response());
        }
        if tokio::time::timeout_at(until, offered).await.is_err() {
            return Ok(StatusCode::NO_CONTENT.into_response());
        }
    }
}

/// The session that has waited longest, with its key.
fn offer(shared: &Shared) -> Option<Map<String, Value>> {
    let mut state = crate::lock(&shared.state);
    while let Some(key) = state.waiting.pop_front() {
        let Some(session) = state.sessions.get(&key) else {
            continue;
        };
        if session.requests.send(Request::Taken).is_ok() {
            let mut offer = session.offer.clone();
            offer.insert("api_key".into(), key.into());
            if !state.waiting.is_empty() {
                shared.offered.notify_one();
            }
            return Some(offer);
        }
    }
    None
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EndBody {
    reward: Option<f64>,
    #[serde(default)]
    metrics: BTreeMap<String, f64>,
    error: Option<String>,
}

async fn end(
    State(run): State<Run>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<Value>, Refusal> {
    let shared = run.open()?;
    let body: EndBody = read(&body)?;
    let how = ending(body, shared.config.rewards)?;
    let requests = session(&shared, &headers)?;
    let (answer, done) = oneshot::channel();
    let over = || Refusal::invalid("the session has ended already");
    requests
        .send(Request::End { how, answer })
        .map_err(|_| over())?;
    done.await.map_err(|_| over())?;
    Ok(Json(json!({"ended": true})))
}

fn ending(body: EndBody, rewards: bool) -> Result<Ending, Refusal> {
    let EndBody {
        reward,
        metrics,
        error,
    } = body;
    if let Some(error) = error {
        return Ok(Ending::Failed(error));
    }
    match (reward, rewards) {
        (Some(reward), true) => {
            let wrong = metrics
                .iter()
                .find(|(name, value)| name.is_empty() || name.len() > 128 || !value.is_finite());
            if !reward.is_finite() || wrong.is_some() || metrics.len() > MAX_METRICS {
                return Err(Refusal::invalid(format!(
                    "rewards and metrics are finite numbers, metrics at most {MAX_METRICS}"
                )));
            }
            let metrics = metrics.into_iter().collect();
            Ok(Ending::Reward(Verdict { reward, metrics }))
        }
        (None, true) => Err(Refusal::invalid(
            "this run's rewards come from its agents: end with {\"reward\": …}, or {\"error\": \"why\"}",
        )),
        (Some(_), false) => Err(Refusal::invalid(
            "this run's verifier gives the rewards: end without one, or run with run.gateway_rewards = true",
        )),
        (None, false) => Ok(Ending::Done),
    }
}

/// What is read of a request. Everything else that would change the answer is refused.
#[derive(Deserialize)]
struct ChatBody {
    messages: Vec<Message>,
    model: Option<String>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    stop: Option<OneOrMany>,
    temperature: Option<f64>,
    stream: Option<bool>,
    n: Option<u32>,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// Fields that say nothing about the answer.
const IDLE: [&str; 6] = [
    "user",
    "metadata",
    "store",
    "stream_options",
    "parallel_tool_calls",
    "service_tier",
];

async fn chat(
    State(run): State<Run>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<Value>, Refusal> {
    let shared = run.open()?;
    let body: ChatBody = read(&body)?;
    check(&body, shared.config.temperature)?;
    let model = body.model.unwrap_or_else(|| "policy".into());
    let messages = body
        .messages
        .into_iter()
        .map(flat)
        .collect::<Result<_, _>>()?;
    let requests = session(&shared, &headers)?;
    drop(shared);
    let (answer, said) = oneshot::channel();
    let gone = || {
        Refusal(
            StatusCode::UNAUTHORIZED,
            "no_such_session",
            "the session has ended".into(),
        )
    };
    requests
        .send(Request::Chat {
            messages,
            max_tokens: body.max_completion_tokens.or(body.max_tokens).unwrap_or(0),
            stop: match body.stop {
                None => Vec::new(),
                Some(OneOrMany::One(text)) => vec![text],
                Some(OneOrMany::Many(texts)) => texts,
            },
            answer,
        })
        .map_err(|_| gone())?;
    match said.await.map_err(|_| gone())? {
        Ok(said) => Ok(Json(completion(&said, &model))),
        Err(Refused::History(reason)) => Err(Refusal::invalid(reason)),
        Err(Refused::Live(error)) => Err(unable(&error)),
    }
}

/// Refuse what the run decides, or the gateway cannot do.
fn check(body: &ChatBody, temperature: f64) -> Result<(), Refusal> {
    if let Some(asked) = body.temperature
        && (asked - temperature).abs() > 1e-6
    {
        return Err(Refusal::invalid(format!(
            "temperature {asked}: the run samples at {temperature}, and trains what it samples; leave it out"
        )));
    }
    if body.stream == Some(true) {
        return Err(Refusal::invalid(
            "turns are not streamed; leave out `stream`",
        ));
    }
    if body.n.is_some_and(|n| n != 1) {
        return Err(Refusal::invalid(
            "n: a turn is one; the run samples several rollouts of a prompt",
        ));
    }
    let said = |value: &Value| !(value.is_null() || *value == json!(false) || *value == json!([]));
    let odd = body
        .rest
        .iter()
        .find(|(name, value)| said(value) && !IDLE.contains(&name.as_str()));
    match odd {
        Some((name, _)) => Err(Refusal::invalid(format!(
            "`{name}` is not for the agent to set: how turns are sampled is the run's recipe, and tools are called in \
             the text"
        ))),
        None => Ok(()),
    }
}

/// Content as text: clients may send it in parts.
fn flat(mut message: Message) -> Result<Message, Refusal> {
    if let Value::Array(parts) = &message.content {
        let mut text = String::new();
        for part in parts {
            match part["text"].as_str() {
                Some(piece) if part["type"] == "text" => text.push_str(piece),
                _ => return Err(Refusal::invalid("content: only parts of type text")),
            }
        }
        message.content = text.into();
    }
    Ok(message)
}

fn unable(error: &LiveError) -> Refusal {
    let message = error.to_string();
    match error {
        LiveError::InvalidInput(_) => Refusal::invalid(message),
        LiveError::LimitExceeded(_) => {
            Refusal(StatusCode::BAD_REQUEST, "context_length_exceeded", message)
        }
        LiveError::Cancelled | LiveError::Unavailable(_) => {
            Refusal(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
        }
    }
}

fn completion(said: &Said, model: &str) -> Value {
    let turn = &said.turn;
    let finish = match turn.finish {
        FinishReason::Length => "length",
        FinishReason::Stop | FinishReason::Abort => "stop",
    };
    json!({
        "id": format!("turn-{}", said.context_tokens),
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{
            "index": 0,
            "message": {"role": "assistant", "content": turn.text},
            "logprobs": null,
            "finish_reason": finish,
        }],
        "usage": {
            "prompt_tokens": said.context_tokens,
            "completion_tokens": turn.num_tokens,
            "total_tokens": said.context_tokens + turn.num_tokens as usize,
        },
        "metadata": {"weight_version": turn.version.0},
    })
}
