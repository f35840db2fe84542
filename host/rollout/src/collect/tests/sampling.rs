use super::{Bytes, Judge, Script, Style, reward, turn};
use crate::collect::{
    Driver, GroupFilter, Ledger, MemoryLedger, Sampler, SamplerConfig, Silent, SingleTurn, ZeroStd,
    evaluate, lag, pass_at_k,
};
use crate::{RolloutError, lock};
use slime_core::FinishReason::{Length, Stop};
use slime_core::ports::{
    BoxFuture, Generator, Policy, PolicyError, SampleRequest, Sampled, ScoreRequest, Source,
    SourceError,
};
use slime_core::{
    Message, Outcome, Prompt, PromptBody, PromptId, SamplingParams, Step, WeightVersion,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Rows `0..len`, over and over; row `r` asks for "r".
pub(super) struct Rows(pub(super) u64);

impl Source for Rows {
    fn name(&self) -> &str {
        "rows"
    }
    fn len(&self) -> Option<u64> {
        Some(self.0)
    }
    fn draw(&self, index: u64, _seed: u64) -> BoxFuture<'_, Result<Prompt, SourceError>> {
        let row = index % self.0;
        let body = PromptBody::Messages(vec![Message::new("user", row.to_string())]);
        let prompt = Prompt {
            id: PromptId {
                source: "rows".into(),
                row,
            },
            body,
            label: Some(row.to_string()),
            tools: vec![],
            metadata: Default::default(),
        };
        Box::pin(std::future::ready(Ok(prompt)))
    }
}

/// Answers by a function of the request, later requests sooner.
pub(super) struct Echo<F> {
    answer: F,
    pub(super) asked: Mutex<Vec<SampleRequest>>,
}

impl<F: Fn(&SampleRequest) -> Result<Sampled, PolicyError> + Send + Sync> Policy for Echo<F> {
    fn sample(&self, request: SampleRequest) -> BoxFuture<'_, Result<Sampled, PolicyError>> {
        let answer = (self.answer)(&request);
        let mut asked = lock(&self.asked);
        asked.push(request);
        let wait = Duration::from_millis(20u64.saturating_sub(asked.len() as u64));
        Box::pin(async move {
            tokio::time::sleep(wait).await;
            answer
        })
    }
}

/// Answers after a while; counts answers being written, the most at once, and those begun.
pub(super) struct Slow {
    pub(super) wait: Duration,
    pub(super) counts: Arc<[AtomicUsize; 3]>,
}

impl Policy for Slow {
    fn sample(&self, _request: SampleRequest) -> BoxFuture<'_, Result<Sampled, PolicyError>> {
        Box::pin(async move {
            let now = self.counts[0].fetch_add(1, Ordering::SeqCst) + 1;
            self.counts[1].fetch_max(now, Ordering::SeqCst);
            self.counts[2].fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(self.wait).await;
            self.counts[0].fetch_sub(1, Ordering::SeqCst);
            Ok(turn("x<|end|>", Stop, 1))
        })
    }
}

pub(super) fn echo<F: Fn(&SampleRequest) -> Result<Sampled, PolicyError> + Send + Sync>(
    answer: F,
) -> Arc<Echo<F>> {
    Arc::new(Echo {
        answer,
        asked: Mutex::default(),
    })
}

pub(super) fn driver(
    policy: Arc<dyn Policy>,
    n: u32,
    judge: impl Fn(&ScoreRequest) -> Outcome + Send + Sync + 'static,
) -> Driver {
    let config = SamplerConfig {
        max_refills: 3,
        ..SamplerConfig::new(1, n, SamplingParams::default(), 200)
    };
    let driver = Driver::new(
        policy,
        Arc::new(Bytes(Style::Chat)),
        Arc::new(SingleTurn),
        Arc::new(Judge(judge)),
        config,
    );
    driver.serve(WeightVersion(1));
    driver
}

fn sampler(driver: Driver, rows: u64) -> Sampler {
    Sampler::new(
        driver,
        Arc::new(Rows(rows)),
        Arc::new(MemoryLedger::default()),
    )
}

/// The row that a request's prompt asks for.
pub(super) fn row(request: &SampleRequest) -> u32 {
    request.tokens[1] - u32::from(b'0')
}

