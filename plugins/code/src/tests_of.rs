//! Tests as data sets write them.

use serde::Deserialize;
use serde_json::Value;
use slime_sdk_verifier::{Error, Finished};

#[derive(Debug, PartialEq)]
pub(crate) enum Tests {
    /// Input and expected output.
    Streams(Vec<(String, String)>),
    /// Python with asserts.
    Asserts {
        text: String,
        entry_point: Option<String>,
    },
}

#[derive(Deserialize)]
struct Pair {
    input: Value,
    output: Value,
}

#[derive(Deserialize)]
struct Columns {
    inputs: Vec<Value>,
    outputs: Vec<Value>,
}

impl Tests {
    pub(crate) fn of(item: &Finished) -> Result<Self, Error> {
        let (json, place) = match item.metadata("tests") {
            Some(json) => (json, "metadata.tests"),
            None => match item.label() {
                Some(label) => (label, "label"),
                None => {
                    return Err(Error::invalid_gold(
                        "there are no tests: give metadata.tests, or a label with tests as JSON",
                    ));
                }
            },
        };
        let entry_point = item
            .metadata("entry_point")
            .and_then(|json| serde_json::from_str(&json).ok());
        Self::parse(&json, entry_point)
            .map_err(|reason| Error::invalid_gold(format!("{place}: {reason}")))
    }

    fn parse(json: &str, entry_point: Option<String>) -> Result<Self, String> {
        let value: Value = match serde_json::from_str(json) {
            Ok(value) => value,
            // A label may be the Python itself.
            Err(_) if json.contains("assert") => Value::String(json.into()),
            Err(error) => return Err(format!("no JSON: {error}")),
        };
        match value {
            Value::String(text) => Ok(Self::Asserts { text, entry_point }),
            Value::Array(rows) if rows.iter().all(Value::is_string) && !rows.is_empty() => {
                let lines: Vec<&str> = rows.iter().filter_map(Value::as_str).collect();
                Ok(Self::Asserts {
                    text: lines.join("\n"),
                    entry_point,
                })
            }
            Value::Array(rows) if !rows.is_empty() => {
                let pairs: Result<Vec<_>, String> = rows
                    .into_iter()
                    .map(|row| {
                        let pair: Pair = serde_json::from_value(row).map_err(|e| e.to_string())?;
                        Ok((text(&pair.input)?, text(&pair.output)?))
                    })
                    .collect();
                pairs.map(Self::Streams)
            }
            Value::Object(_) => {
                let columns: Columns =
                    serde_json::from_value(value).map_err(|error| error.to_string())?;
                let (inputs, outputs) = (columns.inputs.len(), columns.outputs.len());
                if inputs != outputs || inputs == 0 {
                    return Err(format!("{inputs} inputs and {outputs} outputs"));
                }
                let pairs = columns.inputs.iter().zip(&columns.outputs);
                let pairs: Result<Vec<_>, String> =
                    pairs.map(|(i, o)| Ok((text(i)?, text(o)?))).collect();
                pairs.map(Self::Streams)
            }
            _ => Err("tests are a list of {input, output}, a list of asserts, or text".into()),
        }
    }
}

/// A stream as text; a list is its lines.
fn text(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Array(lines) => {
            let lines: Result<Vec<_>, _> = lines.iter().map(text).collect();
            Ok(lines?.join("\n"))
        }
        Value::Number(number) => Ok(number.to_string()),
        other => Err(format!("{other} is no text")),
    }
}

#[cfg(test)]
mod tests {
    use super::Tests;

    #[test]
    fn the_shapes_of_the_usual_data_sets_are_read() {
        let streams = Tests::Streams(vec![("3\n".into(), "9".into())]);
        for json in [
            r#"[{"input": "3\n", "output": "9"}]"#,
            r#"{"inputs": ["3\n"], "outputs": ["9"]}"#,
            r#"[{"input": "3\n", "output": 9}]"#,
        ] {
            assert_eq!(Tests::parse(json, None).unwrap(), streams, "{json}");
        }
        let asserts = |text: &str| Tests::Asserts {
            text: text.into(),
            entry_point: None,
        };
        assert_eq!(
            Tests::parse(r#"["assert f(1)", "assert g()"]"#, None).unwrap(),
            asserts("assert f(1)\nassert g()")
        );
        assert_eq!(
            Tests::parse("assert f(1) == 2", None).unwrap(),
            asserts("assert f(1) == 2")
        );
    }

    #[test]
    fn tests_that_are_none_say_why() {
        for (json, reason) in [
            ("[]", "tests are a list"),
            ("7", "tests are a list"),
            ("{", "no JSON"),
            (
                r#"{"inputs": ["1"], "outputs": []}"#,
                "1 inputs and 0 outputs",
            ),
            (r#"[{"input": "1"}]"#, "output"),
        ] {
            let error = Tests::parse(json, None).unwrap_err();
            assert!(error.contains(reason), "{json}: {error}");
        }
    }
}
