//! DAPO's verifier (arXiv:2503.14476): the last line `Answer: …` near the end of the response against the label;
//! 1 where they are equal, −1 where not.
//!
//! Only the last 300 characters are read, so an answer must come last. Equality is that of `math`, which is exact;
//! the length penalty of the paper belongs to the trainer's rewards.
#![forbid(unsafe_code)]

use slime_plugin_math::Gold;
use slime_sdk_verifier::{Error, Finished, Verdict, Verifier, export};

/// Characters in which the answer must stand.
const END_CHARS: usize = 300;
const MARKER: &str = "answer:";

/// 1 or −1.
pub struct Dapo;

impl Verifier for Dapo {
    const REWARD_MIN: f64 = -1.0;

    fn score(item: Finished) -> Result<Verdict, Error> {
        let label = item
            .label()
            .ok_or_else(|| Error::invalid_gold("dapo needs a label"))?;
        let gold = Gold::read(&label)?;
        let response = item.response();
        let said = answer(&response);
        let right = said.and_then(|text| gold.matches(text)) == Some(true);
        Ok(Verdict::reward(if right { 1.0 } else { -1.0 })
            .with_metric("acc", f64::from(right))
            .with_metric("answered", f64::from(said.is_some())))
    }
}

/// What stands after the last marker, to the end of its line.
fn answer(response: &str) -> Option<&str> {
    let start = response
        .char_indices()
        .rev()
        .nth(END_CHARS - 1)
        .map_or(0, |(at, _)| at);
    let end = &response[start..];
    // ASCII lower case keeps every position.
    let at = end.to_ascii_lowercase().rfind(MARKER)?;
    let line = end[at + MARKER.len()..].lines().next()?;
    let text = line.trim_matches(|c: char| c.is_whitespace() || c == '*');
    let text = text.strip_suffix("<|im_end|>").unwrap_or(text).trim();
    (!text.is_empty()).then(|| unboxed(text))
}

fn unboxed(text: &str) -> &str {
    slime_plugin_math::last_box(text).flatten().unwrap_or(text)
}

export!(Dapo);

#[cfg(test)]
mod tests {
    use super::*;

    fn reward(response: &str, label: &str) -> f64 {
        let item = Finished::new("", response).with_label(label);
        Dapo::score(item).unwrap().reward
    }

    #[test]
    fn the_last_answer_line_counts_and_a_wrong_one_costs_as_much_as_a_right_one_earns() {
        assert_eq!(reward("so it is\nAnswer: 34", "34"), 1.0);
        assert_eq!(reward("Answer: 33\nno.\nANSWER: $34$", "34"), 1.0);
        assert_eq!(reward("**Answer:** \\boxed{\\frac12}", "1/2"), 1.0);
        assert_eq!(reward("Answer: 34\nAnswer: 35", "34"), -1.0);
        assert_eq!(reward("it is 34", "34"), -1.0);
        assert_eq!(reward("", "34"), -1.0);
    }

    #[test]
    fn an_answer_must_stand_within_the_last_300_characters() {
        let after = |n: usize| format!("Answer: 34\n{}", "é".repeat(n));
        assert_eq!(reward(&after(289), "34"), 1.0);
        assert_eq!(reward(&after(290), "34"), -1.0);
    }

    #[test]
    fn a_label_that_is_no_answer_is_the_labels_fault() {
        assert!(Dapo::score(Finished::new("", "Answer: 1").with_label("None")).is_err());
        assert!(Dapo::score(Finished::new("", "Answer: 1")).is_err());
    }
}
