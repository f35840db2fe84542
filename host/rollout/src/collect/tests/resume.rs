//! A rollout that was cut off goes on from its tokens: with a real buffer, killed by dropping what samples.

use super::{Bytes, Judge, Script, Style, reward, turn};
use crate::buffer::{Buffer, Identity, Start};
use crate::collect::{Continuous, Driver, Sampler, SamplerConfig, SingleTurn};
use crate::{RolloutError, lock};
use slime_core::FinishReason::{Abort, Length, Stop};
use slime_core::ports::{
    BoxFuture, Generated, Generator, Keep, LiveTrajectory, Policy, PolicyError, SampleRequest,
    Sampled, Source, SourceError,
};
use slime_core::{
    Message, Origin, Outcome, Prompt, PromptBody, PromptId, SamplingParams, Step, WeightVersion,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;

struct One;

impl Source for One {
    fn name(&self) -> &str {
        "one"
    }
    fn len(&self) -> Option<u64> {
        Some(1)
    }
    fn draw(&self, _index: u64, _seed: u64) -> BoxFuture<'_, Result<Prompt, SourceError>> {
        let prompt = Prompt {
            id: PromptId {
                source: "one".into(),
                row: 0,
            },
            body: PromptBody::Messages(vec![Message::new("user", "q")]),
            label: None,
            tools: vec![],
            metadata: Default::default(),
        };
        Box::pin(std::future::ready(Ok(prompt)))
    }
}

/// Brings some tokens of a turn and then nothing more, until it is halted.
struct Slow {
    part: Sampled,
    halted: Notify,
    asked: Mutex<Vec<SampleRequest>>,
}

impl Policy for Slow {
    fn sample(&self, _request: SampleRequest) -> BoxFuture<'_, Result<Sampled, PolicyError>> {
        unreachable!("live trajectories go on")
    }
    fn go_on<'a>(
        &'a self,
        request: SampleRequest,
        mut begun: Sampled,
        keep: Arc<dyn Keep>,
    ) -> BoxFuture<'a, Result<Sampled, PolicyError>> {
        lock(&self.asked).push(request);
        begun.extend(self.part.clone());
        keep.keep(&begun);
        Box::pin(async move {
            self.halted.notified().await;
            begun.finish = Some(Abort);
            keep.keep(&begun);
            Ok(begun)
        })
    }
    fn halt(&self) -> BoxFuture<'_, ()> {
        self.halted.notify_one();
        Box::pin(std::future::ready(()))
    }
}

fn slow(text: &str, version: u64) -> Arc<Slow> {
    Arc::new(Slow {
        part: Sampled {
            finish: None,
            ..turn(text, Length, version)
        },
        halted: Notify::new(),
        asked: Mutex::default(),
    })
}

fn sampler(
    policy: Arc<dyn Policy>,
    buffer: &Arc<Buffer>,
    generator: Arc<dyn Generator>,
) -> Sampler {
    let params = SamplingParams {
        max_new_tokens: 100,
        ..SamplingParams::default()
    };
    let driver = Driver::new(
        policy,
        Arc::new(Bytes(Style::Chat)),
        generator,
        Arc::new(Judge(|_: &slime_core::ports::ScoreRequest| reward(1.0))),
        SamplerConfig::new(1, 1, params, 1000),
    );
    Sampler::new(driver, Arc::new(One), buffer.clone())
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
        let buffer = Buffer::open(&dir.path().join("run.db"), &identity, Start::Fresh, 5).unwrap();
        Self {
            _dir: dir,
            buffer: Arc::new(buffer),
        }
    }

    /// Sample for a moment, then vanish.
    async fn killed(&self, policy: Arc<dyn Policy>, generator: Arc<dyn Generator>) {
        let sampler = sampler(policy, &self.buffer, generator);
        let work = sampler.groups(Step(0), 1);
        assert!(
            tokio::time::timeout(Duration::from_millis(100), work)
                .await
                .is_err()
        );
        drop(sampler);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    /// Come back at `version` and finish.
    async fn resumed(
        &self,
        version: u64,
        policy: Arc<Script>,
        generator: Arc<dyn Generator>,
    ) -> slime_core::Rollout {
        self.buffer
            .resume_at(Step(0), WeightVersion(version))
            .unwrap();
        let sampler = sampler(policy, &self.buffer, generator);
        let collected = sampler.groups(Step(0), 1).await.unwrap();
        collected.groups[0].rollouts[0].clone()
    }
}

