//! The score: the last answer against the gold answers, both normalised (SQuAD, arXiv:1606.05250).

use slime_sdk_verifier::{Error, Finished, Verdict, Verifier, export};

/// 1 where the answer is one of the gold answers.
pub struct Answers;

impl Verifier for Answers {
    fn score(item: Finished) -> Result<Verdict, Error> {
        let label = item
            .label()
            .ok_or_else(|| Error::invalid_gold("search needs a label"))?;
        let golds: Vec<String> = if label.trim_start().starts_with('[') {
            serde_json::from_str(&label).map_err(|error| {
                Error::invalid_gold(format!("the label is no list of texts: {error}"))
            })?
        } else {
            vec![label]
        };
        let golds: Vec<String> = golds.iter().map(|gold| normal(gold)).collect();
        if golds.iter().all(String::is_empty) {
            return Err(Error::invalid_gold("the label holds no word"));
        }
        let response = item.response();
        let said = answer(&response).map(normal);
        let right = said
            .as_ref()
            .is_some_and(|said| !said.is_empty() && golds.contains(said));
        let searches = response.matches("<information>").count();
        Ok(Verdict::reward(f64::from(right))
            .with_metric("answered", f64::from(said.is_some()))
            .with_metric("searches", searches as f64))
    }
}

/// What stands in the last answer; the closing mark may have ended the turn.
fn answer(response: &str) -> Option<&str> {
    let (_, rest) = response.rsplit_once("<answer>")?;
    Some(rest.split("</answer>").next().unwrap_or(rest))
}

fn normal(text: &str) -> String {
    let plain: String = text
        .to_lowercase()
        .chars()
        .filter(|c| !c.is_ascii_punctuation())
        .collect();
    let words = plain.split_whitespace();
    words
        .filter(|word| !matches!(*word, "a" | "an" | "the"))
        .collect::<Vec<_>>()
        .join(" ")
}

export!(Answers);

#[cfg(test)]
mod tests {
    use super::*;

    fn reward(response: &str, label: &str) -> f64 {
        let item = Finished::new("", response).with_label(label);
        Answers::score(item).unwrap().reward
    }

    #[test]
    fn the_last_answer_counts_and_passages_do_not() {
        assert_eq!(reward("<answer>The Ann.</answer>", "ann"), 1.0);
        assert_eq!(
            reward(
                "<answer>Bob</answer> no <answer>Ann",
                "[\"Ann\", \"A. Smith\"]"
            ),
            1.0
        );
        assert_eq!(reward("<information>Ann</information>", "Ann"), 0.0);
        assert_eq!(reward("<answer></answer>", "Ann"), 0.0);
        assert_eq!(reward("Ann", "Ann"), 0.0);
    }

    #[test]
    fn a_label_without_words_is_the_labels_fault() {
        for label in ["", "the", "[1]"] {
            assert!(
                Answers::score(Finished::new("", "x").with_label(label)).is_err(),
                "{label}"
            );
        }
    }
}
