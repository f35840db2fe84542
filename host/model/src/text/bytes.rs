//! A tokenizer that needs no file: 256 bytes and a few special tokens. Token id = byte.
//!
//! It comes as the files of a normal HF directory, so a model trained with it is one.

use crate::{ModelFiles, Result};
use serde_json::{Map, Value, json};

/// Ids there are: 256 bytes and 8 special tokens.
pub const VOCAB: u32 = 264;
/// `<|endoftext|>`, also the pad token.
pub const END_OF_TEXT: u32 = 256;
/// `<|end|>`, ends a turn.
pub const END: u32 = 257;

/// Tokens from 256 on, and whether decoding may leave them out.
const SPECIAL: [(&str, bool); 8] = [
    ("<|endoftext|>", true),
    ("<|end|>", true),
    ("<|system|>", true),
    ("<|user|>", true),
    ("<|assistant|>", true),
    ("<|tool|>", true),
    ("<think>", false),
    ("</think>", false),
];

/// ChatML with one token a role, so that a turn costs two tokens beside its text.
const TEMPLATE: &str = "\
{%- if tools %}{{- '<|system|>' + (tools | tojson) + '<|end|>' }}{%- endif %}
{%- for message in messages %}
    {%- if message.role not in ['system', 'user', 'assistant', 'tool'] %}
        {{- raise_exception('unknown role ' ~ message.role) }}
    {%- endif %}
    {{- '<|' + message.role + '|>' + (message.content or '') }}
    {%- if message.tool_calls %}{{- message.tool_calls | tojson }}{%- endif %}
    {{- '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}
";

/// `tokenizer.json`, `tokenizer_config.json`, `chat_template.jinja` and `generation_config.json`.
///
/// # Errors
/// None in practice: the files are constants.
pub fn files(origin: &str) -> Result<ModelFiles> {
    let mut files = ModelFiles::new(origin);
    files.insert_json("tokenizer.json", &tokenizer());
    files.insert_json(
        "tokenizer_config.json",
        &json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|end|>",
            "pad_token": "<|endoftext|>",
            "clean_up_tokenization_spaces": false,
        }),
    );
    files.insert("chat_template.jinja", TEMPLATE);
    files.insert_json(
        "generation_config.json",
        &json!({"eos_token_id": [END, END_OF_TEXT], "pad_token_id": END_OF_TEXT}),
    );
    Ok(files)
}

fn tokenizer() -> Value {
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let vocab: Map<String, Value> = alphabet()
        .into_iter()
        .enumerate()
        .map(|(b, c)| (c.to_string(), b.into()))
        .collect();
    let added: Vec<Value> = SPECIAL
        .iter()
        .enumerate()
        .map(|(i, (content, special))| {
            json!({"id": 256 + i, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": special})
        })
        .collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": []},
    })
}

/// GPT-2's printable stand-in for each byte.
pub(crate) fn alphabet() -> Vec<char> {
    let printable = |b: u32| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let mut next = 256;
    (0..256)
        .map(|b| {
            let code = if printable(b) {
                b
            } else {
                next += 1;
                next - 1
            };
            char::from_u32(code).unwrap_or('\u{FFFD}')
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Text;
    use slime_core::Message;
    use slime_core::ports::TextCodec;

    #[test]
    fn a_token_is_a_byte_and_special_tokens_follow() {
        let text = Text::bytes().unwrap();
        let wanted: Vec<u32> = "aé\n\u{0} 😀".bytes().map(u32::from).collect();
        assert_eq!(text.encode("aé\n\u{0} 😀").unwrap(), wanted);
        assert_eq!(text.decode(&wanted, true), "aé\n\u{0} 😀");
        assert_eq!(
            text.encode("<|user|>x<|end|></think>").unwrap(),
            [259, u32::from(b'x'), END, 263]
        );
        assert_eq!(text.vocab_size(), VOCAB as usize);
        assert_eq!(text.eos_token_ids(), [END, END_OF_TEXT]);
    }

    #[test]
    fn a_turn_costs_two_tokens_beside_its_text() {
        let text = Text::bytes().unwrap();
        let messages = [Message::new("system", "s"), Message::new("user", "12+3=")];
        let render = |messages: &[Message]| text.render_chat(messages, &[], true, &Map::new());
        assert_eq!(
            text.decode(&render(&messages).unwrap(), false),
            "<|system|>s<|end|><|user|>12+3=<|end|><|assistant|>"
        );
        assert_eq!(render(&messages).unwrap().len(), 2 + 6 + 2 + 1);
        let error = render(&[Message::new("robot", "x")])
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "the chat template refused the conversation: unknown role robot (template line 4)"
        );
    }
}