#[tokio::test]
async fn f12_f13_a_step_is_n_rollouts_of_each_prompt_with_seeds_of_their_own() {
    let seeds_of = || async {
        let policy = echo(|r| {
            Ok(turn(
                &format!("{}<|end|>", r.params.sampling_seed.unwrap() % 10),
                Stop,
                1,
            ))
        });
        let sampler = sampler(driver(policy.clone(), 4, |_| reward(1.0)), 10);
        let collected = sampler.groups(Step(0), 3).await.unwrap();
        assert_eq!(lock(&policy.asked).len(), 12);
        let ids: Vec<_> = collected.groups.iter().map(|g| g.id.0).collect();
        assert_eq!(ids, [0, 1, 2], "by id, though later ones finished first");
        let rollouts: Vec<_> = collected.groups.iter().flat_map(|g| &g.rollouts).collect();
        assert_eq!(
            rollouts.iter().map(|r| r.id.0).collect::<Vec<_>>(),
            (0..12).collect::<Vec<_>>()
        );
        assert_eq!(
            rollouts.iter().map(|r| r.index).collect::<Vec<_>>(),
            [0, 1, 2, 3].repeat(3)
        );
        rollouts
            .iter()
            .map(|r| (r.seed, r.trajectories.clone()))
            .collect::<Vec<_>>()
    };
    let first = seeds_of().await;
    let distinct: std::collections::HashSet<_> = first.iter().map(|(seed, _)| *seed).collect();
    assert_eq!(distinct.len(), 12);
    assert_eq!(
        first,
        seeds_of().await,
        "the same run seed samples the same again"
    );
}

#[tokio::test]
async fn the_next_step_goes_on_where_the_last_one_ended() {
    let policy = echo(|_| Ok(turn("x<|end|>", Stop, 1)));
    let sampler = sampler(driver(policy, 2, |_| reward(0.0)), 3);
    let a = sampler.groups(Step(0), 2).await.unwrap();
    let b = sampler.groups(Step(1), 2).await.unwrap();
    let rows = |c: &crate::collect::Collected| {
        c.groups.iter().map(|g| g.prompt.id.row).collect::<Vec<_>>()
    };
    assert_eq!((rows(&a), rows(&b)), (vec![0, 1], vec![2, 0]));
    // Row 0 came again in the second epoch: other random numbers.
    assert_ne!(a.groups[0].rollouts[0].seed, b.groups[1].rollouts[0].seed);
}

/// A driver whose context holds this many tokens.
fn narrow(policy: Arc<dyn Policy>, context_tokens: u32) -> Driver {
    let mut driver = driver(policy, 2, |_| reward(1.0));
    let mut config = (*driver.config).clone();
    config.limits.context_tokens = context_tokens;
    driver.config = Arc::new(config);
    driver
}

#[tokio::test]
async fn a_prompt_that_does_not_fit_is_left_out_and_named() {
    let policy = echo(|_| Ok(turn("<|end|>", Stop, 1)));
    // Five tokens and a digit: row 10 has no room left.
    let collected = sampler(narrow(policy.clone(), 6), 11)
        .groups(Step(0), 11)
        .await
        .unwrap();
    let rows: Vec<_> = collected.groups.iter().map(|g| g.prompt.id.row).collect();
    assert_eq!(rows, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0]);
    assert_eq!(collected.dropped["overlong_prompt"], 1);
    assert_eq!(
        collected.metrics.get("rollout/outcome/limit-exceeded"),
        Some(2.0)
    );
    let warning = collected.warnings.last().unwrap();
    assert!(
        warning.contains("rows/10 among them: it is 6 tokens, and the context holds 6"),
        "{warning}"
    );
    assert_eq!(lock(&policy.asked).len(), 22);
}

#[tokio::test]
async fn when_no_prompt_fits_the_run_ends_and_names_one() {
    let policy = echo(|_| Ok(turn("<|end|>", Stop, 1)));
    let error = sampler(narrow(policy.clone(), 5), 10)
        .groups(Step(0), 2)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("prompt rows/") && error.contains("the context holds 5"),
        "{error}"
    );
    assert!(lock(&policy.asked).is_empty());
}

#[tokio::test]
async fn a_step_that_scored_nothing_says_so() {
    let policy = echo(|_| Ok(turn("x<|end|>", Stop, 1)));
    let judge = |_: &ScoreRequest| Outcome::Trapped("unreachable".into());
    let collected = sampler(driver(policy, 2, judge), 10)
        .groups(Step(0), 1)
        .await
        .unwrap();
    assert_eq!(
        collected.metrics.get("rollout/reward"),
        None,
        "unmeasured is absent"
    );
    assert!(
        collected.warnings[0].contains("none of 2 rollouts was scored"),
        "{:?}",
        collected.warnings
    );
}

