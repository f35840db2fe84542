//! A byte codec with a few templates, and a policy that follows a script. The real engine and the real
//! tokenizer meet this crate in the end-to-end tests.

mod cases;
mod live;
mod load;
mod paths;
mod replaying;
mod resume;
mod sampling;
mod scoring;

use crate::lock;
use serde_json::{Map, Value};
use slime_core::ports::{
    BoxFuture, CodecError, Policy, PolicyError, SampleRequest, Sampled, ScoreRequest, Scored,
    TextCodec, Verifier,
};
use slime_core::{FinishReason, Message, Outcome, Tool, Verdict, WeightVersion};
use std::collections::VecDeque;
use std::sync::Mutex;

pub(super) const END: u32 = 256;
const SPECIALS: [&str; 5] = [
    "<|end|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool|>",
    "<|system|>",
];
/// The tokenizer knows one merge, so `ab` has two spellings.
pub(super) const AB: u32 = 300;

/// How a conversation is written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Style {
    /// `<|role|>text<|end|>\n`.
    Chat,
    /// The same, but earlier replies lose what stands before `</think>`.
    Forgetful,
    /// `<|role|>text`: the next role's tag ends a turn.
    Glm,
    /// No template.
    None,
}

pub(super) struct Bytes(pub(super) Style);

impl TextCodec for Bytes {
    fn encode(&self, text: &str) -> Result<Vec<u32>, CodecError> {
        let mut tokens = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            if let Some(i) = SPECIALS.iter().position(|s| rest.starts_with(s)) {
                tokens.push(END + i as u32);
                rest = &rest[SPECIALS[i].len()..];
            } else if let Some(after) = rest.strip_prefix("ab") {
                tokens.push(AB);
                rest = after;
            } else {
                let c = rest.chars().next().unwrap();
                tokens.extend(
                    rest.as_bytes()[..c.len_utf8()]
                        .iter()
                        .map(|&b| u32::from(b)),
                );
                rest = &rest[c.len_utf8()..];
            }
        }
        Ok(tokens)
    }

    fn decode(&self, tokens: &[u32], skip_special_tokens: bool) -> String {
        let mut bytes = Vec::new();
        for &token in tokens {
            match token {
                AB => bytes.extend_from_slice(b"ab"),
                t if t < 256 => bytes.push(t as u8),
                _ if skip_special_tokens => {}
                t => bytes.extend_from_slice(SPECIALS[(t - END) as usize].as_bytes()),
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn render_chat(
        &self,
        messages: &[Message],
        _tools: &[Tool],
        gen_prompt: bool,
        _kwargs: &Map<String, Value>,
    ) -> Result<Vec<u32>, CodecError> {
        if self.0 == Style::None {
            return Err(CodecError::NoTemplate);
        }
        if !messages.iter().any(|m| m.role == "user") {
            return Err(CodecError::Template("no user message".into()));
        }
        let mut text = String::new();
        for message in messages {
            let content = match message.text().split_once("</think>") {
                Some((_, after)) if self.0 == Style::Forgetful => after,
                _ => message.text(),
            };
            let end = if self.0 == Style::Glm {
                ""
            } else {
                "<|end|>\n"
            };
            text += &format!("<|{}|>{content}{end}", message.role);
        }
        if gen_prompt {
            text += "<|assistant|>";
        }
        self.encode(&text)
    }

    fn has_chat_template(&self) -> bool {
        self.0 != Style::None
    }

    fn eos_token_ids(&self) -> &[u32] {
        if self.0 == Style::Glm {
            &[257, 259]
        } else {
            &[END]
        }
    }

    fn vocab_size(&self) -> usize {
        301
    }
}

/// Answers with what it was given, in order, and remembers what it was asked.
#[derive(Default)]
pub(super) struct Script {
    pub(super) answers: Mutex<VecDeque<Result<Sampled, PolicyError>>>,
    pub(super) asked: Mutex<Vec<SampleRequest>>,
}

impl Script {
    pub(super) fn new(answers: impl IntoIterator<Item = Sampled>) -> Self {
        Self {
            answers: Mutex::new(answers.into_iter().map(Ok).collect()),
            asked: Mutex::default(),
        }
    }
}

impl Policy for Script {
    fn sample(&self, request: SampleRequest) -> BoxFuture<'_, Result<Sampled, PolicyError>> {
        lock(&self.asked).push(request);
        let answer = lock(&self.answers)
            .pop_front()
            .expect("the script has an answer");
        Box::pin(std::future::ready(answer))
    }
}

/// Tokens of `text`, byte by byte, as a policy would have sampled them; `END` and the like by their tags.
pub(super) fn turn(text: &str, finish: FinishReason, version: u64) -> Sampled {
    let mut tokens = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(i) = SPECIALS.iter().position(|s| rest.starts_with(s)) {
            tokens.push(END + i as u32);
            rest = &rest[SPECIALS[i].len()..];
        } else {
            tokens.push(u32::from(rest.as_bytes()[0]));
            rest = &rest[1..];
        }
    }
    let len = tokens.len();
    Sampled {
        tokens,
        logprobs: vec![-0.25; len],
        versions: vec![(WeightVersion(version), len)],
        finish: Some(finish),
        cached_tokens: 2,
        ..Sampled::default()
    }
}

/// The reward is what the function makes of the response.
pub(super) struct Judge<F>(pub(super) F);

impl<F: Fn(&ScoreRequest) -> Outcome + Send + Sync> Verifier for Judge<F> {
    fn name(&self) -> &str {
        "judge"
    }

    fn score(&self, item: ScoreRequest) -> BoxFuture<'_, Scored> {
        let outcome = (self.0)(&item);
        Box::pin(std::future::ready(Scored {
            outcome,
            cost: Default::default(),
        }))
    }
}

pub(super) fn reward(reward: f64) -> Outcome {
    Outcome::Scored(Verdict {
        reward,
        metrics: Vec::new(),
    })
}
