//! What became of a rollout: a verdict, or the one reason why there is none.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// What a verifier said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Finite, inside the plugin's declared range. 0.0 is a value, never "missing".
    pub reward: f64,
    /// Named parts, for metrics.
    #[serde(default)]
    pub metrics: Vec<(String, f64)>,
}

/// How scoring a rollout ended. Only [`Outcome::Scored`] votes in a baseline or enters the loss; every
/// other kind is masked, counted by kind and plugin, and shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", content = "detail", rename_all = "kebab-case")]
pub enum Outcome {
    /// The verifier answered.
    Scored(Verdict),
    /// Guest CPU or wall time ran out.
    Timeout(String),
    /// The guest's memory budget ran out.
    OutOfMemory(String),
    /// A budget of host calls, tokens or bytes ran out.
    LimitExceeded(String),
    /// The guest trapped.
    Trapped(String),
    /// The reward was not finite or not in the declared range.
    InvalidReward(String),
    /// The gold answer cannot be used, so no answer can be judged by it.
    InvalidGold(String),
    /// The plugin said that it failed.
    Error(String),
    /// The engine or the host failed; the rollout is not to blame.
    InfraFailed(String),
    /// The host gave up on the rollout.
    Cancelled(String),
}

impl Outcome {
    /// Every kind's name in files and metrics.
    pub const KINDS: [&'static str; 10] = [
        "scored",
        "timeout",
        "out-of-memory",
        "limit-exceeded",
        "trapped",
        "invalid-reward",
        "invalid-gold",
        "error",
        "infra-failed",
        "cancelled",
    ];

    /// The kind's name in files and metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Scored(_) => "scored",
            Self::Timeout(_) => "timeout",
            Self::OutOfMemory(_) => "out-of-memory",
            Self::LimitExceeded(_) => "limit-exceeded",
            Self::Trapped(_) => "trapped",
            Self::InvalidReward(_) => "invalid-reward",
            Self::InvalidGold(_) => "invalid-gold",
            Self::Error(_) => "error",
            Self::InfraFailed(_) => "infra-failed",
            Self::Cancelled(_) => "cancelled",
        }
    }

    /// The verdict, where there is one.
    pub fn verdict(&self) -> Option<&Verdict> {
        match self {
            Self::Scored(verdict) => Some(verdict),
            _ => None,
        }
    }

    /// The reward, where there is one.
    pub fn reward(&self) -> Option<f64> {
        self.verdict().map(|verdict| verdict.reward)
    }

    /// What went wrong, in words; empty for a verdict.
    pub fn detail(&self) -> &str {
        match self {
            Self::Scored(_) => "",
            Self::Timeout(s)
            | Self::OutOfMemory(s)
            | Self::LimitExceeded(s)
            | Self::Trapped(s)
            | Self::InvalidReward(s)
            | Self::InvalidGold(s)
            | Self::Error(s)
            | Self::InfraFailed(s)
            | Self::Cancelled(s) => s,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scored(verdict) => write!(f, "scored {}", verdict.reward),
            other => write!(f, "{}: {}", other.kind(), other.detail()),
        }
    }
}

/// What one plugin call cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Accounting {
    /// Time in which the guest ran.
    pub cpu: Duration,
    /// Time from the call to its answer, queueing excluded.
    pub wall: Duration,
    /// The largest linear memory the guest held.
    pub peak_memory_bytes: u64,
    /// Calls of the guest into the host.
    pub host_calls: u64,
}
