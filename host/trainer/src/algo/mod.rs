//! Algorithms: how rewards become advantages, and what one token's log-prob costs. One file an algorithm, with
//! formula, source and closed-form tests; nothing here knows a tensor, a batch layout or a rank.
//!
//! Read [`grpo`] and [`clip`] first, then [`objective`], which puts the terms together, and [`weights`], which
//! decides how much each token counts.

pub mod cispo;
pub mod clip;
pub mod distill;
pub mod gae;
pub mod grpo;
pub mod gspo;
pub mod importance;
pub mod kl;
pub mod max_rl;
pub mod mismatch;
pub mod objective;
pub mod opsm;
pub mod ratio;
pub mod reinforce;
pub mod rloo;
pub mod value;
pub mod weights;
pub mod whiten;

#[cfg(test)]
pub(crate) mod golden;

use serde::{Deserialize, Serialize};

/// How rewards become advantages (`--advantage-estimator`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Estimator {
    /// Against the group's mean, by its std.
    #[default]
    Grpo,
    /// The same, with a trajectory's ratio in the surrogate.
    Gspo,
    /// The same, with CISPO's surrogate.
    Cispo,
    /// Against the mean of the other rollouts.
    Rloo,
    /// Discounted returns with a KL penalty at every token, whitened.
    ReinforcePlusPlus,
    /// Against the group's mean, a KL penalty at every token, whitened.
    ReinforcePlusPlusBaseline,
    /// Against the group's mean, in units of that mean.
    MaxRl,
    /// Against a critic's values, a KL penalty at every token.
    Ppo,
}

impl Estimator {
    /// Advantages come from comparing the rollouts of a group.
    pub fn is_group_relative(self) -> bool {
        !matches!(self, Self::ReinforcePlusPlus | Self::Ppo)
    }

    /// Divides by the group's std unless told otherwise.
    pub fn has_std(self) -> bool {
        matches!(self, Self::Grpo | Self::Gspo | Self::Cispo)
    }

    /// Penalises KL token by token, after grouping.
    pub fn has_token_kl(self) -> bool {
        self.is_whitened() || self == Self::Ppo
    }

    /// Is defined with whitened advantages only.
    pub fn is_whitened(self) -> bool {
        matches!(
            self,
            Self::ReinforcePlusPlus | Self::ReinforcePlusPlusBaseline
        )
    }

    /// Discounts what comes later.
    pub fn has_discount(self) -> bool {
        matches!(self, Self::ReinforcePlusPlus | Self::Ppo)
    }
}
