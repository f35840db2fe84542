//! Layers of settings, lowest first: files left to right, `SLIME__A__B`, `--set a.b=c`, named flags.
//!
//! A layer is a list of single settings, each with its origin. Every setting is checked alone (does the
//! key exist, has the value its type), so one wrong line never hides another. `merge` puts them together.

use super::problem::{Place, Problem};
use super::schema;
use super::sections::RunConfig;
use serde::Deserialize;
use std::ops::Range;
use std::sync::Arc;
use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

/// Who said a value.
#[derive(Clone, Debug)]
pub enum Origin {
    /// A file.
    File {
        /// As given on the command line.
        name: String,
        /// Its text.
        text: Arc<str>,
        /// Bytes of the value.
        span: Range<usize>,
    },
    /// An environment variable, with its text.
    Env(String),
    /// `--set`, with its text.
    Set(String),
    /// A named flag and what followed it.
    Flag(String),
}

impl Origin {
    /// For a diagnostic.
    pub fn place(&self) -> Place {
        match self {
            Self::File { name, text, span } => Place {
                name: name.clone(),
                text: text.clone(),
                span: span.clone(),
            },
            Self::Env(text) => Place {
                name: "environment".into(),
                text: text.as_str().into(),
                span: 0..text.len(),
            },
            Self::Set(text) => {
                let text = format!("--set {text}");
                Place {
                    name: "command line".into(),
                    span: 0..text.len(),
                    text: text.into(),
                }
            }
            Self::Flag(text) => Place {
                name: "command line".into(),
                text: text.as_str().into(),
                span: 0..text.len(),
            },
        }
    }

    /// For `config show`.
    pub fn describe(&self) -> String {
        match self {
            Self::File { name, text, span } => {
                let line = text[..span.start.min(text.len())].matches('\n').count() + 1;
                format!("{name}:{line}")
            }
            Self::Env(text) => format!("env {}", text.split('=').next().unwrap_or_default()),
            Self::Set(_) => "--set".into(),
            Self::Flag(text) => text.split(' ').next().unwrap_or_default().into(),
        }
    }
}

/// One value said somewhere.
#[derive(Clone, Debug)]
pub struct Setting {
    /// `section.key`.
    pub key: String,
    /// `None` takes back what lower layers said.
    pub value: Option<Value>,
    /// Who said it.
    pub origin: Origin,
}

/// With more errors of syntax a file is something else than TOML, and the first says so.
const MANY_ERRORS: usize = 8;

/// The settings of a TOML file, and every problem in it.
pub fn from_file(name: &str, text: &str) -> (Vec<Setting>, Vec<Problem>) {
    let text: Arc<str> = text.into();
    let place = |span: Range<usize>| {
        Some(Place {
            name: name.to_owned(),
            text: text.clone(),
            span,
        })
    };
    let (spans, mut errors) = DeTable::parse_recoverable(&text);
    if errors.len() > MANY_ERRORS {
        errors.truncate(1);
    }
    if !errors.is_empty() {
        let problem = |e: toml::de::Error| {
            Problem::new(format!("{name} is not valid TOML: {}", e.message().trim()))
                .at(place(e.span().unwrap_or(0..0)))
                .help("keys are bare words, strings stand in double quotes, sections look like [rollout]")
        };
        return (Vec::new(), errors.into_iter().map(problem).collect());
    }
    let values: Table = match text.parse() {
        Ok(values) => values,
        Err(e) => {
            let problem = too_large(name, e.message());
            return (
                Vec::new(),
                vec![problem.at(place(e.span().unwrap_or(0..0)))],
            );
        }
    };
    let mut found = Found {
        name,
        text: text.clone(),
        settings: Vec::new(),
        problems: Vec::new(),
    };
    found.table("", spans.get_ref(), &values);
    found.problems.sort_by_key(Problem::offset);
    (found.settings, found.problems)
}

/// TOML's grammar knows no largest number, and what reads it does: all that is left to go wrong in a text that parses.
fn too_large(name: &str, message: &str) -> Problem {
    let problem = match message.split('`').nth(1) {
        Some(number) => Problem::new(format!("{name}: {number} is too large a number")),
        None => Problem::new(format!("{name} is not valid TOML: {message}")),
    };
    problem.help("whole numbers lie between -2^63 and 2^63 - 1")
}

struct Found<'a> {
    name: &'a str,
    text: Arc<str>,
    settings: Vec<Setting>,
    problems: Vec<Problem>,
}

