//! Requests to servers that the operator listed. Needs the grant `http`.

use crate::Error;

/// What is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// `GET`, `POST`, …
    pub method: String,
    /// `http://` or `https://`.
    pub url: String,
    /// Name and value.
    pub headers: Vec<(String, String)>,
    /// As it is sent.
    pub body: Vec<u8>,
    /// Milliseconds until the answer must be complete; 0 is what was granted.
    pub time_limit_ms: u32,
}

/// What was answered. Any status is an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// 200 and so on.
    pub status: u16,
    /// Name and value.
    pub headers: Vec<(String, String)>,
    /// The whole body.
    pub body: Vec<u8>,
}

impl Request {
    /// A JSON document to be posted.
    pub fn post_json(url: impl Into<String>, json: impl Into<String>) -> Self {
        Self {
            method: "POST".into(),
            url: url.into(),
            headers: vec![("content-type".into(), "application/json".into())],
            body: json.into().into_bytes(),
            time_limit_ms: 0,
        }
    }
}

/// Send one request and wait for the whole answer. Redirects are not followed.
///
/// # Errors
/// The server is not listed, or it did not answer in time.
pub fn send(request: &Request) -> Result<Response, Error> {
    #[cfg(target_family = "wasm")]
    return wasm::send(request);
    #[cfg(not(target_family = "wasm"))]
    {
        let _ = request;
        crate::nobody()
    }
}

#[cfg(target_family = "wasm")]
mod wasm {
    use super::{Request, Response};
    use crate::Error;
    use crate::bindings::slime::plugin::http as wit;

    pub(super) fn send(request: &Request) -> Result<Response, Error> {
        let asked = wit::Request {
            method: request.method.clone(),
            url: request.url.clone(),
            headers: request
                .headers
                .iter()
                .map(|(name, value)| wit::Header {
                    name: name.clone(),
                    value: value.clone(),
                })
                .collect(),
            body: request.body.clone(),
            time_limit_ms: request.time_limit_ms,
        };
        let answer = wit::send(&asked).map_err(crate::error)?;
        Ok(Response {
            status: answer.status,
            headers: answer
                .headers
                .into_iter()
                .map(|header| (header.name, header.value))
                .collect(),
            body: answer.body,
        })
    }
}
