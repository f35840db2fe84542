//! Bad model directories: one clear error each, naming what is wrong and the cure.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use serde_json::{Value, json};
use slime_model::{Error, HfDir, ModelFiles, families, text::Text};
use std::path::{Path, PathBuf};

fn golden(model: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden/models")
        .join(model)
}

fn copy(model: &str, files: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in files {
        std::fs::copy(golden(model).join(file), dir.path().join(file)).unwrap();
    }
    dir
}

fn qwen3() -> tempfile::TempDir {
    copy("qwen3-tiny", &["config.json", "model.safetensors"])
}

/// Opening and loading, the directory's own path left out of the message.
fn error_of(dir: &Path) -> String {
    let load = || -> Result<(), Error> {
        let model = HfDir::open(dir)?;
        model.weights.load_params(&model.spec, |_, _| Ok(()))
    };
    load()
        .unwrap_err()
        .to_string()
        .replace(&dir.display().to_string(), "DIR")
}

fn edit_config(dir: &Path, edit: impl Fn(&mut Value)) {
    let path = dir.join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    edit(&mut config);
    std::fs::write(path, config.to_string()).unwrap();
}

fn config_error(edit: impl Fn(&mut Value)) -> String {
    let dir = qwen3();
    edit_config(dir.path(), edit);
    error_of(dir.path())
}

#[test]
fn unsupported_configurations_are_refused_by_name() {
    let with = |key: &'static str, value: Value| config_error(move |c| c[key] = value.clone());
    assert_eq!(
        with("model_type", "mixtral".into()),
        "DIR/config.json: model_type \"mixtral\" is not supported; supported are: llama, qwen2, qwen3, glm4, \
         qwen3_moe, glm4_moe, deepseek_v3, glm4_moe_lite, glm_moe_dsa, qwen3_next, qwen3_5_text, qwen3_5_moe_text, qwen3_5, qwen3_5_moe"
    );
    assert_eq!(
        with("hidden_act", "gelu".into()),
        "DIR/config.json: hidden_act = \"gelu\" is not supported for qwen3; supported: \"silu\""
    );
    assert_eq!(
        with(
            "rope_parameters",
            json!({"rope_type": "longrope", "factor": 4.0, "rope_theta": 1e6})
        ),
        "DIR/config.json: rope_parameters.rope_type = \"longrope\" is not supported for qwen3; supported: \"default\", \"llama3\", \"yarn\""
    );
    assert_eq!(
        config_error(|c| {
            c["use_sliding_window"] = true.into();
            c["sliding_window"] = 4096.into();
        }),
        "DIR/config.json: sliding_window = 4096 is not supported for qwen3; attention windows are not implemented; \
         set use_sliding_window to false if the sequences are shorter"
    );
    assert_eq!(
        with(
            "layer_types",
            json!(["full_attention", "sliding_attention"])
        ),
        "DIR/config.json: layer_types = [\"full_attention\",\"sliding_attention\"] is not supported for qwen3; \
         supported: \"full_attention\" in every layer"
    );
    assert_eq!(
        with("attention_bias", true.into()),
        "DIR/config.json: attention_bias = true is not supported for qwen3; supported: false"
    );
    assert!(
        with("quantization_config", json!({"bits": 4}))
            .ends_with("supported: fp8 in blocks of 128 x 128. Give the unquantised model otherwise: training needs its full weights")
    );
}

#[test]
fn broken_configurations_name_the_key() {
    let with = |key: &'static str, value: Value| config_error(move |c| c[key] = value.clone());
    assert_eq!(
        with("hidden_size", Value::Null),
        "DIR/config.json: hidden_size is missing"
    );
    assert_eq!(
        with("hidden_size", "64".into()),
        "DIR/config.json: hidden_size must be a whole number, but is \"64\""
    );
    assert_eq!(
        with("num_key_value_heads", 3.into()),
        "DIR/config.json: num_attention_heads 4 is not a multiple of num_key_value_heads 3"
    );
    assert_eq!(
        with("head_dim", 7.into()),
        "DIR/config.json: head_dim 7 is not even and positive, so its dimensions cannot rotate in pairs"
    );
    let dir = qwen3();
    std::fs::write(dir.path().join("config.json"), "{\"a\": ").unwrap();
    assert_eq!(
        error_of(dir.path()),
        "DIR/config.json: is not valid JSON: EOF while parsing a value at line 1 column 6"
    );
}

#[test]
fn a_directory_without_its_files_says_what_belongs_there() {
    let dir = copy("qwen3-tiny", &["model.safetensors"]);
    assert_eq!(
        error_of(dir.path()),
        "DIR/config.json: is missing; a model directory holds config.json, tokenizer.json and *.safetensors"
    );
    assert_eq!(
        error_of(&dir.path().join("nowhere")),
        "DIR: is not a directory; give the path of a model directory with config.json in it"
    );
    let dir = copy("qwen3-tiny", &["config.json"]);
    assert_eq!(
        error_of(dir.path()),
        "DIR: holds no *.safetensors; a model directory has model.safetensors or its shards"
    );
    std::fs::write(dir.path().join("pytorch_model.bin"), "").unwrap();
    assert_eq!(
        error_of(dir.path()),
        "DIR: holds no *.safetensors, but pytorch_model.bin; write them with transformers: \
         AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW_DIR)"
    );
}

