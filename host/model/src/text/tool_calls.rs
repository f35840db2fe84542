//! Tool calls in what a policy wrote, in each family's spelling.
//!
//! | format | looks like | models |
//! |---|---|---|
//! | `hermes` | `<tool_call>{"name": …, "arguments": {…}}</tool_call>` | Qwen2.5, Qwen3, Hermes, ChatML |
//! | `llama3` | `<\|python_tag\|>{"name": …, "parameters": {…}}`, or that object alone, `;` between two | Llama 3.1 and later |
//! | `glm4` | `name`, a line break, `{…}`, as a whole turn | GLM-4 |
//! | `glm45` | `<tool_call>name<arg_key>k</arg_key><arg_value>v</arg_value>…</tool_call>` | GLM-4.5 and later |
//! | `deepseek` | `<｜tool▁call▁begin｜>function<｜tool▁sep｜>name`, a fenced JSON block, `<｜tool▁call▁end｜>` | DeepSeek-V3, R1 |
//!
//! A call that cannot be read is a result too, with the reason in words that the policy can act on: the rollout goes on
//! with that as the tool's answer. There is one parser for training, evaluation and `inspect`, so that a call is never
//! understood on one side only. It knows no tool and calls none.

use serde_json::{Map, Value};

/// A family's spelling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// JSON between tags.
    Hermes,
    /// A bare JSON object, or several with `;` between.
    Llama3,
    /// A name, then JSON on the next line.
    Glm4,
    /// A name and tagged arguments.
    Glm45,
    /// Special tokens around a fenced block.
    DeepSeek,
}

/// One call.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// Which tool.
    pub name: String,
    /// By name.
    pub arguments: Map<String, Value>,
}

/// What a turn holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parsed {
    /// The text beside the calls.
    pub content: String,
    /// Calls in order; one that cannot be read is the sentence for the policy.
    pub calls: Vec<Result<ToolCall, String>>,
}

impl Parsed {
    /// Calls that cannot be read (metric `bad_tool_json`).
    pub fn num_bad(&self) -> usize {
        self.calls.iter().filter(|call| call.is_err()).count()
    }

    /// Refuse calls of tools that are not in `known`, with a sentence that lists them.
    #[must_use]
    pub fn known(mut self, known: &[&str]) -> Self {
        for call in &mut self.calls {
            let unknown = call
                .as_ref()
                .ok()
                .filter(|c| !known.contains(&c.name.as_str()));
            if let Some(name) = unknown.map(|c| c.name.clone()) {
                *call = Err(format!(
                    "there is no tool `{name}`; the tools are: {}",
                    known.join(", ")
                ));
            }
        }
        self
    }
}

impl Format {
    /// The format that a chat template asks the policy for, where it can be told from the template.
    pub fn of_template(template: &str) -> Option<Self> {
        let has = |text: &str| template.contains(text);
        if has("<arg_key>") {
            Some(Self::Glm45)
        } else if has("tool▁call▁begin") {
            Some(Self::DeepSeek)
        } else if has("[gMASK]") || has("<|observation|>") {
            Some(Self::Glm4)
        } else if has("<tool_call>") {
            Some(Self::Hermes)
        } else if has("<|python_tag|>") || has("<|start_header_id|>") {
            Some(Self::Llama3)
        } else {
            None
        }
    }

    /// Find the calls in a turn's text, special tokens kept.
    pub fn parse(self, text: &str) -> Parsed {
        match self {
            Self::Hermes => tagged(text, "<tool_call>", "</tool_call>", json_call),
            Self::Glm45 => tagged(text, "<tool_call>", "</tool_call>", glm45_call),
            Self::DeepSeek => {
                let text = text
                    .replace("<｜tool▁calls▁begin｜>", "")
                    .replace("<｜tool▁calls▁end｜>", "");
                tagged(
                    &text,
                    "<｜tool▁call▁begin｜>",
                    "<｜tool▁call▁end｜>",
                    deepseek_call,
                )
            }
            Self::Llama3 => llama3(text),
            Self::Glm4 => glm4(text),
        }
    }
}

