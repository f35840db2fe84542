//! JSON as Python's `json.dumps` writes it, which is what chat templates were written against.

use serde_json::Value;

/// The arguments of `json.dumps` that templates use.
#[derive(Default)]
pub(super) struct Style {
    pub(super) indent: Option<String>,
    pub(super) separators: Option<(String, String)>,
    pub(super) ensure_ascii: bool,
    pub(super) sort_keys: bool,
}

pub(super) fn dumps(value: &Value, style: &Style) -> String {
    let mut out = String::new();
    write(value, style, 0, &mut out);
    out
}

fn write(value: &Value, style: &Style, depth: usize, out: &mut String) {
    let default = if style.indent.is_some() {
        (",", ": ")
    } else {
        (", ", ": ")
    };
    let (comma, colon) = match &style.separators {
        Some((comma, colon)) => (comma.as_str(), colon.as_str()),
        None => default,
    };
    match value {
        Value::Number(n) => out.push_str(&number(n)),
        Value::String(s) => string(s, style.ensure_ascii, out),
        Value::Array(items) if !items.is_empty() => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                separate(i > 0, comma, style, depth + 1, out);
                write(item, style, depth + 1, out);
            }
            separate(false, comma, style, depth, out);
            out.push(']');
        }
        Value::Object(members) if !members.is_empty() => {
            let mut members: Vec<(&String, &Value)> = members.iter().collect();
            if style.sort_keys {
                members.sort_by_key(|(key, _)| *key);
            }
            out.push('{');
            for (i, (key, item)) in members.into_iter().enumerate() {
                separate(i > 0, comma, style, depth + 1, out);
                string(key, style.ensure_ascii, out);
                out.push_str(colon);
                write(item, style, depth + 1, out);
            }
            separate(false, comma, style, depth, out);
            out.push('}');
        }
        other => out.push_str(&other.to_string()),
    }
}

fn separate(comma_first: bool, comma: &str, style: &Style, depth: usize, out: &mut String) {
    if comma_first {
        out.push_str(comma);
    }
    if let Some(indent) = &style.indent {
        out.push('\n');
        out.push_str(&indent.repeat(depth));
    }
}

/// Python's `repr` of a float: Rust's shortest digits, with a sign and two digits in the exponent.
fn number(n: &serde_json::Number) -> String {
    let Some(x) = n.as_f64().filter(|_| n.is_f64()) else {
        return n.to_string();
    };
    let text = format!("{x:?}");
    match text.split_once('e') {
        None => text,
        Some((digits, exponent)) => match exponent.strip_prefix('-') {
            Some(exponent) => format!("{digits}e-{exponent:0>2}"),
            None => format!("{digits}e+{exponent:0>2}"),
        },
    }
}

fn string(s: &str, ensure_ascii: bool, out: &mut String) {
    let quoted = Value::from(s).to_string();
    if !ensure_ascii {
        out.push_str(&quoted);
        return;
    }
    let mut units = [0; 2];
    for c in quoted.chars() {
        if (' '..='~').contains(&c) {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
}
