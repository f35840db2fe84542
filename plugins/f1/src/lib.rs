//! Token F1 after SQuAD's normalisation (arXiv:1606.05250): lower case, no punctuation, no articles, single spaces.
//!
//! The label is one answer, or several as a JSON list of texts; the best counts. The metric `exact` is 1 where the
//! normalised texts are equal.

use slime_sdk_verifier::{Error, Finished, Verdict, Verifier, export};
use std::collections::HashMap;

/// Overlap of words.
pub struct F1;

impl Verifier for F1 {
    fn score(item: Finished) -> Result<Verdict, Error> {
        let label = item
            .label()
            .ok_or_else(|| Error::invalid_gold("f1 needs a label"))?;
        let golds: Vec<String> = if label.trim_start().starts_with('[') {
            serde_json::from_str(&label).map_err(|error| {
                Error::invalid_gold(format!("the label is no list of texts: {error}"))
            })?
        } else {
            vec![label]
        };
        let golds: Vec<Vec<String>> = golds.iter().map(|gold| tokens(gold)).collect();
        if golds.iter().all(Vec::is_empty) {
            return Err(Error::invalid_gold("the label holds no word"));
        }
        let said = tokens(&item.response());
        let best = golds.iter().map(|gold| f1(&said, gold)).fold(0.0, f64::max);
        let exact = golds.contains(&said);
        Ok(Verdict::reward(best).with_metric("exact", f64::from(exact)))
    }
}

fn tokens(text: &str) -> Vec<String> {
    let plain: String = text
        .to_lowercase()
        .chars()
        .filter(|c| !c.is_ascii_punctuation())
        .collect();
    plain
        .split_whitespace()
        .filter(|word| !matches!(*word, "a" | "an" | "the"))
        .map(str::to_owned)
        .collect()
}

/// Harmonic mean of precision and recall; 0 where nothing is shared.
fn f1(said: &[String], gold: &[String]) -> f64 {
    let mut left: HashMap<&str, usize> = HashMap::new();
    for word in gold {
        *left.entry(word).or_default() += 1;
    }
    let shared = said
        .iter()
        .filter(|word| match left.get_mut(word.as_str()) {
            Some(n) if *n > 0 => {
                *n -= 1;
                true
            }
            _ => false,
        })
        .count();
    if shared == 0 {
        return 0.0;
    }
    2.0 * shared as f64 / (said.len() + gold.len()) as f64
}

export!(F1);

#[cfg(test)]
mod tests {
    use super::*;

    fn score(response: &str, label: &str) -> f64 {
        F1::score(Finished::new("", response).with_label(label))
            .unwrap()
            .reward
    }

    #[test]
    fn overlap_is_counted_by_word_and_multiplicity() {
        assert_eq!(score("The cat sat.", "cat sat"), 1.0);
        // 1 shared word: precision 1/2, recall 1/3, so 2·1/(2+3).
        assert_eq!(score("cat cat", "cat sat down"), 0.4);
        assert_eq!(score("dog", "cat"), 0.0);
        assert_eq!(score("", "cat"), 0.0);
        assert_eq!(score("Paris", r#"["London", "Paris"]"#), 1.0);
    }

    #[test]
    fn a_label_without_words_is_the_labels_fault() {
        for label in ["", "the", "!?", "[1]"] {
            assert!(
                F1::score(Finished::new("", "the").with_label(label)).is_err(),
                "{label}"
            );
        }
    }
}
