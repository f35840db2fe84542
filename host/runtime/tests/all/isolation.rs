//! Nothing survives a call, nothing outside can be reached, and the same question gets the same answer.

use crate::support::{
    component, hostile, hostile_with, item, limits, metric, runtime, score, score_by,
};
use slime_core::ports::{ScoreRequest, Scored};
use slime_runtime::{Grants, Limits, Runtime, RuntimeConfig};
use std::time::Duration;

#[test]
fn nothing_survives_between_calls() {
    for _ in 0..3 {
        assert_eq!(metric(&score("count").outcome, "calls"), 1.0);
    }
}

#[test]
fn after_every_kind_of_failure_the_next_call_is_as_the_first() {
    let first = score("length").outcome;
    for word in [
        "panic",
        "alloc",
        "recurse",
        "spam",
        "invalid-utf8",
        "exit",
        "nan",
    ] {
        assert!(score(word).outcome.verdict().is_none(), "{word}");
        assert_eq!(score("length").outcome, first, "after {word}");
    }
}

#[test]
fn nothing_outside_can_be_reached() {
    let outcome = score("escape").outcome;
    assert_eq!(metric(&outcome, "escaped"), 0.0);
}

#[test]
fn the_same_question_gets_the_same_answer_a_hundred_times() {
    let ask = |seed| {
        score_by(
            hostile(),
            ScoreRequest {
                seed,
                ..item("chance")
            },
        )
        .outcome
    };
    let first = ask(1);
    for _ in 0..100 {
        assert_eq!(ask(1), first);
    }
    assert_ne!(
        metric(&ask(2), "hash"),
        metric(&first, "hash"),
        "another seed, other chance"
    );
    assert_eq!(metric(&ask(2), "now"), metric(&first, "now"), "no clock");
}

#[test]
fn a_granted_clock_tells_the_time() {
    let grants = Grants {
        clock: true,
        ..Grants::default()
    };
    assert!(!grants.is_deterministic());
    let now = metric(
        &score_by(&hostile_with(limits(), grants), item("chance")).outcome,
        "now",
    );
    let really = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    assert!((really - now).abs() < 60.0, "{now} is not about {really}");
}

#[test]
fn granted_environment_and_files_are_there_and_files_stay_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("word.txt");
    std::fs::write(&file, "sesame").unwrap();
    assert_eq!(score("environment").outcome.reward(), Some(0.0));
    assert_eq!(score("read-file").outcome.reward(), Some(0.0));

    let env = [("TOKEN".to_owned(), "sesame".to_owned())].into();
    let files = [("/data".to_owned(), dir.path().to_owned())].into();
    let plugin = hostile_with(
        limits(),
        Grants {
            env,
            files,
            ..Grants::default()
        },
    );
    assert_eq!(
        score_by(&plugin, item("environment")).outcome.reward(),
        Some(1.0)
    );
    let read = score_by(&plugin, item("read-file")).outcome;
    assert_eq!((read.reward(), metric(&read, "wrote")), (Some(1.0), 0.0));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "sesame");
}

#[test]
fn a_nan_has_one_bit_pattern_and_copies_overlap_correctly() {
    assert_eq!(score("nan-bits").outcome.reward(), Some(1.0));
    assert_eq!(score("memmove").outcome.reward(), Some(1.0));
}

#[test]
fn the_same_answers_come_from_many_threads_at_once() {
    let words = [
        "chance", "count", "length", "panic", "nan", "gold", "alloc", "nan-bits",
    ];
    let alone: Vec<_> = words.map(|word| score(word).outcome).into();
    let calls: Vec<_> = (0..32)
        .map(|i| {
            std::thread::spawn(move || (i % words.len(), score(words[i % words.len()]).outcome))
        })
        .collect();
    for call in calls {
        let (word, outcome) = call.join().unwrap();
        assert_eq!(outcome, alone[word]);
    }
}

#[test]
fn failed_starts_give_their_slots_back() {
    let runtime = Runtime::new(RuntimeConfig {
        slots: 16,
        cache_dir: None,
        ..RuntimeConfig::default()
    })
    .unwrap();
    // Too little memory to start in: every instantiation fails. It loads with enough, so the trial start passes.
    let path = component("tests/guests/hostile");
    let cramped = Limits {
        memory_bytes: 1 << 10,
        ..limits()
    };
    let error = runtime
        .load(&path, "cramped", cramped, Grants::default())
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("out-of-memory") && error.contains("1 KiB"),
        "{error}"
    );

    let plugin = runtime
        .load(&path, "hostile", limits(), Grants::default())
        .unwrap();
    for _ in 0..300 {
        let _ = score_by(&plugin, item("panic"));
    }
    assert_eq!(runtime.free_slots(), 16);
    let calls: Vec<_> = (0..16)
        .map(|_| {
            let plugin = plugin.clone();
            std::thread::spawn(move || score_by(&plugin, item("work")))
        })
        .collect();
    for call in calls {
        let Scored { outcome, .. } = call.join().unwrap();
        assert_eq!(outcome.reward(), Some(1.0), "{outcome}");
    }
    assert_eq!(runtime.free_slots(), 16);
}

#[test]
fn more_calls_than_slots_wait_their_turn() {
    let runtime = Runtime::new(RuntimeConfig {
        slots: 2,
        cache_dir: None,
        ..RuntimeConfig::default()
    })
    .unwrap();
    let path = component("tests/guests/hostile");
    let plugin = runtime
        .load(&path, "hostile", limits(), Grants::default())
        .unwrap();
    let calls: Vec<_> = (0..40)
        .map(|_| {
            let plugin = plugin.clone();
            std::thread::spawn(move || score_by(&plugin, item("length")).outcome.reward())
        })
        .collect();
    assert!(
        calls
            .into_iter()
            .all(|call| call.join().unwrap() == Some(1.0))
    );
}

#[test]
fn memory_of_the_process_does_not_grow_with_calls() {
    let resident_kib = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS:"))
            .unwrap();
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<i64>()
            .unwrap()
    };
    let call = |n| (0..n).for_each(|_| assert!(score("length").outcome.verdict().is_some()));
    call(500);
    let before = resident_kib();
    call(4_000);
    // Other tests run meanwhile; a leak of one guest memory a call would be gigabytes.
    let grown = resident_kib() - before;
    assert!(grown < 512 << 10, "{grown} KiB more after 4,000 calls");
}

#[test]
fn without_a_pool_everything_still_works() {
    let runtime = Runtime::new(RuntimeConfig {
        pooling: false,
        cache_dir: None,
        ..RuntimeConfig::default()
    })
    .unwrap();
    assert!(!runtime.is_pooled());
    let path = component("tests/guests/hostile");
    let plugin = runtime
        .load(&path, "hostile", limits(), Grants::default())
        .unwrap();
    assert_eq!(
        score_by(&plugin, item("length")).outcome.reward(),
        Some(1.0)
    );
    assert_eq!(
        score_by(&plugin, item("alloc")).outcome.kind(),
        "out-of-memory"
    );
    let slow = Limits {
        cpu: Duration::from_millis(50),
        ..limits()
    };
    let plugin = runtime
        .load(&path, "hostile", slow, Grants::default())
        .unwrap();
    assert_eq!(score_by(&plugin, item("loop")).outcome.kind(), "timeout");
}

#[test]
fn this_machine_gives_a_pool() {
    assert!(runtime().is_pooled());
}
