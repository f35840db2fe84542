//! `sft` by the real binary on ranks of every kind, threads and processes, against itself on one rank.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod support;

use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use support::{BINARY, metric, write_experts};

const RECIPE: &str = "\
seed = 3
[model]
path = \"moe\"
[sft]
data = \"chats.jsonl\"
num_steps = 6
batch_size = 5
lr = 2e-3
lr_decay_style = \"linear\"
[train]
max_tokens_per_gpu = 64
clip_grad = 0.5
";

/// Conversations of one and two turns, of lengths that differ.
fn prepare(dir: &Path) {
    write_experts(&dir.join("moe"));
    let rows = (0..12).map(|row| {
        let sum = format!("{row} + {} = {}", row * row, row + row * row);
        let mut turns = vec![
            json!({"role": "user", "content": format!("add {row} and {}", row * row)}),
            json!({"role": "assistant", "content": sum}),
        ];
        if row % 3 == 0 {
            turns.push(json!({"role": "user", "content": "sure?"}));
            turns.push(json!({"role": "assistant", "content": "yes".repeat(1 + row % 4)}));
        }
        json!({ "messages": turns }).to_string() + "\n"
    });
    std::fs::write(dir.join("chats.jsonl"), rows.collect::<String>()).unwrap();
    std::fs::write(dir.join("sft.toml"), RECIPE).unwrap();
}

fn command(dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(BINARY);
    command.args(arguments).current_dir(dir);
    command.env_remove("RUST_LOG").env_remove("WORLD_SIZE");
    // Where ranks meet, if there are several: these tests run beside each other.
    let free = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    command.env("MASTER_PORT", port.to_string());
    command.env("XDG_CACHE_HOME", dir.join("cache"));
    command.output().unwrap()
}