#[tokio::test]
async fn a17_an_infrastructure_failure_starts_the_rollout_again_with_nothing_kept() {
    let policy = Arc::new(Script::default());
    lock(&policy.answers).extend([
        Err(PolicyError::Unavailable("gone".into())),
        Err(PolicyError::Unavailable("gone".into())),
        Ok(turn("fine<|end|>", Stop, 1)),
    ]);
    let collected = sampler(driver(policy.clone(), 1, |_| reward(1.0)), 1)
        .groups(Step(0), 1)
        .await
        .unwrap();
    let t = &collected.groups[0].rollouts[0].trajectories[0];
    assert_eq!(
        (t.loss_mask().len(), t.logprobs().len(), t.num_sampled()),
        (5, 5, 5)
    );
    let asked = lock(&policy.asked);
    assert!(
        asked[0].rid != asked[1].rid
            && asked[0].params.sampling_seed == asked[2].params.sampling_seed
    );
}

#[tokio::test]
async fn without_any_engine_the_step_ends_and_its_draws_come_again() {
    let policy = echo(|_| Err(PolicyError::Unavailable("connection refused".into())));
    let ledger = Arc::new(MemoryLedger::default());
    let sampler = Sampler::new(
        driver(policy, 2, |_| reward(1.0)),
        Arc::new(Rows(5)),
        ledger.clone(),
    );
    let error = sampler.groups(Step(0), 2).await.unwrap_err();
    assert!(
        matches!(&error, RolloutError::NoEngine { reason } if reason.contains("connection refused")),
        "{error}"
    );
    let draws: Vec<_> = ledger
        .claim(Step(0), 3)
        .unwrap()
        .iter()
        .map(|c| c.draw)
        .collect();
    assert_eq!(draws, [0, 1, 2]);
}

#[tokio::test]
async fn f11_a_rollout_that_always_fails_is_given_up_and_leaves_its_siblings_alone() {
    let policy = echo(|r| {
        if r.rid.contains("run-1-") {
            Err(PolicyError::Unavailable("gone".into()))
        } else {
            Ok(turn("x<|end|>", Stop, 1))
        }
    });
    let collected = sampler(driver(policy.clone(), 3, |_| reward(1.0)), 5)
        .groups(Step(0), 1)
        .await
        .unwrap();
    let kinds: Vec<_> = collected.groups[0]
        .rollouts
        .iter()
        .map(|r| r.outcome.kind())
        .collect();
    assert_eq!(kinds, ["scored", "infra-failed", "scored"]);
    assert_eq!(
        lock(&policy.asked).len(),
        2 + 3,
        "retried twice, then given up"
    );
    assert_eq!(
        collected.metrics.get("rollout/outcome/infra-failed/judge"),
        Some(1.0)
    );
}

