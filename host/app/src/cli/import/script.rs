//! A shell script's words, as far as launch scripts need it: quotes, comments, continued lines, arrays, plain variables.
//!
//! It is no shell: nothing is run, conditions are not decided, and a variable without a value in the script stays as it
//! stands.

use std::collections::{BTreeMap, BTreeSet};

/// A word that matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// `--name`, without its dashes.
    Flag(String),
    /// What follows one.
    Value(String),
}

/// What a script says to its training program.
#[derive(Debug, Default)]
pub(super) struct Script {
    /// Flags and values, in order.
    pub(super) words: Vec<Word>,
    /// It starts the asynchronous driver.
    pub(super) is_async: bool,
    /// Variables it uses and does not set.
    pub(super) unknown_variables: BTreeSet<String>,
    /// The last word was a flag or one of its values.
    attached: bool,
}

/// One word or separator of the text.
#[derive(Debug, PartialEq)]
enum Token {
    Word { text: String, quoted: bool },
    End,
    Open,
    Close,
}

/// Programs whose flags are their own.
const OTHERS: [&str; 12] = [
    "ray",
    "pkill",
    "sleep",
    "export",
    "source",
    "set",
    "echo",
    "cd",
    "pip",
    "torchrun",
    "if",
    "nvidia-smi",
];

impl Script {
    /// The words of `text`.
    pub(super) fn read(text: &str) -> Self {
        let mut script = Self::default();
        let mut variables: BTreeMap<String, String> = BTreeMap::new();
        // Inside an array of arguments, or in a command of the training program.
        let (mut ours, mut first, mut depth) = (true, true, 0usize);
        for token in tokens(text) {
            match token {
                Token::Open => depth += 1,
                Token::Close => {
                    depth = depth.saturating_sub(1);
                    (first, script.attached) = (true, false);
                }
                Token::End if depth == 0 => (ours, first, script.attached) = (true, true, false),
                Token::End => {}
                Token::Word { text, quoted } => {
                    let text = script.expand(&text, &variables);
                    if depth == 0 && first && !quoted {
                        if let Some((name, value)) = assignment(&text) {
                            variables.insert(name.to_owned(), value.to_owned());
                            continue;
                        }
                        ours = !OTHERS.contains(&text.as_str());
                    }
                    first = false;
                    let program = text.rsplit('/').next().unwrap_or_default();
                    if ["train.py", "train_async.py"].contains(&program) {
                        (ours, script.is_async) =
                            (true, script.is_async || program == "train_async.py");
                        continue;
                    }
                    if ours && !text.starts_with("${") {
                        script.word(text, quoted);
                    }
                }
            }
        }
        script
    }

    fn word(&mut self, text: String, quoted: bool) {
        match text.strip_prefix("--") {
            Some(name) if !quoted && !name.is_empty() => {
                self.attached = true;
                match name.split_once('=') {
                    Some((name, value)) => {
                        self.words.push(Word::Flag(name.into()));
                        self.words.push(Word::Value(value.into()));
                    }
                    None => self.words.push(Word::Flag(name.into())),
                }
            }
            _ if self.attached => self.words.push(Word::Value(text)),
            _ => {}
        }
    }

    /// Put the script's own variables in; `${NAME:-default}` takes its default.
    fn expand(&mut self, text: &str, variables: &BTreeMap<String, String>) -> String {
        let (mut out, mut rest) = (String::new(), text);
        while let Some(at) = rest.find('$') {
            out.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            let (inner, after, braced) =
                match rest.strip_prefix('{').and_then(|r| r.split_once('}')) {
                    Some((inner, after)) => (inner, after, true),
                    None => {
                        let end = rest
                            .find(|c: char| !c.is_alphanumeric() && c != '_')
                            .unwrap_or(rest.len());
                        (&rest[..end], &rest[end..], false)
                    }
                };
            let (name, default) = inner
                .split_once(":-")
                .map_or((inner, None), |(n, d)| (n, Some(d)));
            let plain = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
            match variables.get(name).map(String::as_str).or(default) {
                Some(value) if plain => out.push_str(value),
                _ => {
                    if plain && !name.starts_with(|c: char| c.is_ascii_digit()) {
                        self.unknown_variables.insert(name.to_owned());
                    }
                    out.push('$');
                    if braced {
                        out.push_str(&format!("{{{inner}}}"));
                    } else {
                        out.push_str(inner);
                    }
                }
            }
            rest = after;
        }
        out + rest
    }
}

/// `NAME=value`; an array's words come one by one.
fn assignment(text: &str) -> Option<(&str, &str)> {
    let (name, value) = text.split_once('=')?;
    let is_name = name.chars().all(|c| c.is_alphanumeric() || c == '_') && !name.is_empty();
    is_name.then_some((name, value))
}

fn tokens(text: &str) -> Vec<Token> {
    let mut out = Vec::new();
    let mut word: Option<(String, bool)> = None;
    let mut chars = text.chars().peekable();
    let end = |word: &mut Option<(String, bool)>, out: &mut Vec<Token>| {
        if let Some((text, quoted)) = word.take() {
            out.push(Token::Word { text, quoted });
        }
    };
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('\n') | None => {}
                Some(other) => word.get_or_insert_default().0.push(other),
            },
            '#' if word.is_none() => while chars.next_if(|c| *c != '\n').is_some() {},
            '\'' | '"' => {
                let quoted = word.is_none();
                let word = word.get_or_insert_default();
                word.1 |= quoted;
                while let Some(inner) = chars.next() {
                    match inner {
                        _ if inner == c => break,
                        '\\' if c == '"' => word.0.extend(chars.next()),
                        _ => word.0.push(inner),
                    }
                }
            }
            '$' if chars.peek() == Some(&'{') => {
                let word = word.get_or_insert_default();
                word.0.push(c);
                for inner in chars.by_ref() {
                    word.0.push(inner);
                    if inner == '}' {
                        break;
                    }
                }
            }
            '(' | ')' => {
                end(&mut word, &mut out);
                out.push(if c == '(' { Token::Open } else { Token::Close });
            }
            '\n' | ';' | '&' | '|' => {
                end(&mut word, &mut out);
                out.push(Token::End);
            }
            c if c.is_whitespace() => end(&mut word, &mut out),
            c => word.get_or_insert_default().0.push(c),
        }
    }
    end(&mut word, &mut out);
    out.push(Token::End);
    out
}
