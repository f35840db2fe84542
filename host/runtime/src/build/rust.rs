//! Rust: cargo, with the target that makes components.

use super::end_of;
use crate::RuntimeError;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const TARGET: &str = "wasm32-wasip2";

/// Small and fast guests, whatever the workspace's own release profile is for.
const PROFILE: [&str; 6] = [
    "profile.release.opt-level=3",
    "profile.release.lto=true",
    "profile.release.codegen-units=1",
    "profile.release.panic=\"abort\"",
    "profile.release.strip=true",
    "profile.release.debug=false",
];

/// Build the Rust plugin in `folder` and return the path of its component.
///
/// Runs cargo with a target directory of its own, `plugins` inside the one that cargo would use (so
/// `CARGO_TARGET_DIR` counts), because host and guests are built with different profiles.
pub(super) fn build(folder: &Path) -> Result<PathBuf, RuntimeError> {
    let manifest = folder.join("Cargo.toml");
    let not_a_plugin = |reason: String| RuntimeError::NotAPlugin {
        folder: folder.into(),
        reason,
    };
    let manifest = manifest
        .canonicalize()
        .map_err(|source| RuntimeError::Read {
            path: manifest.clone(),
            source,
        })?;
    let metadata = metadata(folder, &manifest)?;
    let package = package(&metadata, &manifest).map_err(not_a_plugin)?;
    check_target(folder)?;

    let target_dir = metadata["target_directory"].as_str().unwrap_or("target");
    let mut cargo = cargo(folder);
    cargo.args([
        "build",
        // Only what is wrong: forty lines of what was compiled before it hide the error.
        "--quiet",
        "--release",
        "--message-format=json-render-diagnostics",
        "--target",
        TARGET,
    ]);
    cargo
        .arg("--manifest-path")
        .arg(&manifest)
        .arg("--target-dir")
        .arg(Path::new(target_dir).join("plugins"));
    for setting in PROFILE {
        cargo.args(["--config", setting]);
    }
    let output = run(folder, cargo)?;
    if !output.status.success() {
        return Err(RuntimeError::BuildFailed {
            folder: folder.into(),
            output: end_of(&output.stderr),
        });
    }
    artifact(&output.stdout, package)
        .ok_or_else(|| not_a_plugin("cargo built no component from it".into()))
}

fn cargo(folder: &Path) -> Command {
    // `cargo`, not `$CARGO`: the shim picks the toolchain that the folder asks for.
    let mut cargo = Command::new("cargo");
    cargo.current_dir(folder);
    // What shapes the host's build must not shape the guest's.
    for variable in [
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "CARGO_BUILD_TARGET",
        "CARGO_BUILD_RUSTFLAGS",
        "RUSTUP_TOOLCHAIN",
        "RUSTC",
        "CARGO",
    ] {
        cargo.env_remove(variable);
    }
    cargo
}

fn run(folder: &Path, mut command: Command) -> Result<Output, RuntimeError> {
    command.output().map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => RuntimeError::ToolMissing {
            folder: folder.into(),
            missing: "cargo".into(),
            cure: "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh".into(),
        },
        _ => RuntimeError::Read {
            path: folder.into(),
            source,
        },
    })
}

fn metadata(folder: &Path, manifest: &Path) -> Result<Value, RuntimeError> {
    let mut cargo = cargo(folder);
    cargo
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--manifest-path",
        ])
        .arg(manifest);
    let output = run(folder, cargo)?;
    let failed = |output: String| RuntimeError::BuildFailed {
        folder: folder.into(),
        output,
    };
    if !output.status.success() {
        return Err(failed(end_of(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))
}

/// The id of the folder's package, which must make a cdylib.
fn package<'a>(metadata: &'a Value, manifest: &Path) -> Result<&'a str, String> {
    let package = list(&metadata["packages"])
        .iter()
        .find(|package| {
            package["manifest_path"]
                .as_str()
                .is_some_and(|path| Path::new(path) == manifest)
        })
        .ok_or("its Cargo.toml describes no package")?;
    let kinds = list(&package["targets"])
        .iter()
        .flat_map(|target| list(&target["crate_types"]));
    if !kinds.into_iter().any(|kind| kind == "cdylib") {
        return Err(
            "its Cargo.toml lacks `crate-type = [\"cdylib\", \"rlib\"]` under [lib]".into(),
        );
    }
    package["id"]
        .as_str()
        .ok_or_else(|| "its package has no id".into())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Without the standard library of the target, cargo's own message names no cure that works here.
fn check_target(folder: &Path) -> Result<(), RuntimeError> {
    let mut rustc = Command::new("rustc");
    rustc
        .current_dir(folder)
        .env_remove("RUSTUP_TOOLCHAIN")
        .args(["--print", "target-libdir", "--target", TARGET]);
    let output = run(folder, rustc)?;
    let libdir = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if output.status.success() && Path::new(&libdir).is_dir() {
        return Ok(());
    }
    Err(RuntimeError::ToolMissing {
        folder: folder.into(),
        missing: format!("the target {TARGET}"),
        cure: format!("rustup target add {TARGET}"),
    })
}

/// The component among cargo's messages.
fn artifact(messages: &[u8], package: &str) -> Option<PathBuf> {
    let messages = String::from_utf8_lossy(messages);
    let mut files = messages.lines().rev().filter_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        if message["reason"] != "compiler-artifact" || message["package_id"] != package {
            return None;
        }
        let files = message["filenames"].as_array()?;
        files
            .iter()
            .filter_map(Value::as_str)
            .find(|file| file.ends_with(".wasm"))
            .map(PathBuf::from)
    });
    files.next()
}
