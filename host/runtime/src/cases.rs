//! A plugin's own cases: what it is asked, and what it must answer. A JSON object a line.
//!
//! | asks | with | answers |
//! |---|---|---|
//! | a verifier or judge | `input`: a row of `score` | `outcome`, `reward`, `metrics`, `detail` |
//! | a generator | `prompt` (text or messages), `turns` of the policy, `room` in tokens | `responses`, `failure` |
//! | a filter, shaper or group verifier | `group`: rows with `reward` | `decision` (`keep` or the reason), `rewards`, `outcomes` |
//! | a source | `draw`: `index`, `seed`, `difficulty` | `prompt`, `label`, `metadata` |
//! | a tool | `call`: `name`, `arguments` | `answer` or `error` |
//!
//! `expected` holds the members that must be equal; other members of the answer are free.

use crate::score::parse_row;
use crate::scripted::Scripted;
use crate::{Plugin, RuntimeError};
use futures::executor::block_on;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use slime_core::ports::{Decision, GroupRequest, LiveTrajectory, ScoreRequest};
use slime_core::{Message, Outcome, Prompt, PromptBody, PromptId, Verdict};
use std::sync::Arc;

/// How one case went.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Line of the file, from 1.
    pub line: usize,
    /// What was expected and not answered: member, expected, found. Empty where the case holds.
    pub differences: Vec<(String, Value, Value)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    input: Option<Value>,
    prompt: Option<Value>,
    #[serde(default)]
    turns: Vec<String>,
    #[serde(default)]
    metadata: Map<String, Value>,
    room: Option<u32>,
    group: Option<Vec<Value>>,
    draw: Option<Draw>,
    call: Option<Call>,
    expected: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Draw {
    index: u64,
    #[serde(default)]
    seed: u64,
    #[serde(default)]
    difficulty: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    name: String,
    arguments: Value,
}

impl Plugin {
    /// Run its cases, one after the other. Blocks; call it from outside any async runtime.
    ///
    /// # Errors
    /// A line is no case, or asks for a world that the component does not export.
    pub fn run_cases(&self, text: &str) -> Result<Vec<Case>, RuntimeError> {
        let mut cases = Vec::new();
        for (index, line) in text.split('\n').enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let bad = |reason: String| RuntimeError::BadRow {
                line: index + 1,
                reason,
            };
            let row: Row = slime_core::json::object(line.as_bytes())
                .map_err(|what| bad(format!("is no case: {what}")))?;
            let expected = row.expected.clone();
            let found = self
                .answer(row, index as u64)
                .map_err(|error| match error {
                    Unanswered::Bad(reason) => bad(reason),
                    Unanswered::Refused(error) => error,
                })?;
            let differs = |(key, wanted): (String, Value)| {
                let got = found.get(&key).cloned().unwrap_or_default();
                let is_same = equal(&got, &wanted);
                (!is_same).then(|| (key, wanted, explained(got, &found)))
            };
            cases.push(Case {
                line: index + 1,
                differences: expected.into_iter().filter_map(differs).collect(),
            });
        }
        Ok(cases)
    }

    fn answer(&self, row: Row, seed: u64) -> Result<Value, Unanswered> {
        if let Some(input) = row.input {
            let item = parse_row(&input.to_string()).map_err(Unanswered::Bad)?;
            return Ok(self.scored(ScoreRequest { seed, ..item })?);
        }
        if let Some(prompt) = row.prompt {
            let start = live(prompt, row.metadata, row.turns, row.room.unwrap_or(65_536))
                .map_err(Unanswered::Bad)?;
            return Ok(self.generated(start, seed)?);
        }
        if let Some(rows) = row.group {
            let group = group(&rows, seed).map_err(Unanswered::Bad)?;
            return Ok(self.grouped(&group)?);
        }
        if let Some(draw) = row.draw {
            return Ok(self.drawn(&draw)?);
        }
        if let Some(call) = row.call {
            return Ok(self.called(call, seed)?);
        }
        let cure = "give one of input, prompt, group, draw or call";
        Err(Unanswered::Bad(format!("the case asks nothing: {cure}")))
    }

    fn scored(&self, item: ScoreRequest) -> Result<Value, RuntimeError> {
        let outcome = block_on(self.verifier()?.score(item)).outcome;
        Ok(of_outcome(&outcome))
    }

    fn generated(&self, start: Arc<Scripted>, seed: u64) -> Result<Value, RuntimeError> {
        let generator = self.generator()?;
        let start: Arc<dyn LiveTrajectory> = start;
        let done = block_on(generator.generate(start, seed));
        let text = |tokens: &[u32]| {
            let bytes: Vec<u8> = tokens
                .iter()
                .filter_map(|t| u8::try_from(*t).ok())
                .collect();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let responses: Vec<String> = done
            .trajectories
            .iter()
            .map(|t| text(&t.tokens()[t.prompt_length()..]))
            .collect();
        Ok(json!({
            "responses": responses,
            "failure": done.failure.as_ref().map(Outcome::kind),
            "detail": done.failure.as_ref().map(Outcome::detail),
        }))
    }

    fn grouped(&self, group: &GroupRequest) -> Result<Value, RuntimeError> {
        let mut found = json!({});
        if self.worlds().contains(&"filter") {
            let said = block_on(self.filter()?.decide(group.clone())).answer;
            found["decision"] = match said {
                Ok(Decision::Keep) => "keep".into(),
                Ok(Decision::Drop(reason)) => reason.into(),
                Err(outcome) => outcome.to_string().into(),
            };
        }
        if self.worlds().contains(&"shaper") {
            let said = block_on(self.shaper()?.shape(group.clone())).answer;
            found["rewards"] = match said {
                Ok(rewards) => json!(rewards),
                Err(outcome) => outcome.to_string().into(),
            };
        }
        if self.worlds().contains(&"group-verifier") {
            let (said, _) = block_on(self.group_verifier()?.score_group(group.clone()));
            found["outcomes"] = said.iter().map(Outcome::kind).collect();
            if found["rewards"].is_null() {
                found["rewards"] = json!(said.iter().map(Outcome::reward).collect::<Vec<_>>());
            }
        }
        if found.as_object().is_some_and(Map::is_empty) {
            self.filter()?;
        }
        Ok(found)
    }

    fn drawn(&self, draw: &Draw) -> Result<Value, RuntimeError> {
        let source = self.source_at(draw.difficulty)?;
        Ok(match block_on(source.draw(draw.index, draw.seed)) {
            Ok(prompt) => json!({
                "prompt": match prompt.body {
                    PromptBody::Text(text) => json!(text),
                    PromptBody::Messages(messages) => json!(messages),
                    PromptBody::Tokens(tokens) => json!(tokens),
                },
                "label": prompt.label,
                "metadata": prompt.metadata,
                "tools": prompt.tools,
            }),
            Err(error) => json!({ "error": error.to_string() }),
        })
    }

    fn called(&self, call: Call, seed: u64) -> Result<Value, RuntimeError> {
        let arguments = match call.arguments {
            Value::String(text) => text,
            other => other.to_string(),
        };
        let (answer, _) = block_on(self.tools()?.call(call.name, arguments, seed));
        Ok(match answer {
            Ok(text) => json!({ "answer": text }),
            Err(error) => json!({ "error": error.to_string() }),
        })
    }
}

