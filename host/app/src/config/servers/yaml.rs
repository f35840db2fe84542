//! YAML as a tree in which every value knows its bytes, so that what is wrong can be pointed at.
//!
//! Scalars keep the text they were written with: a flag's value is handed on as it was said, not as a number prints.
//! It refuses two keys of one name and merge keys. Read `file.rs` for what the tree must say.

use saphyr_parser::{Event, Parser, ScalarStyle, Span};
use serde_json::Value as Json;
use std::collections::HashMap;
use std::ops::Range;

/// Aliases may repeat what they name; a file of a few hundred bytes must not become gigabytes.
const MAX_NODES: usize = 10_000;

/// A value and its bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Where it is. Of a list or a mapping: its first word.
    pub span: Range<usize>,
    /// What it is.
    pub value: Value,
}

/// What a node is.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A scalar.
    Text {
        /// As written, without quotes.
        text: String,
        /// Whether it stood without quotes, and may be a number, a truth value or nothing.
        plain: bool,
    },
    /// A list.
    List(Vec<Node>),
    /// A mapping, in the order of the file.
    Map(Vec<(Key, Node)>),
}

/// A key of a mapping.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// Where it is.
    pub span: Range<usize>,
    /// Its text.
    pub name: String,
}

/// Why a text is no YAML, and where.
#[derive(Clone, Debug, PartialEq)]
pub struct Wrong {
    /// Where.
    pub span: Range<usize>,
    /// What is wrong.
    pub message: String,
}

impl Node {
    /// A truth value.
    pub fn as_bool(&self) -> Option<bool> {
        match &self.value {
            Value::Text { text, plain: true } => match text.as_str() {
                "true" | "True" | "TRUE" => Some(true),
                "false" | "False" | "FALSE" => Some(false),
                _ => None,
            },
            _ => None,
        }
    }

