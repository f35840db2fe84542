//! What the guest crates of all worlds share: errors, messages, prompts.
//!
//! No WIT here: bindings would leak one world's imports into another's component. Read
//! `slime-sdk-verifier` next.
#![forbid(unsafe_code)]

mod finished;
mod group;
mod macros;
mod verdict;

pub use finished::Finished;
pub use group::Group;
pub use verdict::Verdict;

use std::fmt;

/// What kind of failure an [`Error`] is; `wit/types.wit` says what the host makes of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCode {
    /// The input is not what the callee expects.
    InvalidInput,
    /// The gold answer cannot be used.
    InvalidGold,
    /// The operator did not grant this.
    Denied,
    /// A budget is used up.
    LimitExceeded,
    /// Time ran out.
    TimedOut,
    /// The host gave up on this rollout.
    Cancelled,
    /// Nobody could answer now.
    Unavailable,
    /// A bug in the callee.
    Internal,
    /// None of the above.
    Other,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What the host acts on.
    pub code: ErrorCode,
    /// One sentence for people.
    pub message: String,
    /// A JSON document for programs.
    pub detail: Option<String>,
}

impl Error {
    /// An error of any kind.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            detail: None,
        }
    }

    /// The input is not what this plugin expects; the message should name the cure.
    pub fn invalid_input(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidInput, message)
    }

    /// The label cannot be used, so no response can be judged by it.
    pub fn invalid_gold(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidGold, message)
    }

    /// Anything else.
    pub fn other(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Other, message)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// How loud a log line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// For the plugin's author.
    Trace,
    /// For whoever looks into one rollout.
    Debug,
    /// For whoever watches the run.
    Info,
    /// Something is odd.
    Warn,
    /// Something is wrong.
    Error,
}

/// Why the policy stopped writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end token or a stop string.
    Stop,
    /// The token budget.
    Length,
    /// The engine or the host gave up.
    Abort,
}

/// One chat message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or what the chat template knows.
    pub role: String,
    /// The text.
    pub content: String,
    /// Every other member, as a JSON object.
    pub extra: Option<String>,
}

impl Message {
    /// A message of plain text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
            extra: None,
        }
    }
}

/// What the policy reads first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Text as it goes to the tokenizer, no chat template.
    Text(String),
    /// A conversation, rendered by the model's chat template.
    Messages(Vec<Message>),
    /// Token ids.
    Tokens(Vec<u32>),
}
