//! The instructions of IFEval by their published names.

use crate::text::{num_sentences, occurrences, words};
use serde_json::{Map, Value};

/// What an instruction is given, and the questions to ask of it.
struct Asked<'a>(&'a Map<String, Value>);

impl Asked<'_> {
    fn number(&self, name: &str) -> Result<u64, String> {
        let value = &self.0.get(name).and_then(Value::as_f64);
        value
            .filter(|n| *n >= 0.0)
            .map(|n| n as u64)
            .ok_or_else(|| format!("`{name}` is no number"))
    }

    fn text(&self, name: &str) -> Result<&str, String> {
        let value = self.0.get(name).and_then(Value::as_str);
        value.ok_or_else(|| format!("`{name}` is no text"))
    }

    fn texts(&self, name: &str) -> Result<Vec<&str>, String> {
        let value = self.0.get(name).and_then(Value::as_array);
        let list = value.ok_or_else(|| format!("`{name}` is no list"))?;
        Ok(list.iter().filter_map(Value::as_str).collect())
    }

    /// `at least` or `less than` so many.
    fn compare(&self, found: u64, number: &str, relation: &str) -> Result<bool, String> {
        let wanted = self.number(number)?;
        match self.text(relation)? {
            "at least" => Ok(found >= wanted),
            "less than" => Ok(found < wanted),
            other => Err(format!("`{relation}` is `{other}`")),
        }
    }
}

/// Whether `response` follows the instruction; the error says why that cannot be told.
pub(crate) fn holds(id: &str, given: &Map<String, Value>, response: &str) -> Result<bool, String> {
    let asked = Asked(given);
    let lower = response.to_lowercase();
    Ok(match id {
        "keywords:existence" => asked
            .texts("keywords")?
            .iter()
            .all(|word| lower.contains(&word.to_lowercase())),
        "keywords:frequency" => {
            let found = occurrences(response, asked.text("keyword")?);
            asked.compare(found, "frequency", "relation")?
        }
        "keywords:forbidden_words" => asked
            .texts("forbidden_words")?
            .iter()
            .all(|word| occurrences(response, word) == 0),
        "keywords:letter_frequency" => {
            let letter = asked.text("letter")?.to_lowercase();
            let found = lower.matches(letter.as_str()).count() as u64;
            asked.compare(found, "let_frequency", "let_relation")?
        }
        "language:response_language" => written_in(asked.text("language")?, response)?,
        "length_constraints:number_sentences" => {
            asked.compare(num_sentences(response), "num_sentences", "relation")?
        }
        "length_constraints:number_words" => {
            asked.compare(words(response).len() as u64, "num_words", "relation")?
        }
        "length_constraints:number_paragraphs" => {
            parted(response, "***") == Some(asked.number("num_paragraphs")?)
        }
        "length_constraints:nth_paragraph_first_word" => {
            let paragraphs: Vec<&str> = paragraphs(response);
            let nth = asked.number("nth_paragraph")?;
            let first = usize::try_from(nth.saturating_sub(1)).ok();
            let word = first
                .and_then(|at| paragraphs.get(at))
                .and_then(|paragraph| words(paragraph).first().map(|word| word.to_lowercase()));
            paragraphs.len() as u64 == asked.number("num_paragraphs")?
                && word == Some(asked.text("first_word")?.to_lowercase())
        }
        "detectable_content:number_placeholders" => {
            enclosed(response, '[', ']') >= asked.number("num_placeholders")?
        }
        "detectable_content:postscript" => {
            lower.contains(&asked.text("postscript_marker")?.to_lowercase())
        }
        "detectable_format:number_bullet_lists" => {
            let bullet = |line: &&str| {
                let line = line.trim_start();
                line.starts_with('-') || (line.starts_with('*') && !line.starts_with("**"))
            };
            response.lines().filter(bullet).count() as u64 == asked.number("num_bullets")?
        }
        "detectable_format:constrained_response" => [
            "My answer is yes.",
            "My answer is no.",
            "My answer is maybe.",
        ]
        .iter()
        .any(|answer| response.contains(answer)),
        "detectable_format:number_highlighted_sections" => {
            highlights(response) >= asked.number("num_highlights")?
        }
        "detectable_format:multiple_sections" => {
            let mark = asked.text("section_spliter")?.to_lowercase();
            let numbered = |(at, _): (usize, &str)| {
                let rest = lower[at + mark.len()..].trim_start();
                rest.starts_with(|c: char| c.is_ascii_digit())
            };
            let found = lower.match_indices(&mark).filter(|m| numbered(*m)).count();
            found as u64 >= asked.number("num_sections")?
        }
        "detectable_format:json_format" => {
            let text = response.trim();
            let text = text
                .strip_prefix("```json")
                .or(text.strip_prefix("```"))
                .unwrap_or(text);
            let text = text.strip_suffix("```").unwrap_or(text);
            serde_json::from_str::<Value>(text.trim()).is_ok()
        }
        "detectable_format:title" => response.lines().any(|line| {
            line.split_once("<<")
                .and_then(|(_, rest)| rest.split_once(">>"))
                .is_some_and(|(title, _)| !title.trim().is_empty())
        }),
        "combination:two_responses" => {
            let parts: Vec<&str> = response.split("******").map(str::trim).collect();
            matches!(parts[..], [a, b] if !a.is_empty() && !b.is_empty() && a != b)
        }
        "combination:repeat_prompt" => {
            let wanted = asked.text("prompt_to_repeat")?.trim().to_lowercase();
            lower.trim().starts_with(&wanted)
        }
        "startend:end_checker" => {
            let wanted = asked.text("end_phrase")?.trim().to_lowercase();
            lower.trim().trim_matches('"').ends_with(&wanted)
        }
        "startend:quotation" => {
            let text = response.trim();
            text.len() > 1 && text.starts_with('"') && text.ends_with('"')
        }
        "change_case:capital_word_frequency" => {
            let capital = |word: &&&str| {
                word.chars().any(char::is_uppercase) && !word.chars().any(char::is_lowercase)
            };
            let found = words(response).iter().filter(capital).count() as u64;
            asked.compare(found, "capital_frequency", "capital_relation")?
        }
        "change_case:english_capital" => !response.chars().any(char::is_lowercase),
        "change_case:english_lowercase" => !response.chars().any(char::is_uppercase),
        "punctuation:no_comma" => !response.contains(','),
        _ => return Err("this instruction is not known".into()),
    })
}

