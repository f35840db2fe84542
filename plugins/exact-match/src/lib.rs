//! Reward 1 when the response equals the label, else 0. White space around either does not count.
#![forbid(unsafe_code)]

use slime_sdk_verifier::{Error, Finished, Verdict, Verifier, export};

/// The whole plugin.
pub struct ExactMatch;

impl Verifier for ExactMatch {
    fn score(item: Finished) -> Result<Verdict, Error> {
        let label = item.label().ok_or_else(|| {
            Error::invalid_gold("exact-match needs a label: name its column with --label-key")
        })?;
        let hit = item.response().trim() == label.trim();
        Ok(Verdict::reward(f64::from(hit)))
    }
}

export!(ExactMatch);

#[cfg(test)]
mod tests {
    use super::*;

    fn reward(response: &str, label: &str) -> f64 {
        ExactMatch::score(Finished::new("", response).with_label(label))
            .unwrap()
            .reward
    }

    #[test]
    fn only_the_label_itself_scores() {
        assert_eq!(reward(" blue\n", "blue"), 1.0);
        assert_eq!(reward("Blue", "blue"), 0.0);
        assert_eq!(reward("blue blue", "blue"), 0.0);
        assert_eq!(reward("", ""), 1.0, "an empty label is a label");
    }

    #[test]
    fn a_row_without_a_label_fails_instead_of_scoring_zero() {
        let error = ExactMatch::score(Finished::new("", "blue")).unwrap_err();
        assert_eq!(error.code, slime_sdk_verifier::ErrorCode::InvalidGold);
    }
}
