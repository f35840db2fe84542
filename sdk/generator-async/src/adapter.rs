//! From the generated bindings to [`Generator`].

use crate::bindings::exports::slime::plugin::generation_async as wit;
use crate::bindings::slime::plugin::{trajectories, trajectories_async, types};
use crate::{Error, FinishReason, Message, Named, Prompt, Sampling, Turn};
use std::marker::PhantomData;

slime_sdk_types::conversions!(bindings);
slime_sdk_types::logging!(bindings);

/// Drives rollouts, many in one instance.
pub trait Generator {
    /// Drive one rollout to its end and return the trajectories to train on; the last is the one that verifiers
    /// read.
    ///
    /// # Errors
    /// An error fails this rollout only.
    fn generate(start: Trajectory) -> impl Future<Output = Result<Vec<Trajectory>, Error>>;
}

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

    async fn generate(
        start: trajectories::Trajectory,
    ) -> Result<Vec<trajectories::Trajectory>, types::Error> {
        let done = T::generate(Trajectory(Some(start))).await?;
        Ok(done
            .into_iter()
            .filter_map(|trajectory| trajectory.0)
            .collect())
    }
}

/// A token sequence that the host grows. Away while the policy writes on it.
pub struct Trajectory(Option<trajectories::Trajectory>);

impl Trajectory {
    fn here(&self) -> &trajectories::Trajectory {
        self.0
            .as_ref()
            .expect("a turn that was given up took the trajectory with it")
    }

    /// What it started from.
    pub fn prompt(&self) -> Prompt {
        match self.here().prompt() {
            types::Prompt::Text(text) => Prompt::Text(text),
            types::Prompt::Messages(messages) => {
                let messages = messages.into_iter().map(|message| Message {
                    role: message.role,
                    content: message.content,
                    extra: message.extra,
                });
                Prompt::Messages(messages.collect())
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
        self.here().metadata(key)
    }

    /// All text after the prompt, special tokens left out.
    pub fn response(&self) -> String {
        self.here().response()
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
        self.here().append(&message).map_err(error)
    }

    /// Let the policy write the next turn, while other rollouts go on.
    ///
    /// # Errors
    /// No token fits any more, a budget is used up, the host gave up, or no engine answered.
    pub async fn sample(&mut self, sampling: &Sampling) -> Result<Turn, Error> {
        let Some(handle) = self.0.take() else {
            return Err(Error::other("the trajectory is away"));
        };
        let sampled =
            trajectories_async::sample(handle, sampling.max_tokens, sampling.stop.clone()).await;
        self.0 = Some(sampled.trajectory);
        let turn = sampled.turn.map_err(error)?;
        let finish_reason = match turn.finish_reason {
            types::FinishReason::Stop => FinishReason::Stop,
            types::FinishReason::Length => FinishReason::Length,
            types::FinishReason::Abort => FinishReason::Abort,
        };
        Ok(Turn {
            text: turn.text,
            finish_reason,
            num_tokens: turn.num_tokens,
            weight_version: turn.weight_version,
        })
    }

    /// Tokens that still fit.
    pub fn remaining_tokens(&self) -> u32 {
        self.here().remaining_tokens()
    }

    /// A copy that shares the past. Return it to have it trained on.
    ///
    /// # Errors
    /// More than 64 trajectories in one rollout.
    pub fn fork(&self) -> Result<Self, Error> {
        let copy = self.here().fork().map_err(error)?;
        Ok(Self(Some(copy)))
    }
}
