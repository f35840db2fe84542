//! Asynchronous generators: rollouts share an instance and nothing else.

use crate::generating::{Script, generate};
use crate::support::{component, limits, runtime};
use slime_core::ports::{Generated, LiveTrajectory};
use slime_runtime::{Grants, Limits, Plugin};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn load(limits: Limits) -> Plugin {
    runtime()
        .load(
            &component("tests/guests/async"),
            "async",
            limits,
            Grants::default(),
        )
        .unwrap_or_else(|error| panic!("{error}"))
}

/// All of them at once, from a runtime of the host's own.
fn generate_all(plugin: &Plugin, starts: &[Arc<Script>]) -> Vec<Generated> {
    let generator = plugin.generator().unwrap();
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    tokio.block_on(futures::future::join_all(starts.iter().map(|start| {
        let start: Arc<dyn LiveTrajectory> = start.clone();
        generator.generate(start, 0)
    })))
}

fn failure(generated: &Generated) -> String {
    generated
        .failure
        .as_ref()
        .map_or("none".into(), ToString::to_string)
}

#[test]
fn it_does_what_a_synchronous_generator_does() {
    let plugin = load(limits());
    assert_eq!(plugin.worlds(), ["generator"]);
    let start = Script::start("two-turns");
    let done = generate(&plugin, &start);
    assert_eq!(failure(&done), "none");
    let newline = || vec!["\n".to_owned()];
    assert_eq!(start.asked(), [(4, newline()), (4, newline())]);
    assert_eq!(start.text(), "zzzzyou said zzzzzzzz");
    assert_eq!(done.trajectories[0].num_sampled(), 8);
    assert!(done.cost.host_calls >= 4, "{:?}", done.cost);
    let forked = generate(&plugin, &Script::start("fork"));
    let lengths: Vec<usize> = forked
        .trajectories
        .iter()
        .map(|t| t.tokens().len())
        .collect();
    assert_eq!(lengths, [7, 11]);
    let failed = generate(&plugin, &Script::start("fail"));
    assert_eq!(failure(&failed), "error: no use");
    assert_eq!(failed.trajectories.len(), 1, "what was sampled is kept");
}

#[test]
fn two_hundred_rollouts_wait_together_each_with_its_own_text_and_budget() {
    let plugin = load(limits());
    let delay = Duration::from_millis(300);
    let starts: Vec<_> = (0..200)
        .map(|index| {
            let word = if index % 4 == 0 { "spend" } else { "two-turns" };
            Script::slow(word, delay)
        })
        .collect();
    let begun = Instant::now();
    let done = generate_all(&plugin, &starts);
    assert!(
        begun.elapsed() < 40 * delay,
        "they wait together, not one after the other: {:?}",
        begun.elapsed()
    );
    for (index, (start, done)) in starts.iter().zip(&done).enumerate() {
        if index % 4 == 0 {
            let said = failure(done);
            assert!(
                said.starts_with("limit-exceeded: the call's budget of 20 tokens"),
                "{said}"
            );
            assert_eq!(done.trajectories[0].num_sampled(), 20);
        } else {
            assert_eq!(failure(done), "none");
            assert_eq!(start.text(), "zzzzyou said zzzzzzzz");
        }
    }
}

#[test]
fn what_breaks_an_instance_ends_its_rollouts_and_the_next_ones_go_well() {
    let plugin = load(limits());
    for (word, kind) in [("panic", "trapped"), ("loop", "timeout")] {
        // One after the other into the same instance, so that the others wait in it when it breaks.
        let mut starts = vec![Script::slow(word, Duration::from_millis(100))];
        starts.extend((0..9).map(|_| Script::slow("two-turns", Duration::from_secs(20))));
        let begun = Instant::now();
        let done = generate_all(&plugin, &starts);
        assert!(begun.elapsed() < Duration::from_secs(15), "{word}");
        for done in &done {
            let ended = done.failure.as_ref().unwrap().kind();
            assert_eq!(ended, kind, "{word}: {}", failure(done));
            assert_eq!(done.trajectories.len(), 1, "what was sampled is kept");
        }
        let next = generate(&plugin, &Script::start("two-turns"));
        assert_eq!(failure(&next), "none", "after {word}");
    }
}

#[test]
fn a_rollout_cannot_return_the_trajectory_of_another() {
    let plugin = load(limits());
    let starts = [
        Script::slow("leave", Duration::from_millis(200)),
        Script::slow("take", Duration::from_millis(100)),
    ];
    let done = generate_all(&plugin, &starts);
    assert_eq!(failure(&done[0]), "none");
    assert_eq!(
        failure(&done[1]),
        "error: the generator returned a trajectory of another rollout"
    );
}

#[test]
fn a_rollout_whose_time_is_up_leaves_the_others_alone() {
    let plugin = load(Limits {
        rollout_wall: Duration::from_millis(1500),
        ..limits()
    });
    let starts = [
        Script::slow("two-turns", Duration::from_secs(3600)),
        Script::slow("two-turns", Duration::from_millis(200)),
    ];
    let done = generate_all(&plugin, &starts);
    assert_eq!(
        failure(&done[0]),
        "timeout: no answer after 1500ms (wall time limit)"
    );
    assert_eq!(failure(&done[1]), "none");
}
