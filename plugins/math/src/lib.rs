//! Grades mathematical answers: the last box of the response against the label.
//!
//! Exact where both sides are rational, numerical to 1e-9 elsewhere; symbols stand for positive reals. What does not
//! parse whole scores 0; a label that does not parse is the label's fault. It computes with its own numbers and never
//! evaluates text as code.
//!
//! Decided, each with a case in `tests`:
//!  - the last box wins; without a box the text after the last "answer:" counts, or a response that is one short line
//!  - `50\%` is 0.5 and not 50
//!  - a unit in the label must be in the answer; one that only the answer has is ignored
//!  - `x = 5` and `5` are the same either way round, and so are `0 < x < 2` and `(0, 2)`
//!  - `1,234` is a number, `1,2,3` a list; lists and sets have no order, tuples and intervals do
#![forbid(unsafe_code)]

mod answer;
mod compare;
mod expr;
mod extract;
mod parse;
mod ratio;
#[cfg(test)]
mod tests;
mod token;

use extract::Found;
pub use extract::last_box;
#[cfg(feature = "component")]
use slime_sdk_verifier::export;
use slime_sdk_verifier::{Error, Finished, Verdict, Verifier};

/// 1 for the right answer, else 0.
pub struct Math;

/// Labels that mean that there is none.
const NO_LABEL: [&str; 6] = ["", "none", "null", "nan", "n/a", "-"];

/// A gold answer that could be read: what other verifiers of mathematics compare with.
pub struct Gold(answer::Answer);

impl Gold {
    /// Read a label: its last box, what follows `####`, or all of it.
    ///
    /// # Errors
    /// It is no answer.
    pub fn read(label: &str) -> Result<Self, Error> {
        let text = extract::gold(label);
        if NO_LABEL.contains(&text.to_lowercase().as_str()) {
            return Err(Error::invalid_gold(format!(
                "the label `{label}` is no answer"
            )));
        }
        answer::parse(text).map(Self).ok_or_else(|| {
            Error::invalid_gold(format!("the label `{label}` cannot be read as mathematics"))
        })
    }

    /// Whether an answer, taken out of its box, is this one; `None` where it cannot be read.
    pub fn matches(&self, text: &str) -> Option<bool> {
        let with_unit = if self.0.has_unit() {
            answer::parse_with_unit(text)
        } else {
            None
        };
        let answer = with_unit.or_else(|| answer::parse(text))?;
        Some(compare::same(&self.0, &answer))
    }
}

impl Verifier for Math {
    fn score(item: Finished) -> Result<Verdict, Error> {
        let label = item
            .label()
            .ok_or_else(|| Error::invalid_gold("math needs a label"))?;
        let gold = Gold::read(&label)?;
        let response = item.response();
        let (answered, right) = match extract::answer(&response) {
            Found::Nothing => (false, None),
            Found::Answer(text) => (true, gold.matches(text)),
        };
        Ok(Verdict::reward(f64::from(right == Some(true)))
            .with_metric("answered", f64::from(answered))
            .with_metric("parsed", f64::from(right.is_some())))
    }
}

#[cfg(feature = "component")]
export!(Math);
