//! Reward: the share of small letters and spaces, which models of random weights differ in too. For measuring a run, not for learning.
#![forbid(unsafe_code)]

use slime_sdk_verifier::{Error, Finished, Verdict, Verifier, export};

/// The whole plugin.
pub struct Letters;

impl Verifier for Letters {
    fn score(item: Finished) -> Result<Verdict, Error> {
        let text = item.response();
        let small = text.chars().filter(|c| c.is_lowercase() || *c == ' ');
        Ok(Verdict::reward(
            small.count() as f64 / text.chars().count().max(1) as f64,
        ))
    }
}

export!(Letters);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reward_is_the_share_of_small_letters_and_spaces() {
        for (response, share) in [("", 0.0), ("ab c", 1.0), ("aB3\n", 0.25), ("ÄäЖж", 0.5)] {
            let verdict = Letters::score(Finished::new("", response)).unwrap();
            assert_eq!(verdict.reward, share, "{response:?}");
        }
    }
}
