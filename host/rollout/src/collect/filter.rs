//! Which complete groups may be trained on. The default keeps all of them.
//!
//! Filters see rewards as the verifier gave them, before any shaping.

use slime_core::Group;
use slime_core::ports::BoxFuture;

/// What a filter says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Train on it.
    Keep,
    /// Do not, for this reason. Reasons are counted by name, so they hold no numbers that vary.
    Drop(String),
}

/// Keeps or drops whole groups.
pub trait GroupFilter: Send + Sync {
    /// Judge one group.
    fn judge<'a>(&'a self, group: &'a Group) -> BoxFuture<'a, Judgement>;
}

/// The one reward of a group whose scored rollouts, two or more, all have the same. Exact: a computed
/// deviation of equal numbers is not always zero.
pub(crate) fn constant_reward(group: &Group) -> Option<f64> {
    let rewards = group.rewards();
    let first = *rewards.first()?;
    (rewards.len() > 1 && rewards.iter().all(|&r| r == first)).then_some(first)
}

/// A reward as it stands in metric names and drop reasons: one decimal, none for whole numbers.
pub(crate) fn rounded(reward: f64) -> String {
    let tenths = (reward * 10.0).round() / 10.0;
    // -0.0 and 0.0 are one name.
    format!("{}", tenths + 0.0)
}

/// Drops groups that teach nothing because all rewards are equal (slime's
/// `check_reward_nonzero_std`, DAPO's dynamic sampling), or because no two rollouts were scored.
#[derive(Clone, Copy, Debug, Default)]
pub struct ZeroStd;

impl GroupFilter for ZeroStd {
    fn judge<'a>(&'a self, group: &'a Group) -> BoxFuture<'a, Judgement> {
        let judgement = match constant_reward(group) {
            None if group.rewards().len() < 2 => Judgement::Drop("unscored".into()),
            Some(reward) => Judgement::Drop(format!("zero_std_{}", rounded(reward))),
            None => Judgement::Keep,
        };
        Box::pin(std::future::ready(judgement))
    }
}
