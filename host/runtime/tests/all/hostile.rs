//! The hostile corpus: what a component may try, each with the one right ending, while others are served.
//!
//! Programs in Python have a corpus of their own, in `programs`. Endings that need more words are in `endings`.

use crate::support::{hostile, hostile_with, item, limits, root, runtime, score_by};
use slime_core::ports::ScoreRequest;
use slime_runtime::{Grants, Limits, Plugin, Runtime, RuntimeConfig};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What the guest is told, and how its call must end.
const CORPUS: [(&str, &str); 66] = [
    // Time.
    ("loop", "timeout"),
    ("backtrack", "timeout"),
    ("big-number", "timeout"),
    ("wait-for-the-clock", "timeout"),
    ("print-forever", "timeout"),
    // Host calls and what crosses.
    ("spam", "limit-exceeded"),
    ("spam-with-work", "limit-exceeded"),
    ("log-spam", "limit-exceeded"),
    ("long-key", "limit-exceeded"),
    ("lying-key", "trapped"),
    ("return-1-gib", "trapped"),
    ("huge-detail", "limit-exceeded"),
    ("invalid-utf8", "trapped"),
    // Memory.
    ("alloc", "out-of-memory"),
    ("fragments", "out-of-memory"),
    ("doubling", "out-of-memory"),
    ("format-bomb", "trapped"),
    ("text-bomb", "out-of-memory"),
    ("return-64-mib", "out-of-memory"),
    ("leak-on-purpose", "out-of-memory"),
    ("grow-then-answer", "scored"),
    ("raw-grow", "scored"),
    // Stack.
    ("recurse", "trapped"),
    ("mutual", "trapped"),
    ("drop-chain", "trapped"),
    ("huge-stack", "trapped"),
    // Traps.
    ("panic", "trapped"),
    ("double-panic", "trapped"),
    ("trap", "trapped"),
    ("divide", "trapped"),
    ("index", "trapped"),
    ("overflow", "trapped"),
    ("wild-read", "trapped"),
    ("wild-write", "trapped"),
    ("null-call", "trapped"),
    ("abort", "trapped"),
    ("exit", "trapped"),
    ("exit-0", "trapped"),
    // Answers.
    ("nan", "invalid-reward"),
    ("infinite", "invalid-reward"),
    ("two", "invalid-reward"),
    ("negative", "invalid-reward"),
    ("tiny-over", "invalid-reward"),
    ("nan-metric", "invalid-reward"),
    ("metric-of-no-size", "invalid-reward"),
    ("nameless-metric", "invalid-reward"),
    ("long-metric-name", "limit-exceeded"),
    ("many-metrics", "invalid-reward"),
    ("negative-zero", "scored"),
    ("subnormal", "scored"),
    // Claims.
    ("gold", "invalid-gold"),
    ("fail", "error"),
    ("long-message", "error"),
    ("claim-cancelled", "error"),
    ("claim-unavailable", "error"),
    ("claim-limit", "error"),
    ("claim-denied", "error"),
    ("forge-outcome", "error"),
    // Authority: reward 1 says that nothing was reached.
    ("escape", "scored"),
    ("look-around", "scored"),
    ("print", "scored"),
    ("log", "scored"),
    // Repeatability.
    ("count", "scored"),
    ("chance", "scored"),
    ("memmove", "scored"),
    ("nan-bits", "scored"),
];

/// Bytes of memory that this process holds.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Told on every way out, so that a failed check leaves nobody at work.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Budgets that the corpus runs into soon.
fn tight() -> Limits {
    Limits {
        cpu: Duration::from_millis(300),
        memory_bytes: 32 << 20,
        ..limits()
    }
}

fn corpus() -> &'static Plugin {
    static PLUGIN: OnceLock<Plugin> = OnceLock::new();
    PLUGIN.get_or_init(|| hostile_with(tight(), Grants::default()))
}

/// What was not as it must be; nothing where all was.
fn check(word: &str, kind: &str) -> Vec<String> {
    let scored = score_by(corpus(), item(word));
    let (outcome, mut wrong) = (&scored.outcome, Vec::new());
    if outcome.kind() != kind {
        wrong.push(format!("{word}: {outcome}, wanted {kind}"));
    }
    let ordinary = word != "subnormal" && word != "negative-zero";
    if kind == "scored" && ordinary && outcome.reward() != Some(1.0) {
        let said = outcome.verdict().map(|verdict| &verdict.metrics);
        wrong.push(format!("{word}: {outcome} {said:?}, wanted 1"));
    }
    let (cpu, held) = (scored.cost.cpu, scored.cost.peak_memory_bytes);
    if cpu > tight().cpu * 6 / 5 {
        wrong.push(format!("{word} ran for {cpu:?}"));
    }
    if held > tight().memory_bytes {
        wrong.push(format!("{word} held {held} bytes"));
    }
    wrong
}

