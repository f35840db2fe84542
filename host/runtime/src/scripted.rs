//! A policy whose turns were written beforehand: what `plugin test` shows to generators.
//!
//! Tokens are bytes here. The pool's own trajectories live elsewhere and are tested there.

use slime_core::ports::{BoxFuture, LiveError, LiveTrajectory, Turn};
use slime_core::{
    FinishReason, Message, Origin, Prompt, PromptBody, Segment, Trajectory, WeightVersion,
};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) struct Scripted {
    prompt: Arc<Prompt>,
    state: Mutex<State>,
}

#[derive(Clone)]
struct State {
    turns: VecDeque<String>,
    response: String,
    trajectory: Trajectory,
    room: u32,
}

impl Scripted {
    /// Starts from `prompt`; `turns` are what the policy will write, `room` the tokens that fit.
    pub(crate) fn new(prompt: Prompt, turns: Vec<String>, room: u32) -> Arc<Self> {
        let text = match &prompt.body {
            PromptBody::Text(text) => text.clone(),
            PromptBody::Messages(messages) => messages.iter().map(Message::text).collect(),
            PromptBody::Tokens(_) => String::new(),
        };
        let state = State {
            turns: turns.into(),
            response: String::new(),
            trajectory: Trajectory::from_prompt(tokens(&text)),
            room,
        };
        Arc::new(Self {
            prompt: Arc::new(prompt),
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tokens(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

impl State {
    fn push(&mut self, origin: Origin, text: &str) -> Result<(), LiveError> {
        self.response.push_str(text);
        let segment = Segment {
            origin,
            tokens: tokens(text),
        };
        self.trajectory
            .push(segment)
            .map_err(|error| LiveError::InvalidInput(error.to_string()))
    }
}

impl LiveTrajectory for Scripted {
    fn prompt(&self) -> Arc<Prompt> {
        Arc::clone(&self.prompt)
    }

    fn response(&self) -> String {
        self.state().response.clone()
    }

    fn append(&self, message: Message) -> BoxFuture<'_, Result<(), LiveError>> {
        let mut state = self.state();
        let text = message.text().to_owned();
        state.room = state
            .room
            .saturating_sub(u32::try_from(text.len()).unwrap_or(u32::MAX));
        let pushed = state.push(Origin::Environment, &text);
        Box::pin(std::future::ready(pushed))
    }

    fn sample(&self, max_tokens: u32, stop: Vec<String>) -> BoxFuture<'_, Result<Turn, LiveError>> {
        Box::pin(std::future::ready(self.next(max_tokens, &stop)))
    }

    fn remaining_tokens(&self) -> u32 {
        self.state().room
    }

    fn fork(&self) -> Result<Arc<dyn LiveTrajectory>, LiveError> {
        Ok(Arc::new(Self {
            prompt: Arc::clone(&self.prompt),
            state: Mutex::new(self.state().clone()),
        }))
    }

    fn finish(&self) -> Vec<Trajectory> {
        vec![self.state().trajectory.clone()]
    }
}

impl Scripted {
    fn next(&self, max_tokens: u32, stop: &[String]) -> Result<Turn, LiveError> {
        let mut state = self.state();
        let Some(mut text) = state.turns.pop_front() else {
            return Err(LiveError::Unavailable(
                "the script has no more turns".into(),
            ));
        };
        let mut finish = FinishReason::Stop;
        if let Some(at) = stop
            .iter()
            .filter_map(|stop| text.find(stop.as_str()))
            .min()
        {
            text.truncate(at);
        }
        let most = max_tokens.min(state.room) as usize;
        if text.len() > most {
            text.truncate(
                (0..=most)
                    .rev()
                    .find(|&n| text.is_char_boundary(n))
                    .unwrap_or(0),
            );
            finish = FinishReason::Length;
        }
        let count = u32::try_from(text.len()).unwrap_or(u32::MAX);
        state.room -= count;
        let origin = Origin::Policy {
            logprobs: vec![0.0; text.len()],
            version: WeightVersion(0),
        };
        state.push(origin, &text)?;
        state.trajectory.finish = Some(finish);
        Ok(Turn {
            text,
            finish,
            num_tokens: count,
            version: WeightVersion(0),
        })
    }
}
