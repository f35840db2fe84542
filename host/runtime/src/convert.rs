//! Chat messages and prompts between core's types and the contract's.

use crate::bindings::types::{Message, Prompt};
use serde_json::{Map, Value};
use slime_core::PromptBody;

/// A message as a guest sees it. Content that is not a string travels in `extra`.
pub(crate) fn to_guest(message: &slime_core::Message) -> Message {
    let mut extra = message.extra.clone();
    let content = match &message.content {
        Value::String(text) => text.clone(),
        other => {
            extra.insert("content".into(), other.clone());
            String::new()
        }
    };
    let extra = (!extra.is_empty()).then(|| Value::Object(extra).to_string());
    Message {
        role: message.role.clone(),
        content,
        extra,
    }
}

/// A message as core sees it: the inverse of [`to_guest`].
pub(crate) fn from_guest(message: Message) -> Result<slime_core::Message, String> {
    let mut extra = object(message.extra.as_deref(), "extra")?;
    let content = extra
        .remove("content")
        .unwrap_or(Value::String(message.content));
    extra.remove("role");
    Ok(slime_core::Message {
        role: message.role,
        content,
        extra,
    })
}

/// A prompt as core sees it.
pub(crate) fn prompt_from_guest(prompt: Prompt) -> Result<PromptBody, String> {
    match prompt {
        Prompt::Text(text) => Ok(PromptBody::Text(text)),
        Prompt::Messages(messages) => {
            let messages: Result<Vec<_>, _> = messages.into_iter().map(from_guest).collect();
            messages.map(PromptBody::Messages)
        }
        Prompt::Tokens(bytes) => {
            let (words, rest) = bytes.as_chunks::<4>();
            if !rest.is_empty() {
                return Err(format!(
                    "tokens: {} bytes are no whole number of 4-byte ids",
                    bytes.len()
                ));
            }
            Ok(PromptBody::Tokens(
                words.iter().map(|word| u32::from_le_bytes(*word)).collect(),
            ))
        }
    }
}

/// A JSON object; absent is empty.
pub(crate) fn object(json: Option<&str>, name: &str) -> Result<Map<String, Value>, String> {
    match json {
        None => Ok(Map::new()),
        Some(text) => {
            serde_json::from_str(text).map_err(|error| format!("{name} is no JSON object: {error}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn messages_come_back_as_they_went() {
        for message in [
            json!({"role": "user", "content": "hi"}),
            json!({"role": "assistant", "content": null, "tool_calls": [{"id": "1"}]}),
            json!({"role": "user", "content": [{"type": "text", "text": "hi"}]}),
            json!({"role": "user", "content": ""}),
        ] {
            let message: slime_core::Message = serde_json::from_value(message).unwrap();
            assert_eq!(from_guest(to_guest(&message)).unwrap(), message);
        }
    }

    #[test]
    fn a_broken_extra_or_a_torn_token_list_is_an_error() {
        let message = Message {
            role: "user".into(),
            content: "hi".into(),
            extra: Some("[1]".into()),
        };
        assert!(
            from_guest(message)
                .unwrap_err()
                .contains("extra is no JSON object")
        );
        assert!(prompt_from_guest(Prompt::Tokens(vec![1, 2, 3])).is_err());
        assert_eq!(
            prompt_from_guest(Prompt::Tokens(vec![1, 1, 0, 0])).unwrap(),
            PromptBody::Tokens(vec![257])
        );
    }
}
