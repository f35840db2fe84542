//! Runs the Python that a model wrote against tests. Reward 1 when all pass; with `"partial": true` in the metadata,
//! the part that passes.
//!
//! Tests stand in the metadata's `tests`, else in the label, as JSON:
//! - `[{"input": "3\n", "output": "9\n"}, …]` or `{"inputs": […], "outputs": […]}`: the program reads and writes;
//! - `["assert f(3) == 9", …]` or one text of Python, HumanEval's `check(candidate)` included, with `entry_point`.
//!
//! The candidate runs in an interpreter of its own. Expected outputs and the right sides of asserts are never in
//! that interpreter: the candidate's values come out as text and are compared elsewhere, so there is no frame to
//! read the answer from, no marker to forge, and no exit status to fake. Needs the grant `code_exec`.

mod asserts;
mod extract;
mod streams;
mod tests_of;

use slime_sdk_verifier::{Error, Finished, Verdict, Verifier, export};
use tests_of::Tests;

/// What a program prints of itself, as a metric: how many ended in each way.
#[derive(Debug, Default, PartialEq)]
struct Tally {
    passed: usize,
    total: usize,
    timed_out: usize,
    failed: usize,
}

/// Runs programs against tests.
pub struct Code;

impl Verifier for Code {
    fn score(item: Finished) -> Result<Verdict, Error> {
        let tests = Tests::of(&item)?;
        let source = extract::program(&item.response());
        let tally = match &tests {
            Tests::Streams(pairs) => streams::run(&source, pairs)?,
            Tests::Asserts { text, entry_point } => {
                asserts::run(&source, text, entry_point.as_deref())?
            }
        };
        let passed = tally.passed as f64 / tally.total.max(1) as f64;
        let partial = item.metadata("partial").as_deref() == Some("true");
        let reward = if partial {
            passed
        } else {
            f64::from(tally.passed == tally.total && tally.total > 0)
        };
        Ok(Verdict::reward(reward)
            .with_metric("passed_frac", passed)
            .with_metric("num_tests", tally.total as f64)
            .with_metric("timed_out", tally.timed_out as f64)
            .with_metric("failed", tally.failed as f64))
    }
}

export!(Code);
