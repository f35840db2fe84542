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
