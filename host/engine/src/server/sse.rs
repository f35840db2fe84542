//! Server-sent events: `data: {…}` a line, then `data: [DONE]`.

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures::{Stream, StreamExt, stream};
use serde_json::Value;
use std::convert::Infallible;

/// A response that sends each value as it comes. Dropping the response drops the stream, and with it the request.
pub(super) fn respond(events: impl Stream<Item = Value> + Send + 'static) -> Response {
    let done = stream::once(async { "data: [DONE]\n\n".to_owned() });
    let lines = events
        .map(|event| format!("data: {event}\n\n"))
        .chain(done)
        .map(Ok::<_, Infallible>);
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, Body::from_stream(lines)).into_response()
}
