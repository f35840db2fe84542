//! The contract suite: guests of every language do what `tests/contract/README.md` says, with equal answers.
//!
//! Rust runs by default. The others need their tools and some minutes:
//! `cargo test -p slime-runtime --test all contract -- --ignored`.

use crate::generating::{Script, generate};
use crate::support::{component, item, limits, metric, root, runtime, score_by};
use slime_core::ports::{
    Ask, BoxFuture, Decision, GroupRequest, LiveError, ModelAnswer, Models, ScoreRequest, ToolError,
};
use slime_core::{FinishReason, Outcome, PromptBody, Verdict};
use slime_runtime::{Grants, Limits, Plugin, RuntimeError, Services, build_plugin};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Interpreters need more of everything than compiled guests.
fn roomy() -> Limits {
    Limits {
        cpu: Duration::from_millis(1500),
        memory_bytes: 192 << 20,
        ..limits()
    }
}

fn grants() -> Grants {
    Grants {
        models: vec!["judge".into()],
        ..Grants::default()
    }
}

fn rust() -> &'static Plugin {
    static PLUGIN: OnceLock<Plugin> = OnceLock::new();
    PLUGIN.get_or_init(|| {
        let path = component("tests/guests/contract");
        let plugin = runtime().load(&path, "contract", roomy(), grants());
        let plugin = plugin.unwrap_or_else(|error| panic!("{error}"));
        plugin.serve(Services {
            models: Some(Arc::new(Yes)),
            tools: vec![plugin.tools().unwrap()],
            ..Services::default()
        });
        plugin
    })
}

