//! A GGUF file's tokenizer as `tokenizer.json` and the files around it.
//!
//! Byte-level BPE only (`tokenizer.ggml.model` = `gpt2`). How text is split before merging is not in the file but
//! named in it, and a name that is not known is refused: a wrong split gives wrong ids without any other sign.

use super::metadata::Metadata;
use crate::hf::ModelFiles;
use crate::{Error, Result};
use serde_json::{Map, Value, json};

/// Token types of GGUF.
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
const UNUSED: i64 = 5;

/// Splits of Llama 3 and Qwen2, which differ in how many digits stay together.
const LLAMA3_SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2_SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// What happens to text before merging.
struct Split {
    normalizer: Value,
    pre_tokenizer: Value,
    ignore_merges: bool,
}

/// Add `tokenizer.json`, `tokenizer_config.json`, `generation_config.json` and the chat template.
pub(super) fn add_files(metadata: &Metadata, files: &mut ModelFiles) -> Result<()> {
    let model = metadata
        .text("tokenizer.ggml.model")?
        .ok_or_else(|| metadata.missing("tokenizer.ggml.model"))?;
    if model != "gpt2" {
        let cure =
            "supported: \"gpt2\" (byte-level BPE); import the model's HF directory instead".into();
        return Err(metadata.unsupported("tokenizer.ggml.model", model.into(), "tokenizers", cure));
    }
    let split = split(metadata)?;
    let key = "tokenizer.ggml.tokens";
    let tokens = metadata.texts(key)?.ok_or_else(|| metadata.missing(key))?;
    let types = metadata
        .numbers("tokenizer.ggml.token_type")?
        .unwrap_or_else(|| vec![1; tokens.len()]);
    let key = "tokenizer.ggml.merges";
    let merges = metadata.texts(key)?.ok_or_else(|| metadata.missing(key))?;
    let merges: Vec<Value> = merges
        .iter()
        .filter_map(|m| m.split_once(' '))
        .map(|(a, b)| json!([a, b]))
        .collect();

    let mut vocab = Map::new();
    let mut added = Vec::new();
    for (id, (token, kind)) in tokens.iter().zip(&types).enumerate() {
        if *kind == UNUSED {
            continue;
        }
        vocab.insert((*token).into(), id.into());
        if [CONTROL, USER_DEFINED].contains(kind) {
            added.push(json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": *kind == CONTROL}));
        }
    }
    let special = |name: &str| -> Result<Option<(usize, &str)>> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let Some(id) = metadata.count(&key)? else {
            return Ok(None);
        };
        match tokens.get(id) {
            Some(token) => Ok(Some((id, *token))),
            None => Err(Error::Config {
                file: files.origin().into(),
                detail: format!("{key} is {id}, but there are only {} tokens", tokens.len()),
            }),
        }
    };
    let bos = special("bos")?;
    let eos = [special("eos")?, special("eot")?, special("eom")?];
    let mut config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": false,
    });
    for (name, token) in [
        ("bos", bos),
        ("eos", eos[0]),
        ("unk", special("unknown")?),
        ("pad", special("padding")?),
    ] {
        if let Some((_, text)) = token {
            config[format!("{name}_token")] = text.into();
        }
    }
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let starts = metadata
        .flag("tokenizer.ggml.add_bos_token")?
        .unwrap_or(false);
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": split.normalizer, "pre_tokenizer": split.pre_tokenizer,
        "post_processor": bos.filter(|_| starts).map(|(id, token)| begins_with(id, token)),
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": split.ignore_merges, "vocab": vocab, "merges": merges},
    });
    let ends: Vec<usize> = eos.iter().flatten().map(|(id, _)| *id).collect();
    let mut generation = json!({"eos_token_id": ends});
    if let Some((id, _)) = bos {
        generation["bos_token_id"] = id.into();
    }
    files.insert("tokenizer.json", tokenizer.to_string());
    files.insert_json("tokenizer_config.json", &config);
    files.insert_json("generation_config.json", &generation);
    if let Some(template) = metadata.text("tokenizer.chat_template")? {
        files.insert("chat_template.jinja", template);
    }
    Ok(())
}

fn split(metadata: &Metadata) -> Result<Split> {
    let byte_level = |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex});
    let by = |regex: &str| {
        let split = json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
        json!({"type": "Sequence", "pretokenizers": [split, byte_level(false)]})
    };
    let key = "tokenizer.ggml.pre";
    let (normalizer, pre_tokenizer, ignore_merges) = match metadata.text(key)?.unwrap_or("default")
    {
        "default" | "gpt-2" => (Value::Null, byte_level(true), false),
        "smollm" => {
            let digits = json!({"type": "Digits", "individual_digits": true});
            (
                Value::Null,
                json!({"type": "Sequence", "pretokenizers": [digits, byte_level(true)]}),
                false,
            )
        }
        "qwen2" | "deepseek-r1-qwen" => (json!({"type": "NFC"}), by(QWEN2_SPLIT), false),
        "llama-bpe" | "llama3" | "llama-v3" => (Value::Null, by(LLAMA3_SPLIT), true),
        other => {
            let cure = "supported: \"default\", \"gpt-2\", \"smollm\", \"qwen2\", \"llama-bpe\"; import the model's HF directory instead";
            return Err(metadata.unsupported(key, other.into(), "tokenizers", cure.into()));
        }
    };
    Ok(Split {
        normalizer,
        pre_tokenizer,
        ignore_merges,
    })
}

/// A post-processor for those who ask the tokenizer to add special tokens; this program never does.
fn begins_with(id: usize, token: &str) -> Value {
    let start = |type_id: u32| json!({"SpecialToken": {"id": token, "type_id": type_id}});
    let text = |name: &str, type_id: u32| json!({"Sequence": {"id": name, "type_id": type_id}});
    json!({
        "type": "TemplateProcessing",
        "single": [start(0), text("A", 0)],
        "pair": [start(0), text("A", 0), start(1), text("B", 1)],
        "special_tokens": {token: {"id": token, "ids": [id], "tokens": [token]}},
    })
}
