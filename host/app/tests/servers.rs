//! Runs over SGLang servers that a `--sglang-config` file lays out: the real ones, on a CPU.
//!
//! ```console
//! $ SLIME_SGLANG='DIR/cpu/bin/python DIR/sgl_cpu_launch.py' SLIME_MODEL=HF cargo test --workspace --test servers -- --ignored --nocapture
//! ```
//! `SLIME_SGLANG` is what launches a server, by absolute paths; `SLIME_MODEL` a small HF directory. The pair of prefill and decode
//! servers also needs `mooncake-transfer-engine-non-cuda`, installed or in `PYTHONPATH`, and `tests/servers/pair_on_cpu.py` before
//! the launcher.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "these are tests")]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Flags of a server without a GPU.
const ON_A_CPU: &str = "--sglang-device cpu --sglang-dtype float32 --sglang-attention-backend torch_native --sglang-sampling-backend pytorch --sglang-max-total-tokens 4096 --sglang-mem-fraction-static 0.3 --sglang-sleep-on-idle";
/// A step as short as steps are, with a check of log-probs before it.
const ONE_STEP: &str = "--num-rollout 1 --rollout-batch-size 2 --n-samples-per-prompt 2 --rollout-max-response-len 8 --global-batch-size 4 --set run.dir=run";

/// A run of one step over the servers of `yaml`: what it told the person, and its directory.
fn run(dir: &Path, yaml: &str) -> (String, PathBuf) {
    let wanted = |name| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
    let words: Vec<String> = wanted("SLIME_SGLANG")
        .split(' ')
        .map(str::to_owned)
        .collect();
    std::fs::write(dir.join("servers.yaml"), yaml).unwrap();
    let plugin = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/arith");
    let output = Command::new(env!("CARGO_BIN_EXE_slime-host"))
        .arg("run")
        .arg(slime_runtime::build_plugin(&plugin).unwrap())
        .args(["--hf-checkpoint", &wanted("SLIME_MODEL")])
        .args(["--sglang-config", "servers.yaml", "--rollout-num-gpus", "2"])
        .args(["--set", &format!("rollout.engine_command={words:?}")])
        .args(ONE_STEP.split(' '))
        .args(ON_A_CPU.split(' '))
        .current_dir(dir)
        // Keys and values travel by TCP where there is no RDMA.
        .env("MC_FORCE_TCP", "1")
        .env("OMP_NUM_THREADS", "1")
        .env_remove("RUST_LOG")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    println!("{told}");
    assert!(output.status.success(), "{told}");
    (told, dir.join("run"))
}

fn row(run: &Path) -> Value {
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    serde_json::from_str(text.lines().next().unwrap()).unwrap()
}

fn log(run: &Path, server: &str) -> String {
    std::fs::read_to_string(run.join(format!("servers/{server}.log"))).unwrap()
}

/// The mean difference of log-probs that was told of each server.
fn gaps(told: &str) -> Vec<f64> {
    let lines = told
        .lines()
        .filter(|line| line.contains("log-probs differ by"));
    let gap = |line: &str| {
        line.split("differ by ")
            .nth(1)?
            .split(' ')
            .next()?
            .parse()
            .ok()
    };
    lines.filter_map(gap).collect()
}

#[test]
#[ignore = "needs a real SGLang: SLIME_SGLANG and SLIME_MODEL"]
fn two_groups_of_real_servers_have_their_own_flags_and_serve_one_run() {
    let dir = tempfile::tempdir().unwrap();
    let yaml = "\
sglang:
  - name: actor
    overrides: {max_running_requests: 8}
    server_groups:
      - {worker_type: regular, num_gpus: 1}
      - {worker_type: regular, num_gpus: 1, overrides: {max_running_requests: 3, random_seed: 7}}
";
    let (told, run) = run(dir.path(), yaml);
    let (first, second) = (log(&run, "actor-0"), log(&run, "actor-1"));
    // What it made of its command line is the first thing a server says.
    assert!(first.contains("'max_running_requests': 8,") && !first.contains("'random_seed': 7,"));
    assert!(second.contains("'max_running_requests': 3,") && second.contains("'random_seed': 7,"));
    let gaps = gaps(&told);
    assert!(
        gaps.len() == 2 && gaps.iter().all(|gap| *gap < 1e-3),
        "{gaps:?}"
    );
    assert_eq!(row(&run)["rollout/engines_serving"], 2.0);
}

#[test]
#[ignore = "needs a real SGLang with mooncake: SLIME_SGLANG and SLIME_MODEL"]
fn a_real_prefill_and_a_real_decode_server_sample_what_the_trainer_would() {
    let dir = tempfile::tempdir().unwrap();
    let yaml = "\
sglang:
  - name: actor
    overrides: {disaggregation_transfer_backend: mooncake, max_running_requests: 8}
    server_groups:
      - {worker_type: prefill, num_gpus: 1}
      # The default backup for retracted requests wants CUDA's page-locked memory.
      - {worker_type: decode, num_gpus: 1, overrides: {disaggregation_decode_retraction_backup: cpu_tensor}}
";
    let (told, run) = run(dir.path(), yaml);
    let (prefill, decode) = (log(&run, "actor-prefill-0"), log(&run, "actor-decode-0"));
    assert!(prefill.contains("'disaggregation_mode': 'prefill'"));
    assert!(decode.contains("'disaggregation_mode': 'decode'"));
    let gaps = gaps(&told);
    assert!(gaps.len() == 1 && gaps[0] < 1e-3, "{gaps:?}");
    let row = row(&run);
    assert_eq!(
        row["rollout/engines_serving"], 2.0,
        "both halves have the weights"
    );
    assert_eq!(row["pool/num_unproven_tokens"], 0.0);
}
