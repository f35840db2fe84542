//! From the generated bindings to [`crate::Source`]. Not part of the crate's interface.

use crate::bindings::exports::slime::plugin::drawing as wit;
use crate::bindings::slime::plugin::{log, types};
use crate::{Draw, Error, ErrorCode, Level, Message, Named, Prompt, Source};
use std::marker::PhantomData;

pub struct Adapter<T>(PhantomData<T>);

impl<T: Source + Named> wit::Guest for Adapter<T> {
    fn describe() -> wit::Info {
        wit::Info {
            about: types::About {
                name: T::NAME
                    .strip_prefix("slime-plugin-")
                    .unwrap_or(T::NAME)
                    .into(),
                version: T::VERSION.into(),
            },
            num_rows: T::NUM_ROWS,
        }
    }

    fn draw(index: u64, seed: u64, difficulty: f64) -> Result<wit::Drawn, types::Error> {
        let drawn = T::draw(Draw {
            index,
            seed,
            difficulty,
        })?;
        let prompt = match drawn.prompt {
            Prompt::Text(text) => types::Prompt::Text(text),
            Prompt::Messages(messages) => {
                types::Prompt::Messages(messages.into_iter().map(Into::into).collect())
            }
            Prompt::Tokens(tokens) => {
                types::Prompt::Tokens(tokens.iter().flat_map(|t| t.to_le_bytes()).collect())
            }
        };
        Ok(wit::Drawn {
            prompt,
            label: drawn.label,
            metadata: drawn.metadata,
            tools: drawn.tools,
        })
    }
}

impl From<Message> for types::Message {
    fn from(message: Message) -> Self {
        Self {
            role: message.role,
            content: message.content,
            extra: message.extra,
        }
    }
}

impl From<Error> for types::Error {
    fn from(error: Error) -> Self {
        let code = match error.code {
            ErrorCode::InvalidInput => types::ErrorCode::InvalidInput,
            ErrorCode::InvalidGold => types::ErrorCode::InvalidGold,
            ErrorCode::Denied => types::ErrorCode::Denied,
            ErrorCode::LimitExceeded => types::ErrorCode::LimitExceeded,
            ErrorCode::TimedOut => types::ErrorCode::TimedOut,
            ErrorCode::Cancelled => types::ErrorCode::Cancelled,
            ErrorCode::Unavailable => types::ErrorCode::Unavailable,
            ErrorCode::Internal => types::ErrorCode::Internal,
            ErrorCode::Other => types::ErrorCode::Other,
        };
        Self {
            code,
            message: error.message,
            detail: error.detail,
        }
    }
}

pub(crate) fn log(level: Level, message: &str) {
    let level = match level {
        Level::Trace => log::Level::Trace,
        Level::Debug => log::Level::Debug,
        Level::Info => log::Level::Info,
        Level::Warn => log::Level::Warn,
        Level::Error => log::Level::Error,
    };
    log::log(level, message);
}