/// The version of each sampled token.
fn versions(rollout: &slime_core::Rollout) -> Vec<u64> {
    let segments = rollout.trajectories.iter().flat_map(|t| t.segments());
    segments
        .filter_map(|s| match s.origin {
            Origin::Policy { version, .. } => Some(vec![version.0; s.tokens.len()]),
            _ => None,
        })
        .flatten()
        .collect()
}

#[tokio::test]
async fn f06_a_continuation_gets_what_is_left_of_the_budget() {
    let run = Run::new();
    let first = slow(&"a".repeat(60), 1);
    run.killed(first.clone(), Arc::new(SingleTurn)).await;
    let policy = Arc::new(Script::new([turn(&"c".repeat(40), Length, 1)]));
    let rollout = run.resumed(1, policy.clone(), Arc::new(SingleTurn)).await;

    let (before, asked) = (
        lock(&first.asked)[0].clone(),
        lock(&policy.asked)[0].clone(),
    );
    assert_eq!(asked.params.max_new_tokens, 40);
    assert_eq!(
        asked.tokens,
        [before.tokens, vec![u32::from(b'a'); 60]].concat()
    );
    assert_eq!(asked.params.sampling_seed, before.params.sampling_seed);
    let trajectory = &rollout.trajectories[0];
    assert_eq!(
        (trajectory.num_sampled(), trajectory.finish),
        (100, Some(Length))
    );
    assert!(matches!(rollout.outcome, Outcome::Scored(_)));
}

#[tokio::test]
async fn f07_each_token_keeps_the_version_that_sampled_it_and_all_are_trained() {
    let run = Run::new();
    run.killed(slow("aaa", 1), Arc::new(SingleTurn)).await;
    let policy = Arc::new(Script::new([turn("b<|end|>", Stop, 2)]));
    let rollout = run.resumed(2, policy, Arc::new(SingleTurn)).await;
    assert_eq!(versions(&rollout), [1, 1, 1, 2, 2]);
    let trajectory = &rollout.trajectories[0];
    let mask = &trajectory.loss_mask()[trajectory.loss_mask().len() - 5..];
    assert_eq!(mask, [1, 1, 1, 1, 1]);
    assert_eq!(trajectory.logprobs().len(), trajectory.loss_mask().len());
}

#[tokio::test]
async fn f08_a_rollout_cut_off_at_its_limit_is_scored_and_not_sampled_again() {
    let run = Run::new();
    run.killed(slow(&"a".repeat(100), 1), Arc::new(SingleTurn))
        .await;
    let policy = Arc::new(Script::default());
    let rollout = run.resumed(1, policy.clone(), Arc::new(SingleTurn)).await;
    assert!(lock(&policy.asked).is_empty());
    assert_eq!(rollout.trajectories[0].finish, Some(Length));
    assert!(matches!(rollout.outcome, Outcome::Scored(_)));
}

#[tokio::test]
async fn tokens_of_weights_that_are_gone_are_sampled_again() {
    let run = Run::new();
    run.killed(slow("aaa", 3), Arc::new(SingleTurn)).await;
    let policy = Arc::new(Script::new([turn("b<|end|>", Stop, 2)]));
    let rollout = run.resumed(2, policy.clone(), Arc::new(SingleTurn)).await;
    assert_eq!(lock(&policy.asked)[0].params.max_new_tokens, 100);
    assert_eq!(versions(&rollout), [2, 2]);
}

/// Asks, is told something, asks again.
struct TwoTurns(&'static str);

impl Generator for TwoTurns {
    fn name(&self) -> &str {
        "two-turns"
    }
    fn generate(&self, start: Arc<dyn LiveTrajectory>, _seed: u64) -> BoxFuture<'_, Generated> {
        Box::pin(async move {
            let mut failure = None;
            for turn in 0..2 {
                if turn > 0 {
                    start.append(Message::new("tool", self.0)).await.unwrap();
                }
                if start.sample(0, vec![]).await.is_err() {
                    failure = Some(Outcome::Cancelled("stopped".into()));
                    break;
                }
            }
            Generated {
                trajectories: start.finish(),
                failure,
                cost: Default::default(),
            }
        })
    }
}

