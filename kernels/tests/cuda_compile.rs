//! The compile gate: every kernel, for every architecture we name, with the compiler that users have. No GPU needed.
#![allow(clippy::print_stdout, reason = "a skipped test says why")]

use slime_kernels::cuda::{library, nvrtc, sources};

#[test]
fn every_kernel_compiles_for_every_architecture() {
    if library::discover()
        .iter()
        .any(|found| found.name == "nvrtc" && found.path.is_none())
    {
        println!(
            "skipped: no NVRTC found; `pip install nvidia-cuda-nvrtc==13.0.88` into the active Python environment"
        );
        return;
    }
    let mut failed = Vec::new();
    for arch in ["sm_80", "sm_90", "sm_90a"] {
        for source in sources(arch) {
            if let Err(why) = nvrtc::cubin(&source, arch) {
                failed.push(format!(
                    "{arch} {} {:?}: {why}",
                    source.name, source.defines
                ));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
