//! The table of families in docs/reference/families.md, made from what the tests run on.
//!
//! Every family has to have a golden model, and every golden model is in the table with its size. `SLIME_BLESS=1`
//! writes the file anew.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use slime_model::{Attention, Ffn, HfDir, ModelSpec, families};
use std::fmt::Write;
use std::path::{Path, PathBuf};

const HEAD: &str = "\
# Model families

Generated from the tests (`SLIME_BLESS=1 cargo test -p slime-model --test family_table`); do not edit.

Each row is a model with random weights that transformers made (`tests/golden/models/make.py`). On every one of them the
tests compare, with transformers in float64: logits, log-probs and entropies (f64 to 1e-9, f32 to 2e-6), logits at
positions up to 4095 (f32 to 1e-4), the loss and every parameter's gradient of a fine-tuning and of a GRPO step (f64 to
1e-7, f32 to 1e-5). Besides: gradients against finite differences in f64, packed sequences against separate ones and
recomputation against none (bit by bit), rows served through the paged cache against a full forward, and an export that
is the imported bytes. `python tests/golden/check_family.py FAMILY --seed N` does the same for a configuration that
nobody has seen.

**No family was checked with its published weights at these sizes here**; SmolLM2-135M (a Llama) is the largest model
whose published weights were (`docs/book/smollm2.md`).

";

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn golden_models() -> Vec<(String, ModelSpec)> {
    let mut names: Vec<String> = std::fs::read_dir(root().join("tests/golden/models"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("golden.json").is_file())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    let spec = |name: &String| {
        let dir = root().join("tests/golden/models").join(name);
        for file in ["long.json", "grads.safetensors"] {
            assert!(dir.join(file).is_file(), "{name} lacks {file}");
        }
        HfDir::open(&dir).unwrap().spec
    };
    let specs: Vec<ModelSpec> = names.iter().map(spec).collect();
    names.into_iter().zip(specs).collect()
}

/// What its layers are made of.
fn parts(spec: &ModelSpec) -> String {
    let mut parts: Vec<&str> = Vec::new();
    let mut has = |part: &'static str, yes: bool| {
        if yes && !parts.contains(&part) {
            parts.push(part);
        }
    };
    for layer in &spec.layers {
        match &layer.attn {
            Attention::Grouped(attn) => {
                has("grouped queries", true);
                has("qkv bias", attn.qkv_bias);
                has("qk norm", attn.qk_norm);
                has("output gate", attn.gated);
            }
            Attention::Latent(attn) => {
                has("latent attention", true);
                has("query bottleneck", attn.query_rank.is_some());
            }
            Attention::Delta(_) => has("gated delta net", true),
        }
        has("sandwich norms", layer.sandwich);
        if let Ffn::Moe(moe) = &layer.ffn {
            has("experts", true);
            has("expert groups", moe.routing.groups.is_some());
            has("router bias", moe.routing.bias);
            has("shared expert", moe.shared.is_some());
        }
    }
    has("norms around one", spec.norm_plus_one);
    has(
        "scaled rope",
        spec.rope.scaling != slime_model::RopeScaling::None,
    );
    has("tied head", spec.tied);
    parts.join(", ")
}

fn table() -> String {
    let models = golden_models();
    let mut text = String::from(HEAD);
    text.push_str(
        "| family | transformers' class | golden model | layers × width | parameters | made of |\n",
    );
    text.push_str("|---|---|---|---|---|---|\n");
    for family in families::ALL {
        let own: Vec<_> = models
            .iter()
            .filter(|(_, spec)| spec.family.model_type == family.model_type)
            .collect();
        assert!(!own.is_empty(), "{} has no golden model", family.model_type);
        for (name, spec) in own {
            let (layers, hidden, params) = (spec.layers.len(), spec.hidden, spec.num_params());
            let (model_type, class) = (family.model_type, family.architecture);
            writeln!(
                text,
                "| `{model_type}` | `{class}` | `{name}` | {layers} × {hidden} | {params} | {} |",
                parts(spec)
            )
            .unwrap();
        }
    }
    text
}

#[test]
fn the_table_of_families_is_what_the_tests_run_on() {
    let path: PathBuf = root().join("docs/reference/families.md");
    let table = table();
    if std::env::var_os("SLIME_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().map_or(Path::new("."), |p| p)).unwrap();
        std::fs::write(&path, &table).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == table,
        "docs/reference/families.md is not what the tests run on; run it with SLIME_BLESS=1"
    );
}

#[test]
fn every_familys_tiny_configuration_is_of_that_family() {
    for family in families::ALL {
        let config = families::HfConfig::new("tiny", family.tiny_config()).unwrap();
        let spec = families::from_config(&config).unwrap();
        assert_eq!(spec.family.model_type, family.model_type);
        assert_eq!(config.text("model_type").unwrap(), family.model_type);
        assert!(family.tiny_config()["architectures"][0] == family.architecture);
        assert!(spec.num_params() < 60_000, "{}", family.model_type);
    }
}
