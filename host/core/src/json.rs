//! Lines of JSONL files, and what is wrong with one in words.
//!
//! A file's reader knows the line's number; serde counts lines of what it was given, which is always the first, and
//! names Rust's types, which are nobody's business. Neither gets out of here.

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::error::Category;

/// One line as `T`, which is written as an object.
///
/// # Errors
/// What the line is instead, to be read after the line's number: `is not JSON: …`.
pub fn object<T: DeserializeOwned>(line: &[u8]) -> Result<T, String> {
    let text = std::str::from_utf8(line).map_err(|_| "is no text in UTF-8")?;
    // Where the line's end is part of it, what is missing would be missed in column 0 of the next.
    let text = text.trim_end();
    // A list would do for serde, which takes its items for the members in the order of their declaration.
    if !text.trim_start().starts_with('{') {
        return Err(match serde_json::from_str(text) {
            Ok(value) => format!("is {}, but not an object like {{\"key\": …}}", kind(&value)),
            Err(error) => reason(&error),
        });
    }
    serde_json::from_str(text).map_err(|error| reason(&error))
}

/// What is wrong with a text of one line.
pub fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let what = text
        .rsplit_once(" at line ")
        .map_or(&*text, |(what, _)| what);
    let at = error.column();
    match error.classify() {
        Category::Data if what.starts_with("missing field ") => plain(what),
        Category::Data => format!("{} (column {at})", plain(what)),
        _ => format!("is not JSON: {what} (column {at})"),
    }
}

/// serde's words for a value that does not fit, without the names of Rust's types.
pub fn plain(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    if let Some(name) = line.strip_prefix("missing field ") {
        return format!("{name} is missing");
    }
    let stripped = line
        .strip_prefix("invalid type: ")
        .or_else(|| line.strip_prefix("invalid value: "))
        .or_else(|| line.strip_prefix("invalid length "));
    let Some((found, wanted)) = stripped.unwrap_or(line).split_once(", expected ") else {
        return line.to_owned();
    };
    let found = ["integer ", "floating point ", "boolean "]
        .into_iter()
        .fold(found, |found, kind| found.trim_start_matches(kind));
    let found = match found {
        "sequence" => "a list",
        "map" => "an object",
        other => other,
    };
    let wanted = match wanted {
        "u64" | "u32" | "u16" | "u8" | "usize" => "a whole number of 0 or more",
        "i64" | "i32" => "a whole number",
        "f64" | "f32" => "a number",
        "a boolean" => "true or false",
        "a string" => "text",
        "path string" => "a path",
        "a sequence" => "a list",
        "a map" => "an object",
        other if other.starts_with("struct ") => "an object",
        other => other,
    };
    format!("expected {wanted}, found {found}")
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[allow(dead_code, reason = "it is only read from text")]
    struct Row {
        tokens: Vec<u32>,
    }

    #[test]
    fn a_line_that_does_not_fit_is_told_without_another_line_number_or_a_type_of_rust() {
        for (line, wanted) in [
            (
                &b"{tokens"[..],
                "is not JSON: key must be a string (column 2)",
            ),
            (
                b"{\"tokens\":\n",
                "is not JSON: EOF while parsing a value (column 10)",
            ),
            (b"nope", "is not JSON: expected ident (column 2)"),
            (b"\xff", "is no text in UTF-8"),
            (b"[[1]]", "is a list, but not an object like {\"key\": …}"),
            (b"{\"token\": [1]}", "`tokens` is missing"),
            (
                b"{\"tokens\": [-1]}",
                "expected a whole number of 0 or more, found `-1` (column 14)",
            ),
            (
                b"{\"tokens\": {}}",
                "expected a list, found an object (column 11)",
            ),
        ] {
            assert_eq!(object::<Row>(line).unwrap_err(), wanted);
        }
    }
}
