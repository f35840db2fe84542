//! Cases that exist on every path of a run: sampled in turn, without pause, and resumed after a kill in the middle of a
//! step. What the buffer holds in the end is the same on each.

use super::sampling::{Rows, driver, echo, row};
use super::{reward, turn};
use crate::buffer::{Balance, Buffer, Identity, Start};
use crate::collect::{Continuous, Driver, GroupFilter, Sampler, ZeroStd};
use crate::{RolloutError, lock};
use slime_core::FinishReason::Stop;
use slime_core::ports::{BoxFuture, Policy, PolicyError, SampleRequest, Sampled, ScoreRequest};
use slime_core::{Group, Outcome, Rollout, Step, WeightVersion};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Path {
    InTurn,
    WithoutPause,
    Resumed,
}

const PATHS: [Path; 3] = [Path::InTurn, Path::WithoutPause, Path::Resumed];

/// Answers two requests of three, and never the third.
struct Hangs(Arc<dyn Policy>, Mutex<u32>);

impl Policy for Hangs {
    fn sample(&self, request: SampleRequest) -> BoxFuture<'_, Result<Sampled, PolicyError>> {
        let mut count = lock(&self.1);
        *count += 1;
        if (*count).is_multiple_of(3) {
            return Box::pin(std::future::pending());
        }
        self.0.sample(request)
    }
}

struct Sampling {
    groups: Result<Vec<Group>, RolloutError>,
    books: Balance,
}

/// Sample `n` groups for step 0 on one path.
async fn sample(
    path: Path,
    driver: Driver,
    n: usize,
    filters: &[Arc<dyn GroupFilter>],
) -> Sampling {
    let dir = tempfile::tempdir().unwrap();
    let identity = Identity {
        digest: "a".into(),
        summary: "a".into(),
    };
    let db = dir.path().join("run.db");
    let buffer = Arc::new(Buffer::open(&db, &identity, Start::Fresh, 0).unwrap());
    let sampler = |driver: Driver| {
        Sampler::new(driver, Arc::new(Rows(10)), buffer.clone()).with_filters(filters.to_vec())
    };
    let (step, version) = (Step(0), WeightVersion(1));
    let ended = match path {
        Path::InTurn => sampler(driver).groups(step, n).await,
        Path::WithoutPause => {
            let never_pauses = Continuous::start(&sampler(driver), step, n, n);
            never_pauses.groups(step).await
        }
        Path::Resumed => {
            let mut killed = driver.clone();
            killed.policy = Arc::new(Hangs(driver.policy.clone(), Mutex::default()));
            let killed = sampler(killed);
            let work = tokio::time::timeout(Duration::from_millis(300), killed.groups(step, n));
            let cut_off = work.await.is_err();
            assert!(cut_off, "it was to be killed in the middle of the step");
            drop(killed);
            tokio::time::sleep(Duration::from_millis(20)).await;
            buffer.resume_at(step, version).unwrap();
            let missing = buffer.missing(step, n, version).unwrap();
            sampler(driver).groups(step, missing).await
        }
    };
    let all = buffer.conservation().unwrap();
    assert!(all.holds(), "{path:?}: {all}");
    Sampling {
        groups: ended.and_then(|_| Ok(buffer.take(step, n, version)?.groups)),
        books: buffer.balance().unwrap(),
    }
}

/// What must be the same: not when it was asked for, and not what it cost.
fn essence(groups: &[Group]) -> Vec<(u64, Vec<Rollout>)> {
    let of = |group: &Group| (group.id.0, group.rollouts.clone());
    groups.iter().map(of).collect()
}

fn by_seed() -> Arc<dyn Policy> {
    echo(|r: &SampleRequest| {
        let seed = r.params.sampling_seed.unwrap();
        Ok(turn(&format!("{}-{}<|end|>", row(r), seed % 1000), Stop, 1))
    })
}

