//! What a verifier of any kind says of one rollout.

/// A reward and its parts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// Finite, within the range that the verifier declares.
    pub reward: f64,
    /// Named parts, for metrics.
    pub metrics: Vec<(String, f64)>,
}

impl Verdict {
    /// A reward without parts.
    #[must_use]
    pub fn reward(reward: f64) -> Self {
        Self {
            reward,
            metrics: Vec::new(),
        }
    }

    /// Add a named part.
    #[must_use]
    pub fn with_metric(mut self, name: impl Into<String>, value: f64) -> Self {
        self.metrics.push((name.into(), value));
        self
    }
}
