//! A full disk: a test run once more in a process whose files may not grow beyond a few kilobytes.

use std::path::Path;
use std::process::Command;

/// Whether the ignored test of this name, told of `dir`, passes there.
pub(crate) fn passes_on_a_full_disk(test: &str, dir: &Path) -> bool {
    let again = "trap '' XFSZ; ulimit -f 8; exec \"$0\" --ignored --exact \"$1\"";
    let outcome = Command::new("sh")
        .args(["-c", again])
        .arg(std::env::current_exe().unwrap())
        .arg(test)
        .env("CHECKPOINT_DIR", dir)
        .output()
        .unwrap();
    // No test of that name would be no failure.
    outcome.status.success() && String::from_utf8_lossy(&outcome.stdout).contains("1 passed")
}
