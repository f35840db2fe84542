//! Multiple choice: the letter that the response settles on against the label, a letter from A to J.
//!
//! Decided: a box wins, then the last "answer is X" or "Answer: X", then a response that is a letter. A letter in
//! running text is never taken for an answer ("A good start" answers nothing).

use slime_sdk_verifier::{Error, Finished, Verdict, Verifier, export};

/// Compares letters.
pub struct Gpqa;

impl Verifier for Gpqa {
    fn score(item: Finished) -> Result<Verdict, Error> {
        let label = item
            .label()
            .ok_or_else(|| Error::invalid_gold("gpqa needs a label"))?;
        let gold = letter(&label).ok_or_else(|| {
            Error::invalid_gold(format!("the label `{label}` is no letter from A to J"))
        })?;
        let found = choice(&item.response());
        let answered = f64::from(found.is_some());
        Ok(Verdict::reward(f64::from(found == Some(gold))).with_metric("answered", answered))
    }
}

/// A text that is one choice and nothing else: `B`, `(B)`, `B.`, `**B**`.
fn letter(text: &str) -> Option<char> {
    let text = text.trim_matches(|c: char| c.is_whitespace() || "()[].:*{}$".contains(c));
    let text = text
        .strip_prefix("\\text{")
        .or_else(|| text.strip_prefix("\\mathrm{"))
        .unwrap_or(text);
    let mut chars = text
        .trim_matches(|c: char| "()[].:*{} ".contains(c))
        .chars();
    match (chars.next(), chars.next()) {
        (Some(c), None) if ('A'..='J').contains(&c.to_ascii_uppercase()) => {
            Some(c.to_ascii_uppercase())
        }
        _ => None,
    }
}

/// What the response settles on.
fn choice(response: &str) -> Option<char> {
    if let Some(at) = response.rfind("\\boxed{") {
        let inside = &response[at + "\\boxed{".len()..];
        let end = inside.rfind('}').map_or(inside, |end| &inside[..end]);
        // The box ends with its line.
        return letter(
            end.lines()
                .next()
                .unwrap_or_default()
                .split('}')
                .next()
                .unwrap_or_default(),
        );
    }
    let lower = response.to_ascii_lowercase();
    for phrase in ["answer is", "answer:", "answer**:", "answer:**"] {
        if let Some(at) = lower.rfind(phrase) {
            let rest = &response[at + phrase.len()..];
            let word: String = rest
                .chars()
                .skip_while(|c| c.is_whitespace() || ":*([".contains(*c))
                .take_while(|c| c.is_alphanumeric())
                .collect();
            if let Some(found) = letter(&word) {
                return Some(found);
            }
        }
    }
    letter(response)
}

export!(Gpqa);

#[cfg(test)]
mod tests {
    use super::{choice, letter};

    #[test]
    fn the_letter_that_a_response_settles_on_is_found() {
        for (response, wanted) in [
            ("B", Some('B')),
            ("(c)", Some('C')),
            ("**D**.", Some('D')),
            ("First A, but the answer is (B).", Some('B')),
            ("Answer: A\nNo. Answer: C", Some('C')),
            ("so \\boxed{D}", Some('D')),
            ("so \\boxed{\\text{A}}", Some('A')),
            ("the answer is B because", Some('B')),
            ("A good start", None),
            ("the answer is unclear", None),
            ("Z", None),
            ("", None),
        ] {
            assert_eq!(choice(response), wanted, "{response}");
        }
        assert_eq!(letter("AB"), None);
    }
}
