//! Checks the answer between the marks by the rule of its task.

use crate::tasks::TASKS;
use slime_sdk_verifier::{Error, Finished, Verdict, Verifier, export};

/// 1 for a right answer between its marks, a little for the marks alone.
pub struct Checks;

/// For an answer that is wrong, but where it should be.
const FORMAT_REWARD: f64 = 0.05;

impl Verifier for Checks {
    fn score(item: Finished) -> Result<Verdict, Error> {
        let member =
            |name: &str| -> Option<String> { serde_json::from_str(&item.metadata(name)?).ok() };
        let name = member("task");
        let task = TASKS.iter().find(|task| Some(task.name) == name.as_deref());
        let task = task.ok_or_else(|| {
            Error::invalid_gold(
                "the metadata names no `task`: rows must come from this plugin's source",
            )
        })?;
        let question = member("question")
            .ok_or_else(|| Error::invalid_gold("the metadata has no `question`"))?;
        let label = item
            .label()
            .ok_or_else(|| Error::invalid_gold("reasoning-gym needs a label"))?;
        let response = item.response();
        let said = answer(&response);
        let right = said.is_some_and(|said| (task.check)(&question, label.trim(), said));
        let reward = match (right, said) {
            (true, _) => 1.0,
            (false, Some(_)) => FORMAT_REWARD,
            (false, None) => 0.0,
        };
        Ok(Verdict::reward(reward)
            .with_metric("exact", f64::from(right))
            .with_metric("answered", f64::from(said.is_some())))
    }
}

/// The last answer that is not empty.
fn answer(response: &str) -> Option<&str> {
    let (_, rest) = response.rsplit_once("<answer>")?;
    let text = rest.split("</answer>").next()?.trim();
    (!text.is_empty()).then_some(text)
}

export!(Checks);

#[cfg(test)]
mod tests {
    use super::*;

    fn score(response: &str) -> Result<f64, Error> {
        let item = Finished::new("", response)
            .with_label("12")
            .with_metadata("task", "\"gcd\"")
            .with_metadata(
                "question",
                "\"What is the greatest common divisor of 24 and 36?\"",
            );
        Checks::score(item).map(|verdict| verdict.reward)
    }

    #[test]
    fn the_last_answer_between_marks_counts() {
        assert_eq!(
            score("<answer>6</answer> no, <answer>12.</answer>"),
            Ok(1.0)
        );
        assert_eq!(
            score("<answer>12</answer> no, <answer>6</answer>"),
            Ok(FORMAT_REWARD)
        );
        assert_eq!(score("12"), Ok(0.0));
        assert_eq!(score("<answer> </answer>"), Ok(0.0));
    }

    #[test]
    fn rows_of_another_source_are_refused() {
        let item = Finished::new("", "<answer>12</answer>").with_label("12");
        assert!(Checks::score(item).is_err());
    }
}
