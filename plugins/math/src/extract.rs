//! Finds the answer in a response, and the gold answer in a label.

/// What a response answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found<'a> {
    Nothing,
    /// The last box, the text after the last "answer:", or all of a short response.
    Answer(&'a str),
}

/// Responses of at most this many bytes may be nothing but the answer.
const BARE_BYTES: usize = 200;

/// The answer of a response. The last box wins; an unbalanced box is no answer.
pub(crate) fn answer(response: &str) -> Found<'_> {
    let response = without_end_tokens(response);
    if let Some(found) = last_box(response) {
        return found.map_or(Found::Nothing, Found::Answer);
    }
    if let Some(text) = after_marker(response) {
        return Found::Answer(text);
    }
    let bare = response.trim();
    if bare.is_empty() || bare.len() > BARE_BYTES || bare.contains('\n') {
        return Found::Nothing;
    }
    Found::Answer(bare)
}

/// The gold answer of a label: its last box, what follows `####`, or all of it.
pub(crate) fn gold(label: &str) -> &str {
    if let Some(Some(text)) = last_box(label) {
        return text;
    }
    label
        .rsplit_once("####")
        .map_or(label, |(_, text)| text)
        .trim()
}

/// The content of the last `\boxed{…}`, `\fbox{…}` or `\boxed x`: `None` where there is no box, `Some(None)` where
/// the last one is broken.
pub fn last_box(text: &str) -> Option<Option<&str>> {
    let (at, command) = ["\\boxed", "\\fbox"]
        .iter()
        .filter_map(|command| Some((text.rfind(command)?, command)))
        .max()?;
    let rest = text[at + command.len()..].trim_start();
    if let Some(inner) = rest.strip_prefix('{') {
        return Some(balanced(inner));
    }
    // TeX takes one token; people mean everything up to the next space.
    let end = rest
        .find(|c: char| c.is_whitespace() || c == '$')
        .unwrap_or(rest.len());
    let word = rest[..end].trim_end_matches(['.', ',']);
    Some((!word.is_empty()).then_some(word))
}

/// Up to the brace that closes the one before `text`.
fn balanced(text: &str) -> Option<&str> {
    let mut depth = 1usize;
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            // `\{` and `\}` are brackets of a set, not groups.
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                if depth == 0 {
                    return Some(text[..at].trim());
                }
            }
            _ => {}
        }
    }
    None
}

/// The rest of the line after the last "answer:" or "answer is".
fn after_marker(text: &str) -> Option<&str> {
    let lower = text.to_ascii_lowercase();
    let end = ["answer:", "answer is:", "answer is"]
        .iter()
        .filter_map(|marker| Some(lower.rfind(marker)? + marker.len()))
        .max()?;
    let line = text[end..]
        .trim_start_matches([' ', '*', ':'])
        .lines()
        .next()?;
    let line = line.trim().trim_end_matches('*').trim();
    (!line.is_empty()).then_some(line)
}

/// The host leaves special tokens out; a response recorded elsewhere may still end in one.
fn without_end_tokens(mut text: &str) -> &str {
    loop {
        text = text.trim_end();
        let Some(open) = text.strip_suffix("|>").and_then(|rest| rest.rfind("<|")) else {
            return text;
        };
        text = &text[..open];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_box_wins_and_a_broken_one_is_no_answer() {
        for (response, expected) in [
            (
                r"so \boxed{840}. Check. Final: \boxed{840}",
                Found::Answer("840"),
            ),
            (r"\boxed{3} … \boxed{4}", Found::Answer("4")),
            (
                r"\boxed{\frac{1}{\sqrt{2}}}",
                Found::Answer(r"\frac{1}{\sqrt{2}}"),
            ),
            (r"\boxed{\boxed{5}}", Found::Answer("5")),
            (r"\boxed{42", Found::Nothing),
            (r"\boxed{1} then \boxed{42", Found::Nothing),
            (r"\boxed{\{1,2\}}", Found::Answer(r"\{1,2\}")),
            (r"\boxed{a\}", Found::Nothing),
            (r"\fbox{42}", Found::Answer("42")),
            (r"so $\boxed 7$.", Found::Answer("7")),
            (r"\boxed{42}<|im_end|>", Found::Answer("42")),
            ("Answer: 42<|im_end|>\n", Found::Answer("42")),
            ("**Answer:** 42", Found::Answer("42")),
            ("The final answer is $x=2$\nbye", Found::Answer("$x=2$")),
            ("42", Found::Answer("42")),
            ("thinking\n42", Found::Nothing),
            ("", Found::Nothing),
        ] {
            assert_eq!(answer(response), expected, "{response}");
        }
    }

    #[test]
    fn extracting_twice_finds_the_same() {
        for text in [r"\boxed{5}", r"\boxed{\frac12}", "7", r"\boxed{\{1,2\}}"] {
            let Found::Answer(once) = answer(text) else {
                panic!("{text}")
            };
            assert_eq!(answer(once), Found::Answer(once));
        }
    }

    #[test]
    fn labels_may_be_boxed_or_whole_solutions() {
        assert_eq!(gold(r"\boxed{\frac{1}{2}}"), r"\frac{1}{2}");
        assert_eq!(gold("He has 5 + 7 = 12.\n#### 12"), "12");
        assert_eq!(gold(" 12 "), "12");
    }
}
