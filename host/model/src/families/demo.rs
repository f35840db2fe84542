//! The built-in model of the demo: a Llama small enough to train from nothing on a laptop, over bytes.
//!
//! It is a normal HF model in every respect: exported, transformers loads it. Its tokenizer is [`crate::text::bytes`].

use super::HfConfig;
use crate::spec::ModelSpec;
use crate::text::bytes;
use crate::{ModelFiles, Result};
use serde_json::{Value, json};

/// Its `config.json`.
pub fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": bytes::VOCAB,
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": true,
        "hidden_act": "silu",
        "attention_bias": false,
        "mlp_bias": false,
        "initializer_range": 0.02,
        "bos_token_id": null,
        "eos_token_id": bytes::END,
        "pad_token_id": bytes::END_OF_TEXT,
        "dtype": "float32",
        "torch_dtype": "float32",
        "use_cache": true,
    })
}

/// What it is.
#[allow(clippy::missing_panics_doc, reason = "a constant that a test parses")]
pub fn spec() -> ModelSpec {
    HfConfig::new("demo", config())
        .and_then(|c| super::from_config(&c))
        .expect("the built-in configuration is valid")
}

/// Every file of its directory but the weights.
///
/// # Errors
/// None in practice: the files are constants.
pub fn files() -> Result<ModelFiles> {
    let mut files = bytes::files("the built-in model")?;
    files.insert_json("config.json", &config());
    Ok(files)
}