/// Calls between an opening and a closing tag; a tag that never closes is a call that cannot be read.
fn tagged(
    text: &str,
    open: &str,
    close: &str,
    read: fn(&str) -> Result<ToolCall, String>,
) -> Parsed {
    let mut parsed = Parsed::default();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(open) {
        parsed.content.push_str(before);
        let Some((body, after)) = after.split_once(close) else {
            let reason =
                format!("the call has no {close}: it was cut short, or the tag was forgotten");
            parsed.calls.push(Err(reason));
            rest = "";
            break;
        };
        parsed.calls.push(read(body));
        rest = after;
    }
    parsed.content.push_str(rest);
    parsed.content = parsed.content.trim().to_owned();
    parsed
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    match serde_json::from_str(text.trim()) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err("the call's JSON is not an object".into()),
        Err(e) => Err(format!("the call is not valid JSON: {e}")),
    }
}

/// `{"name": …, "arguments": …}`, or `parameters`; arguments may be JSON in a string.
fn json_call(text: &str) -> Result<ToolCall, String> {
    let mut map = object(text)?;
    let Some(Value::String(name)) = map.remove("name") else {
        return Err("the call has no `name`".into());
    };
    let arguments = map.remove("arguments").or_else(|| map.remove("parameters"));
    let arguments = match arguments {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(arguments)) => arguments,
        Some(Value::String(text)) => object(&text)?,
        Some(_) => return Err(format!("the arguments of `{name}` are not an object")),
    };
    Ok(ToolCall { name, arguments })
}

/// `name <arg_key>k</arg_key> <arg_value>v</arg_value> …`; a value that is JSON is read as JSON, else it is text.
fn glm45_call(text: &str) -> Result<ToolCall, String> {
    let (name, mut rest) = text
        .split_once("<arg_key>")
        .map_or((text, ""), |(name, _)| (name, &text[name.len()..]));
    let name = name.trim();
    if name.is_empty() || name.contains(char::is_whitespace) {
        return Err("the call does not begin with a tool's name".into());
    }
    let mut arguments = Map::new();
    while let Some((_, after)) = rest.split_once("<arg_key>") {
        let pair = after.split_once("</arg_key>").and_then(|(key, after)| {
            let (_, after) = after.split_once("<arg_value>")?;
            let (value, after) = after.split_once("</arg_value>")?;
            Some((key, value, after))
        });
        let Some((key, value, after)) = pair else {
            return Err(format!(
                "an argument of `{name}` is not <arg_key>…</arg_key><arg_value>…</arg_value>"
            ));
        };
        let value =
            serde_json::from_str(value.trim()).unwrap_or_else(|_| Value::String(value.to_owned()));
        arguments.insert(key.trim().to_owned(), value);
        rest = after;
    }
    Ok(ToolCall {
        name: name.to_owned(),
        arguments,
    })
}

fn deepseek_call(text: &str) -> Result<ToolCall, String> {
    let text = text
        .split_once("<｜tool▁sep｜>")
        .map_or(text, |(_, after)| after);
    let (name, rest) = text.split_once('\n').unwrap_or((text, ""));
    let body = rest
        .trim()
        .trim_start_matches("```json")
        .trim_start_matches("```")
        .trim_end_matches("```");
    if name.trim().is_empty() {
        return Err("the call does not begin with a tool's name".into());
    }
    Ok(ToolCall {
        name: name.trim().to_owned(),
        arguments: object(body)?,
    })
}

