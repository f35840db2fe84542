//! Folders become components, or say what they lack.

use crate::support::root;
use slime_runtime::build_plugin;
use std::fs;

fn refusal(files: &[(&str, &str)]) -> String {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let error = build_plugin(dir.path()).unwrap_err().to_string();
    error.replace(&dir.path().display().to_string(), "FOLDER")
}

#[test]
fn a_folder_that_is_no_plugin_says_what_it_lacks() {
    let missing = build_plugin("no/such/folder".as_ref())
        .unwrap_err()
        .to_string();
    assert_eq!(
        missing,
        "no/such/folder is no plugin folder: there is no such folder"
    );
    assert_eq!(
        refusal(&[]),
        "FOLDER is no plugin folder: it has neither Cargo.toml nor plugin.toml; start one with: slime-host plugin new NAME"
    );
    let manifest =
        "[package]\nname = \"x\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[workspace]\n";
    assert_eq!(
        refusal(&[("Cargo.toml", manifest), ("src/lib.rs", "")]),
        "FOLDER is no plugin folder: its Cargo.toml lacks `crate-type = [\"cdylib\", \"rlib\"]` under [lib]"
    );
}

#[test]
fn code_that_does_not_compile_shows_the_compilers_words() {
    let manifest = "[package]\nname = \"x\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[lib]\ncrate-type = [\"cdylib\"]\n[workspace]\n";
    let refused = refusal(&[
        ("Cargo.toml", manifest),
        ("src/lib.rs", "pub fn f() -> u32 { \"no\" }"),
    ]);
    assert!(
        refused.starts_with("FOLDER does not compile:\nerror[")
            && refused.contains("mismatched types"),
        "{refused}"
    );
    let broken = refusal(&[("Cargo.toml", "[package"), ("src/lib.rs", "")]);
    assert!(broken.starts_with("FOLDER does not compile:\n"), "{broken}");
}

#[test]
fn plugins_of_the_workspace_build_beside_it_and_twice_gives_the_same_file() {
    let folder = root().join("plugins/exact-match");
    let first = build_plugin(&folder).unwrap();
    assert!(
        first.ends_with("plugins/wasm32-wasip2/release/slime_plugin_exact_match.wasm"),
        "{}",
        first.display()
    );
    let bytes = fs::read(&first).unwrap();
    assert_eq!(build_plugin(&folder).unwrap(), first);
    assert_eq!(fs::read(&first).unwrap(), bytes);
    assert!(bytes.len() < 200_000, "{} bytes", bytes.len());
}
