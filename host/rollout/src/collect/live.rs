//! The token sequence that a generator grows: the host's half of the generator world.
//!
//! Tokens come in as they were sampled and are never encoded again. A message is rendered together with
//! the whole conversation; if the template then tells the past differently, a new trajectory begins from
//! that render. Nothing is ever spliced. Read `render.rs` for the comparison, `transcript.rs` for forks.

use super::driver::Limits;
use super::render::{Continuation, continuation};
use super::transcript::{Ownership, Transcript};
use super::turns::Turns;
use crate::lock;
use crate::seed::{hash64, turn_seed};
use serde_json::{Map, Value};
use slime_core::ports::{
    BoxFuture, LiveError, LiveTrajectory, Policy, PolicyError, SampleRequest, Sampled, TextCodec,
    Turn,
};
use slime_core::{
    FinishReason, Message, Prompt, PromptBody, SamplingParams, Trajectory, WeightVersion,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What requests of a step had in common, counted.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) cached_tokens: AtomicU64,
    pub(super) context_tokens: AtomicU64,
    pub(super) turns: AtomicU64,
    pub(super) retokenised_turns: AtomicU64,
    pub(super) rewritten_histories: AtomicU64,
}

/// What the live trajectories of one rollout share.
pub(super) struct Origin {
    pub(super) policy: Arc<dyn Policy>,
    pub(super) codec: Arc<dyn TextCodec>,
    pub(super) prompt: Arc<Prompt>,
    pub(super) template_kwargs: Arc<Map<String, Value>>,
    pub(super) params: SamplingParams,
    pub(super) limits: Limits,
    pub(super) seed: u64,
    /// Requests are named after it; unique among everything a server may be asked at once.
    pub(super) rid: String,
    pub(super) session: u64,
    pub(super) served: Arc<AtomicU64>,
    pub(super) tally: Arc<Tally>,
    pub(super) ownership: Ownership,
    pub(super) turns: Arc<Turns>,
    pub(super) next_id: AtomicU64,
}

/// Appended, and not yet seen by the policy.
#[derive(Clone)]
enum Pending {
    Nothing,
    Extend(Vec<u32>),
    Restart(Vec<u32>),
}

#[derive(Clone)]
struct State {
    /// Earlier trajectories, ended by a template that rewrote them, and the text that followed each.
    past: Vec<(Transcript, String)>,
    now: Transcript,
    /// The conversation, in the policy's own spelling. Empty where the prompt is none.
    messages: Vec<Message>,
    pending: Pending,
    /// Text appended since the last turn.
    appended: String,
    /// Tokens of the turn being written; it goes on until something is appended.
    turn: Vec<u32>,
    num_turns: u32,
    num_forks: u64,
    ended_by_token: bool,
    /// The generator was told that nothing fits any more.
    told: bool,
    busy: bool,
}

pub(super) struct Live {
    origin: Arc<Origin>,
    id: u64,
    /// Which forks led here; 0 for the first.
    lineage: u64,
    state: Mutex<State>,
}

impl Live {
    pub(super) fn start(origin: Arc<Origin>, prompt_tokens: Vec<u32>) -> Self {
        let messages = match &origin.prompt.body {
            PromptBody::Messages(messages) => messages.clone(),
            _ => Vec::new(),
        };
        let state = State {
            past: Vec::new(),
            now: Transcript::new(prompt_tokens),
            messages,
            pending: Pending::Nothing,
            appended: String::new(),
            turn: Vec::new(),
            num_turns: 0,
            num_forks: 0,
            ended_by_token: false,
            told: false,
            busy: false,
        };
        let id = origin.next_id.fetch_add(1, Ordering::Relaxed);
        Self {
            origin,
            id,
            lineage: 0,
            state: Mutex::new(state),
        }
    }

    fn remaining(&self, state: &State) -> u32 {
        let held = state.now.trajectory.num_tokens();
        let past: usize = state.past.iter().map(|(t, _)| t.response_len()).sum();
        let (context, response) = match &state.pending {
            Pending::Nothing => (held, past + state.now.response_len()),
            Pending::Extend(tokens) => (
                held + tokens.len(),
                past + state.now.response_len() + tokens.len(),
            ),
            Pending::Restart(tokens) => (tokens.len(), past + state.now.response_len()),
        };
        let limits = &self.origin.limits;
        let left =
            |limit: u32, used: usize| limit.saturating_sub(u32::try_from(used).unwrap_or(u32::MAX));
        left(limits.context_tokens, context).min(
            limits
                .response_tokens
                .map_or(u32::MAX, |limit| left(limit, response)),
        )
    }

    fn is_end_token(&self, token: u32) -> bool {
        let origin = &self.origin;
        origin.params.stop_token_ids.contains(&token)
            || (!origin.params.ignore_eos && origin.codec.eos_token_ids().contains(&token))
    }