/// Answers the first turn at once and hangs in the second.
struct OneThenSlow(Arc<Slow>);

impl Policy for OneThenSlow {
    fn sample(&self, request: SampleRequest) -> BoxFuture<'_, Result<Sampled, PolicyError>> {
        self.0.sample(request)
    }
    fn go_on<'a>(
        &'a self,
        request: SampleRequest,
        begun: Sampled,
        keep: Arc<dyn Keep>,
    ) -> BoxFuture<'a, Result<Sampled, PolicyError>> {
        if request.rid.ends_with("-0") {
            let whole = turn("first<|end|>", Stop, 1);
            keep.keep(&whole);
            return Box::pin(std::future::ready(Ok(whole)));
        }
        self.0.go_on(request, begun, keep)
    }
    fn halt(&self) -> BoxFuture<'_, ()> {
        self.0.halt()
    }
}

#[tokio::test]
async fn a_turn_that_was_whole_is_not_sampled_again_and_the_next_goes_on() {
    let run = Run::new();
    let generator = Arc::new(TwoTurns("tool"));
    run.killed(Arc::new(OneThenSlow(slow("aa", 1))), generator.clone())
        .await;
    let policy = Arc::new(Script::new([turn("b<|end|>", Stop, 1)]));
    let rollout = run.resumed(1, policy.clone(), generator).await;
    let asked = lock(&policy.asked);
    assert_eq!((asked.len(), asked[0].params.max_new_tokens), (1, 98));
    assert_eq!(
        rollout.trajectories[0].num_sampled(),
        "first".len() + 1 + 2 + 2
    );
}

#[tokio::test]
async fn a_record_made_after_other_tokens_is_not_used() {
    let run = Run::new();
    run.killed(
        Arc::new(OneThenSlow(slow("aa", 1))),
        Arc::new(TwoTurns("tool")),
    )
    .await;
    // The tool answers otherwise now.
    let policy = Arc::new(Script::new([turn("b<|end|>", Stop, 1)]));
    run.resumed(1, policy.clone(), Arc::new(TwoTurns("other")))
        .await;
    assert_eq!(lock(&policy.asked)[0].params.max_new_tokens, 100);
}

#[tokio::test]
async fn a_person_who_stops_a_run_loses_no_token_and_queues_no_half_group() {
    for never_pauses in [false, true] {
        stops(never_pauses).await;
    }
}

async fn stops(never_pauses: bool) {
    let run = Run::new();
    let sampler = sampler(slow("aaaa", 1), &run.buffer, Arc::new(SingleTurn));
    let wait = tokio::time::sleep(Duration::from_millis(50));
    let result = if never_pauses {
        let sampler = Continuous::start(&sampler, Step(0), 1, 1);
        let halt = async {
            wait.await;
            sampler.halt().await;
        };
        tokio::join!(sampler.groups(Step(0)), halt).0
    } else {
        let halt = async {
            wait.await;
            sampler.halt().await;
        };
        tokio::join!(sampler.groups(Step(0), 1), halt).0
    };
    assert!(matches!(result, Err(RolloutError::Halted)));
    let balance = run.buffer.balance().unwrap();
    assert_eq!((balance.produced, balance.queued), (0, 0));
    let policy = Arc::new(Script::new([turn("b<|end|>", Stop, 1)]));
    let rollout = run.resumed(1, policy.clone(), Arc::new(SingleTurn)).await;
    assert_eq!(lock(&policy.asked)[0].params.max_new_tokens, 96);
    assert_eq!(rollout.trajectories[0].num_sampled(), 6);
    let resumed = run.buffer.resume_at(Step(0), WeightVersion(1)).unwrap();
    assert_eq!(
        resumed.num_begun, 0,
        "what is whole leaves nothing to go on from"
    );
}
