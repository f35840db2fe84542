//! Whole runs of the program in a directory of their own.

#![allow(dead_code, reason = "each test uses a part of it")]

use serde_json::{Value, json};
use slime_model::families::{self, HfConfig};
use slime_model::text::bytes;
use slime_model::{hf, init};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_slime-host");

/// `arith`'s folder.
pub(crate) fn plugin() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/arith")
}

/// A model over bytes with 8 experts of 24 columns in three of its four layers, 2 of them a token.
pub(crate) fn write_experts(dir: &Path) {
    let config = json!({
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "vocab_size": bytes::VOCAB,
        "hidden_size": 48,
        "intermediate_size": 64,
        "moe_intermediate_size": 24,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "norm_topk_prob": true,
        "mlp_only_layers": [1],
        "decoder_sparse_step": 1,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": false,
        "hidden_act": "silu",
        "attention_bias": false,
        "initializer_range": 0.1,
        "bos_token_id": null,
        "eos_token_id": bytes::END,
        "dtype": "float32",
    });
    let mut files = bytes::files("a test").unwrap();
    files.insert_json("config.json", &config);
    let spec = HfConfig::new("a test", config).and_then(|c| families::from_config(&c));
    let spec = spec.unwrap();
    hf::save_dir(dir, &spec, &files, hf::Dtype::F32, 1 << 30, |param| {
        Ok::<_, slime_model::Error>(init::fresh(&spec, param, 3))
    })
    .unwrap();
}

/// Run `arith` with `recipe` into `dir/name` → that directory.
pub(crate) fn run(dir: &Path, recipe: &str, name: &str, more: &[&str]) -> PathBuf {
    std::fs::write(dir.join("run.toml"), recipe).unwrap();
    let output = Command::new(BINARY)
        .arg("run")
        .arg(plugin())
        .args(["-c", "run.toml", "--set", &format!("run.dir={name}")])
        .args(more)
        .current_dir(dir)
        .env("XDG_CACHE_HOME", dir.join("cache"))
        .env_remove("RUST_LOG")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    dir.join(name)
}

/// One metric of every step.
pub(crate) fn metric(run: &Path, name: &str) -> Vec<f64> {
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let rows = text.lines().map(|line| {
        let row: Value = serde_json::from_str(line).unwrap();
        row[name].as_f64().unwrap()
    });
    rows.collect()
}
