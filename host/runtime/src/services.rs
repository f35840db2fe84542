//! What the host of a run offers its plugins beyond the call itself. Everything is optional; what is missing answers
//! `unavailable`.

use crate::code::CodeExec;
use slime_core::ports::{BoxFuture, Models, Tools};
use std::sync::Arc;
use std::time::Duration;

/// Given to a plugin once, before its first call.
#[derive(Clone, Default)]
pub struct Services {
    /// Models of the pool, for judges.
    pub models: Option<Arc<dyn Models>>,
    /// The run's tool plugins, for generators.
    pub tools: Vec<Arc<dyn Tools>>,
    /// Runs programs, for plugins with the grant `code-exec`.
    pub code: Option<Arc<dyn CodeExec>>,
    /// Sends requests, for plugins with the grant `http`.
    pub http: Option<Arc<dyn Http>>,
}

/// One request of a plugin, its address already checked against the grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRequest {
    /// `GET`, `POST`, …
    pub method: String,
    /// Absolute, of scheme `http` or `https`.
    pub url: String,
    /// In order.
    pub headers: Vec<(String, String)>,
    /// As it is sent.
    pub body: Vec<u8>,
    /// Until the answer must be complete.
    pub time_limit: Duration,
    /// Bytes of the answer that are read at most.
    pub max_bytes: u64,
    /// Whether the operator named a private or loopback address literally; every other such address is refused.
    pub may_be_private: bool,
}

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpResponse {
    /// Any status is an answer.
    pub status: u16,
    /// In order.
    pub headers: Vec<(String, String)>,
    /// The whole body.
    pub body: Vec<u8>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HttpError {
    /// The request is malformed.
    #[error("{0}")]
    Invalid(String),
    /// The address leads where it must not.
    #[error("{0}")]
    Denied(String),
    /// No answer in time.
    #[error("{0}")]
    TimedOut(String),
    /// The answer is larger than what may cross.
    #[error("{0}")]
    TooLarge(String),
    /// No connection, or a broken one.
    #[error("{0}")]
    Unavailable(String),
}

/// Sends one request: resolves the host once, connects to what it resolved, follows no redirect, uses no proxy.
pub trait Http: Send + Sync {
    /// Send it and wait for the whole answer.
    fn send(&self, request: HttpRequest) -> BoxFuture<'_, Result<HttpResponse, HttpError>>;
}