#[tokio::test]
async fn giving_up_gives_the_draws_back() {
    let policy = echo(|_| Ok(turn("x<|end|>", Stop, 1)));
    let ledger = Arc::new(MemoryLedger::default());
    let sampler = Sampler::new(
        driver(policy, 2, |_| reward(1.0)),
        Arc::new(Rows(5)),
        ledger.clone(),
    );
    tokio::select! {
        biased;
        () = async { tokio::task::yield_now().await; tokio::time::sleep(Duration::from_millis(2)).await } => {}
        _ = sampler.groups(Step(0), 4) => panic!("too fast"),
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    let draws: Vec<_> = ledger
        .claim(Step(0), 5)
        .unwrap()
        .iter()
        .map(|c| c.draw)
        .collect();
    assert_eq!(draws, [0, 1, 2, 3, 4]);
}

#[tokio::test]
async fn f05_dropped_groups_are_counted_by_reason_and_replaced() {
    // Rows 0 and 3 always fail, row 1 always succeeds, the others are mixed.
    let policy = echo(|r| {
        Ok(turn(
            &format!("{}-{}<|end|>", row(r), r.params.sampling_seed.unwrap()),
            Stop,
            1,
        ))
    });
    let judge = |item: &ScoreRequest| match item.label.as_deref() {
        Some("0" | "3") => reward(0.0),
        Some("1") => reward(1.0),
        _ => reward(f64::from(u8::from(item.seed.is_multiple_of(2)))),
    };
    let run = || async {
        let filters: Vec<Arc<dyn GroupFilter>> = vec![Arc::new(ZeroStd)];
        sampler(driver(policy.clone(), 8, judge), 10)
            .with_filters(filters)
            .groups(Step(0), 4)
            .await
            .unwrap()
    };
    let collected = run().await;
    assert_eq!(
        collected
            .dropped
            .iter()
            .map(|(r, n)| (r.as_str(), *n))
            .collect::<Vec<_>>(),
        [("zero_std_0", 2), ("zero_std_1", 1)]
    );
    assert_eq!(
        collected.groups.iter().map(|g| g.id.0).collect::<Vec<_>>(),
        [2, 4, 5, 6]
    );
    assert_eq!(
        collected
            .metrics
            .get("rollout/dynamic_filter/drop_zero_std_0"),
        Some(2.0)
    );
    assert_eq!(collected.metrics.get("rollout/zero_std/count_0"), Some(2.0));
    assert_eq!(
        collected.metrics.get("rollout/outcome/scored"),
        Some(56.0),
        "metrics see what was dropped too"
    );
    assert_eq!(run().await.groups, collected.groups);
}

#[tokio::test]
async fn f01_a_verifier_that_always_says_zero_ends_the_run_with_the_reason() {
    let policy = echo(|_| Ok(turn("x<|end|>", Stop, 1)));
    let filters: Vec<Arc<dyn GroupFilter>> = vec![Arc::new(ZeroStd)];
    let sampler = sampler(driver(policy, 4, |_| reward(0.0)), 10).with_filters(filters);
    let error = sampler.groups(Step(2), 2).await.unwrap_err().to_string();
    assert!(
        error.contains("step 2: 0 of 2 groups after 3 refills") && error.contains("zero_std_0 8×"),
        "{error}"
    );
}

#[tokio::test]
async fn a_step_of_equal_rewards_warns_and_says_what_it_means() {
    let policy = echo(|_| Ok(turn("x<|end|>", Stop, 1)));
    let collected = sampler(driver(policy, 4, |_| reward(0.1)), 10)
        .groups(Step(7), 3)
        .await
        .unwrap();
    assert_eq!(collected.groups.len(), 3, "they are kept");
    let [warning] = &collected.warnings[..] else {
        panic!("{:?}", collected.warnings)
    };
    assert!(
        warning.contains("step 7: in each of the 3 groups all rewards are equal (to 0.1)"),
        "{warning}"
    );
    assert!(warning.contains("every advantage is 0"), "{warning}");
    assert_eq!(
        collected.metrics.get("rollout/zero_std/count_0.1"),
        Some(3.0)
    );
}

#[tokio::test]
async fn a_steps_numbers_are_those_of_its_rollouts() {
    // Lengths 1, 2, 3, 10 (the last one cut off) and rewards 1, 0, 0.5 and none.
    let policy = Arc::new(Script::default());
    lock(&policy.answers).extend(
        [
            turn("<|end|>", Stop, 1),
            turn("a<|end|>", Stop, 2),
            turn("aa<|end|>", Stop, 1),
            turn("aaaaaaaaaa", Length, 2),
        ]
        .map(Ok),
    );
    let judge = |item: &ScoreRequest| match item.response.len() {
        0 => reward(1.0),
        1 => reward(0.0),
        2 => reward(0.5),
        _ => reward(f64::NAN),
    };
    let collected = sampler(driver(policy, 4, judge), 1)
        .groups(Step(0), 1)
        .await
        .unwrap();
    let get = |name: &str| collected.metrics.get(name);
    assert_eq!(get("rollout/reward"), Some(0.5));
    assert_eq!(get("rollout/outcome/invalid-reward"), Some(1.0));
    assert_eq!(get("rollout/outcome/trapped"), Some(0.0));
    let lens = ["mean", "median", "max", "min"]
        .map(|s| get(&format!("rollout/response_len/{s}")).unwrap());
    assert_eq!(lens, [4.0, 2.5, 10.0, 1.0]);
    assert_eq!(get("rollout/truncated_ratio"), Some(0.25));
    // Five prompt tokens, two of them cached, four times.
    assert_eq!(get("rollout/prefix_cache_hit_rate"), Some(8.0 / 20.0));
    assert!((get("passrate/pass@1").unwrap() - 1.0 / 3.0).abs() < 1e-12);
    assert!(get("perf/rollout_time").unwrap() > 0.0 && get("perf/tokens_per_sec").unwrap() > 0.0);
    assert_eq!(get("rollout/zero_std/count_0"), None);
    // Tokens 1+3 at version 1, 2+10 at version 2; seen from version 4.
    let (mean, max) = lag(&collected.groups, WeightVersion(4)).unwrap();
    assert_eq!((mean, max), ((4.0 * 3.0 + 12.0 * 2.0) / 16.0, 3));
}

#[test]
fn m06_pass_at_k_is_the_unbiased_estimate() {
    assert_eq!(pass_at_k(8, 2, 1), 0.25);
    assert!((pass_at_k(8, 2, 4) - 0.785_714).abs() < 1e-6);
    assert_eq!((pass_at_k(8, 2, 8), pass_at_k(4, 0, 2)), (1.0, 0.0));
    assert!((pass_at_k(4, 1, 2) - 0.5).abs() < 1e-12);
}

/// Asks, gives the policy a tool's words, asks again.
struct TwoTurns;

impl Generator for TwoTurns {
    fn name(&self) -> &str {
        "two-turns"
    }
    fn generate(
        &self,
        start: Arc<dyn slime_core::ports::LiveTrajectory>,
        _seed: u64,
    ) -> BoxFuture<'_, slime_core::ports::Generated> {
        Box::pin(async move {
            start.sample(0, vec![]).await.unwrap();
            start
                .append(Message::new("tool", "\\boxed{42}"))
                .await
                .unwrap();
            start.sample(0, vec![]).await.unwrap();
            slime_core::ports::Generated {
                trajectories: start.finish(),
                failure: None,
                cost: Default::default(),
            }
        })
    }
}

