//! A GPU, or an emulated one (`kernels/tests/emulator`) for this program run once more.

use slime_kernels::cuda::Cuda;
use std::path::Path;
use std::process::Command;

/// Set for the second time.
const MARK: &str = "SLIME_EMULATED_GPU";

/// Can the test named `test` go on here? If not, it ran on an emulated GPU meanwhile, or cannot.
pub(crate) fn is_here(test: &str) -> bool {
    let Err(why) = Cuda::open(0) else {
        return true;
    };
    assert!(
        std::env::var_os(MARK).is_none(),
        "the emulated GPU does not open: {why}"
    );
    let script =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels/tests/emulator/build.sh");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated-gpu");
    let built = Command::new("sh")
        .args([&script, &folder])
        .output()
        .unwrap();
    if !built.status.success() {
        let why = String::from_utf8_lossy(&built.stderr);
        println!("skipped: {}", why.trim());
        return false;
    }
    let status = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(MARK, "1")
        .env("CUDA_HOME", &folder)
        .env("XDG_CACHE_HOME", folder.join("cache"))
        .env("LD_LIBRARY_PATH", folder.join("lib64"))
        .status()
        .unwrap();
    assert!(status.success(), "on an emulated GPU");
    false
}
