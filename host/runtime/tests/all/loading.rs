//! What is let in, and what is refused with which words.

use crate::support::{component, hostile, item, limits, runtime, score_by};
use slime_runtime::{Grants, Limits, Runtime, RuntimeConfig};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn refusal(bytes: &[u8]) -> String {
    match runtime().load_bytes(bytes, "it", limits(), Grants::default()) {
        Err(error) => error.to_string(),
        Ok(plugin) => panic!("let in: {}", plugin.describe()),
    }
}

fn refusal_of(wat: &str) -> String {
    refusal(&wat::parse_str(wat).unwrap())
}

#[test]
fn what_is_no_component_is_told_apart() {
    assert_eq!(
        refusal_of("(module)"),
        "it: this is a core module, not a component; build it for wasm32-wasip2, or wrap it with `wasm-tools component new`"
    );
    assert_eq!(
        refusal(b"#!/bin/sh"),
        "it: this is no WebAssembly; give a .wasm component or a plugin folder"
    );
    assert_eq!(
        refusal(b""),
        "it: the file is empty; build the plugin: slime-host plugin build FOLDER"
    );
    assert!(refusal(b"\0asm\x0d\0\x01\0garbage").starts_with("it: the component is broken: "));
    let missing = runtime()
        .load("no/such.wasm".as_ref(), "it", limits(), Grants::default())
        .err()
        .unwrap();
    assert!(
        missing
            .to_string()
            .starts_with("cannot read no/such.wasm: "),
        "{missing}"
    );
}

/// The machine code in a cache.
fn compiled_file(cache: &Path) -> PathBuf {
    let mut files = std::fs::read_dir(cache).unwrap();
    files
        .find_map(|entry| {
            let path = entry.unwrap().path();
            path.extension()
                .is_some_and(|x| x == "cwasm")
                .then_some(path)
        })
        .unwrap()
}

#[test]
fn compiled_code_is_never_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let config = RuntimeConfig {
        cache_dir: Some(dir.path().join("cache")),
        slots: 4,
        ..RuntimeConfig::default()
    };
    let runtime = Runtime::new(config).unwrap();
    runtime
        .load(
            &component("tests/guests/hostile"),
            "hostile",
            limits(),
            Grants::default(),
        )
        .unwrap();
    let compiled = compiled_file(&dir.path().join("cache"));
    let error = runtime
        .load(&compiled, "it", limits(), Grants::default())
        .err()
        .unwrap();
    assert_eq!(
        error.to_string(),
        "it: this is compiled machine code (.cwasm), which no sandbox can hold; give the .wasm component it was made from"
    );
}

#[test]
fn a_component_without_our_worlds_names_what_it_exports_and_the_cure() {
    assert_eq!(
        refusal_of("(component)"),
        "it cannot be loaded: it exports no world of slime:plugin@0.1.0, but nothing; implement verifier, generator, \
         source or another world of wit/ and name the type in the SDK's `export!`"
    );
    let command = r#"(component (instance $run) (export "wasi:cli/run@0.2.6" (instance $run)))"#;
    assert!(refusal_of(command).contains("but wasi:cli/run@0.2.6;"));
}

#[test]
fn another_version_of_the_contract_names_both() {
    let wat =
        r#"(component (instance $i) (export "slime:plugin/verification@0.2.0" (instance $i)))"#;
    assert_eq!(
        refusal_of(wat),
        "it cannot be loaded: it exports slime:plugin/verification@0.2.0, this host speaks slime:plugin@0.1.0; rebuild \
         it with the SDK of this host's version, or update slime-host"
    );
}

#[test]
fn every_import_that_is_not_covered_is_named_with_its_cure() {
    let wat = r#"(component
        (import "wasi:http/outgoing-handler@0.2.6" (instance))
        (import "slime:plugin/trajectories@0.1.0" (instance))
        (import "slime:plugin/models@0.1.0" (instance))
        (import "acme:secrets/vault@1.0.0" (instance))
        (import "wasi:cli/environment@0.3.0" (instance))
        (import "wasi:cli/environment@0.2.6" (instance))
        (instance $i) (export "slime:plugin/verification@0.1.0" (instance $i)))"#;
    assert_eq!(
        refusal_of(wat),
        "it cannot be loaded:
 - it imports wasi:http/outgoing-handler@0.2.6, but plugins get no sockets; import slime:plugin/http instead, and have the servers it needs granted
 - it imports slime:plugin/trajectories@0.1.0, but only generators reach the policy; drop the import, or export a generator
 - it imports slime:plugin/models@0.1.0, and `models` is not granted; grant it with [grants.it] models = [\"MODEL\"] in the run's configuration, `--grant models=MODEL` elsewhere
 - it imports acme:secrets/vault@1.0.0, which no grant covers; drop the import; `plugin inspect` lists what a plugin may import
 - it imports wasi:cli/environment@0.3.0, this host speaks WASI 0.2; build it for wasm32-wasip2"
    );
}

#[test]
fn an_export_of_the_right_name_and_the_wrong_shape_is_refused() {
    let wat =
        r#"(component (instance $i) (export "slime:plugin/verification@0.1.0" (instance $i)))"#;
    let refused = refusal_of(wat);
    assert!(
        refused.contains("it does not link: ")
            && refused.contains("rebuild it against slime:plugin@0.1.0"),
        "{refused}"
    );
}