    /// Everything up to the request for the next turn; `None` when nothing fits any more.
    fn prepare(
        &self,
        max_tokens: u32,
        stop: &[String],
    ) -> Result<Option<(u32, SampleRequest)>, LiveError> {
        let mut state = lock(&self.state);
        if state.busy {
            return Err(LiveError::InvalidInput(
                "a turn of this trajectory is being sampled already; wait for it".into(),
            ));
        }
        if state.num_turns >= self.origin.limits.max_turns {
            return Err(LiveError::LimitExceeded(format!(
                "the rollout has had its {} turns",
                self.origin.limits.max_turns
            )));
        }
        let remaining = self.remaining(&state);
        if remaining == 0 || state.told {
            state.now.trajectory.finish = Some(FinishReason::Length);
            if std::mem::replace(&mut state.told, true) {
                return Err(LiveError::LimitExceeded(
                    "no tokens are left in the context or the response budget".into(),
                ));
            }
            return Ok(None);
        }
        let mut appended = true;
        match std::mem::replace(&mut state.pending, Pending::Nothing) {
            Pending::Nothing if state.ended_by_token => {
                return Err(LiveError::InvalidInput(
                    "the policy has ended its turn; append a message before it writes another"
                        .into(),
                ));
            }
            Pending::Nothing => appended = false,
            Pending::Extend(tokens) => state
                .now
                .push_environment(tokens)
                .map_err(|e| LiveError::InvalidInput(e.to_string()))?,
            Pending::Restart(tokens) => {
                let old = std::mem::replace(&mut state.now, Transcript::new(tokens));
                let text = std::mem::take(&mut state.appended);
                state.past.push((old, text));
            }
        }
        if appended {
            state.turn.clear();
            state.appended.clear();
        }
        let mut params = self.origin.params.clone();
        params.max_new_tokens = [
            remaining,
            params.max_new_tokens,
            if max_tokens == 0 {
                u32::MAX
            } else {
                max_tokens
            },
        ]
        .into_iter()
        .min()
        .unwrap_or(0);
        params.stop.extend_from_slice(stop);
        params.sampling_seed = Some(turn_seed(self.origin.seed, self.lineage, state.num_turns));
        let turn = state.num_turns;
        let rid = format!("{}-{}-{turn}", self.origin.rid, self.id);
        state.busy = true;
        state.num_turns += 1;
        let request = SampleRequest {
            rid,
            session: self.origin.session,
            tokens: state.now.trajectory.tokens(),
            params,
        };
        Ok(Some((turn, request)))
    }

    /// What the policy writes at `turn`; a turn that was cut off goes on, one that was whole is not sampled again.
    async fn ask(&self, turn: u32, request: SampleRequest) -> Result<Sampled, PolicyError> {
        let turns = &self.origin.turns;
        let begun = turns.recall(self.lineage, turn, &request.tokens);
        if begun.is_whole() {
            return Ok(begun);
        }
        let keep = turns.keeper(self.lineage, turn, &request.tokens);
        self.origin.policy.go_on(request, begun, keep).await
    }

    /// Keep what the policy wrote.
    fn absorb(&self, sampled: &Sampled, stop: &[String]) -> Result<Turn, LiveError> {
        let mut state = lock(&self.state);
        let broken = |e: slime_core::TrajectoryError| {
            LiveError::Unavailable(format!("the engine's answer cannot be used: {e}"))
        };
        state
            .now
            .push_sampled(sampled, &self.origin.ownership)
            .map_err(broken)?;
        let finish = sampled.finish.unwrap_or(FinishReason::Abort);
        // The engine's context was full before the run's.
        state.told = sampled.tokens.is_empty() && finish == FinishReason::Length;
        state.now.trajectory.finish = Some(finish);
        let continued = !state.turn.is_empty();
        state.turn.extend_from_slice(&sampled.tokens);

        let codec = &self.origin.codec;
        let last = sampled.tokens.last().copied();
        state.ended_by_token =
            finish == FinishReason::Stop && last.is_some_and(|token| self.is_end_token(token));
        let end = usize::from(state.ended_by_token);
        if !state.messages.is_empty() {
            let content = codec.decode(&state.turn[..state.turn.len() - end], false);
            match state.messages.last_mut() {
                Some(message) if continued => message.content = content.into(),
                _ => state.messages.push(Message::new("assistant", content)),
            }
        }
        if finish == FinishReason::Abort {
            return Err(LiveError::Cancelled);
        }
        let mut text = codec.decode(&sampled.tokens[..sampled.tokens.len() - end], true);
        let cut = self
            .origin
            .params
            .stop
            .iter()
            .chain(stop)
            .filter(|s| !s.is_empty())
            .filter_map(|s| text.find(s.as_str()))
            .min();
        if let Some(cut) = cut {
            text.truncate(cut);
        }
        Ok(Turn {
            text,
            finish,
            num_tokens: u32::try_from(sampled.tokens.len()).unwrap_or(u32::MAX),
            version: sampled
                .versions
                .iter()
                .map(|(v, _)| *v)
                .max()
                .unwrap_or_else(|| self.served()),
        })
    }

    fn served(&self) -> WeightVersion {
        WeightVersion(self.origin.served.load(Ordering::Relaxed))
    }

