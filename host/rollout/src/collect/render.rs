//! From a prompt to tokens, and from a longer conversation to the tokens that are new in it.

use serde_json::{Map, Value};
use slime_core::ports::{CodecError, TextCodec};
use slime_core::{Prompt, PromptBody};

/// The tokens of a prompt, ready for the policy's first turn.
pub(super) fn prompt_tokens(
    codec: &dyn TextCodec,
    prompt: &Prompt,
    kwargs: &Map<String, Value>,
) -> Result<Vec<u32>, CodecError> {
    match &prompt.body {
        PromptBody::Text(text) => codec.encode(text),
        PromptBody::Messages(messages) => codec.render_chat(messages, &prompt.tools, true, kwargs),
        PromptBody::Tokens(tokens) => Ok(tokens.clone()),
    }
}

/// The prompt as a verifier reads it: the last user message of a conversation, else all of the text.
pub(super) fn prompt_text(codec: &dyn TextCodec, prompt: &Prompt) -> String {
    match &prompt.body {
        PromptBody::Text(text) => text.clone(),
        PromptBody::Tokens(tokens) => codec.decode(tokens, true),
        PromptBody::Messages(messages) => {
            let asked = messages
                .iter()
                .rev()
                .find(|m| m.role == "user")
                .or(messages.last());
            asked.map(|m| m.text().to_owned()).unwrap_or_default()
        }
    }
}

/// How a fresh render relates to the tokens held so far.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Continuation {
    /// The held tokens stand at its start; these come after them.
    Extends(Vec<u32>),
    /// The held *text* stands at its start, in other tokens: sampling does not spell the way a tokenizer
    /// does. The held tokens stay as they were sampled; these come after them.
    ExtendsText(Vec<u32>),
    /// The template rewrote history. There is nothing to extend.
    Rewritten,
}

/// What of `fresh` comes after `held`.
pub(super) fn continuation(codec: &dyn TextCodec, held: &[u32], fresh: &[u32]) -> Continuation {
    if let Some(rest) = fresh.strip_prefix(held) {
        return Continuation::Extends(rest.to_vec());
    }
    let text = codec.decode(held, false);
    // The shortest prefix of `fresh` that is no shorter as text. The length grows with the tokens, but
    // for half characters at the end, which no turn's end has.
    let (mut low, mut high) = (0, fresh.len());
    while low < high {
        let middle = (low + high) / 2;
        if codec.decode(&fresh[..middle], false).len() < text.len() {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if codec.decode(&fresh[..low], false) == text {
        Continuation::ExtendsText(fresh[low..].to_vec())
    } else {
        Continuation::Rewritten
    }
}