#[test]
fn weights_of_another_shape_are_listed_with_both_shapes_and_the_file() {
    let dir = qwen3();
    edit_config(dir.path(), |c| c["intermediate_size"] = 48.into());
    assert_eq!(
        error_of(dir.path()),
        "DIR: the weights do not fit the model:\
         \n  model.layers.0.mlp.down_proj.weight: expected [64, 48], found [64, 32] in model.safetensors\
         \n  model.layers.0.mlp.gate_proj.weight: expected [48, 64], found [32, 64] in model.safetensors\
         \n  model.layers.0.mlp.up_proj.weight: expected [48, 64], found [32, 64] in model.safetensors\
         \n  model.layers.1.mlp.down_proj.weight: expected [64, 48], found [64, 32] in model.safetensors\
         \n  model.layers.1.mlp.gate_proj.weight: expected [48, 64], found [32, 64] in model.safetensors\
         \n  model.layers.1.mlp.up_proj.weight: expected [48, 64], found [32, 64] in model.safetensors"
    );
}

#[test]
fn missing_and_extra_tensors_are_listed_together() {
    let dir = qwen3();
    edit_config(dir.path(), |c| {
        c["model_type"] = "qwen2".into();
        c["num_hidden_layers"] = 1.into();
    });
    let error = error_of(dir.path());
    assert!(
        error.contains("\n  model.layers.0.self_attn.k_proj.bias is missing; expected [48]"),
        "{error}"
    );
    assert!(error.contains("\n  model.layers.0.self_attn.k_norm.weight [24] in model.safetensors is not part of the model"), "{error}");
    assert!(error.contains("\n  … and 4 more"), "{error}");

    let dir = copy("llama-tiny-tied", &["config.json", "model.safetensors"]);
    edit_config(dir.path(), |c| c["tie_word_embeddings"] = false.into());
    assert_eq!(
        error_of(dir.path()),
        "DIR: the weights do not fit the model:\n  lm_head.weight is missing; expected [97, 32]"
    );
}

#[test]
fn a_stored_head_beside_tied_embeddings_must_be_the_embedding() {
    let dir = qwen3();
    edit_config(dir.path(), |c| c["tie_word_embeddings"] = true.into());
    assert_eq!(
        error_of(dir.path()),
        "DIR: the weights do not fit the model:\n  lm_head.weight differs from model.embed_tokens.weight, \
         but config.json says tie_word_embeddings = true; set it to false"
    );
}

#[test]
fn truncated_and_damaged_weight_files_say_so() {
    let dir = qwen3();
    let path = dir.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let len = bytes.len();
    let with = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        error_of(dir.path()).replace(
            "DIR: the weights do not fit the model:\n  model.safetensors: ",
            "",
        )
    };
    assert_eq!(
        with(&bytes[..len - 100]),
        format!(
            "has {} bytes, but its header describes {len}: truncated; copy it again",
            len - 100
        )
    );
    assert!(with(&bytes[..100]).starts_with("has 100 bytes, but its header alone would take "));
    assert_eq!(
        with(&bytes[..5]),
        "is too short to be a safetensors file; copy it again"
    );
    let mut damaged = bytes.clone();
    damaged[9] = b'}';
    assert!(with(&damaged).starts_with("its safetensors header is damaged ("));
    assert!(
        with(b"version https://git-lfs.github.com/spec/v1")
            .contains("truncated, or not safetensors")
    );
}

#[test]
fn a_missing_shard_is_named() {
    let dir = copy(
        "llama3-tiny",
        &[
            "config.json",
            "model.safetensors.index.json",
            "model-00001-of-00002.safetensors",
        ],
    );
    assert_eq!(
        error_of(dir.path()),
        "DIR: the weights do not fit the model:\n  model-00002-of-00002.safetensors: is listed in \
         model.safetensors.index.json, but missing; copy it beside the others"
    );
}

#[test]
fn a_missing_tokenizer_names_the_cure() {
    let dir = qwen3();
    let error = Text::open(dir.path())
        .err()
        .unwrap()
        .to_string()
        .replace(&dir.path().display().to_string(), "DIR");
    assert_eq!(
        error,
        "DIR: tokenizer.json is missing; copy it from the model this one was made from, or write it with \
         transformers: AutoTokenizer.from_pretrained(MODEL).save_pretrained(DIR)"
    );
}

#[test]
fn saving_over_something_that_is_no_model_is_refused() {
    let source = qwen3();
    let target = tempfile::tempdir().unwrap();
    std::fs::write(target.path().join("thesis.tex"), "").unwrap();
    let model = HfDir::open(source.path()).unwrap();
    let error = slime_model::hf::save_weights(
        target.path(),
        &model.spec,
        slime_model::Dtype::F32,
        1 << 30,
        |p| Ok::<_, Error>(vec![0.0; p.len()]),
    )
    .unwrap_err()
    .to_string()
    .replace(&target.path().display().to_string(), "DIR");
    assert_eq!(
        error,
        "DIR: holds thesis.tex, which saving a model would delete; choose another directory"
    );
    assert!(target.path().join("thesis.tex").exists());
}

#[test]
fn a_weight_that_f16_cannot_hold_is_refused() {
    let source = qwen3();
    let model = HfDir::open(source.path()).unwrap();
    let target = source.path().join("f16");
    let error = slime_model::hf::save_weights(
        &target,
        &model.spec,
        slime_model::Dtype::F16,
        1 << 30,
        |p| Ok::<_, Error>(vec![1e5; p.len()]),
    )
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "model.embed_tokens.weight: 100000 does not fit F16; save as bf16 or f32"
    );
}

#[test]
fn the_tiny_configuration_of_every_family_is_valid() {
    for family in families::ALL {
        let mut files = ModelFiles::new("tiny");
        files.insert_json("config.json", &family.tiny_config());
        let spec = files.spec().unwrap();
        assert_eq!(spec.family, family);
        assert!(spec.num_params() < 100_000);
    }
}
