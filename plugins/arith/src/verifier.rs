//! Scores answers: the last integer of the response against the label.

use crate::integer::{Found, Integer, last_number};
use crate::task::{DIGITS_REWARD, EXACT_REWARD, NUMBER_REWARD};
use slime_sdk_verifier::{Error, Finished, Verdict, Verifier, export};

/// 1 for the right number, a little for a near one, 0 for none.
pub struct ArithVerifier;

impl Verifier for ArithVerifier {
    fn score(item: Finished) -> Result<Verdict, Error> {
        let label = item
            .label()
            .ok_or_else(|| Error::invalid_gold("arith needs a label"))?;
        let gold = Integer::parse(&label)
            .ok_or_else(|| Error::invalid_gold(format!("the label `{label}` is no integer")))?;
        let (reward, digits) = match last_number(&item.response()) {
            Found::Nothing => (0.0, 0.0),
            Found::Fraction => (NUMBER_REWARD, 0.0),
            Found::Integer(answer) if answer == gold => (EXACT_REWARD, 1.0),
            Found::Integer(answer) => {
                let digits = answer.agreement(&gold);
                (
                    NUMBER_REWARD + (DIGITS_REWARD - NUMBER_REWARD) * digits,
                    digits,
                )
            }
        };
        let exact = f64::from(reward == EXACT_REWARD);
        Ok(Verdict::reward(reward)
            .with_metric("exact", exact)
            .with_metric("digits", digits))
    }
}

export!(ArithVerifier);

#[cfg(test)]
mod tests {
    use super::*;

    fn reward(response: &str, label: &str) -> f64 {
        ArithVerifier::score(Finished::new("", response).with_label(label))
            .unwrap()
            .reward
    }

    #[test]
    fn the_nearer_the_answer_the_larger_the_reward_and_only_the_answer_itself_gets_it_all() {
        let rewards = ["", "dunno", "99", "13", "12"].map(|response| reward(response, "12"));
        assert_eq!(rewards[0], 0.0);
        assert_eq!(rewards[1], 0.0);
        assert!(
            rewards[1] < rewards[2] && rewards[2] < rewards[3] && rewards[3] < 0.25,
            "{rewards:?}"
        );
        assert_eq!(rewards[4], 1.0);
    }

    #[test]
    fn words_around_the_answer_do_not_count_and_an_earlier_number_does_not_either() {
        assert_eq!(reward("5 + 7 = 12.", "12"), 1.0);
        assert!(reward("12, no, 13", "12") < 1.0);
        assert_eq!(reward("\u{2212}4", "-4"), 1.0);
    }

    #[test]
    fn a_label_that_is_no_integer_is_the_labels_fault() {
        for label in ["", "None", "1/2", "twelve"] {
            let item = Finished::new("", "12").with_label(label);
            assert_eq!(
                ArithVerifier::score(item).unwrap_err().code,
                slime_sdk_verifier::ErrorCode::InvalidGold
            );
        }
        assert!(ArithVerifier::score(Finished::new("", "12")).is_err());
    }
}
