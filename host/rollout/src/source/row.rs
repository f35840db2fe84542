//! What a row's columns mean: slime's keys, slime's meanings.

use super::rows::Row;
use serde_json::{Map, Value};
use slime_core::{Message, Prompt, PromptBody, PromptId, Tool};

/// Which columns hold what. The names of the options are slime's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowKeys {
    /// `input_key`: a string, or a list of messages.
    pub input: String,
    /// `label_key`: the gold answer. A configured key that a row lacks is an error.
    pub label: Option<String>,
    /// `metadata_key`: an object, or one as JSON text. A row may lack it.
    pub metadata: String,
    /// `tool_key`: a list of tools, or one as JSON text. A row may lack it.
    pub tools: String,
    /// `apply_chat_template`: a bare string becomes one user message.
    pub apply_chat_template: bool,
}

impl Default for RowKeys {
    fn default() -> Self {
        Self {
            input: "input".into(),
            label: None,
            metadata: "metadata".into(),
            tools: "tools".into(),
            apply_chat_template: false,
        }
    }
}

impl RowKeys {
    /// The prompt of one row, or what is wrong with it.
    pub(super) fn prompt(&self, source: &str, row: Row) -> Result<Prompt, String> {
        let columns = row.columns;
        let need = |key: &str, option: &str| {
            columns.get(key).ok_or_else(|| {
                let have: Vec<_> = columns.keys().map(|k| format!("`{k}`")).collect();
                format!(
                    "no key `{key}`; the row has {}. Name the right one with --{option}",
                    have.join(", ")
                )
            })
        };
        let body = self.body(need(&self.input, "input-key")?)?;
        let label = match &self.label {
            Some(key) => label(need(key, "label-key")?),
            None => None,
        };
        Ok(Prompt {
            id: PromptId {
                source: source.to_owned(),
                row: row.row,
            },
            body,
            label,
            tools: columns
                .get(&self.tools)
                .map_or(Ok(Vec::new()), |v| tools(&self.tools, v))?,
            metadata: columns
                .get(&self.metadata)
                .map_or(Ok(Map::new()), |v| metadata(&self.metadata, v))?,
        })
    }

    fn body(&self, value: &Value) -> Result<PromptBody, String> {
        let key = &self.input;
        match value {
            Value::String(text) if self.apply_chat_template => Ok(PromptBody::Messages(vec![Message::new("user", text.as_str())])),
            Value::String(text) => Ok(PromptBody::Text(text.clone())),
            Value::Array(items) if items.is_empty() => Err(format!("`{key}` is an empty list; it needs at least one message")),
            Value::Array(items) => items
                .iter()
                .enumerate()
                .map(|(i, item)| {
                    serde_json::from_value(item.clone())
                        .map_err(|e| format!("`{key}` item {i} is not a message: {e}; write {{\"role\": …, \"content\": …}}"))
                })
                .collect::<Result<_, _>>()
                .map(PromptBody::Messages),
            other => Err(format!("`{key}` is {}; it must be a string or a list of messages", kind(other))),
        }
    }
}

/// A gold answer as text. Numbers and structures keep their JSON form; `null` is no answer.
fn label(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

fn metadata(key: &str, value: &Value) -> Result<Map<String, Value>, String> {
    match from_text(value) {
        Value::Null => Ok(Map::new()),
        Value::Object(map) => Ok(map),
        other => Err(format!(
            "`{key}` is {}; metadata must be an object",
            kind(&other)
        )),
    }
}

fn tools(key: &str, value: &Value) -> Result<Vec<Tool>, String> {
    match from_text(value) {
        Value::Null => Ok(Vec::new()),
        Value::Array(tools) => Ok(tools),
        other => Err(format!("`{key}` is {}; tools must be a list", kind(&other))),
    }
}

/// Parquet files often carry structures as JSON text.
fn from_text(value: &Value) -> Value {
    match value {
        Value::String(text) if text.is_empty() => Value::Null,
        Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| value.clone()),
        other => other.clone(),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