#[tokio::test]
async fn f12_f13_every_path_samples_the_same_rollouts_each_once() {
    let mut first = None;
    for path in PATHS {
        let driver = driver(by_seed(), 4, |item| reward(item.response.len() as f64));
        let groups = sample(path, driver, 3, &[]).await.groups.unwrap();
        let all: Vec<&Rollout> = groups.iter().flat_map(|g| &g.rollouts).collect();
        assert_eq!(all.len(), 12, "{path:?}");
        let texts: std::collections::HashSet<_> =
            all.iter().map(|r| r.trajectories[0].tokens()).collect();
        assert!(texts.len() > 9, "{path:?}: seeds of their own");
        let essence = essence(&groups);
        assert_eq!(*first.get_or_insert(essence.clone()), essence, "{path:?}");
    }
}

#[tokio::test]
async fn f05_every_path_drops_the_same_groups_for_the_same_reasons() {
    for path in PATHS {
        let judge = |item: &ScoreRequest| match item.label.as_deref() {
            Some("0" | "3") => reward(0.0),
            Some("1") => reward(1.0),
            _ => reward(f64::from(u8::from(item.seed.is_multiple_of(2)))),
        };
        let filters: [Arc<dyn GroupFilter>; 1] = [Arc::new(ZeroStd)];
        let got = sample(path, driver(by_seed(), 8, judge), 4, &filters).await;
        let ids: Vec<u64> = got.groups.unwrap().iter().map(|g| g.id.0).collect();
        assert_eq!(ids, [2, 4, 5, 6], "{path:?}");
        let dropped: Vec<_> = got.books.dropped.into_iter().collect();
        let expected = [("zero_std_0".to_owned(), 2), ("zero_std_1".to_owned(), 1)];
        assert_eq!(dropped, expected, "{path:?}");
        assert_eq!(got.books.produced, 7, "{path:?}: none is produced twice");
    }
}

#[tokio::test]
async fn f01_every_path_ends_where_filters_drop_everything_and_names_the_reason() {
    for path in PATHS {
        let filters: [Arc<dyn GroupFilter>; 1] = [Arc::new(ZeroStd)];
        let got = sample(path, driver(by_seed(), 4, |_| reward(0.0)), 2, &filters).await;
        let error = got.groups.unwrap_err().to_string();
        assert!(error.contains("zero_std_0"), "{path:?}: {error}");
    }
}

#[tokio::test]
async fn f11_a17_every_path_gives_up_what_always_fails_and_keeps_nothing_of_a_failed_attempt() {
    for path in PATHS {
        // The third rollout of the first prompt always fails, every other one the first time it is asked.
        let failed = Mutex::new(std::collections::HashSet::new());
        let policy = echo(move |r: &SampleRequest| {
            let seed = r.params.sampling_seed.unwrap();
            let always = r.rid.contains("run-2-");
            if always || lock(&failed).insert(seed) {
                return Err(PolicyError::Unavailable("gone".into()));
            }
            Ok(turn("fine<|end|>", Stop, 1))
        });
        let got = sample(path, driver(policy, 3, |_| reward(1.0)), 2, &[]).await;
        let groups = got.groups.unwrap();
        let kinds =
            |group: &Group| -> Vec<_> { group.rollouts.iter().map(|r| r.outcome.kind()).collect() };
        assert_eq!(
            kinds(&groups[0]),
            ["scored", "scored", "infra-failed"],
            "{path:?}"
        );
        assert_eq!(kinds(&groups[1]), ["scored"; 3], "{path:?}");
        for rollout in groups.iter().flat_map(|g| &g.rollouts) {
            let Outcome::Scored(_) = rollout.outcome else {
                continue;
            };
            let t = &rollout.trajectories[0];
            let lengths = (t.loss_mask().len(), t.logprobs().len(), t.num_sampled());
            assert_eq!(lengths, (5, 5, 5), "{path:?}");
        }
    }
}

#[tokio::test]
async fn c07_every_path_masks_a_reward_that_is_no_number_and_keeps_its_siblings() {
    for path in PATHS {
        let judge = |item: &ScoreRequest| match item.seed % 3 {
            0 => reward(f64::NAN),
            _ => reward(1.0),
        };
        let groups = sample(path, driver(by_seed(), 6, judge), 2, &[]).await;
        for rollout in groups.groups.unwrap().iter().flat_map(|g| &g.rollouts) {
            let kind = match rollout.seed % 3 {
                0 => "invalid-reward",
                _ => "scored",
            };
            assert_eq!(rollout.outcome.kind(), kind, "{path:?}");
        }
    }
}