    /// Nothing: `null`, `~` or no text.
    pub fn is_null(&self) -> bool {
        matches!(&self.value, Value::Text { text, plain: true } if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    /// A scalar's text.
    pub fn as_text(&self) -> Option<&str> {
        match &self.value {
            Value::Text { text, .. } => Some(text),
            _ => None,
        }
    }

    /// For a message: what stands there.
    pub fn kind(&self) -> String {
        match &self.value {
            Value::Text { .. } if self.is_null() => "nothing".into(),
            Value::Text { text, .. } => format!("`{text}`"),
            Value::List(_) => "a list".into(),
            Value::Map(_) => "a mapping".into(),
        }
    }

    /// The same in JSON.
    pub fn to_json(&self) -> Json {
        match &self.value {
            Value::Text { .. } if self.is_null() => Json::Null,
            Value::Text { text, plain } => {
                let number = || serde_json::from_str::<Json>(text).ok();
                let number = number().filter(|json| *plain && json.is_number());
                let truth = self.as_bool().map(Json::Bool);
                number
                    .or(truth)
                    .unwrap_or_else(|| Json::String(text.clone()))
            }
            Value::List(items) => items.iter().map(Self::to_json).collect(),
            Value::Map(pairs) => {
                let pairs = pairs.iter();
                Json::Object(pairs.map(|(k, v)| (k.name.clone(), v.to_json())).collect())
            }
        }
    }
}

/// Read one document; an empty text is `None`.
///
/// # Errors
/// A text that is no YAML, or more than one document.
pub fn parse(text: &str) -> Result<Option<Node>, Wrong> {
    let mut reader = Reader {
        events: Parser::new_from_str(text),
        bytes: text.char_indices().map(|(at, _)| at).collect(),
        end: text.len(),
        anchors: HashMap::new(),
        num_nodes: 0,
    };
    let mut root = None;
    while let Some((event, span)) = reader.next()? {
        match event {
            Event::StreamStart
            | Event::DocumentStart(_)
            | Event::DocumentEnd
            | Event::StreamEnd
            | Event::Nothing => {}
            _ if root.is_some() => {
                return Err(Wrong {
                    span: reader.span(span),
                    message: "a second document begins here".into(),
                });
            }
            event => root = Some(reader.node(event, span)?),
        }
    }
    Ok(root)
}

struct Reader<'a> {
    events: Parser<'a, saphyr_parser::StrInput<'a>>,
    /// The byte at which each character begins.
    bytes: Vec<usize>,
    end: usize,
    anchors: HashMap<usize, Node>,
    num_nodes: usize,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<Option<(Event<'a>, Span)>, Wrong> {
        self.events.next().transpose().map_err(|error| {
            let at = self.byte(error.marker().index());
            Wrong {
                span: at..(at + 1).min(self.end),
                message: error.info().to_owned(),
            }
        })
    }

    fn byte(&self, character: usize) -> usize {
        self.bytes.get(character).copied().unwrap_or(self.end)
    }

    fn span(&self, span: Span) -> Range<usize> {
        let start = self.byte(span.start.index());
        start..self.byte(span.end.index()).max(start)
    }

    fn node(&mut self, event: Event<'a>, span: Span) -> Result<Node, Wrong> {
        let span = self.span(span);
        let wrong = |message: &str| Wrong {
            span: span.clone(),
            message: message.into(),
        };
        self.num_nodes += 1;
        if self.num_nodes > MAX_NODES {
            return Err(wrong("the file says too much: aliases of aliases?"));
        }
        let (node, anchor) = match event {
            Event::Scalar(text, style, anchor, _) => {
                let plain = style == ScalarStyle::Plain;
                let text = text.into_owned();
                (
                    Node {
                        span,
                        value: Value::Text { text, plain },
                    },
                    anchor,
                )
            }
            Event::SequenceStart(anchor, _) => {
                let items = self.items()?;
                let first = items.first().map(|item| item.span.clone());
                let span = first.unwrap_or(span);
                let value = Value::List(items);
                (Node { span, value }, anchor)
            }
            Event::MappingStart(anchor, _) => {
                let pairs = self.pairs()?;
                let first = pairs.first().map(|(key, _)| key.span.clone());
                let span = first.unwrap_or(span);
                let value = Value::Map(pairs);
                (Node { span, value }, anchor)
            }
            Event::Alias(anchor) => {
                let named = self.anchors.get(&anchor).cloned();
                let node = named.ok_or_else(|| wrong("an alias of something that is not there"))?;
                self.num_nodes += size(&node);
                return Ok(node);
            }
            _ => return Err(wrong("a value is missing here")),
        };
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn items(&mut self) -> Result<Vec<Node>, Wrong> {
        let mut items = Vec::new();
        while let Some((event, span)) = self.next()? {
            if event == Event::SequenceEnd {
                break;
            }
            items.push(self.node(event, span)?);
        }
        Ok(items)
    }

    fn pairs(&mut self) -> Result<Vec<(Key, Node)>, Wrong> {
        let mut pairs: Vec<(Key, Node)> = Vec::new();
        while let Some((event, span)) = self.next()? {
            if event == Event::MappingEnd {
                break;
            }
            let key = self.node(event, span)?;
            let span = key.span.clone();
            let Value::Text { text: name, .. } = key.value else {
                return Err(Wrong {
                    span,
                    message: "a key must be a word".into(),
                });
            };
            if pairs.iter().any(|(other, _)| other.name == name) {
                return Err(Wrong {
                    span,
                    message: format!("`{name}` is said twice"),
                });
            }
            let Some((event, at)) = self.next()? else {
                break;
            };
            let value = self.node(event, at)?;
            pairs.push((Key { span, name }, value));
        }
        Ok(pairs)
    }
}

fn size(node: &Node) -> usize {
    match &node.value {
        Value::Text { .. } => 1,
        Value::List(items) => 1 + items.iter().map(size).sum::<usize>(),
        Value::Map(pairs) => 1 + pairs.iter().map(|(_, value)| size(value)).sum::<usize>(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_knows_its_bytes_and_keeps_its_text() {
        let text = "# über\na: 0.80\nb: [x, 'y z']\nc: {d: true, e: ~}\n";
        let root = parse(text).unwrap().unwrap();
        let Value::Map(pairs) = &root.value else {
            panic!("{root:?}");
        };
        assert_eq!(&text[pairs[0].1.span.clone()], "0.80");
        assert_eq!(pairs[0].1.as_text(), Some("0.80"));
        assert_eq!(&text[pairs[1].0.span.clone()], "b");
        assert_eq!(pairs[1].1.to_json(), serde_json::json!(["x", "y z"]));
        assert_eq!(
            pairs[2].1.to_json(),
            serde_json::json!({"d": true, "e": null})
        );
        assert_eq!(
            parse("'1'").unwrap().unwrap().to_json(),
            "1",
            "quotes make a text"
        );
    }

    #[test]
    fn what_is_no_yaml_is_told_with_its_place() {
        let wrong = |text: &str| parse(text).unwrap_err();
        assert_eq!(&"a: 1\na: 2\n"[wrong("a: 1\na: 2\n").span], "a");
        assert!(wrong("a: 1\na: 2\n").message.contains("said twice"));
        assert!(wrong("a: [1, 2\nb: 3\n").span.start > 0);
        assert!(wrong("a: 1\n---\nb: 2\n").message.contains("second"));
        assert_eq!(parse("# nothing\n").unwrap(), None);
    }

    #[test]
    fn an_alias_stands_for_what_it_names_and_a_bomb_does_not_go_off() {
        let root = parse("a: &x {k: 1}\nb: *x\n").unwrap().unwrap();
        assert_eq!(
            root.to_json(),
            serde_json::json!({"a": {"k": 1}, "b": {"k": 1}})
        );
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for i in 1..9 {
            let inner = vec![format!("*a{}", i - 1); 10].join(", ");
            bomb += &format!("a{i}: &a{i} [{inner}]\n");
        }
        assert!(parse(&bomb).unwrap_err().message.contains("says too much"));
    }
}
