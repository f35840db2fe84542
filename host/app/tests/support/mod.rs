//! Whole runs of the program in a directory of their own.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Run `arith` with `recipe` into `dir/name` → that directory.
pub(crate) fn run(dir: &Path, recipe: &str, name: &str, more: &[&str]) -> PathBuf {
    let plugin = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/arith");
    std::fs::write(dir.join("run.toml"), recipe).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_slime-host"))
        .arg("run")
        .arg(plugin)
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
