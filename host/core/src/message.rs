//! Chat messages and tool descriptions, in the shape chat templates expect.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One chat message. Members beyond role and content (`tool_calls`, `name`, …) pass through to the template.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or what the chat template knows.
    pub role: String,
    /// The text; `null` where a message only calls tools.
    #[serde(default)]
    pub content: Value,
    /// Every other member.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Message {
    /// A message of plain text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: Value::String(content.into()),
            extra: Map::new(),
        }
    }

    /// The content as text; empty where it is `null` or structured.
    pub fn text(&self) -> &str {
        self.content.as_str().unwrap_or_default()
    }
}

/// A tool as chat templates see it: the OpenAI JSON (`{"type": "function", "function": {…}}`).
pub type Tool = Value;