/// A turn that is calls as a whole, or calls after `<|python_tag|>`.
fn llama3(text: &str) -> Parsed {
    let (content, calls) = match text.split_once("<|python_tag|>") {
        Some((content, calls)) => (content, calls),
        None if text.trim_start().starts_with('{') => ("", text),
        None => (text, ""),
    };
    let calls = calls
        .trim()
        .trim_end_matches("<|eom_id|>")
        .trim_end_matches("<|eot_id|>");
    let mut parsed = Parsed {
        content: content.trim().to_owned(),
        calls: Vec::new(),
    };
    let mut rest = calls.trim();
    while !rest.is_empty() {
        let mut stream = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        match stream.next() {
            Some(Ok(value)) => {
                parsed.calls.push(json_call(&value.to_string()));
                rest = rest[stream.byte_offset()..].trim_start_matches([';', ' ', '\n']);
            }
            Some(Err(e)) => {
                parsed
                    .calls
                    .push(Err(format!("the call is not valid JSON: {e}")));
                break;
            }
            None => break,
        }
    }
    parsed
}

/// A turn whose first line is a tool's name and whose rest is its arguments.
fn glm4(text: &str) -> Parsed {
    let text = text.trim_end_matches("<|observation|>");
    let call = text.split_once('\n').filter(|(name, rest)| {
        let name = name.trim();
        !name.is_empty()
            && !name.contains(char::is_whitespace)
            && rest.trim_start().starts_with('{')
    });
    match call {
        Some((name, rest)) => Parsed {
            content: String::new(),
            calls: vec![object(rest).map(|arguments| ToolCall {
                name: name.trim().to_owned(),
                arguments,
            })],
        },
        None => Parsed {
            content: text.trim().to_owned(),
            calls: Vec::new(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const ALL: [Format; 5] = [
        Format::Hermes,
        Format::Llama3,
        Format::Glm4,
        Format::Glm45,
        Format::DeepSeek,
    ];

    /// As a family writes a call.
    fn write(format: Format, name: &str, arguments: &Value) -> String {
        match format {
            Format::Hermes => format!(
                "<tool_call>\n{}\n</tool_call>",
                json!({"name": name, "arguments": arguments})
            ),
            Format::Llama3 => format!(
                "<|python_tag|>{}",
                json!({"name": name, "parameters": arguments})
            ),
            Format::Glm4 => format!("{name}\n{arguments}<|observation|>"),
            Format::Glm45 => {
                let pairs = arguments.as_object().unwrap().iter();
                let pairs = pairs
                    .map(|(k, v)| format!("<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n"));
                format!(
                    "<tool_call>{name}\n{}</tool_call>",
                    pairs.collect::<String>()
                )
            }
            Format::DeepSeek => format!(
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
            ),
        }
    }

    #[test]
    fn each_familys_call_is_read_back() {
        let arguments = json!({"code": "print(\"a\\n\")", "n": 3, "deep": {"x": [1, null]}});
        for format in ALL {
            let parsed = format.parse(&write(format, "run", &arguments));
            assert_eq!(parsed.content, "", "{format:?}");
            let [Ok(call)] = &parsed.calls[..] else {
                panic!("{format:?}: {parsed:?}")
            };
            assert_eq!(
                (call.name.as_str(), Value::Object(call.arguments.clone())),
                ("run", arguments.clone()),
                "{format:?}"
            );
        }
    }

    #[test]
    fn two_calls_and_text_beside_them_are_told_apart() {
        for format in [Format::Hermes, Format::Glm45, Format::DeepSeek] {
            let text = format!(
                "Let me see.\n{}\n{}",
                write(format, "a", &json!({"x": 1})),
                write(format, "b", &json!({}))
            );
            let parsed = format.parse(&text);
            assert_eq!(parsed.content, "Let me see.", "{format:?}");
            let names: Vec<&str> = parsed
                .calls
                .iter()
                .map(|c| c.as_ref().unwrap().name.as_str())
                .collect();
            assert_eq!(names, ["a", "b"], "{format:?}");
        }
        let two = "{\"name\": \"a\", \"parameters\": {}}; {\"name\": \"b\", \"parameters\": {\"x\": \";\"}}<|eom_id|>";
        let names: Vec<String> = Format::Llama3
            .parse(two)
            .calls
            .into_iter()
            .map(|c| c.unwrap().name)
            .collect();
        assert_eq!(names, ["a", "b"]);
    }

    #[test]
    fn text_without_a_call_is_text() {
        for format in ALL {
            let parsed = format.parse("The answer\nis {42}.");
            assert_eq!(
                (parsed.content.as_str(), parsed.calls.len()),
                ("The answer\nis {42}.", 0),
                "{format:?}"
            );
        }
    }

    #[test]
    fn a15_json_that_breaks_off_is_an_answer_to_the_policy_and_no_end() {
        for text in [
            "<tool_call>{\"name\": \"run\", \"arguments\": {\"a\": 1,</tool_call>",
            "<tool_call>{\"name\": \"run\"",
        ] {
            let parsed = Format::Hermes.parse(text);
            assert_eq!(parsed.num_bad(), 1, "{text}");
        }
        let parsed = Format::Hermes
            .parse("<tool_call>{\"name\": \"run\", \"arguments\": \"{\\\"a\\\": 1,\"}</tool_call>");
        assert!(
            parsed.calls[0]
                .as_ref()
                .unwrap_err()
                .contains("not valid JSON")
        );
        assert_eq!(
            Format::Llama3
                .parse("<|python_tag|>{\"name\": \"run\",")
                .num_bad(),
            1
        );
        assert_eq!(Format::Glm4.parse("run\n{\"a\": 1,").num_bad(), 1);
        assert_eq!(
            Format::Glm45
                .parse("<tool_call>run<arg_key>a</arg_key></tool_call>")
                .num_bad(),
            1
        );
    }

    #[test]
    fn a16_an_unknown_name_is_refused_by_name_and_other_calls_go_on() {
        for format in [Format::Hermes, Format::Glm45, Format::DeepSeek] {
            let text = write(format, "search", &json!({})) + &write(format, "run", &json!({}));
            let parsed = format.parse(&text).known(&["run", "look"]);
            assert_eq!(
                parsed.calls[0],
                Err("there is no tool `search`; the tools are: run, look".into())
            );
            assert_eq!(parsed.calls[1].as_ref().unwrap().name, "run");
        }
    }

    proptest! {
        /// One parser serves training and evaluation, so the same bytes give the same next state, whatever they are.
        #[test]
        fn a16_any_bytes_are_read_alike_and_never_panic(text in "[{}\"a:,;<>/_|▁｜\n]{0,40}", cut in 0usize..200) {
            for format in ALL {
                let whole = write(format, "run", &json!({"a": "b"})) + &text;
                let end = whole.char_indices().map(|(i, _)| i).nth(cut).unwrap_or(whole.len());
                let parsed = format.parse(&whole[..end]);
                prop_assert_eq!(&parsed, &format.parse(&whole[..end]));
                prop_assert!(parsed.num_bad() <= parsed.calls.len());
            }
        }
    }

    #[test]
    fn the_format_is_told_from_the_template() {
        let dir = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/golden/chat/templates"
        );
        let of = |name: &str| {
            Format::of_template(&std::fs::read_to_string(format!("{dir}/{name}.jinja")).unwrap())
        };
        assert_eq!(of("qwen2_5"), Some(Format::Hermes));
        assert_eq!(of("qwen3"), Some(Format::Hermes));
        assert_eq!(of("llama3_1"), Some(Format::Llama3));
        assert_eq!(of("glm4"), Some(Format::Glm4));
        assert_eq!(of("glm4_5"), Some(Format::Glm45));
        assert_eq!(of("deepseek"), Some(Format::DeepSeek));
        assert_eq!(of("chatml"), None);
        assert_eq!(
            Format::of_template("<tool_call>{{ name }}<arg_key>"),
            Some(Format::Glm45)
        );
    }
}
