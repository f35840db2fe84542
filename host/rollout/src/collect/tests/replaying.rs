//! A stored rollout is the same when it is run again, and a changed plugin is found out.

use super::{Bytes, Judge, Style, reward, turn};
use crate::collect::{Driver, MemoryLedger, Sampler, SamplerConfig};
use slime_core::FinishReason::{Length, Stop};
use slime_core::ports::{
    BoxFuture, Generated, Generator, LiveError, LiveTrajectory, Policy, PolicyError, SampleRequest,
    Sampled, Source, SourceError,
};
use slime_core::{
    Accounting, Message, Outcome, Prompt, PromptBody, PromptId, SamplingParams, Step, WeightVersion,
};
use std::sync::Arc;

/// Asks twice, and forks where the seed is odd.
struct Talk {
    question: &'static str,
}

impl Generator for Talk {
    fn name(&self) -> &str {
        "talk"
    }

    fn generate(&self, start: Arc<dyn LiveTrajectory>, seed: u64) -> BoxFuture<'_, Generated> {
        Box::pin(async move {
            let mut done = vec![Arc::clone(&start)];
            let failure = self.talk(&start, &mut done, seed).await.err();
            Generated {
                trajectories: done.iter().flat_map(|live| live.finish()).collect(),
                failure: failure.map(|error| Outcome::Error(error.to_string())),
                cost: Accounting::default(),
            }
        })
    }
}

impl Talk {
    async fn talk(
        &self,
        start: &Arc<dyn LiveTrajectory>,
        done: &mut Vec<Arc<dyn LiveTrajectory>>,
        seed: u64,
    ) -> Result<(), LiveError> {
        start.sample(8, Vec::new()).await?;
        if seed % 2 == 1 {
            done.push(start.fork()?);
        }
        for live in done {
            live.append(Message::new("user", self.question)).await?;
            live.sample(0, vec!["!".into()]).await?;
        }
        Ok(())
    }
}

/// Writes what the seed says.
struct Chance;

impl Policy for Chance {
    fn sample(&self, request: SampleRequest) -> BoxFuture<'_, Result<Sampled, PolicyError>> {
        let seed = request.params.sampling_seed.unwrap_or(0);
        let answer = if seed.is_multiple_of(3) {
            turn("abcdefgh", Length, 1)
        } else {
            turn(&format!("{}<|end|>", seed % 1000), Stop, 2)
        };
        Box::pin(std::future::ready(Ok(answer)))
    }
}

struct Rows;

impl Source for Rows {
    fn name(&self) -> &str {
        "rows"
    }

    fn len(&self) -> Option<u64> {
        Some(1 << 20)
    }

    fn draw(&self, index: u64, _seed: u64) -> BoxFuture<'_, Result<Prompt, SourceError>> {
        let prompt = Prompt {
            id: PromptId {
                source: "rows".into(),
                row: index,
            },
            body: PromptBody::Messages(vec![Message::new("user", index.to_string())]),
            label: Some(index.to_string()),
            tools: vec![],
            metadata: Default::default(),
        };
        Box::pin(std::future::ready(Ok(prompt)))
    }
}

fn driver(question: &'static str, scale: f64) -> Driver {
    let judge =
        move |item: &slime_core::ports::ScoreRequest| reward(item.response.len() as f64 * scale);
    let driver = Driver::new(
        Arc::new(Chance),
        Arc::new(Bytes(Style::Chat)),
        Arc::new(Talk { question }),
        Arc::new(Judge(judge)),
        SamplerConfig::new(7, 10, SamplingParams::default(), 400),
    );
    driver.serve(WeightVersion(2));
    driver
}

#[tokio::test]
async fn a_thousand_stored_rollouts_are_the_same_when_they_are_run_again() {
    let recorder = driver("sure?", 0.5);
    let sampler = Sampler::new(
        recorder.clone(),
        Arc::new(Rows),
        Arc::new(MemoryLedger::default()),
    );
    let collected = sampler.groups(Step(0), 100).await.unwrap();
    let (mut replayed, mut forked) = (0, 0);
    for group in &collected.groups {
        for (id, found) in driver("sure?", 0.5).replay(group, |_| true).await {
            assert!(found.is_empty(), "rollout {id}: {found:?}");
            replayed += 1;
        }
        let forks = group.rollouts.iter().filter(|r| r.trajectories.len() > 1);
        forked += forks.count();
    }
    assert_eq!(replayed, 1000);
    assert!(forked > 300, "{forked}");
}

#[tokio::test]
async fn a_changed_generator_or_verifier_is_found_out() {
    let sampler = Sampler::new(
        driver("sure?", 0.5),
        Arc::new(Rows),
        Arc::new(MemoryLedger::default()),
    );
    let group = sampler.groups(Step(0), 1).await.unwrap().groups.remove(0);
    let first = async |driver: Driver, group: &slime_core::Group| {
        let mut found = driver.replay(group, |rollout| rollout.index == 0).await;
        assert_eq!(found.len(), 1);
        found.remove(0).1
    };
    let scored = first(driver("sure?", 0.25), &group).await;
    assert!(
        scored.len() == 1 && scored[0].contains(", now scored"),
        "{scored:?}"
    );
    let asked = first(driver("really?", 0.5), &group).await;
    assert!(!asked.is_empty(), "another question is another rollout");
    let mut forged = group.clone();
    forged.rollouts[0].outcome = reward(1000.0);
    assert_eq!(first(driver("sure?", 0.5), &forged).await.len(), 1);
}