/// Parts between separators; `None` where one in the middle is empty. Empty ones at the ends do not count.
fn parted(text: &str, separator: &str) -> Option<u64> {
    let parts: Vec<&str> = text.split(separator).map(str::trim).collect();
    let last = parts.len() - 1;
    let empty = |at: &usize| parts[*at].is_empty();
    if (1..last).any(|at| empty(&at)) {
        return None;
    }
    let ends = [0, last].iter().filter(|at| empty(at)).count();
    Some(parts.len().saturating_sub(ends) as u64)
}

fn paragraphs(text: &str) -> Vec<&str> {
    text.split("\n\n")
        .map(str::trim)
        .filter(|paragraph| !paragraph.is_empty())
        .collect()
}

/// Bracketed stretches on one line that are not empty.
fn enclosed(text: &str, open: char, close: char) -> u64 {
    let mut count = 0;
    for line in text.lines() {
        let mut rest = line;
        while let Some((_, after)) = rest.split_once(open) {
            let Some((inside, after)) = after.split_once(close) else {
                break;
            };
            count += u64::from(!inside.trim().is_empty());
            rest = after;
        }
    }
    count
}

/// `*so*` and `**so**` on one line.
fn highlights(text: &str) -> u64 {
    let mut count = 0;
    for line in text.lines() {
        let mut rest = line;
        while let Some(at) = rest.find('*') {
            let mark = if rest[at..].starts_with("**") {
                "**"
            } else {
                "*"
            };
            let inside = &rest[at + mark.len()..];
            let Some(end) = inside.find(mark) else {
                break;
            };
            count += u64::from(!inside[..end].trim().is_empty());
            rest = &inside[end + mark.len()..];
        }
    }
    count
}

/// Languages that their letters tell apart. Those that share an alphabet with others would need a model of language.
fn written_in(language: &str, text: &str) -> Result<bool, String> {
    let of: fn(char) -> bool = match language {
        "ar" | "fa" | "ur" => |c| ('\u{600}'..='\u{6ff}').contains(&c),
        "bn" => |c| ('\u{980}'..='\u{9ff}').contains(&c),
        "el" => |c| ('\u{370}'..='\u{3ff}').contains(&c),
        "gu" => |c| ('\u{a80}'..='\u{aff}').contains(&c),
        "he" => |c| ('\u{590}'..='\u{5ff}').contains(&c),
        "hi" | "mr" | "ne" => |c| ('\u{900}'..='\u{97f}').contains(&c),
        "ja" => |c| ('\u{3040}'..='\u{30ff}').contains(&c) || han(c),
        "kn" => |c| ('\u{c80}'..='\u{cff}').contains(&c),
        "ko" => {
            |c| ('\u{ac00}'..='\u{d7af}').contains(&c) || ('\u{1100}'..='\u{11ff}').contains(&c)
        }
        "pa" => |c| ('\u{a00}'..='\u{a7f}').contains(&c),
        "bg" | "ru" | "uk" => |c| ('\u{400}'..='\u{4ff}').contains(&c),
        "ta" => |c| ('\u{b80}'..='\u{bff}').contains(&c),
        "te" => |c| ('\u{c00}'..='\u{c7f}').contains(&c),
        "th" => |c| ('\u{e00}'..='\u{e7f}').contains(&c),
        "zh" | "zh-cn" | "zh-tw" => han,
        other => {
            return Err(format!(
                "the language `{other}` cannot be told by its letters"
            ));
        }
    };
    let letters = text.chars().filter(|c| c.is_alphabetic()).count();
    let own = text.chars().filter(|c| of(*c)).count();
    Ok(letters > 0 && own * 2 > letters)
}

