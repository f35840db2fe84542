//! Verifiers of each source, group verifiers and shapers, with a real buffer: what is stored, what is told, what trains.

use super::sampling::{driver, echo};
use super::{reward, turn};
use crate::buffer::{Buffer, Conservation, Identity, Start};
use crate::collect::{Continuous, Driver, GroupFilter, Judgement, Sampler, Scoring, evaluate};
use slime_core::FinishReason::Stop;
use slime_core::ports::{
    BoxFuture, GroupAnswer, GroupRequest, GroupVerifier, Policy, SampleRequest, ScoreRequest,
    Shaper, Source, SourceError, Verifier,
};
use slime_core::{
    Accounting, Group, Message, Outcome, Prompt, PromptBody, PromptId, Step, WeightVersion,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The reward is the rank of a response's length among those of its group; rollouts without a verdict have none.
struct Rank;

impl GroupVerifier for Rank {
    fn name(&self) -> &str {
        "rank"
    }
    fn score_group(&self, group: GroupRequest) -> BoxFuture<'_, (Vec<Outcome>, Accounting)> {
        let lengths: Vec<usize> = group
            .rollouts
            .iter()
            .map(|(r, _)| r.response.len())
            .collect();
        let rank = |len: &usize| lengths.iter().filter(|other| *other < len).count();
        let outcomes = lengths.iter().map(|len| reward(rank(len) as f64)).collect();
        let cost = Accounting {
            cpu: Duration::from_millis(30),
            ..Accounting::default()
        };
        Box::pin(std::future::ready((outcomes, cost)))
    }
}

/// Half of every reward, or none of them at all.
struct Half(bool);

impl Shaper for Half {
    fn name(&self) -> &str {
        "half"
    }
    fn shape(&self, group: GroupRequest) -> BoxFuture<'_, GroupAnswer<Vec<Option<f64>>>> {
        let halves = group.rollouts.iter().map(|(_, o)| Some(o.reward()? / 2.0));
        let answer = match self.0 {
            true => Ok(halves.collect()),
            false => Err(Outcome::Trapped("unreachable".into())),
        };
        let cost = Accounting::default();
        Box::pin(std::future::ready(GroupAnswer { answer, cost }))
    }
}

/// Remembers the rewards it saw.
#[derive(Default)]
struct Saw(Mutex<Vec<Vec<f64>>>);

impl GroupFilter for Saw {
    fn judge<'a>(&'a self, group: &'a Group) -> BoxFuture<'a, Judgement> {
        crate::lock(&self.0).push(group.rewards());
        Box::pin(std::future::ready(Judgement::Keep))
    }
}

/// Rows of `even` and `odd` in turn.
struct Two;

impl Source for Two {
    fn name(&self) -> &str {
        "two"
    }
    fn len(&self) -> Option<u64> {
        Some(4)
    }
    fn draw(&self, index: u64, _seed: u64) -> BoxFuture<'_, Result<Prompt, SourceError>> {
        let source = if index.is_multiple_of(2) {
            "even"
        } else {
            "odd"
        };
        let prompt = Prompt {
            id: PromptId {
                source: source.into(),
                row: index,
            },
            body: PromptBody::Messages(vec![Message::new("user", "q")]),
            label: None,
            tools: vec![],
            metadata: Default::default(),
        };
        Box::pin(std::future::ready(Ok(prompt)))
    }
}

struct Run {
    _dir: tempfile::TempDir,
    buffer: Arc<Buffer>,
}

impl Run {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let identity = Identity {
            digest: "a".into(),
            summary: "a".into(),
        };
        let path = dir.path().join("run.db");
        let buffer = Buffer::open(&path, &identity, Start::Fresh, 0).unwrap();
        Self {
            _dir: dir,
            buffer: Arc::new(buffer),
        }
    }

    fn sampler(&self, driver: Driver) -> Sampler {
        Sampler::new(driver, Arc::new(Two), self.buffer.clone())
    }

    fn take(&self, n: usize) -> Vec<Group> {
        let taken = self.buffer.take(Step(0), n, WeightVersion(1));
        taken.unwrap().groups
    }

    fn books(&self) -> Conservation {
        let books = self.buffer.conservation().unwrap();
        assert!(books.holds(), "{books}");
        books
    }
}

