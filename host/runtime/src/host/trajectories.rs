//! `trajectories`: the only road from a plugin to the policy. Tokens, log-probs and masks never come through here.
//!
//! Futures of the pool run outside the plugins' threads; see [`crate::host::outside`].

use crate::bindings::trajectories::{Host, HostTrajectory, Sampled, Turn};
use crate::bindings::types::{Error, ErrorCode, Message, Prompt};
use crate::context::Context;
use crate::host::outside;
use slime_core::PromptBody;
use slime_core::ports::{LiveError, LiveTrajectory};
use std::sync::Arc;
use wasmtime::component::Resource;

/// Trajectories of one call.
const MAX_TRAJECTORIES: usize = 64;
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 256;

/// What the handle stands for.
#[allow(unreachable_pub, reason = "the generated bindings re-export it")]
pub struct Held {
    pub(crate) live: Arc<dyn LiveTrajectory>,
    /// Whose it is, among the rollouts of the instance.
    pub(crate) rollout: u64,
}

type Answer<T> = wasmtime::Result<Result<T, Error>>;

impl Context {
    /// Hand a trajectory to the guest.
    pub(crate) fn hold(
        &mut self,
        live: Arc<dyn LiveTrajectory>,
    ) -> wasmtime::Result<Resource<Held>> {
        self.opened.push(Arc::clone(&live));
        let rollout = self.rollout;
        Ok(self.table.push(Held { live, rollout })?)
    }

    /// What the handle stands for, with the books of its rollout open.
    pub(crate) fn live(
        &mut self,
        handle: &Resource<Held>,
    ) -> wasmtime::Result<Arc<dyn LiveTrajectory>> {
        self.count_host_call()?;
        let held = self.table.get(handle)?;
        let (live, rollout) = (Arc::clone(&held.live), held.rollout);
        if self.enter(rollout) {
            Ok(live)
        } else {
            Err(wasmtime::Error::msg(
                "the guest used a trajectory of a rollout that is over",
            ))
        }
    }

    /// How many tokens `live` may sample now; 0 when none.
    pub(crate) fn affordable(&self, live: &dyn LiveTrajectory, max_tokens: u32) -> u32 {
        let wanted = if max_tokens == 0 {
            u32::MAX
        } else {
            max_tokens
        };
        let left = u32::try_from(self.tokens.left()).unwrap_or(u32::MAX);
        wanted.min(left).min(live.remaining_tokens())
    }

    pub(crate) fn no_tokens<T>(&mut self) -> Result<T, Error> {
        let message = if self.tokens.left() == 0 {
            format!(
                "the call's budget of {} tokens is used up",
                self.tokens.limit
            )
        } else {
            "no token fits the context or the response budget any more".into()
        };
        self.refuse(ErrorCode::LimitExceeded, message)
    }

    pub(crate) fn finish_turn(
        &mut self,
        sampled: Result<slime_core::ports::Turn, LiveError>,
    ) -> Answer<Turn> {
        let turn = match sampled {
            Ok(turn) => turn,
            Err(failure) => return Ok(self.refuse_live(&failure)),
        };
        self.tokens.take(turn.num_tokens.into());
        self.check_outgoing(turn.text.len())?;
        Ok(Ok(Turn {
            text: turn.text,
            finish_reason: turn.finish.into(),
            num_tokens: turn.num_tokens,
            weight_version: turn.version.0,
        }))
    }
}

pub(crate) fn check_stops(stop: &[String]) -> Result<(), String> {
    if stop.len() > MAX_STOPS {
        return Err(format!(
            "{} stop strings, at most {MAX_STOPS} are allowed",
            stop.len()
        ));
    }
    match stop
        .iter()
        .find(|text| text.is_empty() || text.len() > MAX_STOP_BYTES)
    {
        Some(text) => Err(format!(
            "a stop string of {} bytes, 1 to {MAX_STOP_BYTES} are allowed",
            text.len()
        )),
        None => Ok(()),
    }
}

