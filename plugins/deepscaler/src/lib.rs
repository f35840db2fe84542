//! DeepScaleR's verifier: of what follows the reasoning, the last box against the label.
//!
//! A response that never ends its reasoning (`</think>`, or `###Response`) gets 0, whatever it says: the format is
//! part of the task. Equality is that of `math`.
#![forbid(unsafe_code)]

use slime_plugin_math::Gold;
use slime_sdk_verifier::{Error, Finished, Verdict, Verifier, export};

/// 1 for the right answer in the right place.
pub struct DeepScaler;

impl Verifier for DeepScaler {
    fn score(item: Finished) -> Result<Verdict, Error> {
        let label = item
            .label()
            .ok_or_else(|| Error::invalid_gold("deepscaler needs a label"))?;
        let gold = Gold::read(&label)?;
        let response = item.response();
        let answer = after_reasoning(&response);
        let said = answer.and_then(|text| slime_plugin_math::last_box(text).flatten());
        let right = said.and_then(|text| gold.matches(text)) == Some(true);
        Ok(Verdict::reward(f64::from(right))
            .with_metric("reasoned", f64::from(answer.is_some()))
            .with_metric("answered", f64::from(said.is_some())))
    }
}

/// What follows the last end of reasoning.
fn after_reasoning(response: &str) -> Option<&str> {
    response
        .rsplit_once("</think>")
        .or_else(|| response.split_once("###Response"))
        .map(|(_, answer)| answer)
}

export!(DeepScaler);

#[cfg(test)]
mod tests {
    use super::*;

    fn reward(response: &str, label: &str) -> f64 {
        let item = Finished::new("", response).with_label(label);
        DeepScaler::score(item).unwrap().reward
    }

    #[test]
    fn only_a_box_after_the_reasoning_counts() {
        assert_eq!(reward("<think>hm</think>\n\\boxed{4}", "4"), 1.0);
        assert_eq!(reward("<think>\\boxed{4}</think> four", "4"), 0.0);
        assert_eq!(reward("\\boxed{4}", "4"), 0.0);
        assert_eq!(reward("a</think>\\boxed{3}</think>\\boxed{4}", "4"), 1.0);
        assert_eq!(reward("###Response \\boxed{\\frac{1}{2}}", "0.5"), 1.0);
        assert_eq!(reward("</think>\\boxed{1} or \\boxed{2}", "1"), 0.0);
        assert_eq!(reward("</think>4", "4"), 0.0);
    }

    #[test]
    fn a_label_that_is_no_answer_is_the_labels_fault() {
        assert!(DeepScaler::score(Finished::new("", "").with_label("")).is_err());
    }
}
