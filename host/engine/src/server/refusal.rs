//! The error shapes of SGLang's API. There are four, and clients have learned to read each where it appears.

use crate::Error;
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// A request that is not answered with what it asked for.
#[derive(Debug)]
pub(super) enum Refusal {
    /// `{"error": {"message": …}}`: the native paths.
    Object(StatusCode, String),
    /// `{"error": "…"}`: sampling parameters that cannot be read.
    Text(String),
    /// `{"object": "error", …}`: the OpenAI paths, and bodies that cannot be read anywhere.
    OpenAi(StatusCode, String),
    /// `{"detail": …}`: no such path or method.
    Detail(StatusCode, &'static str),
    /// `{"success": false, …}`: weights.
    Weights(String),
}

impl Refusal {
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::Object(StatusCode::BAD_REQUEST, message.into())
    }

    /// As the OpenAI paths say it.
    pub(super) fn openai(self) -> Self {
        match self {
            Self::Object(status, message) => Self::OpenAi(status, message),
            Self::Text(message) => Self::OpenAi(StatusCode::BAD_REQUEST, message),
            other => other,
        }
    }

    /// What goes into a stream that has begun with 200.
    pub(super) fn event(&self) -> Value {
        let (status, message) = match self {
            Self::Object(status, message) | Self::OpenAi(status, message) => {
                (*status, message.as_str())
            }
            Self::Text(message) | Self::Weights(message) => {
                (StatusCode::BAD_REQUEST, message.as_str())
            }
            Self::Detail(status, message) => (*status, *message),
        };
        let kind = if status.is_server_error() {
            "internal_server_error"
        } else {
            "invalid_request_error"
        };
        json!({"error": {"message": message, "type": kind, "code": status.as_u16(), "retryable": status == StatusCode::SERVICE_UNAVAILABLE}})
    }
}

impl From<Error> for Refusal {
    fn from(e: Error) -> Self {
        let status = match e {
            Error::Invalid(_) => StatusCode::BAD_REQUEST,
            Error::Weights(message) => return Self::Weights(message),
            Error::Stopped => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::Object(status, e.to_string())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, body) = match self {
            Self::Object(status, message) => (status, json!({"error": {"message": message}})),
            Self::Text(message) => (StatusCode::BAD_REQUEST, json!({"error": message})),
            Self::OpenAi(status, message) => {
                let kind = status.canonical_reason().unwrap_or("Error");
                let body = json!({"object": "error", "message": message, "type": kind, "param": null, "code": status.as_u16()});
                (status, body)
            }
            Self::Detail(status, detail) => (status, json!({"detail": detail})),
            Self::Weights(message) => (
                StatusCode::BAD_REQUEST,
                json!({"success": false, "message": message, "num_paused_requests": 0}),
            ),
        };
        (status, Json(body)).into_response()
    }
}

/// A body of JSON. An empty one is `{}`.
pub(super) fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    let body = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice(body).map_err(|e| {
        let kind = if e.is_data() {
            "value_error"
        } else {
            "json_invalid"
        };
        let message =
            format!("1 validation error:\n  {{'type': '{kind}', 'loc': ('body',), 'msg': '{e}'}}");
        Refusal::OpenAi(StatusCode::BAD_REQUEST, message)
    })
}