impl Found<'_> {
    fn table(&mut self, path: &str, spans: &DeTable<'_>, values: &Table) {
        for (key, spanned) in spans.iter() {
            let name: &str = key.get_ref();
            let Some(value) = values.get(name) else {
                continue;
            };
            let path = if path.is_empty() {
                name.to_owned()
            } else {
                format!("{path}.{name}")
            };
            self.value(&path, key.span(), spanned, value);
        }
    }

    fn value(
        &mut self,
        path: &str,
        key_span: Range<usize>,
        spanned: &Spanned<DeValue<'_>>,
        value: &Value,
    ) {
        let origin = |span| Origin::File {
            name: self.name.to_owned(),
            text: self.text.clone(),
            span,
        };
        match (spanned.get_ref(), value) {
            (DeValue::Table(spans), Value::Table(values)) if !schema::is_whole(path) => {
                if schema::is_section(path) {
                    return self.table(path, spans, values);
                }
                // One problem for an unknown section, not one for each of its keys.
                self.problems
                    .push(unknown(path, "section", &origin(key_span)));
            }
            _ if !schema::is_key(path) => {
                self.problems.push(unknown(path, "key", &origin(key_span)))
            }
            _ => match check(path, value) {
                Ok(()) => {
                    let origin = origin(spanned.span());
                    self.settings.push(Setting {
                        key: path.into(),
                        value: Some(value.clone()),
                        origin,
                    });
                }
                Err(problem) => self
                    .problems
                    .push(problem.at(Some(origin(spanned.span()).place()))),
            },
        }
    }
}

/// The settings among environment variables: those that begin with `SLIME__`.
pub fn from_env(vars: impl Iterator<Item = (String, String)>) -> (Vec<Setting>, Vec<Problem>) {
    let mut vars: Vec<_> = vars
        .filter(|(name, _)| name.starts_with("SLIME__"))
        .collect();
    vars.sort();
    let parsed = vars.into_iter().map(|(name, value)| {
        let key = name["SLIME__".len()..]
            .split("__")
            .collect::<Vec<_>>()
            .join(".")
            .to_lowercase();
        from_text(&key, &value, Origin::Env(format!("{name}={value}")))
    });
    split(parsed)
}

/// The settings of `--set a.b=c`.
pub fn from_sets(sets: &[String]) -> (Vec<Setting>, Vec<Problem>) {
    split(sets.iter().map(|set| {
        let origin = Origin::Set(set.clone());
        match set.split_once('=') {
            Some((key, value)) => from_text(key.trim(), value.trim(), origin),
            None => Err(Problem::new(format!("`--set {set}` has no value"))
                .at(Some(origin.place()))
                .help(format!("write --set {set}=VALUE"))),
        }
    }))
}

/// One setting given as text: a TOML value if it is one of the key's type, else a string. `null` takes back.
///
/// # Errors
/// An unknown key, or a value that no reading makes right.
pub fn from_text(key: &str, text: &str, origin: Origin) -> Result<Setting, Problem> {
    if !schema::is_key(key) {
        let what = if schema::is_section(key) {
            "section"
        } else {
            "key"
        };
        return Err(unknown(key, what, &origin));
    }
    if text == "null" {
        return Ok(Setting {
            key: key.into(),
            value: None,
            origin,
        });
    }
    let parsed = format!("value = {text}")
        .parse::<Table>()
        .ok()
        .and_then(|mut table| table.remove("value"));
    let as_string = Value::String(text.into());
    let mut first_problem = None;
    for value in parsed.into_iter().chain([as_string]) {
        match check(key, &value) {
            Ok(()) => {
                return Ok(Setting {
                    key: key.into(),
                    value: Some(value),
                    origin,
                });
            }
            Err(problem) => first_problem = first_problem.or(Some(problem)),
        }
    }
    let problem = first_problem.unwrap_or_else(|| Problem::new(format!("`{key}` has no value")));
    Err(problem.at(Some(origin.place())))
}

fn split(parsed: impl Iterator<Item = Result<Setting, Problem>>) -> (Vec<Setting>, Vec<Problem>) {
    let (mut settings, mut problems) = (Vec::new(), Vec::new());
    for one in parsed {
        match one {
            Ok(setting) => settings.push(setting),
            Err(problem) => problems.push(problem),
        }
    }
    (settings, problems)
}

fn unknown(path: &str, what: &str, origin: &Origin) -> Problem {
    let problem = match what {
        "section" if schema::is_section(path) => {
            Problem::new(format!("`{path}` is a section, not a key"))
        }
        _ => Problem::new(format!("unknown {what} `{path}`")),
    };
    let meant = match what {
        "section" => schema::suggest_section(path).or_else(|| schema::suggest(path)),
        _ => schema::suggest(path),
    };
    let help = match meant {
        _ if schema::is_section(path) => {
            format!("name one of its keys: {path}.KEY; `slime-host config keys` lists them")
        }
        Some(meant) => format!("did you mean `{meant}`?"),
        None => "`slime-host config keys` lists every key".into(),
    };
    problem.at(Some(origin.place())).help(help)
}