    fn add(&self, message: Message) -> Result<(), LiveError> {
        let mut state = lock(&self.state);
        if state.busy {
            return Err(LiveError::InvalidInput(
                "the policy is writing; append when its turn has ended".into(),
            ));
        }
        let origin = &self.origin;
        let invalid = |e: slime_core::ports::CodecError| LiveError::InvalidInput(e.to_string());
        state.appended.push_str(message.text());
        if state.messages.is_empty() {
            // A prompt of plain text or tokens knows no roles: the message's text goes on from it.
            let mut tokens = match std::mem::replace(&mut state.pending, Pending::Nothing) {
                Pending::Extend(tokens) => tokens,
                _ => Vec::new(),
            };
            tokens.extend(origin.codec.encode(message.text()).map_err(invalid)?);
            state.pending = Pending::Extend(tokens);
            return Ok(());
        }
        let mut messages = state.messages.clone();
        messages.push(message);
        let fresh = origin
            .codec
            .render_chat(
                &messages,
                &origin.prompt.tools,
                true,
                &origin.template_kwargs,
            )
            .map_err(invalid)?;
        let held = state.now.trajectory.tokens();
        let tally = &origin.tally;
        state.pending = match continuation(origin.codec.as_ref(), &held, &fresh) {
            Continuation::Extends(tokens) => Pending::Extend(tokens),
            Continuation::ExtendsText(tokens) => {
                tally.retokenised_turns.fetch_add(1, Ordering::Relaxed);
                Pending::Extend(tokens)
            }
            Continuation::Rewritten => {
                tally.rewritten_histories.fetch_add(1, Ordering::Relaxed);
                Pending::Restart(fresh)
            }
        };
        state.messages = messages;
        Ok(())
    }
}

/// Nobody else may grow the trajectory until the turn is in, or its caller gone.
struct Busy<'a>(&'a Mutex<State>);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        lock(self.0).busy = false;
    }
}

impl LiveTrajectory for Live {
    fn prompt(&self) -> Arc<Prompt> {
        Arc::clone(&self.origin.prompt)
    }

    fn response(&self) -> String {
        let state = lock(&self.state);
        let codec = &self.origin.codec;
        let mut text = String::new();
        for (transcript, appended) in &state.past {
            text.push_str(&codec.decode(&transcript.trajectory.response_tokens(), true));
            text.push_str(appended);
        }
        text + &codec.decode(&state.now.trajectory.response_tokens(), true)
    }

    fn append(&self, message: Message) -> BoxFuture<'_, Result<(), LiveError>> {
        Box::pin(std::future::ready(self.add(message)))
    }

    fn sample(&self, max_tokens: u32, stop: Vec<String>) -> BoxFuture<'_, Result<Turn, LiveError>> {
        Box::pin(async move {
            let Some((turn, request)) = self.prepare(max_tokens, &stop)? else {
                return Ok(Turn {
                    text: String::new(),
                    finish: FinishReason::Length,
                    num_tokens: 0,
                    version: self.served(),
                });
            };
            let busy = Busy(&self.state);
            let context = request.tokens.len() as u64;
            let result = self.ask(turn, request).await;
            drop(busy);
            let sampled = result.map_err(|error| match error {
                PolicyError::Refused(reason) => {
                    LiveError::InvalidInput(format!("the engine refused the request: {reason}"))
                }
                PolicyError::Unavailable(reason) => {
                    LiveError::Unavailable(format!("no engine could answer: {reason}"))
                }
                PolicyError::Cancelled => LiveError::Cancelled,
            })?;
            let tally = &self.origin.tally;
            tally.turns.fetch_add(1, Ordering::Relaxed);
            tally.context_tokens.fetch_add(context, Ordering::Relaxed);
            tally
                .cached_tokens
                .fetch_add(sampled.cached_tokens as u64, Ordering::Relaxed);
            self.absorb(&sampled, &stop)
        })
    }

    fn remaining_tokens(&self) -> u32 {
        self.remaining(&lock(&self.state))
    }

    fn fork(&self) -> Result<Arc<dyn LiveTrajectory>, LiveError> {
        let mut state = lock(&self.state);
        if state.busy {
            return Err(LiveError::InvalidInput(
                "the policy is writing; fork when its turn has ended".into(),
            ));
        }
        state.num_forks += 1;
        let lineage = hash64(
            "fork",
            &[&self.lineage.to_le_bytes(), &state.num_forks.to_le_bytes()],
        ) | 1;
        let copy = State {
            num_forks: 0,
            ..state.clone()
        };
        let id = self.origin.next_id.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(Self {
            origin: Arc::clone(&self.origin),
            id,
            lineage,
            state: Mutex::new(copy),
        }))
    }

    fn finish(&self) -> Vec<Trajectory> {
        let state = lock(&self.state);
        let all = state
            .past
            .iter()
            .map(|(transcript, _)| transcript)
            .chain([&state.now]);
        let mut owned: Vec<Trajectory> = all
            .map(|transcript| transcript.owned_by(self.id, &self.origin.ownership))
            .collect();
        // What trains nothing is left out, but for the last: a rollout has at least one.
        let last = owned.pop();
        owned.retain(|trajectory| trajectory.num_sampled() > 0);
        owned.extend(last);
        owned
    }
}
