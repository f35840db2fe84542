//! A run whose engine is handed tensors, beside the same run whose engine reads directories.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod support;

use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use support::metric;

const RECIPE: &str = "\
[model]
builtin = \"tiny\"
[run]
num_rollout = 2
[rollout]
batch_size = 2
n_samples_per_prompt = 8
max_response_len = 24
[train]
global_batch_size = 16
lr = 1e-3
[sft]
num_steps = 10
batch_size = 16
lr = 2e-3
";

fn run(dir: &Path, name: &str, more: &[&str]) -> PathBuf {
    support::run(dir, RECIPE, name, more)
}

/// What a step did, without how long it took.
fn steps(run: &Path) -> Vec<Map<String, Value>> {
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let rows = text.lines().map(|line| {
        let row: Map<String, Value> = serde_json::from_str(line).unwrap();
        let is_timeless = |name: &str| {
            name.starts_with("train/") || name == "rollout/reward" || name == "rollout/step"
        };
        row.into_iter()
            .filter(|(name, _)| is_timeless(name))
            .collect()
    });
    rows.collect()
}

#[test]
fn two_steps_of_a_run_are_the_same_whether_weights_pass_through_a_directory_or_not() {
    let dir = tempfile::tempdir().unwrap();
    let by_hand = run(dir.path(), "by-hand", &[]);
    let asked = ["--set", "rollout.update_weight_transport=disk"];
    let by_disk = run(dir.path(), "by-disk", &asked);
    let (hand, disk) = (steps(&by_hand), steps(&by_disk));
    assert_eq!(hand.len(), 2);
    assert!(hand[0].contains_key("train/loss") && hand[0].contains_key("rollout/reward"));
    assert_eq!(hand, disk);
    let model = |run: &Path| std::fs::read(run.join("model/model.safetensors")).unwrap();
    assert!(
        model(&by_hand) == model(&by_disk),
        "the trained weights differ"
    );
    assert!(
        !by_hand.join("weights").exists(),
        "nobody asked for a directory"
    );
    assert!(by_disk.join("weights").exists());
    let bytes = "perf/update_weights_bytes";
    assert_eq!(metric(&by_hand, bytes), metric(&by_disk, bytes));
}
