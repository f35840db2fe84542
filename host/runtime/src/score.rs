//! Score recorded responses offline: rows in, verdicts out, in the same order, on all cores.
//!
//! Every row is checked before the first is scored, so a bad one costs no time. Reading, scoring and writing overlap
//! within a bounded window: memory does not grow with the file.

use crate::{Plugin, RuntimeError, seed};
use futures::StreamExt;
use serde::Deserialize;
use serde_json::{Map, Value};
use slime_core::ports::{ScoreRequest, Scored, Verifier};
use slime_core::{Outcome, json};
use std::collections::BTreeMap;
use std::io::{BufRead, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Rows that one task scores: few enough to spread a slow file over the cores, enough to hide the hand-over.
const ROWS_PER_TASK: usize = 16;

/// What a file of rows came to.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoreSummary {
    /// Rows scored or failed.
    pub num_rows: u64,
    /// Rows by the kind of their outcome.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Mean reward of the scored rows; `None` where there are none.
    pub mean_reward: Option<f64>,
    /// Time in which guests ran, all rows together.
    pub cpu: Duration,
    /// From the first row to the last.
    pub elapsed: Duration,
}

/// Score rows `{"prompt", "response", "label", "metadata"}` and write rows `{"index", "outcome", "reward", "metrics",
/// "cpu_ms", "wall_ms", "peak_memory_bytes"}`, with `"detail"` where there is no verdict. Row `index` is scored under
/// a seed derived from `seed` and `index`. `progress` is told the number of rows done.
///
/// Blocks; call it from outside any async runtime, or from a thread that may block.
///
/// # Errors
/// The plugin is no verifier; a row is bad (nothing was scored); reading or writing fails.
pub fn score<R: BufRead + Seek, W: Write>(
    plugin: &Plugin,
    seed: u64,
    mut input: R,
    mut output: W,
    mut progress: impl FnMut(u64),
) -> Result<ScoreSummary, RuntimeError> {
    let verifier = plugin.verifier()?;
    let read = |source| RuntimeError::Rows {
        action: "read",
        source,
    };
    let write = |source| RuntimeError::Rows {
        action: "write",
        source,
    };
    let start_of_input = input.stream_position().map_err(read)?;
    for line in Lines::new(&mut input) {
        line?.request(seed)?;
    }
    input.seek(SeekFrom::Start(start_of_input)).map_err(read)?;

    let threads = plugin.threads().clone();
    let window = 4 * threads.metrics().num_workers();
    let mut broken = None;
    let tasks = Tasks {
        lines: Lines::new(&mut input),
        broken: &mut broken,
    }
    .map(|lines| {
        let verifier = Arc::clone(&verifier);
        threads.spawn(async move { score_lines(&*verifier, lines, seed).await })
    });
    let mut answers = futures::stream::iter(tasks).buffered(window);
    let start = Instant::now();
    let mut summary = ScoreSummary {
        num_rows: 0,
        outcomes: BTreeMap::new(),
        mean_reward: None,
        cpu: Duration::ZERO,
        elapsed: Duration::ZERO,
    };
    let mut total_reward = 0.0;
    while let Some(scored) = futures::executor::block_on(answers.next()) {
        let part = scored
            .map_err(|failure| RuntimeError::Engine(format!("scoring stopped: {failure}")))??;
        for Scored { outcome, cost } in &part.scored {
            total_reward += outcome.reward().unwrap_or(0.0);
            summary.cpu += cost.cpu;
            *summary.outcomes.entry(outcome.kind()).or_default() += 1;
            summary.num_rows += 1;
        }
        output.write_all(&part.text).map_err(write)?;
        progress(summary.num_rows);
    }
    drop(answers);
    if let Some(error) = broken {
        return Err(error);
    }
    output.flush().map_err(write)?;
    let scored = summary.outcomes.get("scored").copied().unwrap_or(0);
    summary.mean_reward = (scored > 0).then(|| total_reward / scored as f64);
    summary.elapsed = start.elapsed();
    Ok(summary)
}

/// What came of some rows, and what is written of them.
struct Part {
    scored: Vec<Scored>,
    text: Vec<u8>,
}

/// Everything that takes time happens here, on as many threads as there are: what is left to one is to read and to write.
async fn score_lines(
    verifier: &dyn Verifier,
    lines: Vec<Line>,
    seed: u64,
) -> Result<Part, RuntimeError> {
    let mut part = Part {
        scored: Vec::with_capacity(lines.len()),
        text: Vec::new(),
    };
    for line in lines {
        let scored = verifier.score(line.request(seed)?).await;
        let row = row_out(line.index, &scored.outcome, scored.cost);
        serde_json::to_writer(&mut part.text, &row).map_err(|error| RuntimeError::Rows {
            action: "write",
            source: error.into(),
        })?;
        part.text.push(b'\n');
        part.scored.push(scored);
    }
    Ok(part)
}