fn succeeds(dir: &Path, arguments: &[&str]) -> String {
    let output = command(dir, arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {said}");
    said
}

/// Fine-tune into `dir/name` → that directory.
fn fine_tune(dir: &Path, name: &str, more: &[&str]) -> PathBuf {
    let place = format!("run.dir={name}");
    let all = [&["sft", "-c", "sft.toml", "--set", &place], more].concat();
    succeeds(dir, &all);
    dir.join(name)
}

/// What each step measured, without how long it took.
fn steps(run: &Path) -> Vec<Map<String, Value>> {
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let rows = text.lines().map(|line| {
        let row: Map<String, Value> = serde_json::from_str(line).unwrap();
        let timeless = row
            .into_iter()
            .filter(|(name, _)| name.starts_with("train/"));
        timeless.collect()
    });
    rows.collect()
}

fn weights(run: &Path) -> Vec<(String, Vec<f32>)> {
    let bytes = std::fs::read(run.join("model/model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut all: Vec<(String, Vec<f32>)> = file
        .tensors()
        .into_iter()
        .map(|(name, view)| {
            let (numbers, _) = view.data().as_chunks::<4>();
            let numbers = numbers.iter().map(|b| f32::from_le_bytes(*b)).collect();
            (name, numbers)
        })
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

/// The same keys, and numbers and weights that differ by no more than what f32 rounds in six steps.
fn equal(got: &Path, want: &Path) {
    let (rows, wanted) = (steps(got), steps(want));
    assert_eq!((rows.len(), wanted.len()), (6, 6));
    for (row, wanted) in rows.iter().zip(&wanted) {
        assert!(row.keys().eq(wanted.keys()), "{row:?} {wanted:?}");
        // How sequences are dealt to ranks is theirs.
        for (key, value) in wanted.iter().filter(|(k, _)| *k != "train/micro_batches") {
            let (a, b) = (row[key].as_f64(), value.as_f64());
            let near = match (a, b) {
                (Some(a), Some(b)) => (a - b).abs() <= 1e-4 * b.abs(),
                _ => a == b,
            };
            assert!(near, "{}: {key}: {a:?} {b:?}", got.display());
        }
    }
    for ((name, got), (other, want)) in weights(got).iter().zip(weights(want)) {
        let norm = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>();
        let gap = norm(&mut got.iter().zip(&want).map(|(a, b)| a - b));
        let size = norm(&mut want.iter().copied());
        assert_eq!(*name, other);
        assert!((gap / size).sqrt() < 1e-3, "{name}: {gap} of {size}");
    }
}

const DP2: [&str; 2] = ["--data-parallel-size", "2"];
const TP2: [&str; 2] = ["--tensor-model-parallel-size", "2"];
const PP2: [&str; 2] = ["--pipeline-model-parallel-size", "2"];
const EP2: [&str; 4] = [
    "--expert-model-parallel-size",
    "2",
    "--expert-tensor-parallel-size",
    "1",
];
const SP: [&str; 1] = ["--sequence-parallel"];

#[test]
fn fine_tuning_on_ranks_is_fine_tuning_on_one_as_threads_and_as_processes() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    prepare(dir);
    let one = fine_tune(dir, "one", &[]);
    let losses = metric(&one, "train/loss");
    assert!(losses[5] < losses[0] - 0.1, "it learns: {losses:?}");
    equal(&fine_tune(dir, "dp", &DP2), &one);
    let mixed = [&TP2[..], &SP, &PP2, &EP2].concat();
    let threads = fine_tune(dir, "mixed", &mixed);
    equal(&threads, &one);
    let launch = ["launch", "--nproc-per-node", "4", "--", BINARY];
    let sft = ["sft", "-c", "sft.toml", "--set", "run.dir=apart"];
    succeeds(dir, &[&launch[..], &sft, &mixed].concat());
    let processes = dir.join("apart");
    assert_eq!(steps(&processes), steps(&threads));
    assert!(weights(&processes) == weights(&threads));
}

#[test]
fn fine_tuning_goes_on_from_its_last_checkpoint_under_another_layout() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    prepare(dir);
    let one = fine_tune(dir, "one", &[]);
    assert!(!one.join("checkpoints").exists(), "nobody asked for them");
    let every = ["--save-interval", "2", "--set", "run.keep_checkpoints=3"];
    let begun = fine_tune(dir, "begun", &[&every[..], &DP2].concat());
    let lose = |steps: &[u64]| {
        for step in steps {
            std::fs::remove_dir_all(begun.join(format!("checkpoints/step_{step}"))).unwrap();
        }
        std::fs::remove_dir_all(begun.join("model")).unwrap();
    };
    let resume = ["sft", "--resume", "--set", "run.dir=begun"];
    // As if it had been killed in its third step, and again in its fifth.
    lose(&[4, 6]);
    let one_rank = ["--data-parallel-size", "1"];
    let said = succeeds(dir, &[&resume[..], &one_rank].concat());
    assert!(said.contains("continuing at step 2"), "{said}");
    equal(&begun, &one);
    lose(&[6]);
    let launch = ["launch", "--nproc-per-node", "2", "--", BINARY];
    let folded = [&TP2[..], &SP, &EP2].concat();
    let said = succeeds(dir, &[&launch[..], &resume, &one_rank, &folded].concat());
    assert!(said.contains("continuing at step 4"), "{said}");
    equal(&begun, &one);
    let output = command(dir, &[&resume[..], &["--set", "sft.lr=1e-3"]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("`sft.lr` is 0.001 now"), "{said}");
}

#[test]
fn the_warm_up_of_a_run_is_made_by_the_ranks_that_train_afterwards() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    prepare(dir);
    let recipe = "\
[run]
num_rollout = 1
[rollout]
batch_size = 2
n_samples_per_prompt = 4
max_response_len = 8
[algorithm]
use_kl_loss = true
";
    let recipe = format!("{RECIPE}{recipe}").replace("num_steps = 6", "num_steps = 2");
    let plugin = support::plugin();
    let plugin = plugin.to_str().unwrap();
    std::fs::write(dir.join("run.toml"), recipe).unwrap();
    let warm_up = |name: &str, before: &[&str], layout: &[&str]| {
        let place = format!("run.dir={name}");
        let run = ["run", plugin, "-c", "run.toml", "--set", &place];
        succeeds(dir, &[before, &run, layout].concat());
        let text = std::fs::read_to_string(dir.join(name).join("sft.jsonl")).unwrap();
        let loss = |line: &str| serde_json::from_str::<Value>(line).unwrap()["train/loss"].as_f64();
        let warm: Vec<f64> = text.lines().map(|line| loss(line).unwrap()).collect();
        (warm, metric(&dir.join(name), "train/kl_loss"))
    };
    let (one, _) = warm_up("one", &[], &[]);
    let layout = [&TP2[..], &SP, &EP2].concat();
    let (threads, kl) = warm_up("threads", &[], &layout);
    assert_eq!(one.len(), 2);
    for (threads, one) in threads.iter().zip(&one) {
        assert!((threads - one).abs() < 1e-4 * one, "{threads} {one}");
    }
    // The reference is the warmed-up model: before the first update there is no distance to it.
    assert!(kl[0].abs() < 1e-6, "{kl:?}");
    let launch = ["launch", "--nproc-per-node", "2", "--", BINARY];
    assert_eq!(warm_up("apart", &launch, &layout), (threads, kl));
}