/// Whether `value` has the type of `key`, asked of [`RunConfig`] with everything else left out.
fn check(key: &str, value: &Value) -> Result<(), Problem> {
    if !all_finite(value) {
        return Err(Problem::new(format!("`{key}` is not a finite number"))
            .help("nan and inf mean nothing here; write a number"));
    }
    let mut table = Table::new();
    insert(&mut table, key, value.clone());
    match RunConfig::deserialize(Value::Table(table)) {
        Ok(_) => Ok(()),
        Err(e) => {
            let (why, help) = plain(e.message());
            let problem = Problem::new(format!("`{key}`: {why}"));
            Err(match help {
                Some(help) => problem.help(help),
                None => problem,
            })
        }
    }
}

fn all_finite(value: &Value) -> bool {
    match value {
        Value::Float(x) => x.is_finite(),
        Value::Array(items) => items.iter().all(all_finite),
        Value::Table(items) => items.values().all(all_finite),
        _ => true,
    }
}

/// Put `value` at a dotted path. The last part of a name table's path may itself hold dots.
pub fn insert(table: &mut Table, key: &str, value: Value) {
    match key.split_once('.') {
        Some((head, rest)) if schema::is_section(head) => {
            let inner = table
                .entry(head)
                .or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(inner) = inner {
                match rest.split_once('.') {
                    Some((name, leaf)) => {
                        let named = inner
                            .entry(name)
                            .or_insert_with(|| Value::Table(Table::new()));
                        if let Value::Table(named) = named {
                            named.insert(leaf.into(), value);
                        }
                    }
                    None => {
                        inner.insert(rest.into(), value);
                    }
                }
            }
        }
        _ => {
            table.insert(key.into(), value);
        }
    }
}

/// serde's words for a wrong value, without the names of Rust's types, and a suggestion among named variants.
fn plain(message: &str) -> (String, Option<String>) {
    let line = message.lines().next().unwrap_or_default();
    if let Some(rest) = line.strip_prefix("unknown variant ") {
        let quoted: Vec<&str> = rest.split('`').skip(1).step_by(2).collect();
        let help = quoted.split_first().and_then(|(word, known)| {
            let meant = schema::nearest(word, known.iter().map(|k| (*k, *k)))?;
            Some(format!("did you mean `{meant}`?"))
        });
        return (format!("unknown value {rest}"), help);
    }
    (slime_core::json::plain(line), None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        from_file("run.toml", text)
            .1
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn every_wrong_line_of_a_file_is_reported_at_once() {
        let found = problems(
            "sede = 1\n[train]\nlr = \"fast\"\nclip_grad = nan\n[rolout]\nbatch_size = 8\n",
        );
        assert_eq!(
            found,
            [
                "unknown key `sede`",
                "`train.lr`: expected a number, found string \"fast\"",
                "`train.clip_grad` is not a finite number",
                "unknown section `rolout`",
            ]
        );
    }

    #[test]
    fn every_syntax_error_of_a_file_is_reported_at_once() {
        assert_eq!(problems("seed = \n[train\nlr = 1\n").len(), 2);
    }

    #[test]
    fn a_file_that_is_no_toml_is_one_error() {
        assert_eq!(problems(&"once upon a time\n".repeat(9)).len(), 1);
    }

    #[test]
    fn text_is_read_as_the_keys_type_wants_it() {
        let read = |key: &str, text: &str| {
            from_text(key, text, Origin::Set(String::new())).map(|s| s.value)
        };
        assert_eq!(
            read("run.name", "123").unwrap(),
            Some(Value::String("123".into()))
        );
        assert_eq!(read("seed", "123").unwrap(), Some(Value::Integer(123)));
        assert_eq!(
            read("model.path", "models/x").unwrap(),
            Some(Value::String("models/x".into()))
        );
        assert_eq!(
            read("rollout.stop", "[\"a\", \"b\"]").unwrap(),
            Some(Value::Array(vec!["a".into(), "b".into()]))
        );
        assert_eq!(read("rollout.max_lag", "null").unwrap(), None);
        assert!(
            read("seed", "x").is_err()
                && read("seed", "-1").is_err()
                && read("rollout", "1").is_err()
        );
    }

    #[test]
    fn an_environment_variable_names_its_key_by_double_underscores() {
        let vars = [
            ("SLIME__TRAIN__LR", "1e-4"),
            ("HOME", "/x"),
            ("SLIME__TRAIN__LRR", "1"),
        ];
        let (settings, problems) =
            from_env(vars.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
        assert_eq!(settings.len(), 1);
        assert_eq!(
            (settings[0].key.as_str(), &settings[0].value),
            ("train.lr", &Some(Value::Float(1e-4)))
        );
        assert_eq!(problems[0].to_string(), "unknown key `train.lrr`");
        assert_eq!(
            problems[0].help.as_deref(),
            Some("did you mean `train.lr`?")
        );
    }
}
