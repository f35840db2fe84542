//! A trajectory whose policy follows a script: the stand-in for unit tests off the wasm target.

use crate::{Error, ErrorCode, FinishReason, Message, Prompt, Sampling, Turn};
use std::cell::RefCell;
use std::collections::VecDeque;

/// A token sequence that grows by turns of the policy and by what the generator appends.
#[derive(Clone, Debug)]
pub struct Trajectory {
    prompt: Prompt,
    metadata: Vec<(String, String)>,
    state: RefCell<State>,
}

#[derive(Clone, Debug)]
struct State {
    turns: VecDeque<String>,
    response: String,
    remaining_tokens: u32,
}

impl Trajectory {
    /// A trajectory made by hand, for unit tests: the policy will write `turns`, one after the other, at a token a
    /// byte and with room for 4,096.
    pub fn scripted<T: Into<String>>(
        prompt: impl Into<String>,
        turns: impl IntoIterator<Item = T>,
    ) -> Self {
        let state = State {
            turns: turns.into_iter().map(Into::into).collect(),
            response: String::new(),
            remaining_tokens: 4096,
        };
        Self {
            prompt: Prompt::Text(prompt.into()),
            metadata: Vec::new(),
            state: RefCell::new(state),
        }
    }

    /// Give its prompt one member of metadata, as a JSON document.
    #[must_use]
    pub fn with_metadata(mut self, key: impl Into<String>, json: impl Into<String>) -> Self {
        self.metadata.push((key.into(), json.into()));
        self
    }

    /// What it started from.
    pub fn prompt(&self) -> Prompt {
        self.prompt.clone()
    }

    /// One member of the prompt's metadata, as a JSON document.
    pub fn metadata(&self, key: &str) -> Option<String> {
        self.metadata
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, json)| json.clone())
    }

    /// All metadata, as a JSON object.
    pub fn metadata_json(&self) -> String {
        let members: Vec<_> = self
            .metadata
            .iter()
            .map(|(name, json)| format!("{name:?}:{json}"))
            .collect();
        format!("{{{}}}", members.join(","))
    }

    /// All text after the prompt.
    pub fn response(&self) -> String {
        self.state.borrow().response.clone()
    }

    /// Append text that the policy did not write. Never trained on.
    ///
    /// # Errors
    /// The text does not fit any more.
    pub fn append(&self, message: &Message) -> Result<(), Error> {
        let mut state = self.state.borrow_mut();
        let length = u32::try_from(message.content.len()).unwrap_or(u32::MAX);
        state.remaining_tokens = state
            .remaining_tokens
            .checked_sub(length)
            .ok_or_else(|| Error::invalid_input("the message does not fit the context"))?;
        state.response.push_str(&message.content);
        Ok(())
    }

    /// Let the policy write the next turn.
    ///
    /// # Errors
    /// The script is at its end, or no token fits any more.
    pub fn sample(&self, sampling: &Sampling) -> Result<Turn, Error> {
        let mut state = self.state.borrow_mut();
        if state.remaining_tokens == 0 {
            return Err(Error::new(
                ErrorCode::LimitExceeded,
                "no token fits any more",
            ));
        }
        let mut text = state
            .turns
            .pop_front()
            .ok_or_else(|| Error::other("the script has no further turn"))?;
        let most = match sampling.max_tokens {
            0 => state.remaining_tokens,
            n => n.min(state.remaining_tokens),
        };
        let mut finish_reason = FinishReason::Stop;
        if text.len() > most as usize {
            let end = (0..=most as usize)
                .rev()
                .find(|&end| text.is_char_boundary(end))
                .unwrap_or(0);
            text.truncate(end);
            finish_reason = FinishReason::Length;
        }
        let num_tokens = u32::try_from(text.len()).unwrap_or(u32::MAX);
        if let Some(end) = sampling
            .stop
            .iter()
            .filter_map(|stop| text.find(stop.as_str()))
            .min()
        {
            text.truncate(end);
            finish_reason = FinishReason::Stop;
        }
        state.remaining_tokens -= num_tokens;
        state.response.push_str(&text);
        Ok(Turn {
            text,
            finish_reason,
            num_tokens,
            weight_version: 1,
        })
    }

    /// Tokens that still fit.
    pub fn remaining_tokens(&self) -> u32 {
        self.state.borrow().remaining_tokens
    }

    /// A copy that shares the past.
    ///
    /// # Errors
    /// None here; in the host, more than 64 trajectories in one call.
    pub fn fork(&self) -> Result<Self, Error> {
        Ok(self.clone())
    }
}

/// [`Trajectory::sample`] on many trajectories at once.
pub fn sample_all(
    trajectories: Vec<Trajectory>,
    sampling: &Sampling,
) -> Vec<(Trajectory, Result<Turn, Error>)> {
    let sample = |trajectory: Trajectory| {
        let turn = trajectory.sample(sampling);
        (trajectory, turn)
    };
    trajectories.into_iter().map(sample).collect()
}
