//! Tokenizer, template and end tokens of one model.

use super::{ChatTemplate, TextStream, bytes};
use crate::{Error, ModelFiles, Result};
use serde_json::{Map, Value};
use slime_core::ports::{CodecError, TextCodec};
use slime_core::{Message, Tool};
use std::path::Path;
use std::sync::Arc;
use tokenizers::{DecoderWrapper, Tokenizer};

/// Tokenizer, chat template and end tokens of one model.
pub struct Text {
    tokenizer: Arc<Tokenizer>,
    template: Option<ChatTemplate>,
    eos: Vec<u32>,
    vocab: usize,
    byte_level: bool,
}

impl Text {
    /// From a model directory.
    ///
    /// # Errors
    /// `tokenizer.json` is missing, or a file cannot be used.
    pub fn open(dir: &Path) -> Result<Self> {
        Self::new(&ModelFiles::read(dir)?)
    }

    /// The built-in tokenizer over bytes.
    ///
    /// # Errors
    /// None in practice: its files are constants.
    pub fn bytes() -> Result<Self> {
        Self::new(&bytes::files("the built-in tokenizer")?)
    }

    /// From a model's files.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn new(files: &ModelFiles) -> Result<Self> {
        let Some(json) = files.get("tokenizer.json") else {
            return Err(Error::NoTokenizer {
                origin: files.origin().into(),
            });
        };
        let mut tokenizer = Tokenizer::from_bytes(json).map_err(|e| Error::Text {
            file: files.path("tokenizer.json"),
            detail: format!("cannot be used ({e}); copy it again from where the model came from"),
        })?;
        // A tokenizer saved during training may cut or pad; a prompt must be neither.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|e| Error::Text {
            file: files.path("tokenizer.json"),
            detail: e.to_string(),
        })?;
        let vocab = tokenizer
            .get_vocab(true)
            .values()
            .max()
            .map_or(0, |id| *id as usize + 1);
        let specials = special_tokens(files)?;
        let eos = eos_token_ids(files, &specials, &tokenizer)?;
        let byte_level = matches!(tokenizer.get_decoder(), Some(DecoderWrapper::ByteLevel(_)));
        let template = ChatTemplate::find(files, specials)?;
        Ok(Self {
            tokenizer: Arc::new(tokenizer),
            template,
            eos,
            vocab,
            byte_level,
        })
    }

    /// The conversation as text, before tokenizing.
    ///
    /// # Errors
    /// As [`TextCodec::render_chat`].
    pub fn render_text(
        &self,
        messages: &[Message],
        tools: &[Tool],
        add_generation_prompt: bool,
        template_kwargs: &Map<String, Value>,
    ) -> Result<String, CodecError> {
        let template = self.template.as_ref().ok_or(CodecError::NoTemplate)?;
        template
            .render(messages, tools, add_generation_prompt, template_kwargs)
            .map_err(CodecError::Template)
    }

    /// Decode tokens as they come.
    pub fn stream(&self, skip_special_tokens: bool) -> TextStream {
        TextStream::new(self.tokenizer.clone(), self.byte_level, skip_special_tokens)
    }

    /// The id of a token given by its exact text.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    /// Refuse a tokenizer whose ids the embedding has no rows for: such an id would stop an engine.
    ///
    /// # Errors
    /// The tokenizer is that of a larger model.
    pub fn check_vocab(&self, vocab: usize) -> Result<()> {
        if self.vocab <= vocab {
            return Ok(());
        }
        Err(Error::Input(format!(
            "the tokenizer has {} ids, the model's embedding {vocab} rows: tokenizer.json belongs to another model",
            self.vocab
        )))
    }
}

impl TextCodec for Text {
    fn encode(&self, text: &str) -> Result<Vec<u32>, CodecError> {
        match self.tokenizer.encode_fast(text, false) {
            Ok(encoding) => Ok(encoding.get_ids().to_vec()),
            Err(e) => Err(CodecError::Tokenize(e.to_string())),
        }
    }

    fn decode(&self, tokens: &[u32], skip_special_tokens: bool) -> String {
        decode(&self.tokenizer, tokens, skip_special_tokens)
    }

    fn render_chat(
        &self,
        messages: &[Message],
        tools: &[Tool],
        add_generation_prompt: bool,
        template_kwargs: &Map<String, Value>,
    ) -> Result<Vec<u32>, CodecError> {
        self.encode(&self.render_text(messages, tools, add_generation_prompt, template_kwargs)?)
    }

    fn has_chat_template(&self) -> bool {
        self.template.is_some()
    }

    fn eos_token_ids(&self) -> &[u32] {
        &self.eos
    }

    fn vocab_size(&self) -> usize {
        self.vocab
    }
}

/// The decoders in use turn any bytes into text, so the error is only that of a decoder that cannot work at all.
pub(super) fn decode(tokenizer: &Tokenizer, tokens: &[u32], skip_special_tokens: bool) -> String {
    tokenizer
        .decode(tokens, skip_special_tokens)
        .unwrap_or_default()
}

