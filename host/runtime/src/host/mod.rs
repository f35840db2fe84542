//! The host half of every interface that plugins import, a file each.

pub(crate) mod code_exec;
pub(crate) mod groups;
pub(crate) mod http;
pub(crate) mod kv;
pub(crate) mod log;
pub(crate) mod models;
pub(crate) mod rollouts;
pub(crate) mod tools;
pub(crate) mod trajectories;
pub(crate) mod trajectories_async;

use crate::bindings::types::{Error, ErrorCode};
use crate::context::Context;
use slime_core::ports::LiveError;
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

impl crate::bindings::types::Host for Context {}
impl crate::bindings::verdicts::Host for Context {}

impl Context {
    /// Give the guest an error, and remember that it was given.
    pub(crate) fn refuse<T>(
        &mut self,
        code: ErrorCode,
        message: impl Into<String>,
    ) -> Result<T, Error> {
        self.given.push(code);
        Err(error(code, message))
    }

    pub(crate) fn refuse_live<T>(&mut self, failure: &LiveError) -> Result<T, Error> {
        let code = match failure {
            LiveError::InvalidInput(_) => ErrorCode::InvalidInput,
            LiveError::LimitExceeded(_) => ErrorCode::LimitExceeded,
            LiveError::Cancelled => ErrorCode::Cancelled,
            LiveError::Unavailable(_) => ErrorCode::Unavailable,
        };
        self.refuse(code, failure.to_string())
    }
}

/// Run a future of the host where the host lives: on the runtime that asked for the call, so that a spinning guest
/// cannot delay the pool's sockets and timers. It is aborted with the call.
pub(crate) async fn outside<T: Send + 'static>(
    caller: Option<Handle>,
    future: impl Future<Output = Result<T, LiveError>> + Send + 'static,
) -> Result<T, LiveError> {
    let Some(caller) = caller else {
        return future.await;
    };
    AbortOnDropHandle::new(caller.spawn(future))
        .await
        .unwrap_or_else(|failure| {
            if failure.is_panic() {
                Err(LiveError::Unavailable(
                    "the host failed while it served the plugin".into(),
                ))
            } else {
                Err(LiveError::Cancelled)
            }
        })
}

pub(crate) fn error(code: ErrorCode, message: impl Into<String>) -> Error {
    Error {
        code,
        message: message.into(),
        detail: None,
    }
}

/// The first `most` bytes of `text`, cut between characters.
pub(crate) fn clip(text: &str, most: usize) -> &str {
    if text.len() <= most {
        return text;
    }
    let end = (0..=most)
        .rev()
        .find(|&end| text.is_char_boundary(end))
        .unwrap_or(0);
    &text[..end]
}

#[cfg(test)]
mod tests {
    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!(super::clip("añb", 2), "a");
        assert_eq!(super::clip("añb", 3), "añ");
        assert_eq!(super::clip("añb", 99), "añb");
        assert_eq!(super::clip("日", 2), "");
    }
}