/// Rollout `i` writes `i + 1` letters; every fourth fails to be scored.
fn letters() -> Arc<dyn Policy> {
    let count = Mutex::new(0usize);
    echo(move |_: &SampleRequest| {
        let mut count = crate::lock(&count);
        *count += 1;
        Ok(turn(&format!("{}<|end|>", "x".repeat(*count)), Stop, 1))
    })
}

fn one(item: &ScoreRequest) -> Outcome {
    match item.response.len() {
        4 => Outcome::Timeout("slow".into()),
        _ => reward(1.0),
    }
}

fn with(scoring: impl FnOnce(&mut Scoring)) -> Driver {
    let mut driver = driver(letters(), 4, one);
    let mut own = (*driver.scoring).clone();
    scoring(&mut own);
    driver.scoring = Arc::new(own);
    driver
}

fn rewards(group: &Group) -> Vec<Option<f64>> {
    group.rollouts.iter().map(|r| r.outcome.reward()).collect()
}

#[tokio::test]
async fn a_group_verifier_speaks_after_the_verifier_and_raises_no_rollout_that_failed() {
    let run = Run::new();
    let sampler = run.sampler(with(|scoring| scoring.groups = vec![Arc::new(Rank)]));
    let collected = sampler.groups(Step(0), 1).await.unwrap();
    let [group] = &run.take(1)[..] else { panic!() };
    let ranks = [Some(0.0), Some(1.0), Some(2.0), None];
    assert_eq!(rewards(group), ranks, "as stored");
    assert_eq!(rewards(&collected.groups[0]), ranks);
    let first = group.rollouts[0].outcome.verdict().unwrap();
    assert_eq!(
        first.metrics,
        [("judge".to_owned(), 1.0)],
        "the earlier verdict is told"
    );
    let share = group.rollouts[0].scoring.cpu;
    assert_eq!(share, Duration::from_millis(10), "three bore the cost");
    assert_eq!(collected.metrics.get("rollout/reward"), Some(1.0));
    assert_eq!(collected.metrics.get("rollout/verdict/judge"), Some(1.0));
    assert_eq!(collected.metrics.get("rollout/outcome/timeout"), Some(1.0));
    run.buffer.trained(Step(0)).unwrap();
    let books = run.books();
    assert_eq!((books.sampled, books.trained, books.masked), (4, 3, 1));
}

#[tokio::test]
async fn without_a_verifier_rollouts_wait_for_their_group_and_are_counted_once() {
    for continuous in [false, true] {
        let run = Run::new();
        let driver = with(|scoring| {
            scoring.verifier = None;
            scoring.groups = vec![Arc::new(Rank)];
        });
        let sampler = run.sampler(driver);
        if continuous {
            let never_pauses = Continuous::start(&sampler, Step(0), 1, 1);
            never_pauses.groups(Step(0)).await.unwrap();
            drop(never_pauses);
        } else {
            sampler.groups(Step(0), 1).await.unwrap();
        }
        let group = run.take(1).remove(0);
        assert_eq!(
            rewards(&group),
            [Some(0.0), Some(1.0), Some(2.0), Some(3.0)]
        );
        run.buffer.trained(Step(0)).unwrap();
        let books = run.books();
        assert_eq!((books.trained, books.masked), (4, 0));
        let again = sampler.driver().replay(&group, |_| true).await;
        assert!(again.iter().all(|(_, found)| found.is_empty()), "{again:?}");
    }
}