enum Unanswered {
    Bad(String),
    Refused(RuntimeError),
}

impl From<RuntimeError> for Unanswered {
    fn from(error: RuntimeError) -> Self {
        Self::Refused(error)
    }
}

/// The name of a failure, with what it says of itself.
fn explained(got: Value, found: &Value) -> Value {
    let is_kind = got == found["failure"] || got == found["outcome"];
    match (&got, found["detail"].as_str()) {
        (Value::String(kind), Some(detail)) if is_kind && !detail.is_empty() => {
            format!("{kind}: {detail}").into()
        }
        _ => got,
    }
}

/// Numbers are compared as numbers: 1 and 1.0 are one.
fn equal(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter()
                    .all(|(key, a)| b.get(key).is_some_and(|b| equal(a, b)))
        }
        _ => found == wanted,
    }
}

fn of_outcome(outcome: &Outcome) -> Value {
    let metrics: Map<String, Value> = outcome
        .verdict()
        .map(|verdict| {
            let parts = verdict.metrics.iter();
            parts
                .map(|(name, value)| (name.clone(), json!(value)))
                .collect()
        })
        .unwrap_or_default();
    json!({
        "outcome": outcome.kind(),
        "reward": outcome.reward(),
        "metrics": metrics,
        "detail": outcome.detail(),
    })
}

fn live(
    prompt: Value,
    metadata: Map<String, Value>,
    turns: Vec<String>,
    room: u32,
) -> Result<Arc<Scripted>, String> {
    let body = match prompt {
        Value::String(text) => PromptBody::Text(text),
        other => PromptBody::Messages(
            serde_json::from_value::<Vec<Message>>(other)
                .map_err(|error| format!("\"prompt\" is neither text nor messages: {error}"))?,
        ),
    };
    let id = PromptId {
        source: "cases".into(),
        row: 0,
    };
    let prompt = Prompt {
        id,
        body,
        label: None,
        tools: Vec::new(),
        metadata,
    };
    Ok(Scripted::new(prompt, turns, room))
}

fn group(rows: &[Value], seed: u64) -> Result<GroupRequest, String> {
    let mut rollouts = Vec::new();
    for row in rows {
        let mut row = row.clone();
        let reward = row.as_object_mut().and_then(|row| row.remove("reward"));
        let outcome = match reward.as_ref().and_then(Value::as_f64) {
            Some(reward) => Outcome::Scored(Verdict {
                reward,
                metrics: Vec::new(),
            }),
            None => Outcome::Error("not scored".into()),
        };
        rollouts.push((Arc::new(parse_row(&row.to_string())?), outcome));
    }
    if rollouts.is_empty() {
        return Err("\"group\" is empty: a group has at least one rollout".into());
    }
    Ok(GroupRequest { rollouts, seed })
}
