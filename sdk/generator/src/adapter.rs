//! From the generated bindings to [`crate::Generator`]. Not part of the crate's interface, [`Trajectory`] and
//! [`sample_all`] apart.

use crate::bindings::exports::slime::plugin::generation as wit;
use crate::bindings::slime::plugin::{log, trajectories, types};
use crate::{
    Error, ErrorCode, FinishReason, Generator, Level, Message, Named, Prompt, Sampling, Turn,
};
use std::marker::PhantomData;

pub struct Adapter<T>(PhantomData<T>);

impl<T: Generator + Named> wit::Guest for Adapter<T> {
    fn describe() -> types::About {
        types::About {
            name: T::NAME
                .strip_prefix("slime-plugin-")
                .unwrap_or(T::NAME)
                .into(),
            version: T::VERSION.into(),
        }
    }

    fn generate(
        start: trajectories::Trajectory,
    ) -> Result<Vec<trajectories::Trajectory>, types::Error> {
        let done = T::generate(Trajectory(start))?;
        Ok(done.into_iter().map(|trajectory| trajectory.0).collect())
    }
}

/// A token sequence that the host grows.
pub struct Trajectory(trajectories::Trajectory);

impl Trajectory {
    /// What it started from.
    pub fn prompt(&self) -> Prompt {
        match self.0.prompt() {
            types::Prompt::Text(text) => Prompt::Text(text),
            types::Prompt::Messages(messages) => {
                Prompt::Messages(messages.into_iter().map(Into::into).collect())
            }
            types::Prompt::Tokens(bytes) => {
                let words = bytes
                    .chunks_exact(4)
                    .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                Prompt::Tokens(words.collect())
            }
        }
    }

    /// One member of the prompt's metadata, as a JSON document.
    pub fn metadata(&self, key: &str) -> Option<String> {
        self.0.metadata(key)
    }

    /// All metadata, as a JSON object.
    pub fn metadata_json(&self) -> String {
        self.0.metadata_json()
    }

    /// All text after the prompt, special tokens left out.
    pub fn response(&self) -> String {
        self.0.response()
    }

    /// Append text that the policy did not write. Never trained on.
    ///
    /// # Errors
    /// The chat template refuses the message, or it does not fit the context.
    pub fn append(&self, message: &Message) -> Result<(), Error> {
        let message = types::Message {
            role: message.role.clone(),
            content: message.content.clone(),
            extra: message.extra.clone(),
        };
        Ok(self.0.append(&message)?)
    }

    /// Let the policy write the next turn.
    ///
    /// # Errors
    /// No token fits any more, a budget is used up, the host gave up, or no engine answered.
    pub fn sample(&self, sampling: &Sampling) -> Result<Turn, Error> {
        Ok(self.0.sample(sampling.max_tokens, &sampling.stop)?.into())
    }

    /// Tokens that still fit.
    pub fn remaining_tokens(&self) -> u32 {
        self.0.remaining_tokens()
    }

    /// A copy that shares the past. Return it to have it trained on.
    ///
    /// # Errors
    /// More than 64 trajectories in one call.
    pub fn fork(&self) -> Result<Self, Error> {
        Ok(Self(self.0.fork()?))
    }
}

/// [`Trajectory::sample`] on many trajectories at once, so that the engine batches them. Answers come in the order
/// given.
pub fn sample_all(
    trajectories: Vec<Trajectory>,
    sampling: &Sampling,
) -> Vec<(Trajectory, Result<Turn, Error>)> {
    let handles = trajectories
        .into_iter()
        .map(|trajectory| trajectory.0)
        .collect();
    trajectories::sample_all(handles, sampling.max_tokens, &sampling.stop)
        .into_iter()
        .map(|sampled| {
            let turn = sampled.turn.map(Into::into).map_err(Into::into);
            (Trajectory(sampled.trajectory), turn)
        })
        .collect()
}

impl From<trajectories::Turn> for Turn {
    fn from(turn: trajectories::Turn) -> Self {
        let finish_reason = match turn.finish_reason {
            types::FinishReason::Stop => FinishReason::Stop,
            types::FinishReason::Length => FinishReason::Length,
            types::FinishReason::Abort => FinishReason::Abort,
        };
        Self {
            text: turn.text,
            finish_reason,
            num_tokens: turn.num_tokens,
            weight_version: turn.weight_version,
        }
    }
}

impl From<types::Message> for Message {
    fn from(message: types::Message) -> Self {
        Self {
            role: message.role,
            content: message.content,
            extra: message.extra,
        }
    }
}

macro_rules! both_ways {
    ($($code:ident),*) => {
        impl From<Error> for types::Error {
            fn from(error: Error) -> Self {
                let code = match error.code {
                    $(ErrorCode::$code => types::ErrorCode::$code),*
                };
                Self { code, message: error.message, detail: error.detail }
            }
        }

        impl From<types::Error> for Error {
            fn from(error: types::Error) -> Self {
                let code = match error.code {
                    $(types::ErrorCode::$code => ErrorCode::$code),*
                };
                Self { code, message: error.message, detail: error.detail }
            }
        }
    };
}

both_ways!(
    InvalidInput,
    InvalidGold,
    Denied,
    LimitExceeded,
    TimedOut,
    Cancelled,
    Unavailable,
    Internal,
    Other
);

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