/// `bos_token`, `eos_token`, … as templates see them. `special_tokens_map.json` has the last word, as in transformers.
fn special_tokens(files: &ModelFiles) -> Result<Map<String, Value>> {
    let mut tokens = Map::new();
    for file in ["tokenizer_config.json", "special_tokens_map.json"] {
        let Some(Value::Object(values)) = files.json(file)? else {
            continue;
        };
        for (key, value) in values {
            if !key.ends_with("_token") {
                continue;
            }
            // Either the text, or an added token with its text in `content`.
            if let Some(text) = value.as_str().or_else(|| value["content"].as_str()) {
                tokens.insert(key, text.into());
            }
        }
    }
    Ok(tokens)
}

/// What ends a turn: generation settings, then the tokenizer's end token, then the configuration.
fn eos_token_ids(
    files: &ModelFiles,
    specials: &Map<String, Value>,
    tokenizer: &Tokenizer,
) -> Result<Vec<u32>> {
    let mut ids = configured_eos(files, "generation_config.json")?;
    ids.extend(
        specials
            .get("eos_token")
            .and_then(Value::as_str)
            .and_then(|t| tokenizer.token_to_id(t)),
    );
    ids.extend(configured_eos(files, "config.json")?);
    let mut unique = Vec::new();
    for id in ids {
        if !unique.contains(&id) {
            unique.push(id);
        }
    }
    Ok(unique)
}

/// `eos_token_id` of a file: an id, a list of ids, or none.
fn configured_eos(files: &ModelFiles, file: &str) -> Result<Vec<u32>> {
    let Some(json) = files.json(file)? else {
        return Ok(Vec::new());
    };
    let value = &json["eos_token_id"];
    let list = value
        .as_array()
        .cloned()
        .unwrap_or_else(|| vec![value.clone()]);
    list.iter()
        .filter(|id| !id.is_null())
        .map(|id| {
            id.as_u64()
                .and_then(|id| u32::try_from(id).ok())
                .ok_or_else(|| Error::Config {
                    file: files.path(file),
                    detail: format!(
                        "eos_token_id must be a token id or a list of them, but is {value}"
                    ),
                })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn files() -> ModelFiles {
        bytes::files("DIR").expect("constants")
    }

    #[test]
    fn end_tokens_are_those_of_generation_settings_tokenizer_and_configuration() {
        let mut files = files();
        files.insert_json(
            "generation_config.json",
            &json!({"eos_token_id": [260, 256]}),
        );
        files.insert_json("config.json", &json!({"eos_token_id": 261}));
        assert_eq!(
            Text::new(&files).unwrap().eos_token_ids(),
            [260, 256, 257, 261]
        );

        files.insert_json("generation_config.json", &json!({"eos_token_id": 257}));
        files.insert_json("config.json", &json!({"eos_token_id": null}));
        assert_eq!(Text::new(&files).unwrap().eos_token_ids(), [257]);

        files.insert_json(
            "generation_config.json",
            &json!({"eos_token_id": "<|end|>"}),
        );
        assert_eq!(
            Text::new(&files).err().unwrap().to_string(),
            "DIR/generation_config.json: eos_token_id must be a token id or a list of them, but is \"<|end|>\""
        );
    }

    #[test]
    fn templates_see_special_tokens_given_as_text_or_as_added_tokens() {
        let mut files = files();
        files.insert(
            "chat_template.jinja",
            "{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}{{ sep_token is defined }}",
        );
        files.insert_json(
            "tokenizer_config.json",
            &json!({"bos_token": {"content": "<s>"}, "eos_token": "x", "pad_token": null}),
        );
        files.insert_json(
            "special_tokens_map.json",
            &json!({"eos_token": {"content": "<|end|>", "lstrip": false}}),
        );
        let text = Text::new(&files).unwrap();
        assert_eq!(
            text.render_text(&[], &[], false, &Map::new()).unwrap(),
            "<s><|end|>FalseFalse"
        );
    }

    #[test]
    fn a_model_without_a_template_says_what_to_do() {
        let mut files = ModelFiles::new("DIR");
        files.insert(
            "tokenizer.json",
            self::files().get("tokenizer.json").unwrap(),
        );
        let text = Text::new(&files).unwrap();
        assert!(!text.has_chat_template());
        let error = text.render_chat(&[], &[], true, &Map::new()).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("put chat_template.jinja beside tokenizer.json")
        );
    }

    #[test]
    fn a_damaged_tokenizer_is_named() {
        let mut files = files();
        files.insert("tokenizer.json", "{}");
        let error = Text::new(&files).err().unwrap().to_string();
        assert!(
            error.starts_with("DIR/tokenizer.json: cannot be used ("),
            "{error}"
        );
    }

    #[test]
    fn a_tokenizer_that_cuts_or_pads_is_told_not_to() {
        let mut files = files();
        let mut json = files.json("tokenizer.json").unwrap().unwrap();
        json["truncation"] =
            json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
        files.insert_json("tokenizer.json", &json);
        assert_eq!(Text::new(&files).unwrap().encode("abcd").unwrap().len(), 4);
    }

    #[test]
    fn a_tokenizer_larger_than_the_embedding_is_refused() {
        let text = Text::bytes().unwrap();
        assert!(text.check_vocab(264).is_ok());
        assert_eq!(
            text.check_vocab(256).unwrap_err().to_string(),
            "the tokenizer has 264 ids, the model's embedding 256 rows: tokenizer.json belongs to another model"
        );
    }
}
