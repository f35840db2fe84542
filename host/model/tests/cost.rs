//! Costs against what the models' authors publish. The configurations are the published ones, cut to what changes the
//! shape of the model.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use slime_model::layers::Recompute;
use slime_model::{Ffn, ModelSpec, families};

fn published(name: &str) -> ModelSpec {
    let path = format!(
        "{}/../../tests/golden/published/{name}.json",
        env!("CARGO_MANIFEST_DIR")
    );
    let json = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    families::from_config(&families::HfConfig::new(path, json).unwrap()).unwrap()
}

/// Billions, to the digits that are published.
const TOTALS: [(&str, f64, f64); 14] = [
    ("qwen3-0.6b", 0.596, 0.001),
    ("qwen3-1.7b", 1.721, 0.001),
    ("qwen3-4b", 4.022, 0.001),
    ("qwen3-8b", 8.191, 0.001),
    ("qwen3-30b-a3b", 30.53, 0.01),
    ("qwen3-235b-a22b", 235.1, 0.1),
    ("qwen2.5-0.5b", 0.494, 0.001),
    ("llama-3.1-8b", 8.030, 0.001),
    ("glm-4-9b-0414", 9.40, 0.01),
    ("glm-4-32b-0414", 32.6, 0.1),
    ("glm-4.5", 352.8, 0.1),
    ("glm-4.5-air", 106.9, 0.2),
    ("deepseek-v3", 671.0, 0.1),
    ("moonlight-16b-a3b", 15.96, 0.01),
];

#[test]
fn parameters_are_as_many_as_published() {
    for (name, billions, digits) in TOTALS {
        let total = published(name).param_counts().total as f64 / 1e9;
        assert!((total - billions).abs() <= digits, "{name}: {total}");
    }
}

#[test]
fn a_mixture_of_experts_activates_what_its_authors_say() {
    for (name, billions, digits) in [
        ("deepseek-v3", 37.0, 0.6),
        ("qwen3-30b-a3b", 3.3, 0.06),
        ("qwen3-235b-a22b", 22.0, 0.5),
    ] {
        let active = published(name).param_counts().active as f64 / 1e9;
        assert!((active - billions).abs() <= digits, "{name}: {active}");
    }
    // These authors do not count the embedding and the head.
    for (name, billions, digits) in [
        ("glm-4.5", 32.0, 0.2),
        ("glm-4.5-air", 12.0, 0.2),
        ("moonlight-16b-a3b", 2.24, 0.01),
    ] {
        let spec = published(name);
        let embeddings = 2 * (spec.vocab * spec.hidden) as u64;
        let active = (spec.param_counts().active - embeddings) as f64 / 1e9;
        assert!((active - billions).abs() <= digits, "{name}: {active}");
    }
}

#[test]
fn flops_are_those_of_the_reference_planner() {
    // GFLOP of a training token at lengths 2048, 4096, 8192, 32768.
    for (name, want) in [
        ("qwen3-0.6b", [4.28, 4.99, 6.39, 14.9]),
        ("qwen3-4b", [26.0, 27.8, 31.4, 53.1]),
        ("qwen3-30b-a3b", [20.7, 23.1, 27.9, 56.9]),
        ("llama-3.1-8b", [46.6, 48.3, 51.5, 70.8]),
        ("glm-4.5", [211.0, 225.0, 253.0, 419.0]),
    ] {
        let spec = published(name);
        for (length, want) in [2048, 4096, 8192, 32_768].into_iter().zip(want) {
            let got = spec.train_flops(length) / 1e9;
            assert!(
                (got / want - 1.0).abs() < 0.005,
                "{name} at {length}: {got}"
            );
        }
    }
}

#[test]
fn latent_attention_caches_one_row_whatever_the_number_of_heads() {
    // Key and value lie apart in the cache, each rank + rope wide.
    assert_eq!(
        published("deepseek-v3").cached_numbers(16),
        61 * 2 * (512 + 64)
    );
    assert_eq!(published("glm-4.5").cached_numbers(16), 92 * 2 * 8 * 128);
}

#[test]
fn recomputing_more_keeps_less() {
    for (name, ..) in TOTALS {
        let spec = published(name);
        let kept = [
            Recompute::None,
            Recompute::Selective,
            Recompute::Mlp,
            Recompute::Full,
        ]
        .map(|r| spec.kept(r).numbers);
        assert!(kept[0] > kept[1] && kept[2] > kept[3], "{name}: {kept:?}");
        assert_eq!(kept[3], spec.layers.len() * spec.hidden);
        let mlps = spec.layers.iter().map(|layer| match layer.ffn {
            Ffn::SwiGlu { hidden } => 2 * hidden,
            Ffn::Moe(_) => 0,
        });
        assert_eq!(kept[1] - kept[2], mlps.sum::<usize>(), "{name}");
    }
}