impl Host for Context {
    async fn sample_all(
        &mut self,
        trajectories: Vec<Resource<Held>>,
        max_tokens: u32,
        stop: Vec<String>,
    ) -> wasmtime::Result<Vec<Sampled>> {
        self.count_host_call()?;
        if let Err(reason) = check_stops(&stop) {
            let refused = trajectories.into_iter().map(|trajectory| {
                let turn = self.refuse(ErrorCode::InvalidInput, reason.clone());
                Sampled { trajectory, turn }
            });
            return Ok(refused.collect());
        }
        // The budget is shared out before the first is asked, so that together they cannot exceed it.
        let mut asked = Vec::with_capacity(trajectories.len());
        let mut promised = 0u64;
        let mut rollout = None;
        for handle in &trajectories {
            let live = self.live(handle)?;
            if *rollout.get_or_insert(self.rollout) != self.rollout {
                return Err(wasmtime::Error::msg(
                    "the guest sampled trajectories of two rollouts in one call",
                ));
            }
            let left = self.tokens.left().saturating_sub(promised);
            let most = self
                .affordable(&*live, max_tokens)
                .min(u32::try_from(left).unwrap_or(u32::MAX));
            promised += u64::from(most);
            asked.push((live, most));
        }
        let answers = futures::future::join_all(asked.into_iter().map(|(live, most)| {
            let stop = stop.clone();
            let caller = self.caller.clone();
            async move {
                match most {
                    0 => None,
                    _ => Some(outside(caller, async move { live.sample(most, stop).await }).await),
                }
            }
        }))
        .await;
        let mut sampled = Vec::with_capacity(trajectories.len());
        for (trajectory, answer) in trajectories.into_iter().zip(answers) {
            let turn = match answer {
                Some(answer) => self.finish_turn(answer)?,
                None => self.no_tokens(),
            };
            sampled.push(Sampled { trajectory, turn });
        }
        Ok(sampled)
    }
}

impl HostTrajectory for Context {
    fn prompt(&mut self, handle: Resource<Held>) -> wasmtime::Result<Prompt> {
        let prompt = self.live(&handle)?.prompt();
        let converted = match &prompt.body {
            PromptBody::Text(text) => Prompt::Text(text.clone()),
            PromptBody::Messages(messages) => {
                Prompt::Messages(messages.iter().map(crate::convert::to_guest).collect())
            }
            PromptBody::Tokens(tokens) => Prompt::Tokens(
                tokens
                    .iter()
                    .flat_map(|token| token.to_le_bytes())
                    .collect(),
            ),
        };
        let bytes = match &converted {
            Prompt::Text(text) => text.len(),
            Prompt::Messages(messages) => messages
                .iter()
                .map(|m| m.content.len() + m.extra.as_ref().map_or(0, String::len))
                .sum(),
            Prompt::Tokens(bytes) => bytes.len(),
        };
        self.check_outgoing(bytes)?;
        Ok(converted)
    }

    fn metadata(
        &mut self,
        handle: Resource<Held>,
        key: String,
    ) -> wasmtime::Result<Option<String>> {
        let text = self
            .live(&handle)?
            .prompt()
            .metadata
            .get(&key)
            .map(ToString::to_string);
        self.check_outgoing(text.as_ref().map_or(0, String::len))?;
        Ok(text)
    }

    fn metadata_json(&mut self, handle: Resource<Held>) -> wasmtime::Result<String> {
        let text = serde_json::to_string(&self.live(&handle)?.prompt().metadata)?;
        self.check_outgoing(text.len())?;
        Ok(text)
    }

    fn response(&mut self, handle: Resource<Held>) -> wasmtime::Result<String> {
        let text = self.live(&handle)?.response();
        self.check_outgoing(text.len())?;
        Ok(text)
    }

    async fn append(&mut self, handle: Resource<Held>, message: Message) -> Answer<()> {
        let live = self.live(&handle)?;
        let message = match crate::convert::from_guest(message) {
            Ok(message) => message,
            Err(reason) => return Ok(self.refuse(ErrorCode::InvalidInput, reason)),
        };
        match outside(
            self.caller.clone(),
            async move { live.append(message).await },
        )
        .await
        {
            Ok(()) => Ok(Ok(())),
            Err(failure) => Ok(self.refuse_live(&failure)),
        }
    }

    async fn sample(
        &mut self,
        handle: Resource<Held>,
        max_tokens: u32,
        stop: Vec<String>,
    ) -> Answer<Turn> {
        let live = self.live(&handle)?;
        if let Err(reason) = check_stops(&stop) {
            return Ok(self.refuse(ErrorCode::InvalidInput, reason));
        }
        let most = self.affordable(&*live, max_tokens);
        if most == 0 {
            return Ok(self.no_tokens());
        }
        let sampled = outside(
            self.caller.clone(),
            async move { live.sample(most, stop).await },
        )
        .await;
        self.finish_turn(sampled)
    }

    fn remaining_tokens(&mut self, handle: Resource<Held>) -> wasmtime::Result<u32> {
        let live = self.live(&handle)?;
        Ok(self.affordable(&*live, 0))
    }

    fn fork(&mut self, handle: Resource<Held>) -> Answer<Resource<Held>> {
        let live = self.live(&handle)?;
        if self.opened.len() >= MAX_TRAJECTORIES {
            let message = format!("more than {MAX_TRAJECTORIES} trajectories in one call");
            return Ok(self.refuse(ErrorCode::LimitExceeded, message));
        }
        match live.fork() {
            Ok(copy) => Ok(Ok(self.hold(copy)?)),
            Err(failure) => Ok(self.refuse_live(&failure)),
        }
    }

    fn drop(&mut self, handle: Resource<Held>) -> wasmtime::Result<()> {
        self.table.delete(handle)?;
        Ok(())
    }
}