#[tokio::test]
async fn a_verifier_reads_what_the_policy_wrote_and_not_what_tools_said() {
    let policy = Arc::new(Script::new([
        turn("4<|end|>", Stop, 1),
        turn("2<|end|>", Stop, 1),
    ]));
    let mut driver = driver(policy, 1, |item| {
        assert_eq!(
            (item.response.as_str(), item.prompt.as_str()),
            ("4\n2", "0")
        );
        reward(1.0)
    });
    driver.generator = Arc::new(TwoTurns);
    let collected = sampler(driver, 1).groups(Step(0), 1).await.unwrap();
    assert_eq!(collected.metrics.get("rollout/reward"), Some(1.0));
}

#[tokio::test]
async fn f14_m04_an_evaluation_scores_every_row_and_tells_unscored_from_zero() {
    let policy = echo(|_| Ok(turn("x<|end|>", Stop, 1)));
    let judge = |item: &ScoreRequest| match item.label.as_deref() {
        Some("1") => Outcome::Timeout("slow".into()),
        Some("2") => reward(0.0),
        _ => reward(1.0),
    };
    let report = evaluate(&driver(policy, 1, judge), &Rows(10), Step(4), &Silent)
        .await
        .unwrap();
    assert_eq!(report.groups.len(), 10);
    assert_eq!(report.metrics.get("eval/rows"), Some(8.0 / 9.0));
    assert_eq!(report.metrics.get("eval/rows/none_ratio"), Some(0.1));
    assert_eq!(report.metrics.get("eval/rows-truncated_ratio"), Some(0.0));
    assert_eq!(report.metrics.get("eval/rows-pass@1"), Some(8.0 / 9.0));
    assert_eq!(report.metrics.get("eval/rows/outcome/timeout"), Some(1.0));
}

#[tokio::test]
async fn a_model_without_a_template_stops_the_run_at_the_first_conversation() {
    let policy = echo(|_| Ok(turn("x", Stop, 1)));
    let mut driver = driver(policy, 1, |_| reward(1.0));
    driver.codec = Arc::new(Bytes(Style::None));
    let error = sampler(driver, 1)
        .groups(Step(0), 1)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("prompt rows/0") && error.contains("chat_template.jinja"),
        "{error}"
    );
}

/// Forks once and returns both.
struct Forks;

