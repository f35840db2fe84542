//! What a rollout starts from.

use crate::{Message, PromptId, Tool};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A prompt before it is rendered to tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PromptBody {
    /// Text as it goes to the tokenizer, no chat template.
    Text(String),
    /// A conversation, rendered by the model's chat template.
    Messages(Vec<Message>),
    /// Token ids, used as they are.
    Tokens(Vec<u32>),
}

/// One row of a source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prompt {
    /// Source and row.
    pub id: PromptId,
    /// What the policy reads.
    pub body: PromptBody,
    /// The gold answer, for verifiers.
    pub label: Option<String>,
    /// Tools, handed to the chat template. Empty means none.
    #[serde(default)]
    pub tools: Vec<Tool>,
    /// Anything else the row carries.
    #[serde(default)]
    pub metadata: Map<String, Value>,
}
