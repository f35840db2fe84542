//! Without a GPU: this program once more, on an emulated one (`../emulator`).

use std::path::Path;
use std::process::{Command, ExitCode};

/// Set for the second time.
const MARK: &str = "SLIME_EMULATED_GPU";

/// Is this the second time?
pub(crate) fn is_here() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Run this program with the same arguments on an emulated GPU; what it cannot be built for is said in a line.
pub(crate) fn again() -> Result<ExitCode, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/emulator/build.sh");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated-gpu");
    let built = Command::new("sh")
        .args([&script, &folder])
        .output()
        .map_err(|e| format!("sh: {e}"))?;
    if !built.status.success() {
        return Err(String::from_utf8_lossy(&built.stderr).trim().to_owned());
    }
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let status = Command::new(program)
        .args(std::env::args_os().skip(1))
        .env(MARK, "1")
        .env("CUDA_HOME", &folder)
        .env("XDG_CACHE_HOME", folder.join("cache"))
        .env("LD_LIBRARY_PATH", folder.join("lib64"))
        .status()
        .map_err(|e| e.to_string())?;
    Ok(match status.success() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
