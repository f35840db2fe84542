//! Every way a verifier's call can end, each told apart from the others.

use crate::support::{hostile_with, item, limits, metric, score, score_by};
use slime_core::Outcome;
use slime_runtime::{Grants, Limits};
use std::time::Duration;

/// The ending's kind and a phrase of its message.
fn assert_ends(word: &str, kind: &str, phrase: &str) {
    let outcome = score(word).outcome;
    assert_eq!(outcome.kind(), kind, "{word}: {outcome}");
    assert!(outcome.detail().contains(phrase), "{word}: {outcome}");
}

#[test]
fn a_guest_that_answers_is_scored_and_accounted_for() {
    let mut asked = item("read-all");
    asked.metadata.insert("level".into(), 3.into());
    let scored = score_by(crate::support::hostile(), asked);
    assert_eq!(scored.outcome.reward(), Some(1.0));
    let bytes = "the response".len() + "the label".len() + r#"{"level":3}"#.len();
    assert_eq!(metric(&scored.outcome, "bytes"), bytes as f64);
    // prompt, response, label, metadata-json, metadata, finish-reason
    assert_eq!(scored.cost.host_calls, 6);
    assert!(scored.cost.cpu > Duration::ZERO && scored.cost.wall > Duration::ZERO);
    assert!(
        scored.cost.peak_memory_bytes >= 1 << 16,
        "{:?}",
        scored.cost
    );
}

#[test]
fn an_infinite_loop_is_a_timeout_within_a_fifth_of_its_budget() {
    let scored = score("loop");
    assert_eq!(scored.outcome.kind(), "timeout", "{}", scored.outcome);
    assert!(
        scored.outcome.detail().contains("500ms (CPU time limit)"),
        "{}",
        scored.outcome
    );
    let cpu_ms = scored.cost.cpu.as_secs_f64() * 1e3;
    assert!(
        (500.0..600.0).contains(&cpu_ms),
        "stopped after {cpu_ms} ms"
    );
}

#[test]
fn a_guest_that_sleeps_is_stopped_by_the_wall_and_billed_no_cpu() {
    let brief = Limits {
        wall: Duration::from_millis(300),
        ..limits()
    };
    let scored = score_by(&hostile_with(brief, Grants::default()), item("sleep"));
    assert_eq!(scored.outcome.kind(), "timeout", "{}", scored.outcome);
    assert!(
        scored.outcome.detail().contains("300ms (wall time limit)"),
        "{}",
        scored.outcome
    );
    assert!(
        scored.cost.wall < Duration::from_secs(5),
        "{:?}",
        scored.cost
    );
    assert!(
        scored.cost.cpu < Duration::from_millis(100),
        "{:?}",
        scored.cost
    );
}

#[test]
fn a_guest_that_hoards_memory_is_out_of_memory_and_never_held_more() {
    let scored = score("alloc");
    assert_eq!(scored.outcome.kind(), "out-of-memory", "{}", scored.outcome);
    assert!(
        scored.outcome.detail().contains("64 MiB"),
        "{}",
        scored.outcome
    );
    assert!(scored.cost.peak_memory_bytes <= 64 << 20);
    assert!(scored.cost.peak_memory_bytes >= 32 << 20);
}

#[test]
fn a_guest_that_copes_with_refused_memory_is_scored() {
    assert_eq!(score("grow-then-answer").outcome.reward(), Some(1.0));
}

#[test]
fn traps_carry_what_the_guest_said() {
    assert_ends("panic", "trapped", "the sky fell");
    assert_ends("trap", "trapped", "unreachable");
    assert_ends("exit", "trapped", "status");
    assert_ends("recurse", "trapped", "");
    assert_ends("huge-stack", "trapped", "");
}

#[test]
fn rewards_that_are_no_number_or_out_of_range_are_invalid() {
    assert_ends("nan", "invalid-reward", "NaN");
    assert_ends("infinite", "invalid-reward", "inf");
    assert_ends("two", "invalid-reward", "the plugin declares 0 to 1");
    assert_ends("negative", "invalid-reward", "-0.5");
    assert_ends("nan-metric", "invalid-reward", "`part`");
    assert_ends("nameless-metric", "invalid-reward", "0 bytes");
    assert_ends("many-metrics", "invalid-reward", "10000 metrics");
}

#[test]
fn zero_is_a_reward_and_keeps_its_sign() {
    let outcome = score("negative-zero").outcome;
    assert!(
        outcome
            .reward()
            .is_some_and(|reward| reward == 0.0 && reward.is_sign_negative()),
        "{outcome}"
    );
}

#[test]
fn a_guests_own_error_is_an_error_and_a_bad_label_is_the_labels_fault() {
    assert_ends("fail", "error", "I give up");
    assert_ends("gold", "invalid-gold", "the label `None` is no answer");
}

#[test]
fn a_guest_cannot_pass_its_failure_off_as_the_hosts() {
    assert_ends("claim-cancelled", "error", "pretend");
    assert_ends("claim-unavailable", "error", "pretend");
}