#[tokio::test]
async fn a_group_that_waited_goes_on_from_its_turns_after_a_kill() {
    /// Never answers.
    struct Hangs;
    impl GroupVerifier for Hangs {
        fn name(&self) -> &str {
            "hangs"
        }
        fn score_group(&self, _: GroupRequest) -> BoxFuture<'_, (Vec<Outcome>, Accounting)> {
            Box::pin(std::future::pending())
        }
    }
    let run = Run::new();
    let alone = |group: Arc<dyn GroupVerifier>| {
        with(|scoring| {
            scoring.verifier = None;
            scoring.groups = vec![group];
        })
    };
    let killed = run.sampler(alone(Arc::new(Hangs)));
    let work = tokio::time::timeout(Duration::from_millis(200), killed.groups(Step(0), 1));
    assert!(work.await.is_err());
    drop(killed);
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(run.books().sampled, 0, "nothing has ended");
    let resumed = run.buffer.resume_at(Step(0), WeightVersion(1)).unwrap();
    assert_eq!(resumed.num_begun, 4);
    let policy = echo(|_: &SampleRequest| panic!("every turn is there already"));
    let mut driver = alone(Arc::new(Rank));
    driver.policy = policy;
    run.sampler(driver).groups(Step(0), 1).await.unwrap();
    let group = run.take(1).remove(0);
    assert_eq!(
        rewards(&group),
        [Some(0.0), Some(1.0), Some(2.0), Some(3.0)]
    );
    assert_eq!(run.books().sampled, 4);
}

#[tokio::test]
async fn a_shaper_changes_what_trains_and_nothing_that_filters_or_metrics_see() {
    let run = Run::new();
    let saw = Arc::new(Saw::default());
    let shaped = with(|scoring| scoring.shapers = vec![Arc::new(Half(true)), Arc::new(Half(true))]);
    let sampler = run.sampler(shaped).with_filters(vec![saw.clone()]);
    let collected = sampler.groups(Step(0), 1).await.unwrap();
    assert_eq!(collected.metrics.get("rollout/reward"), Some(1.0));
    assert_eq!(*crate::lock(&saw.0), [vec![1.0; 3]]);
    let group = run.take(1).remove(0);
    assert_eq!(group.rewards(), [1.0; 3], "the verdicts stand");
    let trains: Vec<_> = group.records().iter().map(|r| r.reward).collect();
    assert_eq!(trains, [Some(0.25), Some(0.25), Some(0.25), None]);
    let held_out = evaluate(sampler.driver(), &Two, Step(0), &crate::collect::Silent);
    let held_out = held_out.await.unwrap();
    assert!(
        held_out
            .groups
            .iter()
            .flat_map(|g| &g.rollouts)
            .all(|r| r.shaped.is_none())
    );
}

#[tokio::test]
async fn a_group_whose_shaper_fails_is_dropped_by_name_and_stays_in_the_books() {
    let run = Run::new();
    let shaped = with(|scoring| scoring.shapers = vec![Arc::new(Half(false))]);
    let starved = run.sampler(shaped).groups(Step(0), 1).await.unwrap_err();
    assert!(starved.to_string().contains("half_trapped 4×"), "{starved}");
    let books = run.books();
    assert_eq!((books.sampled, books.filtered), (16, 16));
}

#[tokio::test]
async fn every_source_has_its_own_verifier_and_its_failures_are_counted_under_it() {
    let run = Run::new();
    let odd: Arc<dyn Verifier> = Arc::new(super::Judge(|item: &ScoreRequest| {
        match item.response.is_empty() {
            true => reward(0.0),
            false => Outcome::Trapped("odd".into()),
        }
    }));
    let driver = with(|scoring| scoring.by_source = BTreeMap::from([("odd".to_owned(), odd)]));
    let collected = run.sampler(driver).groups(Step(0), 2).await.unwrap();
    let told = |name: &str| collected.metrics.get(name);
    assert_eq!(told("rollout/source/even/reward"), Some(1.0));
    assert_eq!(
        told("rollout/source/odd/reward"),
        None,
        "nothing of it was scored"
    );
    assert_eq!(told("rollout/source/odd/none_ratio"), Some(1.0));
    assert_eq!(told("rollout/outcome/trapped"), Some(4.0));
    assert_eq!(told("rollout/source/odd/groups"), Some(1.0));
}
