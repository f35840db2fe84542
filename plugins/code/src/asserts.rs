//! Tests written as asserts, in three interpreters: one splits them, one runs the candidate, one judges its values.

use crate::Tally;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use slime_sdk_capabilities::code_exec::{self, Ending, Program, Ran};
use slime_sdk_verifier::Error;

const SPLIT: &str = include_str!("../python/split.py");
const EMIT: &str = include_str!("../python/emit.py");
const JUDGE: &str = include_str!("../python/judge.py");
/// Stands before every line of values.
const MARK: char = '\u{1e}';

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct Split {
    error: Option<String>,
    preamble: Vec<String>,
    steps: Vec<Value>,
    tests: Vec<Test>,
}

#[derive(Debug, Deserialize, Serialize)]
struct Test {
    expression: String,
    uses: Vec<usize>,
}

pub(crate) fn run(source: &str, tests: &str, entry_point: Option<&str>) -> Result<Tally, Error> {
    let asked = json!({ "tests": tests, "entry_point": entry_point });
    let split: Split = trusted(SPLIT, &asked)?;
    if let Some(error) = split.error {
        return Err(Error::invalid_gold(format!("the tests: {error}")));
    }
    let mut tally = Tally {
        total: split.tests.len(),
        ..Tally::default()
    };
    let ran = python(EMIT, &json!({ "source": source, "steps": split.steps }))?;
    match ran.ending {
        Ending::TimedOut => tally.timed_out = 1,
        Ending::Finished => {}
        _ => tally.failed = 1,
    }
    let values = values(&String::from_utf8_lossy(&ran.stdout));
    if values.is_empty() {
        return Ok(tally);
    }
    let asked = json!({ "values": values, "preamble": split.preamble, "tests": split.tests });
    let passed: Vec<bool> = trusted(JUDGE, &asked)?;
    tally.passed = passed.iter().filter(|passed| **passed).count();
    Ok(tally)
}

/// What the candidate's calls returned, as text. A line that is none is the candidate's own output; where one call
/// has two lines, the first counts: it was written when the call returned.
fn values(output: &str) -> Vec<(usize, String)> {
    let mut values: Vec<(usize, String)> = Vec::new();
    for line in output.lines() {
        let Some((_, json)) = line.split_once(MARK) else {
            continue;
        };
        if let Ok((index, Some(text))) = serde_json::from_str::<(usize, Option<String>)>(json)
            && values.iter().all(|(known, _)| *known != index)
        {
            values.push((index, text));
        }
    }
    values
}

fn python(source: &str, input: &Value) -> Result<Ran, Error> {
    code_exec::run(&Program {
        source: source.to_owned(),
        stdin: input.to_string().into_bytes(),
        ..Program::default()
    })
}

/// A program of ours: it must answer.
fn trusted<T: for<'a> Deserialize<'a>>(source: &str, input: &Value) -> Result<T, Error> {
    let ran = python(source, input)?;
    if ran.ending == Ending::TimedOut || ran.ending == Ending::OutOfMemory {
        return Err(Error::invalid_gold("the tests themselves take too long"));
    }
    serde_json::from_slice(&ran.stdout).map_err(|error| {
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        Error::other(format!("the grader's own program failed: {error}: {said}"))
    })
}

#[cfg(test)]
mod tests {
    use super::values;

    #[test]
    fn only_marked_lines_are_values_and_the_first_counts() {
        let output = "noise\n\u{1e}[0, \"1\"]\nno newline\u{1e}[1, \"'a'\"]\n\u{1e}[0, \"2\"]\n\u{1e}[2, null]\n\u{1e}junk\n";
        assert_eq!(values(output), [(0, "1".to_owned()), (1, "'a'".to_owned())]);
    }
}
