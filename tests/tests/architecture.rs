//! The import rule: which crate may depend on which. A new edge is a design decision, not an accident.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ lies in the workspace")
        .to_path_buf()
}

fn edges() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
        ])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let ours: BTreeSet<&str> = packages.iter().filter_map(|p| p["name"].as_str()).collect();
    packages
        .iter()
        .map(|package| {
            let used = package["dependencies"]
                .as_array()
                .expect("dependencies")
                .iter()
                .filter(|d| d["kind"].is_null())
                .filter_map(|d| d["name"].as_str())
                .filter(|name| ours.contains(name))
                .map(str::to_owned)
                .collect();
            (package["name"].as_str().expect("name").to_owned(), used)
        })
        .collect()
}

#[test]
fn every_import_between_rooms_is_one_the_design_allows() {
    let host: &[&str] = &[
        "slime-core",
        "slime-kernels",
        "slime-model",
        "slime-trainer",
        "slime-engine",
        "slime-rollout",
        "slime-runtime",
    ];
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("slime-core", &[][..]),
        ("slime-kernels", &[]),
        ("slime-model", &["slime-core", "slime-kernels"]),
        (
            "slime-trainer",
            &["slime-core", "slime-kernels", "slime-model"],
        ),
        (
            "slime-engine",
            &["slime-core", "slime-kernels", "slime-model"],
        ),
        ("slime-rollout", &["slime-core"]),
        ("slime-runtime", &["slime-core"]),
        ("slime-host", host),
    ]);
    let mut broken = Vec::new();
    for (package, used) in edges() {
        if package == "slime-tests" {
            continue;
        }
        let guest = package.starts_with("slime-plugin-") || package.starts_with("slime-guest-");
        for name in used {
            let fine = match allowed.get(package.as_str()) {
                Some(list) => list.contains(&name.as_str()),
                // A grader may build on another's, as a library.
                None if guest => {
                    name.starts_with("slime-sdk-") || name.starts_with("slime-plugin-")
                }
                None => package.starts_with("slime-sdk-") && name.starts_with("slime-sdk-"),
            };
            if !fine {
                broken.push(format!("{package} -> {name}"));
            }
        }
    }
    assert!(
        broken.is_empty(),
        "imports the design does not allow: {broken:?}"
    );
}

#[test]
fn the_top_level_holds_only_the_rooms() {
    let rooms = [
        "Cargo.toml",
        "Cargo.lock",
        "host",
        "wit",
        "plugins",
        "kernels",
        "sdk",
        "configs",
        "tests",
        "docs",
        "README.md",
        "LICENSE",
        "CONTRIBUTING.md",
        "rust-toolchain.toml",
        "rustfmt.toml",
        "clippy.toml",
        "deny.toml",
        ".cargo",
        ".ci",
        ".gitignore",
        ".gitattributes",
    ];
    let output = Command::new("git")
        .args(["ls-files"])
        .current_dir(root())
        .output()
        .expect("git runs");
    let files = String::from_utf8_lossy(&output.stdout).into_owned();
    let strangers: BTreeSet<&str> = files
        .lines()
        .filter_map(|path| path.split('/').next())
        .filter(|top| !rooms.contains(top))
        .collect();
    assert!(
        strangers.is_empty(),
        "top-level entries the layout does not know: {strangers:?}"
    );
}
