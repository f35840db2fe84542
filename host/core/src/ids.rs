//! Ids, versions and counts as their own types, so that one is never passed for another.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// One generate, train and publish iteration of a run, from 0.
    Step, u64
}
id! {
    /// All rollouts of one prompt in one step. Unique within a run.
    GroupId, u64
}
id! {
    /// One execution of a generator. Unique within a run; its trajectories share it.
    RolloutId, u64
}
id! {
    /// The version of the policy's weights. The weights a run starts from are version 1; every publish
    /// adds 1. 0 stands for a token that no policy sampled.
    WeightVersion, u64
}
id! {
    /// A process's place in the trainer's mesh.
    Rank, usize
}

impl WeightVersion {
    /// The version published after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// How many versions ago `self` was served, seen from `now`.
    #[must_use]
    pub fn lag(self, now: Self) -> u64 {
        now.0.saturating_sub(self.0)
    }
}

/// Names one prompt: the source it came from and its row there. Two sources may both have a row 0.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PromptId {
    /// The source's name in the run's configuration.
    pub source: String,
    /// Row of the data file, or index of the drawing for a source without rows.
    pub row: u64,
}

impl fmt::Display for PromptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.source, self.row)
    }
}