/// The guest of another language; `None`, with the reason printed, where its tool is missing.
#[allow(clippy::print_stdout, reason = "says why a test did nothing")]
fn other(language: &str) -> Option<Plugin> {
    let folder = root().join("tests/contract").join(language);
    let built = match build_plugin(&folder) {
        Ok(built) => built,
        Err(error @ RuntimeError::ToolMissing { .. }) => {
            println!("skipped: {error}");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let plugin = runtime().load(&built, language, roomy(), Grants::default());
    Some(plugin.unwrap_or_else(|error| panic!("{error}")))
}

/// A model that agrees with everything.
struct Yes;

impl Models for Yes {
    fn names(&self) -> Vec<String> {
        vec!["judge".into()]
    }

    fn ask(&self, ask: Ask) -> BoxFuture<'_, Result<ModelAnswer, LiveError>> {
        Box::pin(async move {
            assert_eq!((ask.max_tokens, ask.temperature), (8, 0.0));
            let right = ask.messages[0].text() == "Is 4 right?";
            Ok(ModelAnswer {
                text: if right { "yes" } else { "no" }.into(),
                finish: FinishReason::Stop,
                num_tokens: 1,
            })
        })
    }
}

fn asked(prompt: &str, response: &str, label: Option<&str>) -> ScoreRequest {
    ScoreRequest {
        prompt: prompt.into(),
        response: response.into(),
        label: label.map(Into::into),
        ..ScoreRequest::default()
    }
}

fn verifies(plugin: &Plugin) {
    let score = |item: ScoreRequest| score_by(plugin, item).outcome;
    for (response, label, reward) in [
        (" 4\n", "4", 1.0),
        ("4", "5", 0.0),
        ("", "", 1.0),
        (
            "naïve 😀 \u{2028} e\u{301}",
            "naïve 😀 \u{2028} e\u{301}",
            1.0,
        ),
        ("nul \0 inside", "nul \0 inside", 1.0),
    ] {
        let outcome = score(asked("equal", response, Some(label)));
        assert_eq!(outcome.reward(), Some(reward), "{response:?}: {outcome}");
        assert_eq!(metric(&outcome, "bytes"), response.len() as f64);
    }
    let long = "ñ".repeat(100_000);
    let outcome = score(asked("equal", &long, Some(&long)));
    assert_eq!(outcome.reward(), Some(1.0), "{outcome}");
    let outcome = score(asked("equal", "4", None));
    assert_eq!(outcome, Outcome::InvalidGold("no label, no verdict".into()));

    let mut with_level = asked("metadata", "", None);
    with_level.metadata.insert("level".into(), 3.into());
    assert_eq!(score(with_level).reward(), Some(1.0));
    for (finish, code) in [
        (Some(FinishReason::Stop), 0.0),
        (Some(FinishReason::Length), 1.0),
        (Some(FinishReason::Abort), 2.0),
        (None, -1.0),
    ] {
        let asked = ScoreRequest {
            finish,
            ..asked("finish", "", None)
        };
        assert_eq!(metric(&score(asked), "finish"), code);
    }
    assert_eq!(score(item("fail")), Outcome::Error("I give up".into()));
    assert_eq!(score(item("invalid")), Outcome::Error("not this".into()));
    let half = Verdict {
        reward: 0.5,
        metrics: vec![("a".into(), 1.0), ("b".into(), -2.5)],
    };
    assert_eq!(score(item("half")), Outcome::Scored(half));
    assert_eq!(score(item("log")).reward(), Some(1.0));
    for (word, kind) in [
        ("two", "invalid-reward"),
        ("nan", "invalid-reward"),
        ("loop", "timeout"),
        ("memory", "out-of-memory"),
    ] {
        let outcome = score(item(word));
        assert_eq!(outcome.kind(), kind, "{word}: {outcome}");
    }
    let thrown = score(item("throw"));
    assert!(["trapped", "error"].contains(&thrown.kind()), "{thrown}");
    // Nothing of all that is left behind.
    assert_eq!(score(item("anything")).reward(), Some(0.0));
}

fn generates(plugin: &Plugin) {
    let start = Script::start("two-turns");
    let done = generate(plugin, &start);
    assert!(done.failure.is_none(), "{:?}", done.failure);
    let newline = || vec!["\n".to_owned()];
    assert_eq!(start.asked(), [(4, newline()), (4, newline())]);
    assert_eq!(start.text(), "zzzzyou said zzzzzzzz");
    let done = generate(plugin, &Script::start("fork"));
    let lengths: Vec<usize> = done.trajectories.iter().map(|t| t.tokens().len()).collect();
    assert_eq!(lengths, [7, 11]);
    let done = generate(plugin, &Script::start("fail"));
    assert_eq!(done.failure, Some(Outcome::Error("no use".into())));
    assert_eq!(done.trajectories.len(), 1, "what was sampled is kept");
}

fn group(prompt: &str, rollouts: &[(&str, Option<f64>)]) -> GroupRequest {
    let rollouts = rollouts.iter().map(|(response, reward)| {
        let outcome = match reward {
            Some(reward) => Outcome::Scored(Verdict {
                reward: *reward,
                metrics: Vec::new(),
            }),
            None => Outcome::Timeout("too slow".into()),
        };
        (Arc::new(asked(prompt, response, None)), outcome)
    });
    GroupRequest {
        rollouts: rollouts.collect(),
        seed: 1,
    }
}

fn reads_groups(plugin: &Plugin) {
    let wait = futures::executor::block_on::<BoxFuture<'_, _>>;
    let mixed = [("ab", Some(1.0)), ("a", Some(0.0)), ("abc", None)];
    let equal = [("ab", Some(1.0)), ("a", Some(1.0)), ("abc", None)];
    let filter = plugin.filter().unwrap();
    assert_eq!(
        wait(filter.decide(group("", &mixed))).answer,
        Ok(Decision::Keep)
    );
    let dropped = Ok(Decision::Drop("one-sided".into()));
    assert_eq!(wait(filter.decide(group("", &equal))).answer, dropped);
    let failed = Err(Outcome::Error("no opinion".into()));
    assert_eq!(wait(filter.decide(group("fail", &mixed))).answer, failed);

    let wait = futures::executor::block_on::<BoxFuture<'_, _>>;
    let shaper = plugin.shaper().unwrap();
    let shaped = wait(shaper.shape(group("", &mixed))).answer;
    assert_eq!(shaped, Ok(vec![Some(0.75), Some(-0.125), None]));
    let torn = wait(shaper.shape(group("short-list", &mixed))).answer;
    assert_eq!(
        torn.unwrap_err().kind(),
        "error",
        "B34: never stretched to fit"
    );

    let wait = futures::executor::block_on::<BoxFuture<'_, _>>;
    let verifier = plugin.group_verifier().unwrap();
    let (outcomes, cost) = wait(verifier.score_group(group("", &mixed)));
    let rewards: Vec<_> = outcomes.iter().map(Outcome::reward).collect();
    assert_eq!(rewards, [Some(0.0), Some(1.0), Some(0.0)]);
    assert!(cost.host_calls > 0);
    let (outcomes, _) = wait(verifier.score_group(group("short-list", &mixed)));
    assert_eq!(outcomes.len(), 3);
    let words = "the plugin gave 2 verdicts for a group of 3";
    assert!(
        outcomes.iter().all(|o| *o == Outcome::Error(words.into())),
        "{outcomes:?}"
    );
}

fn draws(plugin: &Plugin) {
    let source = plugin.source_at(0.5).unwrap();
    let drawn = futures::executor::block_on(source.draw(7, 1)).unwrap();
    assert_eq!(drawn.body, PromptBody::Text("7 0.5".into()));
    assert_eq!(drawn.label.as_deref(), Some("7"));
    let error = futures::executor::block_on(source.draw(13, 1)).unwrap_err();
    assert!(error.to_string().ends_with("draw 13: unlucky"), "{error}");
}

fn has_tools(plugin: &Plugin) {
    let tools = plugin.tools().unwrap();
    let function = &tools.definitions()[0]["function"];
    assert_eq!(function["name"], "add");
    assert_eq!(function["parameters"]["required"][1], "b");
    let call = |name: &str, arguments: &str| {
        futures::executor::block_on(tools.call(name.into(), arguments.into(), 1)).0
    };
    assert_eq!(call("add", r#"{"a": 2, "b":-3}"#), Ok("-1".into()));
    let wrong = ToolError::InvalidInput("a and b must be integers".into());
    assert_eq!(call("add", r#"{"a": "x", "b":3}"#), Err(wrong));
    let strange = ToolError::InvalidInput("there is no tool `rm`".into());
    assert_eq!(call("rm", "{}"), Err(strange));
    let torn = ToolError::InvalidInput("the arguments of `add` are no JSON object".into());
    assert_eq!(call("add", "{"), Err(torn));
}

#[test]
fn contract_of_the_verifier_in_rust() {
    verifies(rust());
}

#[test]
fn contract_of_generators_in_rust_with_tools_of_another_plugin() {
    generates(rust());
    let start = Script::start("tool");
    let done = generate(rust(), &start);
    assert!(done.failure.is_none(), "{:?}", done.failure);
    assert_eq!(start.text(), "zzzzzzzz 5");
}

#[test]
fn contract_of_worlds_that_read_groups_in_rust() {
    reads_groups(rust());
}

#[test]
fn contract_of_sources_and_tools_in_rust() {
    draws(rust());
    has_tools(rust());
}

#[test]
fn contract_of_judges_in_rust() {
    // The component is a verifier too; the judge is asked for by name.
    let judge = rust().judge().unwrap();
    let score = |item| futures::executor::block_on(judge.score(item)).outcome;
    assert_eq!(score(asked("", "4", None)).reward(), Some(1.0));
    assert_eq!(score(asked("", "5", None)).reward(), Some(0.0));
    let denied = score(asked("other model", "4", None));
    assert_eq!(denied.kind(), "error", "{denied}");
    assert!(
        denied.detail().contains("`stranger` is not granted"),
        "{denied}"
    );
}

#[test]
#[ignore = "needs componentize-py on the path and two minutes"]
fn contract_in_python() {
    if let Some(plugin) = other("python") {
        everything(&plugin);
    }
}

#[test]
#[ignore = "needs componentize-qjs on the path"]
fn contract_in_javascript() {
    if let Some(plugin) = other("js") {
        everything(&plugin);
    }
}

#[test]
#[ignore = "needs zig on the path"]
fn contract_in_c() {
    if let Some(plugin) = other("c") {
        verifies(&plugin);
    }
}

fn everything(plugin: &Plugin) {
    verifies(plugin);
    generates(plugin);
    reads_groups(plugin);
    draws(plugin);
    has_tools(plugin);
}
