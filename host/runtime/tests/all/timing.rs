//! Spinning guests are stopped on time and disturb nobody.

use crate::support::{component, hostile, item, limits, score_by};
use slime_runtime::{Grants, Limits, Runtime, RuntimeConfig};
use std::time::{Duration, Instant};

#[test]
fn a_bench_of_a_guest_that_never_answers_ends() {
    let plugin = Runtime::new(RuntimeConfig {
        cache_dir: None,
        ..RuntimeConfig::default()
    })
    .unwrap()
    .load(
        &component("tests/guests/hostile"),
        "hostile",
        Limits {
            cpu: Duration::from_millis(300),
            ..limits()
        },
        Grants::default(),
    )
    .unwrap();
    let began = Instant::now();
    let costs = plugin
        .bench(&[item("loop")], Duration::from_millis(400))
        .unwrap();
    assert!(costs.outcome.contains("timeout"), "{}", costs.outcome);
    // Sixteen calls of each of two tasks a thread would take 9.6 s.
    let took = began.elapsed();
    assert!(took < Duration::from_secs(6), "{took:?}");
}

#[test]
fn spinning_guests_on_every_thread_delay_no_other_call_and_no_timer() {
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let runtime = Runtime::new(RuntimeConfig {
        cache_dir: None,
        ..RuntimeConfig::default()
    })
    .unwrap();
    let spin_for = Duration::from_millis(600);
    let path = component("tests/guests/hostile");
    let load = |limits| {
        runtime
            .load(&path, "hostile", limits, Grants::default())
            .unwrap()
    };
    let spinning = load(Limits {
        cpu: spin_for,
        wall: Duration::from_secs(120),
        ..limits()
    });
    let other = load(limits());

    // The machine's own noise, measured the same way with nobody spinning.
    let quiet = latest_heartbeat(Duration::from_millis(500));
    let spinners: Vec<_> = (0..2 * workers)
        .map(|_| {
            let plugin = spinning.clone();
            std::thread::spawn(move || score_by(&plugin, item("loop")))
        })
        .collect();
    let mut slowest = Duration::ZERO;
    let start = Instant::now();
    let heartbeat = std::thread::spawn(|| latest_heartbeat(Duration::from_millis(800)));
    while start.elapsed() < Duration::from_millis(800) {
        let asked = Instant::now();
        assert_eq!(score_by(&other, item("length")).outcome.reward(), Some(1.0));
        slowest = slowest.max(asked.elapsed());
    }
    let late = heartbeat.join().unwrap();
    for spinner in spinners {
        let scored = spinner.join().unwrap();
        assert_eq!(scored.outcome.kind(), "timeout", "{}", scored.outcome);
        let over = scored.cost.cpu.as_secs_f64() / spin_for.as_secs_f64();
        assert!(
            (1.0..1.2).contains(&over),
            "stopped at {over} of its budget"
        );
    }
    let allowed = Duration::from_millis(100) + 4 * quiet;
    assert!(
        late < allowed,
        "a heartbeat was {late:?} late (quiet: {quiet:?})"
    );
    assert!(
        slowest < Duration::from_millis(250) + 4 * quiet,
        "another call took {slowest:?} (quiet: {quiet:?})"
    );
}

/// How late a 10 ms heartbeat of the host's own runtime fires at worst.
fn latest_heartbeat(during: Duration) -> Duration {
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    tokio.block_on(async {
        let every = Duration::from_millis(10);
        let (start, mut late) = (Instant::now(), Duration::ZERO);
        while start.elapsed() < during {
            let asked = Instant::now();
            tokio::time::sleep(every).await;
            late = late.max(asked.elapsed().saturating_sub(every));
        }
        late
    })
}

#[test]
fn an_honest_guest_that_works_hard_is_billed_for_its_work_alone() {
    // Twice the work on a contended core takes longer by the wall, not by the bill.
    let alone = score_by(hostile(), item("work")).cost.cpu;
    let crowd: Vec<_> = (0..6)
        .map(|_| std::thread::spawn(|| score_by(hostile(), item("work"))))
        .collect();
    for scored in crowd.into_iter().map(|call| call.join().unwrap()) {
        assert_eq!(scored.outcome.reward(), Some(1.0), "{}", scored.outcome);
        assert!(
            scored.cost.cpu < 4 * alone + Duration::from_millis(50),
            "{:?} alone {alone:?}",
            scored.cost.cpu
        );
    }
}
