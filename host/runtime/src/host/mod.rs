//! The host half of every interface that plugins import, a file each.

pub(crate) mod log;
pub(crate) mod rollouts;
pub(crate) mod trajectories;

use crate::bindings::types::{Error, ErrorCode};
use crate::context::Context;

impl crate::bindings::types::Host for Context {}

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
