//! One server: how it is called and how its errors are read. It refuses to retry or to judge.

use super::Address;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::time::Duration;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The server answered with an error.
    #[error("{status}: {message}")]
    Status {
        /// HTTP status.
        status: u16,
        /// The server's words.
        message: String,
    },
    /// No whole answer came.
    #[error("{0}")]
    Transport(String),
    /// Nothing came in time.
    #[error("no answer in time")]
    Timeout,
    /// The answer cannot be read.
    #[error("an answer that cannot be used: {0}")]
    Malformed(String),
}

impl CallError {
    pub(crate) fn from_reqwest(error: &reqwest::Error) -> Self {
        if error.is_timeout() && !error.is_connect() {
            return Self::Timeout;
        }
        // The outermost message names only the URL; the cause is at the end of the chain.
        let mut cause: &dyn std::error::Error = error;
        while let Some(inner) = cause.source() {
            cause = inner;
        }
        let what = if error.is_connect() {
            "cannot connect"
        } else {
            "the connection broke"
        };
        Self::Transport(format!("{what}: {cause}"))
    }

    /// Whether the request is at fault: trying again cannot help, and the server is healthy.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Status { status, .. } if (400..500).contains(status) && !matches!(status, 408 | 429))
    }

    /// Whether nobody listens there.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Transport(reason) if reason.starts_with("cannot connect"))
    }
}

/// The words of an error answer. SGLang has four shapes for them, a failed update a fifth.
pub(crate) fn message_of(body: &str) -> String {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let parsed = serde_json::from_str::<Value>(body).ok();
    let message = parsed.as_ref().and_then(|v| {
        text(&v["error"]["message"])
            .or_else(|| text(&v["error"]))
            .or_else(|| text(&v["message"]))
            .or_else(|| text(&v["detail"]))
            .or_else(|| v.get("detail").map(Value::to_string))
    });
    let mut message = message.unwrap_or_else(|| body.trim().to_owned());
    if let Some((at, _)) = message.char_indices().nth(500) {
        message.truncate(at);
        message.push('…');
    }
    message
}

/// A server and the client that reaches it.
#[derive(Clone, Debug)]
pub struct Server {
    address: Address,
    client: reqwest::Client,
    /// For calls that answer at once.
    quick: Duration,
}

impl Server {
    pub(crate) fn new(address: Address, client: reqwest::Client, quick: Duration) -> Self {
        Self {
            address,
            client,
            quick,
        }
    }

    /// Where it listens.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// How long an answer that should come at once may take.
    pub(crate) fn quick(&self) -> Duration {
        self.quick
    }

    pub(crate) fn post(
        &self,
        path: &str,
        body: &impl Serialize,
        deadline: Duration,
    ) -> reqwest::RequestBuilder {
        self.client
            .post(self.address.url(path))
            .json(body)
            .timeout(deadline)
    }

    pub(crate) async fn post_json<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        deadline: Duration,
    ) -> Result<T, CallError> {
        Self::read_json(self.post(path, body, deadline)).await
    }

    /// An answer that is made before it is sent: once its head is there, the rest must come at once. Without this, a
    /// server that sends a byte now and then would hold a request until its deadline.
    pub(crate) async fn read_promptly<T: DeserializeOwned>(
        &self,
        call: reqwest::RequestBuilder,
    ) -> Result<T, CallError> {
        let answer = Self::open(call).await?;
        let text = tokio::time::timeout(self.quick, answer.text())
            .await
            .map_err(|_| CallError::Timeout)?
            .map_err(|e| CallError::from_reqwest(&e))?;
        serde_json::from_str(&text).map_err(|e| CallError::Malformed(e.to_string()))
    }

    pub(crate) async fn post_text(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<String, CallError> {
        Self::read_text(self.post(path, body, self.quick)).await
    }

    pub(crate) async fn get_text(&self, path: &str) -> Result<String, CallError> {
        Self::read_text(self.client.get(self.address.url(path)).timeout(self.quick)).await
    }

    /// The first of `paths` that the server knows: names differ between its versions.
    pub(crate) async fn get_json<T: DeserializeOwned>(
        &self,
        paths: &[&str],
    ) -> Result<T, CallError> {
        let mut last = CallError::Malformed("no path was asked".into());
        for path in paths {
            match Self::read_json(self.client.get(self.address.url(path)).timeout(self.quick)).await
            {
                Err(error @ CallError::Status { status: 404, .. }) => last = error,
                other => return other,
            }
        }
        Err(last)
    }

    /// Send, and read the error where there is one.
    pub(crate) async fn open(
        call: reqwest::RequestBuilder,
    ) -> Result<reqwest::Response, CallError> {
        let answer = call.send().await.map_err(|e| CallError::from_reqwest(&e))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let body = answer.text().await.unwrap_or_default();
        Err(CallError::Status {
            status: status.as_u16(),
            message: message_of(&body),
        })
    }

    pub(crate) async fn read_text(call: reqwest::RequestBuilder) -> Result<String, CallError> {
        Self::open(call)
            .await?
            .text()
            .await
            .map_err(|e| CallError::from_reqwest(&e))
    }

    pub(crate) async fn read_json<T: DeserializeOwned>(
        call: reqwest::RequestBuilder,
    ) -> Result<T, CallError> {
        let text = Self::read_text(call).await?;
        serde_json::from_str(&text).map_err(|e| CallError::Malformed(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_shape_of_the_api_gives_its_words() {
        for (body, words) in [
            (
                r#"{"error":{"message":"input_ids cannot be empty."}}"#,
                "input_ids cannot be empty.",
            ),
            (
                r#"{"error":"unknown field `bogus`"}"#,
                "unknown field `bogus`",
            ),
            (
                r#"{"object":"error","message":"1 validation error","type":"Bad Request","param":null,"code":400}"#,
                "1 validation error",
            ),
            (r#"{"detail":"Not Found"}"#, "Not Found"),
            (
                r#"{"success":false,"message":"Cannot find any model weights","num_paused_requests":0}"#,
                "Cannot find any model weights",
            ),
            ("Flush cache failed.\n", "Flush cache failed."),
            ("", ""),
        ] {
            assert_eq!(message_of(body), words);
        }
        assert_eq!(message_of(&"ü".repeat(9000)).chars().count(), 501);
    }

    #[test]
    fn only_the_requests_own_faults_are_refusals() {
        let status = |status| CallError::Status {
            status,
            message: String::new(),
        };
        assert!(
            [400, 404, 422]
                .map(status)
                .iter()
                .all(CallError::is_refusal)
        );
        assert!(
            ![408, 429, 500, 503]
                .map(status)
                .iter()
                .any(CallError::is_refusal)
        );
        assert!(!CallError::Timeout.is_refusal());
    }
}