#[test]
fn what_a_guest_hands_over_is_bounded_before_it_is_copied() {
    // 64 MiB do not fit the guest's memory; with room for them the boundary is what refuses.
    let roomy = Limits {
        memory_bytes: 512 << 20,
        ..limits()
    };
    let scored = score_by(
        &hostile_with(roomy, Grants::default()),
        item("return-64-mib"),
    );
    assert_eq!(
        scored.outcome.kind(),
        "limit-exceeded",
        "{}",
        scored.outcome
    );
    assert!(
        scored.outcome.detail().contains("1 MiB"),
        "{}",
        scored.outcome
    );
    assert_ends("return-1-gib", "trapped", "out of bounds");
}

#[test]
fn a_long_message_is_clipped_between_characters() {
    let outcome = score("long-message").outcome;
    assert_eq!(outcome.kind(), "error");
    assert!(outcome.detail().len() <= 2048 && outcome.detail().chars().all(|c| c == 'é'));
}

#[test]
fn text_that_is_no_utf8_traps_the_call_and_nothing_else() {
    assert_ends("invalid-utf8", "trapped", "utf-8");
    assert_eq!(score("anything").outcome.reward(), Some(1.0));
}

#[test]
fn odd_text_reaches_the_guest_unchanged() {
    let mut asked = item("length");
    asked.response = "nul \0, line \u{2028}, emoji 😀, lost \u{fffd}".into();
    let bytes = asked.response.len() as f64;
    assert_eq!(
        metric(&score_by(crate::support::hostile(), asked).outcome, "bytes"),
        bytes
    );
}

#[test]
fn host_calls_are_counted_and_end_with_their_budget() {
    let scored = score("spam");
    assert_eq!(
        scored.outcome.kind(),
        "limit-exceeded",
        "{}",
        scored.outcome
    );
    assert!(
        scored.outcome.detail().contains("10000 host calls"),
        "{}",
        scored.outcome
    );
    assert_eq!(scored.cost.host_calls, 10_001);
    assert_ends("log-spam", "limit-exceeded", "host calls");
    assert_eq!(
        score("log").outcome.reward(),
        Some(1.0),
        "too many lines are dropped, not punished"
    );
}

#[test]
fn a_response_beyond_the_crossing_limit_is_never_built_for_the_guest() {
    let mut asked = item("length");
    asked.response = "x".repeat(2 << 20);
    let scored = score_by(crate::support::hostile(), asked);
    assert_eq!(
        scored.outcome.kind(),
        "limit-exceeded",
        "{}",
        scored.outcome
    );
    assert!(
        scored
            .outcome
            .detail()
            .contains("a text of 2 MiB, the limit is 1 MiB"),
        "{}",
        scored.outcome
    );
}

#[test]
fn sixteen_mebibytes_cross_where_they_may() {
    let roomy = Limits {
        hostcall_bytes: 32 << 20,
        memory_bytes: 128 << 20,
        ..limits()
    };
    let mut asked = item("length");
    asked.response = "x".repeat(16 << 20);
    let scored = score_by(&hostile_with(roomy, Grants::default()), asked);
    assert_eq!(metric(&scored.outcome, "bytes"), f64::from(16 << 20));
}

#[test]
fn a_guest_that_prints_much_goes_on() {
    assert_eq!(score("print").outcome.reward(), Some(1.0));
}

#[test]
fn calls_in_flight_can_be_cancelled_and_are_marked_so() {
    let runtime = slime_runtime::Runtime::new(slime_runtime::RuntimeConfig {
        slots: 8,
        cache_dir: None,
        ..slime_runtime::RuntimeConfig::default()
    })
    .unwrap();
    let path = crate::support::component("tests/guests/hostile");
    let patient = Limits {
        cpu: Duration::from_secs(60),
        wall: Duration::from_secs(60),
        ..limits()
    };
    let plugin = runtime
        .load(&path, "hostile", patient, Grants::default())
        .unwrap();
    let calls: Vec<_> = [
        "loop", "sleep", "loop", "sleep", "loop", "sleep", "loop", "sleep",
    ]
    .map(|word| {
        let plugin = plugin.clone();
        std::thread::spawn(move || score_by(&plugin, item(word)).outcome)
    })
    .into();
    while runtime.free_slots() > 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    runtime.cancel_calls();
    for call in calls {
        let outcome = call.join().unwrap();
        assert!(matches!(outcome, Outcome::Cancelled(_)), "{outcome}");
    }
    assert_eq!(
        score_by(&plugin, item("anything")).outcome.reward(),
        Some(1.0),
        "later calls are not affected"
    );
    assert_eq!(runtime.free_slots(), 8);
}

#[test]
fn dropping_the_question_stops_the_guest_and_frees_its_slot() {
    let runtime = slime_runtime::Runtime::new(slime_runtime::RuntimeConfig {
        slots: 1,
        cache_dir: None,
        ..slime_runtime::RuntimeConfig::default()
    })
    .unwrap();
    let path = crate::support::component("tests/guests/hostile");
    let patient = Limits {
        cpu: Duration::from_secs(600),
        wall: Duration::from_secs(600),
        ..limits()
    };
    let verifier = runtime
        .load(&path, "hostile", patient, Grants::default())
        .unwrap()
        .verifier()
        .unwrap();
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    tokio.block_on(async {
        let asked =
            tokio::time::timeout(Duration::from_millis(100), verifier.score(item("loop"))).await;
        assert!(asked.is_err());
        let next = verifier.score(item("anything")).await;
        assert_eq!(
            next.outcome.reward(),
            Some(1.0),
            "the only slot is free again"
        );
    });
}