#[test]
fn a_function_that_only_a_newer_host_has_is_refused_by_name() {
    let wat = r#"(component
        (import "slime:plugin/log@0.1.7" (instance (export "shout" (func (param "message" string)))))
        (instance $i) (export "slime:plugin/verification@0.1.0" (instance $i)))"#;
    let refused = refusal_of(wat);
    assert!(
        refused.contains("shout") || refused.contains("log@0.1.7"),
        "{refused}"
    );
}

#[test]
fn limits_that_the_host_cannot_keep_are_refused() {
    let load = |limits| {
        let path = component("tests/guests/hostile");
        runtime()
            .load(&path, "it", limits, Grants::default())
            .err()
            .unwrap()
            .to_string()
    };
    let greedy = load(Limits {
        memory_bytes: 4 << 30,
        ..limits()
    });
    assert_eq!(
        greedy,
        "it: memory_bytes is 4 GiB, this host gives an instance at most 1 GiB; lower it"
    );
    let hasty = load(Limits {
        cpu: Duration::from_micros(10),
        ..limits()
    });
    assert!(hasty.contains("below the precision of 1ms"), "{hasty}");
}

#[test]
fn a_grant_that_cannot_be_given_fails_the_trial_start() {
    let files = [("/data".to_owned(), "no/such/dir".into())].into();
    let path = component("tests/guests/hostile");
    let error = runtime()
        .load(
            &path,
            "it",
            limits(),
            Grants {
                files,
                ..Grants::default()
            },
        )
        .err()
        .unwrap();
    assert!(
        error
            .to_string()
            .contains("cannot grant files /data = no/such/dir"),
        "{error}"
    );
}

#[test]
fn a_component_of_two_worlds_offers_both_and_no_third() {
    let plugin = hostile();
    assert_eq!(plugin.worlds(), ["verifier", "generator"]);
    assert!(plugin.generator().is_ok());
    let error = plugin.source().err().unwrap().to_string();
    assert_eq!(
        error,
        "hostile is no source: it exports verifier and generator"
    );
}

#[test]
fn inspect_shows_what_a_component_is_and_may() {
    let described = hostile().describe();
    assert_eq!(
        described.about,
        Some(("slime-guest-hostile".into(), "0.1.0".into()))
    );
    assert_eq!(described.reward_range, Some((0.0, 1.0)));
    assert!(described.digest.starts_with("sha256:") && described.digest.len() == 71);
    assert!(
        described
            .imports
            .iter()
            .any(|import| import == "slime:plugin/rollouts@0.1.0"),
        "{:?}",
        described.imports
    );
    let text = described.to_string();
    for phrase in [
        "worlds       verifier, generator",
        "reward       0 to 1",
        "grants       none",
        "repeatable   yes",
        "memory       64 MiB",
    ] {
        assert!(text.contains(phrase), "{phrase} is not in:\n{text}");
    }
}

#[test]
fn the_first_party_verifiers_import_no_authority() {
    for folder in ["plugins/exact-match", "plugins/math", "plugins/arith"] {
        let plugin = runtime()
            .load(&component(folder), folder, limits(), Grants::default())
            .unwrap();
        let imports = plugin.describe().imports;
        let authority = [
            "wasi:filesystem",
            "wasi:sockets",
            "wasi:http",
            "slime:plugin/trajectories",
        ];
        assert!(
            imports
                .iter()
                .all(|import| !authority.iter().any(|name| import.starts_with(name))),
            "{imports:?}"
        );
    }
}

#[test]
fn the_cache_compiles_once_keeps_others_out_and_survives_a_torn_file() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("deep/cache");
    let start = || {
        let config = RuntimeConfig {
            cache_dir: Some(cache.clone()),
            slots: 4,
            ..RuntimeConfig::default()
        };
        Runtime::new(config).unwrap()
    };
    let load = |runtime: &Runtime| {
        let path = component("tests/guests/hostile");
        let plugin = runtime
            .load(&path, "hostile", limits(), Grants::default())
            .unwrap();
        assert_eq!(
            score_by(&plugin, item("length")).outcome.reward(),
            Some(1.0)
        );
        plugin.describe().was_cached
    };
    assert!(!load(&start()));
    assert!(load(&start()), "a second process compiles nothing");
    let mode = std::fs::metadata(&cache).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);

    let file = compiled_file(&cache);
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    assert!(!load(&start()), "a torn file is compiled anew");
    assert!(load(&start()));

    std::fs::set_permissions(&cache, std::fs::Permissions::from_mode(0o777)).unwrap();
    drop(start());
    assert_eq!(
        std::fs::metadata(&cache).unwrap().permissions().mode() & 0o777,
        0o700,
        "closed again"
    );
    std::fs::remove_dir_all(&cache).unwrap();
    std::fs::write(&cache, "a file").unwrap();
    assert!(
        !load(&start()),
        "no directory, no cache, and still no error"
    );
}

#[test]
fn a_file_that_is_swapped_behind_the_cache_is_another_component() {
    let dir = tempfile::tempdir().unwrap();
    let config = RuntimeConfig {
        cache_dir: Some(dir.path().join("cache")),
        slots: 4,
        ..RuntimeConfig::default()
    };
    let runtime = Runtime::new(config).unwrap();
    let file = dir.path().join("it.wasm");
    let load = || {
        let plugin = runtime.load(&file, "it", limits(), Grants::default());
        plugin.unwrap().describe()
    };
    std::fs::copy(component("plugins/exact-match"), &file).unwrap();
    // Files that changed a moment ago are always read.
    std::thread::sleep(std::time::Duration::from_millis(2100));
    let first = load();
    assert_eq!(load().digest, first.digest);
    std::fs::copy(component("plugins/arith"), &file).unwrap();
    assert_ne!(load().digest, first.digest);
}
