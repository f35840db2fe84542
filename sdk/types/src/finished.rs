//! A finished rollout off the wasm target: plain values, for unit tests of plugins.

use crate::FinishReason;

/// One finished rollout, to be read and not changed.
#[derive(Clone, Debug, Default)]
pub struct Finished {
    prompt: String,
    response: String,
    label: Option<String>,
    metadata: Vec<(String, String)>,
    finish_reason: Option<FinishReason>,
}

impl Finished {
    /// A rollout made by hand, for unit tests.
    pub fn new(prompt: impl Into<String>, response: impl Into<String>) -> Self {
        Self {
            prompt: prompt.into(),
            response: response.into(),
            finish_reason: Some(FinishReason::Stop),
            ..Self::default()
        }
    }

    /// Give it a gold answer.
    #[must_use]
    pub fn with_label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Give it one member of metadata, as a JSON document.
    #[must_use]
    pub fn with_metadata(mut self, key: impl Into<String>, json: impl Into<String>) -> Self {
        self.metadata.push((key.into(), json.into()));
        self
    }

    /// Let it have ended for another reason than `stop`.
    #[must_use]
    pub fn with_finish_reason(mut self, reason: Option<FinishReason>) -> Self {
        self.finish_reason = reason;
        self
    }

    /// The prompt as text; of a conversation, the last user message.
    pub fn prompt(&self) -> String {
        self.prompt.clone()
    }

    /// What the policy wrote, special tokens left out.
    pub fn response(&self) -> String {
        self.response.clone()
    }

    /// The gold answer, where the row has one.
    pub fn label(&self) -> Option<String> {
        self.label.clone()
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

    /// Why the last turn ended.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finish_reason
    }
}
