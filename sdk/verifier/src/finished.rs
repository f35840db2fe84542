//! A finished rollout: a handle of the host's on the wasm target, plain values elsewhere.

#[cfg(target_family = "wasm")]
pub use wasm::Finished;

#[cfg(not(target_family = "wasm"))]
pub use native::Finished;

#[cfg(target_family = "wasm")]
mod wasm {
    use crate::FinishReason;
    use crate::bindings::slime::plugin::{rollouts, types};

    /// One finished rollout, to be read and not changed.
    pub struct Finished(rollouts::Finished);

    impl From<rollouts::Finished> for Finished {
        fn from(handle: rollouts::Finished) -> Self {
            Self(handle)
        }
    }

    impl Finished {
        /// The prompt as text; of a conversation, the last user message.
        pub fn prompt(&self) -> String {
            self.0.prompt()
        }

        /// What the policy wrote, special tokens left out.
        pub fn response(&self) -> String {
            self.0.response()
        }

        /// The gold answer, where the row has one.
        pub fn label(&self) -> Option<String> {
            self.0.label()
        }

        /// One member of the prompt's metadata, as a JSON document.
        pub fn metadata(&self, key: &str) -> Option<String> {
            self.0.metadata(key)
        }

        /// All metadata, as a JSON object.
        pub fn metadata_json(&self) -> String {
            self.0.metadata_json()
        }

        /// Why the last turn ended.
        pub fn finish_reason(&self) -> Option<FinishReason> {
            self.0.finish_reason().map(|reason| match reason {
                types::FinishReason::Stop => FinishReason::Stop,
                types::FinishReason::Length => FinishReason::Length,
                types::FinishReason::Abort => FinishReason::Abort,
            })
        }
    }
}

#[cfg(not(target_family = "wasm"))]
mod native {
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
}