impl Generator for Forks {
    fn name(&self) -> &str {
        "forks"
    }
    fn generate(
        &self,
        start: Arc<dyn slime_core::ports::LiveTrajectory>,
        _seed: u64,
    ) -> BoxFuture<'_, slime_core::ports::Generated> {
        Box::pin(async move {
            let other = start.fork().unwrap();
            start.sample(0, vec![]).await.unwrap();
            other.sample(0, vec![]).await.unwrap();
            slime_core::ports::Generated {
                trajectories: [start.finish(), other.finish()].concat(),
                failure: None,
                cost: Default::default(),
            }
        })
    }
}

#[tokio::test]
async fn f04_a_filter_sees_one_reward_of_a_rollout_with_several_trajectories() {
    struct Count(Mutex<Vec<usize>>);
    impl GroupFilter for Count {
        fn judge<'a>(
            &'a self,
            group: &'a slime_core::Group,
        ) -> BoxFuture<'a, crate::collect::Judgement> {
            lock(&self.0).push(group.rewards().len());
            Box::pin(std::future::ready(crate::collect::Judgement::Keep))
        }
    }
    let policy = echo(|_| Ok(turn("x<|end|>", Stop, 1)));
    let mut driver = driver(policy, 3, |_| reward(1.0));
    driver.generator = Arc::new(Forks);
    let count = Arc::new(Count(Mutex::default()));
    let filters: Vec<Arc<dyn GroupFilter>> = vec![count.clone()];
    let sampler = sampler(driver, 2).with_filters(filters);
    let collected = sampler.groups(Step(0), 2).await.unwrap();
    let trajectories: Vec<usize> = collected.groups[0]
        .rollouts
        .iter()
        .map(|r| r.trajectories.len())
        .collect();
    assert_eq!(trajectories, [2, 2, 2]);
    assert_eq!(*lock(&count.0), [3, 3]);
}

#[test]
fn h12_age_is_a_mean_over_tokens_and_the_oldest_tokens_maximum() {
    let mut trajectory = slime_core::Trajectory::from_prompt(vec![1]);
    for (version, len) in [(10, 30), (12, 70)] {
        let origin = slime_core::Origin::Policy {
            logprobs: vec![-1.0; len],
            version: WeightVersion(version),
        };
        let segment = slime_core::Segment {
            origin,
            tokens: vec![2; len],
        };
        trajectory.push(segment).unwrap();
    }
    let rollout = slime_core::Rollout {
        id: slime_core::RolloutId(0),
        index: 0,
        seed: 0,
        trajectories: vec![trajectory],
        outcome: reward(1.0),
        scoring: Default::default(),
        shaped: None,
    };
    let prompt = Prompt {
        id: PromptId {
            source: "s".into(),
            row: 0,
        },
        body: PromptBody::Text("p".into()),
        label: None,
        tools: vec![],
        metadata: Default::default(),
    };
    let group = slime_core::Group {
        id: slime_core::GroupId(0),
        step: Step(0),
        prompt,
        rollouts: vec![rollout],
    };
    let (mean, max) = lag(&[group], WeightVersion(13)).unwrap();
    assert!((mean - 1.6).abs() < 1e-12 && max == 3, "{mean} {max}");
}

#[tokio::test]
async fn a_group_ends_with_the_plugins_that_it_began_with_and_the_next_has_the_new_ones() {
    use std::sync::OnceLock;
    let policy = || echo(|_| Ok(turn("x<|end|>", Stop, 1)));
    let newer = driver(policy(), 4, |_| reward(1.0));
    let held: Arc<OnceLock<Driver>> = Arc::default();
    let (inside, newer) = (Arc::clone(&held), Arc::new(newer));
    let relief = Arc::clone(&newer);
    // Loaded anew in the middle of the first group: after its first verdict, before its second.
    let older = driver(policy(), 4, move |_| {
        let driver = inside.get().unwrap();
        driver.relieve(Arc::new(Forks), &relief.scoring);
        reward(0.0)
    });
    assert!(held.set(older.clone()).is_ok());
    let sampler = sampler(older, 1);
    let first = sampler.groups(Step(0), 1).await.unwrap().groups.remove(0);
    assert_eq!(first.rewards(), [0.0; 4]);
    assert!(first.rollouts.iter().all(|r| r.trajectories.len() == 1));
    let second = sampler.groups(Step(1), 1).await.unwrap().groups.remove(0);
    assert_eq!(second.rewards(), [1.0; 4]);
    assert!(second.rollouts.iter().all(|r| r.trajectories.len() == 2));
}