#[test]
fn every_guest_of_the_corpus_ends_as_it_must_while_others_are_scored_rightly() {
    // Warm: what the process holds for good is not growth.
    assert!(check("panic", "trapped").is_empty());
    let before = resident_bytes();
    let (done, mut wrong) = (AtomicBool::new(false), Vec::new());
    let (calls, most) = std::thread::scope(|scope| {
        let beside = scope.spawn(|| {
            let mut calls = 0u32;
            while calls < 2_000 || !done.load(Ordering::Relaxed) {
                calls += 1;
                if calls > 2_000 {
                    std::thread::sleep(Duration::from_millis(2));
                }
                let mut asked = item("length");
                asked.response = "x".repeat((calls % 97) as usize);
                let outcome = score_by(hostile(), asked).outcome;
                let bytes = outcome.verdict().map(|verdict| verdict.metrics[0].1);
                assert_eq!(bytes, Some(f64::from(calls % 97)), "{outcome}");
            }
            calls
        });
        let mut most = before;
        let told = Done(&done);
        for (word, kind) in CORPUS {
            wrong.extend(check(word, kind));
            most = most.max(resident_bytes());
        }
        drop(told);
        (beside.join().unwrap(), most)
    });
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(calls >= 2_000);
    let growth = most.saturating_sub(before);
    assert!(growth <= 200 << 20, "the host grew by {} MiB", growth >> 20);
}

/// Prints what the corpus does to others; an idle machine is needed for the numbers to mean anything.
#[test]
#[ignore = "a measurement of a minute: cargo test -p slime-runtime --test all beside_the_corpus -- --ignored --nocapture"]
#[allow(clippy::print_stdout, reason = "a measurement")]
fn normal_calls_beside_the_corpus_are_right_and_hardly_slower() {
    // At least 10,000 calls, and for as long as `more` says.
    let normal = |more: &dyn Fn() -> bool| -> Vec<Duration> {
        let mut walls = Vec::new();
        while walls.len() < 10_000 || more() {
            let start = Instant::now();
            let outcome = score_by(hostile(), item("length")).outcome;
            walls.push(start.elapsed());
            assert_eq!(outcome.reward(), Some(1.0), "{outcome}");
        }
        walls.sort_unstable();
        walls
    };
    let of = |walls: &[Duration], percent: usize| walls[walls.len() * percent / 100];
    let alone = normal(&|| false);
    let done = AtomicBool::new(false);
    let beside = std::thread::scope(|scope| {
        scope.spawn(|| {
            let told = Done(&done);
            CORPUS
                .iter()
                .for_each(|(word, kind)| drop(check(word, kind)));
            drop(told);
        });
        normal(&|| !done.load(Ordering::Relaxed))
    });
    println!(
        "alone: p50 {:?} p99 {:?}; beside the corpus: p50 {:?} p99 {:?}; {} calls, none wrong",
        of(&alone, 50),
        of(&alone, 99),
        of(&beside, 50),
        of(&beside, 99),
        beside.len()
    );
}

