//! Components built once, one runtime, short ways to call.

use slime_core::ports::{ScoreRequest, Scored};
use slime_core::{FinishReason, Outcome};
use slime_runtime::{Grants, Limits, Plugin, Runtime, RuntimeConfig, build_plugin};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// The workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The component of a folder of the workspace, built once in this process.
pub(crate) fn component(folder: &str) -> PathBuf {
    static BUILT: OnceLock<Mutex<HashMap<String, PathBuf>>> = OnceLock::new();
    let mut built = BUILT.get_or_init(Mutex::default).lock().unwrap();
    let build = || build_plugin(&root().join(folder)).unwrap_or_else(|error| panic!("{error}"));
    built.entry(folder.into()).or_insert_with(build).clone()
}

/// The runtime of most tests. It has no cache: tests compile what they load.
pub(crate) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        Runtime::new(RuntimeConfig {
            slots: 64,
            cache_dir: None,
            ..RuntimeConfig::default()
        })
        .unwrap()
    })
}

/// Budgets small enough for tests to exhaust.
pub(crate) fn limits() -> Limits {
    Limits {
        cpu: Duration::from_millis(500),
        // Long, because a crowded machine may give a test little of it.
        wall: Duration::from_secs(120),
        memory_bytes: 64 << 20,
        hostcall_bytes: 1 << 20,
        host_calls: 10_000,
        tokens: 20,
        ..Limits::default()
    }
}

pub(crate) fn hostile_with(limits: Limits, grants: Grants) -> Plugin {
    let path = component("tests/guests/hostile");
    runtime()
        .load(&path, "hostile", limits, grants)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// The hostile guest under [`limits`].
pub(crate) fn hostile() -> &'static Plugin {
    static PLUGIN: OnceLock<Plugin> = OnceLock::new();
    PLUGIN.get_or_init(|| hostile_with(limits(), Grants::default()))
}

pub(crate) fn item(word: &str) -> ScoreRequest {
    ScoreRequest {
        prompt: word.into(),
        response: "the response".into(),
        label: Some("the label".into()),
        finish: Some(FinishReason::Stop),
        ..ScoreRequest::default()
    }
}

pub(crate) fn score_by(plugin: &Plugin, item: ScoreRequest) -> Scored {
    let verifier = plugin.verifier().unwrap();
    futures::executor::block_on(verifier.score(item))
}

/// How the hostile guest's verifier ends when it is told `word`.
pub(crate) fn score(word: &str) -> Scored {
    score_by(hostile(), item(word))
}

pub(crate) fn metric(outcome: &Outcome, name: &str) -> f64 {
    let verdict = outcome.verdict().unwrap_or_else(|| panic!("{outcome}"));
    verdict
        .metrics
        .iter()
        .find(|(key, _)| key == name)
        .unwrap()
        .1
}