fn han(c: char) -> bool {
    ('\u{4e00}'..='\u{9fff}').contains(&c) || ('\u{3400}'..='\u{4dbf}').contains(&c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(id: &str, given: &str, response: &str) -> bool {
        let given: Map<String, Value> = serde_json::from_str(given).unwrap();
        holds(id, &given, response).unwrap()
    }

    #[test]
    fn every_instruction_is_met_by_one_text_and_missed_by_another() {
        for (id, given, yes, no) in [
            (
                "keywords:existence",
                r#"{"keywords":["sun","Moon"]}"#,
                "Sunny moon",
                "sun",
            ),
            (
                "keywords:frequency",
                r#"{"keyword":"go","frequency":2,"relation":"at least"}"#,
                "go, Go",
                "go going",
            ),
            (
                "keywords:frequency",
                r#"{"keyword":"go","frequency":2,"relation":"less than"}"#,
                "go",
                "go go",
            ),
            (
                "keywords:forbidden_words",
                r#"{"forbidden_words":["bad"]}"#,
                "badly",
                "too Bad.",
            ),
            (
                "keywords:letter_frequency",
                r#"{"letter":"Q","let_frequency":2,"let_relation":"at least"}"#,
                "qQ",
                "q",
            ),
            (
                "language:response_language",
                r#"{"language":"ru"}"#,
                "Привет, ok",
                "hello",
            ),
            (
                "language:response_language",
                r#"{"language":"ja"}"#,
                "日本語です",
                "hangul 한국어",
            ),
            (
                "length_constraints:number_sentences",
                r#"{"num_sentences":2,"relation":"at least"}"#,
                "A b. C d.",
                "A b, c d.",
            ),
            (
                "length_constraints:number_words",
                r#"{"num_words":3,"relation":"less than"}"#,
                "one two",
                "one two three",
            ),
            (
                "length_constraints:number_paragraphs",
                r#"{"num_paragraphs":2}"#,
                "a\n***\nb",
                "a\n***\nb\n***\nc",
            ),
            (
                "length_constraints:number_paragraphs",
                r#"{"num_paragraphs":2}"#,
                "a\n***\nb\n***\n",
                "a\n***\n***\nb",
            ),
            (
                "length_constraints:nth_paragraph_first_word",
                r#"{"num_paragraphs":2,"nth_paragraph":2,"first_word":"So"}"#,
                "a\n\n\"So, b",
                "a\n\nb so",
            ),
            (
                "detectable_content:number_placeholders",
                r#"{"num_placeholders":2}"#,
                "[name] and [place]",
                "[name] and []",
            ),
            (
                "detectable_content:postscript",
                r#"{"postscript_marker":"P.S."}"#,
                "x\np.s. y",
                "x",
            ),
            (
                "detectable_format:number_bullet_lists",
                r#"{"num_bullets":2}"#,
                "* a\n- b",
                "* a\n**b**",
            ),
            (
                "detectable_format:constrained_response",
                "{}",
                "My answer is no.",
                "no.",
            ),
            (
                "detectable_format:number_highlighted_sections",
                r#"{"num_highlights":2}"#,
                "*a* and **b c**",
                "*a* and **",
            ),
            (
                "detectable_format:multiple_sections",
                r#"{"section_spliter":"SECTION","num_sections":2}"#,
                "Section 1\nx\nSection 2",
                "section one, section 2",
            ),
            (
                "detectable_format:json_format",
                "{}",
                "```json\n{\"a\": 1}\n```",
                "{a: 1}",
            ),
            ("detectable_format:title", "{}", "<<A title>>\nx", "<< >>"),
            (
                "combination:two_responses",
                "{}",
                "one ****** two",
                "same ****** same",
            ),
            (
                "combination:repeat_prompt",
                r#"{"prompt_to_repeat":"Say x."}"#,
                "say x. Well: x",
                "Well: say x.",
            ),
            (
                "startend:end_checker",
                r#"{"end_phrase":"That is all."}"#,
                "x. That is all.",
                "That is all. No.",
            ),
            ("startend:quotation", "{}", " \"x\" ", "\"x"),
            (
                "change_case:capital_word_frequency",
                r#"{"capital_frequency":2,"capital_relation":"at least"}"#,
                "SO it IS",
                "So it IS",
            ),
            ("change_case:english_capital", "{}", "ALL 3.", "All"),
            ("change_case:english_lowercase", "{}", "all 3.", "All"),
            ("punctuation:no_comma", "{}", "a b", "a, b"),
        ] {
            assert!(check(id, given, yes), "{id}: {yes}");
            assert!(!check(id, given, no), "{id}: {no}");
        }
    }
}