/// A verifier made by hand: `parts` stand in the core module, `score` is the body of its call. It answers 0 where
/// the body says nothing else.
fn by_hand(parts: &str, score: &str) -> Vec<u8> {
    let memory = if parts.contains("\"memory\"") {
        ""
    } else {
        "(memory (export \"memory\") 1)"
    };
    let module = format!(
        "(module {parts} {memory}
            (func (export \"slime:plugin/verification@0.1.0#describe\") (result i32)
                (f64.store (i32.const 88) (f64.const 1)) (i32.const 64))
            (func (export \"slime:plugin/verification@0.1.0#score\") (param i32) (result i32)
                {score} (i32.const 128))
            (func (export \"cabi_realloc\") (param i32 i32 i32 i32) (result i32) (i32.const 4096)))"
    );
    let mut module = wat::parse_str(&module).unwrap_or_else(|error| panic!("{error}"));
    let mut resolve = wit_parser::Resolve::default();
    let (package, _) = resolve.push_dir(root().join("wit")).unwrap();
    let world = resolve.select_world(&[package], Some("verifier")).unwrap();
    wit_component::embed_component_metadata(
        &mut module,
        &resolve,
        world,
        wit_component::StringEncoding::UTF8,
    )
    .unwrap();
    let mut encoder = wit_component::ComponentEncoder::default();
    let encoder = encoder.module(&module);
    encoder
        .unwrap()
        .encode()
        .unwrap_or_else(|error| panic!("{error:#}"))
}

#[test]
fn components_made_by_hand_end_as_they_must_in_their_calls() {
    let forever = |body: &str| format!("(loop $l {body} (br $l))");
    for (what, parts, score, kind) in [
        ("nothing odd", "", String::new(), "scored"),
        ("an empty loop", "", forever(""), "timeout"),
        ("growth for ever", "", forever("(drop (memory.grow (i32.const 100)))"), "timeout"),
        ("a table for ever", "(table $t 1 funcref)", forever("(drop (table.grow $t (ref.null func) (i32.const 5000)))"), "timeout"),
        ("fills for ever", "", forever("(memory.fill (i32.const 0) (i32.const 1) (i32.const 65536))"), "timeout"),
        ("endless calls", "(func $f (call $f))", "(call $f)".into(), "trapped"),
        ("unreachable", "", "unreachable".into(), "trapped"),
        ("a list of 4 billion (O08)", "", "(i32.store (i32.const 144) (i32.const 0)) (i32.store (i32.const 148) (i32.const -1))".into(), "trapped"),
        ("a list beyond memory", "", "(i32.store (i32.const 144) (i32.const 65528)) (i32.store (i32.const 148) (i32.const 2))".into(), "trapped"),
        ("an answer beyond memory", "", "(return (i32.const -8))".into(), "trapped"),
        ("an answer askew", "", "(return (i32.const 129))".into(), "trapped"),
        ("neither ok nor err", "", "(i32.store8 (i32.const 128) (i32.const 7))".into(), "trapped"),
        ("an error of no kind", "", "(i32.store8 (i32.const 128) (i32.const 1)) (i32.store8 (i32.const 136) (i32.const 99))".into(), "trapped"),
        ("NaN with a payload (O10)", "", "(i64.store (i32.const 136) (i64.const 0x7ff8dead0000beef))".into(), "invalid-reward"),
        ("a negative zero (O10)", "", "(f64.store (i32.const 136) (f64.const -0))".into(), "scored"),
        ("a division by zero", "", "(drop (i32.div_s (i32.const 1) (i32.const 0)))".into(), "trapped"),
        ("an indirect call of nothing", "(table 1 funcref)", "(call_indirect (i32.const 0))".into(), "trapped"),
    ] {
        let bytes = by_hand(parts, &score);
        let plugin = runtime().load_bytes(&bytes, "it", limits(), Grants::default());
        let plugin = plugin.unwrap_or_else(|error| panic!("{what}: {error}"));
        let scored = score_by(&plugin, ScoreRequest::default());
        assert_eq!(scored.outcome.kind(), kind, "{what}: {}", scored.outcome);
        assert!(scored.cost.cpu <= limits().cpu * 6 / 5, "{what}: {:?}", scored.cost);
        assert!(scored.cost.peak_memory_bytes <= limits().memory_bytes, "{what}");
    }
}

#[test]
fn components_that_misbehave_before_their_first_call_are_refused_with_a_reason() {
    let runtime = Runtime::new(RuntimeConfig {
        slots: 16,
        cache_dir: None,
        ..RuntimeConfig::default()
    })
    .unwrap();
    let memories = (0..9).map(|_| "(memory 1)").collect::<String>();
    for (what, parts, reason) in [
        (
            "a loop",
            "(func $s (loop $l (br $l))) (start $s)".into(),
            "CPU time limit",
        ),
        (
            "a trap",
            "(func $s unreachable) (start $s)".into(),
            "unreachable",
        ),
        (
            "endless calls",
            "(func $s (call $s)) (start $s)".into(),
            "stack overflowed",
        ),
        (
            "a large memory",
            "(memory (export \"memory\") 20000)".into(),
            "memory",
        ),
        ("a large table", "(table 200000 funcref)".into(), "table"),
        (
            "many memories",
            format!("(memory (export \"memory\") 1) {memories}"),
            "memories",
        ),
    ] {
        let bytes: Vec<u8> = by_hand(&parts, "");
        let error = match runtime.load_bytes(&bytes, "it", tight(), Grants::default()) {
            Ok(_) => panic!("{what}: let in"),
            Err(error) => error.to_string(),
        };
        assert!(error.contains(reason), "{what}: {error}");
    }
    assert_eq!(
        runtime.free_slots(),
        16,
        "O06: a failed start keeps no slot"
    );
}
