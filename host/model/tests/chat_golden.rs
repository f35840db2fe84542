//! Chat templates and ids against transformers (tests/golden/chat).
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use serde_json::{Map, Value};
use slime_core::Message;
use slime_core::ports::TextCodec;
use slime_model::{ModelFiles, text::Text};
use std::path::PathBuf;

fn golden() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/chat")
}

fn json(name: &str) -> Vec<Value> {
    serde_json::from_slice(&std::fs::read(golden().join(name)).unwrap()).unwrap()
}

fn text_with(template: &str) -> Text {
    let mut files = ModelFiles::read(&golden().join("tokenizer")).unwrap();
    files.insert(
        "chat_template.jinja",
        std::fs::read(golden().join(format!("templates/{template}.jinja"))).unwrap(),
    );
    Text::new(&files).unwrap()
}

struct Conversation {
    messages: Vec<Message>,
    tools: Vec<Value>,
    add_generation_prompt: bool,
    variables: Map<String, Value>,
}

fn conversation(json: &Value) -> Conversation {
    Conversation {
        messages: serde_json::from_value(json["messages"].clone()).unwrap(),
        tools: json["tools"].as_array().cloned().unwrap_or_default(),
        add_generation_prompt: json["add_generation_prompt"].as_bool().unwrap(),
        variables: json["variables"].as_object().cloned().unwrap_or_default(),
    }
}

#[test]
fn every_template_renders_every_conversation_to_the_text_and_ids_of_transformers() {
    let conversations = json("conversations.json");
    let mut failures = Vec::new();
    let expected = json("expected.json");
    assert_eq!(expected.len(), 210);
    for row in &expected {
        let text = text_with(row["template"].as_str().unwrap());
        let entry = &conversations[row["conversation"].as_u64().unwrap() as usize];
        let c = conversation(entry);
        let rendered =
            text.render_text(&c.messages, &c.tools, c.add_generation_prompt, &c.variables);
        let ids = text.render_chat(&c.messages, &c.tools, c.add_generation_prompt, &c.variables);
        let same = match &row["text"] {
            Value::Null => rendered.is_err(),
            wanted => {
                rendered.as_deref().ok() == wanted.as_str()
                    && serde_json::to_value(ids.unwrap_or_default()).unwrap() == row["ids"]
            }
        };
        if !same {
            failures.push(format!(
                "{} / {}:\n  {:?}\n  {rendered:?}",
                row["template"], entry["name"], row["text"]
            ));
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {} differ:\n{}",
        failures.len(),
        expected.len(),
        failures.join("\n")
    );
}

#[test]
fn decoding_gives_back_what_was_encoded() {
    let text = text_with("chatml");
    for row in json("expected.json")
        .iter()
        .filter(|row| !row["text"].is_null())
    {
        let wanted = row["text"].as_str().unwrap();
        let ids = text.encode(wanted).unwrap();
        // The tokenizer composes characters (NFC), so compare what is encoded again.
        assert_eq!(text.encode(&text.decode(&ids, false)).unwrap(), ids);
        let mut stream = text.stream(false);
        let streamed: String = ids.iter().map(|id| stream.push(*id)).collect();
        assert_eq!(streamed + &stream.finish(), text.decode(&ids, false));
    }
}

#[test]
fn smollm2_ids_are_those_of_transformers_where_the_model_is_on_disk() {
    let Some(dir) = std::env::var_os("SLIME_SMOLLM2") else {
        println!("skipped: SLIME_SMOLLM2 does not name the HF directory of SmolLM2-135M-Instruct");
        return;
    };
    let text = Text::open(dir.as_ref()).unwrap();
    let conversations = json("conversations.json");
    for row in json("smollm2.json") {
        let entry = &conversations[row["conversation"].as_u64().unwrap() as usize];
        let c = conversation(entry);
        let ids = text.render_chat(&c.messages, &c.tools, c.add_generation_prompt, &c.variables);
        assert_eq!(
            serde_json::to_value(ids.ok()).unwrap(),
            row["ids"],
            "{}",
            entry["name"]
        );
    }
    assert_eq!(text.eos_token_ids(), [2]);
}
