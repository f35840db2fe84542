//! Drops groups whose scored rewards are all equal: their advantages are zero, so they teach nothing.

use slime_sdk_filter::{Decision, Error, Filter, Group, export};

/// Keeps groups whose rewards differ.
pub struct NonzeroStd;

impl Filter for NonzeroStd {
    fn decide(group: Group) -> Result<Decision, Error> {
        let rewards: Vec<f64> = group.rewards().into_iter().flatten().collect();
        // Compared, not computed: the deviation of equal numbers is not always zero.
        Ok(match rewards.as_slice() {
            [] => Decision::Drop("unscored".into()),
            [first, rest @ ..] if rest.iter().all(|reward| reward == first) => {
                Decision::Drop("zero-std".into())
            }
            _ => Decision::Keep,
        })
    }
}

export!(NonzeroStd);

#[cfg(test)]
mod tests {
    use super::*;
    use slime_sdk_filter::Finished;

    fn decide(rewards: &[Option<f64>]) -> Decision {
        let rollouts = rewards.iter().map(|reward| (Finished::default(), *reward));
        NonzeroStd::decide(Group::new(rollouts)).unwrap()
    }

    #[test]
    fn only_groups_whose_rewards_differ_are_kept() {
        let dropped = |reason: &str| Decision::Drop(reason.into());
        assert_eq!(decide(&[Some(1.0), Some(0.0)]), Decision::Keep);
        assert_eq!(
            decide(&[Some(0.1), Some(0.1), Some(0.1)]),
            dropped("zero-std")
        );
        assert_eq!(decide(&[Some(1.0), None]), dropped("zero-std"));
        assert_eq!(decide(&[None, None]), dropped("unscored"));
    }
}