fn row_out(index: u64, outcome: &Outcome, cost: slime_core::Accounting) -> Value {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let metrics: Map<String, Value> = outcome
        .verdict()
        .map(|verdict| {
            verdict
                .metrics
                .iter()
                .map(|(name, value)| (name.clone(), serde_json::json!(value)))
                .collect()
        })
        .unwrap_or_default();
    let mut row = serde_json::json!({
        "index": index,
        "outcome": outcome.kind(),
        "reward": outcome.reward(),
        "metrics": metrics,
        "cpu_ms": ms(cost.cpu),
        "wall_ms": ms(cost.wall),
        "peak_memory_bytes": cost.peak_memory_bytes,
    });
    if outcome.verdict().is_none() {
        row["detail"] = outcome.detail().into();
    }
    row
}

/// Chunks of lines; ends at the first that cannot be read, and keeps the reason.
struct Tasks<'a, R> {
    lines: Lines<R>,
    broken: &'a mut Option<RuntimeError>,
}

impl<R: BufRead> Iterator for Tasks<'_, R> {
    type Item = Vec<Line>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut chunk = Vec::with_capacity(ROWS_PER_TASK);
        while chunk.len() < ROWS_PER_TASK && self.broken.is_none() {
            match self.lines.next() {
                Some(Ok(line)) => chunk.push(line),
                Some(Err(error)) => *self.broken = Some(error),
                None => break,
            }
        }
        (!chunk.is_empty()).then_some(chunk)
    }
}

/// One row as it stands in the file.
struct Line {
    number: usize,
    index: u64,
    bytes: Vec<u8>,
}

impl Line {
    fn request(&self, seed: u64) -> Result<ScoreRequest, RuntimeError> {
        let row = parse(&self.bytes).map_err(|reason| RuntimeError::BadRow {
            line: self.number,
            reason,
        })?;
        let seed = seed::derive(seed, self.index);
        Ok(ScoreRequest { seed, ..row })
    }
}

/// Rows of a JSONL stream. Lines end at `\n` alone, so separators inside strings split nothing; empty lines are
/// skipped and not counted as rows.
struct Lines<R> {
    input: R,
    number: usize,
    index: u64,
}

impl<R: BufRead> Lines<R> {
    fn new(input: R) -> Self {
        Self {
            input,
            number: 0,
            index: 0,
        }
    }
}

impl<R: BufRead> Iterator for Lines<R> {
    type Item = Result<Line, RuntimeError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            self.number += 1;
            match self.input.read_until(b'\n', &mut bytes) {
                Ok(0) => return None,
                Ok(_) if bytes.trim_ascii().is_empty() => {}
                Ok(_) => break,
                Err(source) => {
                    return Some(Err(RuntimeError::Rows {
                        action: "read",
                        source,
                    }));
                }
            }
        }
        let index = self.index;
        self.index += 1;
        Some(Ok(Line {
            number: self.number,
            index,
            bytes,
        }))
    }
}

#[derive(Deserialize)]
struct Row {
    #[serde(default)]
    prompt: Value,
    response: Option<Value>,
    #[serde(default)]
    label: Value,
    #[serde(default)]
    metadata: Option<Value>,
}

/// One row, as `score` reads it.
pub(crate) fn parse_row(line: &str) -> Result<ScoreRequest, String> {
    parse(line.as_bytes())
}

fn parse(line: &[u8]) -> Result<ScoreRequest, String> {
    // A carriage return before the line's end is white space to JSON.
    let row: Row = json::object(line)?;
    let prompt = match row.prompt {
        Value::String(text) => text,
        Value::Null => String::new(),
        Value::Array(messages) => last_user_message(&messages)
            .ok_or("\"prompt\" is a list without a user message; give text, or chat messages")?,
        other => {
            return Err(format!(
                "\"prompt\" is {other}; give text, or a list of chat messages"
            ));
        }
    };
    let response = match row.response {
        Some(Value::String(text)) => text,
        Some(other) => return Err(format!("\"response\" is {other}; give text")),
        None => return Err("\"response\" is missing".into()),
    };
    let label = match row.label {
        Value::Null => None,
        Value::String(text) => Some(text),
        Value::Number(number) => Some(number.to_string()),
        other => return Err(format!("\"label\" is {other}; give text, a number or null")),
    };
    let metadata = match row.metadata {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(map)) => map,
        Some(other) => return Err(format!("\"metadata\" is {other}; give an object")),
    };
    Ok(ScoreRequest {
        prompt,
        response,
        label,
        metadata,
        finish: None,
        seed: 0,
    })
}

fn last_user_message(messages: &[Value]) -> Option<String> {
    let message = messages
        .iter()
        .rev()
        .find(|message| message["role"] == "user")?;
    message["content"].as_str().map(str::to_owned)
}
