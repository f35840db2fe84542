//! What an agent has said of a session so far, and what of its next request is new.
//!
//! Chat clients send the whole conversation each time. The host knows it already, in tokens, so a request must begin
//! with exactly what went before; what comes after is appended. A rewritten history would be another trajectory than the
//! one that was sampled, and is refused by name.

use super::Said;
use serde_json::{Map, Value, json};
use slime_core::ports::{LiveError, LiveTrajectory};
use slime_core::{Message, Prompt, PromptBody};

/// Why a request is not answered with a turn.
#[derive(Debug)]
pub(super) enum Refused {
    /// It does not go on from what went before.
    History(String),
    /// The trajectory cannot go on.
    Live(LiveError),
}

/// The messages of a session, as its agent sees them.
pub(super) struct Conversation {
    seen: Vec<Message>,
    /// The newest turn, for an agent that asks again because the answer was lost.
    last: Option<Said>,
}

impl Conversation {
    /// Before the first turn. The error says why chat cannot show the prompt.
    pub(super) fn new(prompt: &Prompt) -> Result<Self, String> {
        let seen = match &prompt.body {
            PromptBody::Text(text) => vec![Message::new("user", text.as_str())],
            PromptBody::Messages(messages) => messages.clone(),
            PromptBody::Tokens(_) => {
                return Err(format!(
                    "prompt {} is token ids, which chat has no place for: give text or messages",
                    prompt.id
                ));
            }
        };
        Ok(Self { seen, last: None })
    }

    /// What an agent is told of the session; of the gold answer only where it gives the reward.
    pub(super) fn offer(&self, prompt: &Prompt, with_label: bool) -> Map<String, Value> {
        let mut offer = Map::new();
        offer.insert("messages".into(), json!(self.seen));
        offer.insert("metadata".into(), json!(prompt.metadata));
        if with_label {
            offer.insert("label".into(), json!(prompt.label));
        }
        offer
    }

    /// Append what is new in `messages`, and let the policy answer.
    pub(super) async fn go_on(
        &mut self,
        live: &dyn LiveTrajectory,
        messages: Vec<Message>,
        max_tokens: u32,
        stop: Vec<String>,
    ) -> Result<Said, Refused> {
        if let (Some(said), Some((_, before))) = (&self.last, self.seen.split_last())
            && same(before, &messages)
        {
            return Ok(said.clone());
        }
        for message in self.new_in(&messages)? {
            live.append(message.clone()).await.map_err(Refused::Live)?;
            self.seen.push(message.clone());
        }
        let turn = live.sample(max_tokens, stop).await.map_err(Refused::Live)?;
        self.seen
            .push(Message::new("assistant", turn.text.as_str()));
        let held = live.finish().last().map_or(0, |t| t.num_tokens());
        let said = Said {
            context_tokens: held.saturating_sub(turn.num_tokens as usize),
            turn,
        };
        self.last = Some(said.clone());
        Ok(said)
    }

    fn new_in<'a>(&self, messages: &'a [Message]) -> Result<&'a [Message], Refused> {
        let refuse = |reason: String| Err(Refused::History(reason));
        let differs = |(a, b): (&Message, &Message)| !same_message(a, b);
        if let Some(at) = self.seen.iter().zip(messages).position(differs) {
            let (held, came) = (&self.seen[at], &messages[at]);
            return refuse(format!(
                "messages[{at}] is {} of {} characters, in this session it is {} of {}: history cannot be rewritten, \
                 send what was said before and add to it",
                came.role,
                came.text().chars().count(),
                held.role,
                held.text().chars().count()
            ));
        }
        let Some(new) = messages.get(self.seen.len()..) else {
            return refuse(format!(
                "there are {} messages, this session has {}: send the whole conversation",
                messages.len(),
                self.seen.len()
            ));
        };
        if new.is_empty() && self.last.is_some() {
            return refuse("the policy spoke last: add a message before it answers again".into());
        }
        if let Some(message) = new.iter().find(|message| message.role == "assistant") {
            let words: String = message.text().chars().take(40).collect();
            return refuse(format!(
                "an assistant's turn that the policy did not write (`{words}`) cannot be added: it would be trained on"
            ));
        }
        Ok(new)
    }
}

fn same(held: &[Message], came: &[Message]) -> bool {
    held.len() == came.len() && held.iter().zip(came).all(|(a, b)| same_message(a, b))
}

fn same_message(held: &Message, came: &Message) -> bool {
    held.role == came.role && held.text() == came.text()
}
