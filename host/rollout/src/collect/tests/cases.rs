//! Failures that other projects shipped between prompt and group, with what is right. The list, with what became of each
//! case, is docs/failure-cases.md; those that an older test covers have their id in its name.

use super::live::{WIDE, stage, stage_with, text, trained};
use super::sampling::{Rows, driver, echo};
use super::{Bytes, END, Script, Style, reward, turn};
use crate::collect::{Continuous, GroupFilter, Judgement, MemoryLedger, Sampler, ZeroStd};
use crate::lock;
use futures::executor::block_on;
use slime_core::FinishReason::{Length, Stop};
use slime_core::ports::TextCodec;
use slime_core::{
    Group, GroupId, Message, Prompt, PromptBody, PromptId, Rollout, RolloutId, SamplingParams,
    Step, Trajectory, WeightVersion,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[test]
fn a09_a_reply_keeps_its_trailing_whitespace_and_later_turns_extend_it() {
    let s = stage(
        Style::Chat,
        Script::new([turn("x \n<|end|>", Stop, 1), turn("y<|end|>", Stop, 1)]),
    );
    block_on(s.live.sample(0, vec![])).unwrap();
    block_on(s.live.append(Message::new("user", "q2"))).unwrap();
    block_on(s.live.sample(0, vec![])).unwrap();
    let [t] = &s.live.finish()[..] else {
        panic!("one trajectory")
    };
    assert_eq!(text(Style::Chat, &trained(t)), "x \n<|end|>y<|end|>");
    assert_eq!(s.tally.retokenised_turns.load(Ordering::Relaxed), 0);
}

#[test]
fn a09_a_message_without_content_reads_as_one_with_empty_content() {
    let empty = Message::new("assistant", "");
    let null: Message = serde_json::from_str(r#"{"role": "assistant", "content": null}"#).unwrap();
    let absent: Message = serde_json::from_str(r#"{"role": "assistant"}"#).unwrap();
    let render = |message: &Message| {
        let messages = [Message::new("user", "q"), message.clone()];
        Bytes(Style::Chat)
            .render_chat(&messages, &[], true, &Default::default())
            .unwrap()
    };
    assert_eq!(render(&null), render(&empty));
    assert_eq!(render(&absent), render(&empty));
}

#[test]
fn a10_what_the_generation_prompt_writes_is_not_trained() {
    let prompt = Bytes(Style::None).encode("q<think>\n").unwrap();
    let script = Script::new([turn("r</think>\n\na<|end|>", Stop, 1)]);
    let s = stage_with(
        Style::None,
        PromptBody::Tokens(prompt),
        WIDE,
        SamplingParams::default(),
        script,
    );
    block_on(s.live.sample(0, vec![])).unwrap();
    let [t] = &s.live.finish()[..] else {
        panic!("one trajectory")
    };
    let all = text(Style::None, &t.tokens());
    assert_eq!(
        (
            all.matches("<think>").count(),
            all.matches("</think>").count()
        ),
        (1, 1)
    );
    assert_eq!(text(Style::None, &trained(t)), "r</think>\n\na<|end|>");
}

#[test]
fn a14_a_conversation_is_rendered_whole_and_the_tokens_are_those_of_the_render() {
    let messages = vec![
        Message::new("system", "be brief"),
        Message::new("user", "q"),
    ];
    let script = Script::new([turn("one<|end|>", Stop, 1), turn("tw<|end|>", Stop, 1)]);
    let s = stage_with(
        Style::Chat,
        PromptBody::Messages(messages.clone()),
        WIDE,
        SamplingParams::default(),
        script,
    );
    block_on(s.live.sample(0, vec![])).unwrap();
    block_on(s.live.append(Message::new("tool", "t"))).unwrap();
    block_on(s.live.sample(0, vec![])).unwrap();
    let whole = [
        messages,
        vec![Message::new("assistant", "one"), Message::new("tool", "t")],
    ]
    .concat();
    let render = Bytes(Style::Chat)
        .render_chat(&whole, &[], true, &Default::default())
        .unwrap();
    let [t] = &s.live.finish()[..] else {
        panic!("one trajectory")
    };
    assert!(t.tokens().starts_with(&render));
    assert_eq!(t.tokens().len(), render.len() + "tw".len() + 1);
}

#[test]
fn e07_the_end_token_is_in_ids_log_probs_and_mask_and_not_in_the_text() {
    let s = stage(Style::Chat, Script::new([turn("xy<|end|>", Stop, 1)]));
    let got = block_on(s.live.sample(0, vec![])).unwrap();
    assert_eq!((got.text.as_str(), got.num_tokens), ("xy", 3));
    let [t] = &s.live.finish()[..] else {
        panic!("one trajectory")
    };
    assert_eq!(t.response_tokens(), [120, 121, END]);
    assert_eq!((t.logprobs().len(), t.loss_mask()), (3, vec![1, 1, 1]));
}

fn group_of(trajectories: usize, rewards: &[f64]) -> Group {
    let id = PromptId {
        source: "s".into(),
        row: 0,
    };
    let prompt = Prompt {
        id,
        body: PromptBody::Text("p".into()),
        label: None,
        tools: vec![],
        metadata: Default::default(),
    };
    let rollouts = rewards.iter().enumerate().map(|(index, r)| Rollout {
        id: RolloutId(index as u64),
        index: index as u32,
        seed: 0,
        trajectories: vec![Trajectory::from_prompt(vec![1]); trajectories],
        outcome: reward(*r),
        scoring: Default::default(),
        shaped: None,
    });
    Group {
        id: GroupId(0),
        step: Step(0),
        prompt,
        rollouts: rollouts.collect(),
    }
}

#[test]
fn f04_a_filter_sees_one_reward_a_rollout_however_many_trajectories_it_has() {
    let judge = |group: &Group| block_on(ZeroStd.judge(group));
    let fans_out = group_of(3, &[1.0, 0.0]);
    assert_eq!(fans_out.rewards(), [1.0, 0.0]);
    assert_eq!(judge(&fans_out), Judgement::Keep);
    assert_eq!(
        judge(&group_of(3, &[1.0, 1.0])),
        Judgement::Drop("zero_std_1".into())
    );
}

#[test]
fn c02_a_group_of_equal_rewards_is_dropped_whatever_their_computed_deviation() {
    for n in [3, 7, 8, 16] {
        for r in [0.1, 0.35, 0.7, 0.95] {
            let judgement = block_on(ZeroStd.judge(&group_of(1, &vec![r; n])));
            assert!(matches!(judgement, Judgement::Drop(_)), "{n} times {r}");
        }
    }
    // One reward compares with none: slime's deviation of it is no number.
    let alone = block_on(ZeroStd.judge(&group_of(1, &[1.0])));
    assert_eq!(alone, Judgement::Drop("unscored".into()));
}

#[tokio::test]
async fn f08_a_rollout_that_ends_at_the_length_limit_is_scored() {
    let policy = echo(|_| {
        let mut answer = turn("abcde", Length, 1);
        // Its tokens come from two versions: it was interrupted and went on.
        answer.versions = vec![(WeightVersion(1), 3), (WeightVersion(2), 2)];
        Ok(answer)
    });
    let sampler = Sampler::new(
        driver(policy, 2, |_| reward(0.25)),
        Arc::new(Rows(3)),
        Arc::new(MemoryLedger::default()),
    );
    let collected = sampler.groups(Step(0), 1).await.unwrap();
    let rollout = &collected.groups[0].rollouts[0];
    assert_eq!(
        (rollout.outcome.reward(), rollout.trajectories[0].finish),
        (Some(0.25), Some(Length))
    );
    assert_eq!(collected.metrics.get("rollout/truncated_ratio"), Some(1.0));
}

#[tokio::test]
async fn f02_over_sampling_draws_a_round_of_its_own_size_and_keeps_what_is_left() {
    let policy = echo(|_| Ok(turn("x<|end|>", Stop, 1)));
    let mut driver = driver(policy.clone(), 1, |_| reward(1.0));
    let mut config = (*driver.config).clone();
    config.over_sampling = 6;
    driver.config = Arc::new(config);
    let sampler = Sampler::new(driver, Arc::new(Rows(9)), Arc::new(MemoryLedger::default()));
    let collected = sampler.groups(Step(0), 4).await.unwrap();
    assert_eq!(collected.groups.len(), 6, "the ledger has all of them");
    assert_eq!(lock(&policy.asked).len(), 6);
}

/// A policy whose answers take a while, and how many are being written now, at most and in all.
fn slow(wait: Duration) -> (Arc<super::sampling::Slow>, Arc<[AtomicUsize; 3]>) {
    let counts: Arc<[AtomicUsize; 3]> = Arc::default();
    (
        Arc::new(super::sampling::Slow {
            wait,
            counts: counts.clone(),
        }),
        counts,
    )
}

#[tokio::test]
async fn f03_a_full_queue_stops_the_sampler_and_never_locks_it() {
    let (policy, counts) = slow(Duration::from_millis(2));
    let ledger = Arc::new(MemoryLedger::default());
    let sampler = Sampler::new(
        driver(policy, 1, |_| reward(1.0)),
        Arc::new(Rows(50)),
        ledger.clone(),
    );
    let continuous = Continuous::start(&sampler, Step(0), 2, 2);
    // The consumer is slow: the sampler fills what there is room for, and stops.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(counts[2].load(Ordering::SeqCst), 2);
    let mut delivered = 0;
    for step in 0..5 {
        delivered += continuous.groups(Step(step)).await.unwrap().groups.len();
        continuous.taking();
        ledger.take(2);
        continuous.serve(WeightVersion(step + 1));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(delivered, 10);
}

#[tokio::test]
async fn f10_all_slots_are_filled_again_at_once() {
    let (policy, counts) = slow(Duration::from_millis(60));
    let ledger = Arc::new(MemoryLedger::default());
    let sampler = Sampler::new(
        driver(policy, 1, |_| reward(1.0)),
        Arc::new(Rows(50)),
        ledger.clone(),
    );
    let continuous = Continuous::start(&sampler, Step(0), 8, 8);
    continuous.groups(Step(0)).await.unwrap();
    assert_eq!(
        counts[0].load(Ordering::SeqCst),
        0,
        "the barrier: nothing is in flight"
    );
    continuous.taking();
    ledger.take(8);
    continuous.serve(WeightVersion(1));
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert_eq!(counts[0].load(Ordering::SeqCst), 8);
}

/// Sampled two versions before it trains, a group would be thrown away where one is allowed.
#[tokio::test]
async fn no_group_begins_that_would_be_too_old_when_it_trains() {
    let (policy, counts) = slow(Duration::from_millis(30));
    let ledger = Arc::new(MemoryLedger::default());
    let driver = driver(policy, 1, |_| reward(1.0));
    let sampler = Sampler::new(driver, Arc::new(Rows(50)), ledger.clone());
    let (n, max_lag) = (4, 1);
    let continuous = Continuous::start(&sampler, Step(0), n, n * (max_lag + 1));
    for step in 0..4 {
        continuous.groups(Step(step)).await.unwrap();
        continuous.taking();
        ledger.take(n);
        // The step trains for longer than it takes what is in flight to end.
        tokio::time::sleep(Duration::from_millis(120)).await;
        let begun = counts[2].load(Ordering::SeqCst);
        let before = n * (step as usize + 1);
        assert_eq!(begun, before + n * max_lag, "while step {step} trains");
        // Room again: these are in flight when the next step takes what waits.
        continuous.serve(WeightVersion(step + 1));
        tokio::time::sleep(Duration::from_millis(10)).await;
        let begun = counts[2].load(Ordering::SeqCst);
        assert_eq!(begun, before + n * (max_lag + 1), "version {}", step + 1);
    }
}

#[tokio::test]
async fn a_sampler_that_never_pauses_ends_with_the_reason_where_filters_drop_everything() {
    let (policy, _) = slow(Duration::from_millis(1));
    let filters: Vec<Arc<dyn GroupFilter>> = vec![Arc::new(ZeroStd)];
    let sampler = Sampler::new(
        driver(policy, 2, |_| reward(0.0)),
        Arc::new(Rows(50)),
        Arc::new(MemoryLedger::default()),
    )
    .with_filters(filters);
    let continuous = Continuous::start(&sampler, Step(0), 2, 4);
    let error = continuous.groups(Step(0)).await.unwrap_err().to_string();
    assert!(error.contains("zero_std_0"), "{error}");
}

#[tokio::test]
async fn giving_a_continuous_sampler_up_gives_its_draws_back() {
    use crate::collect::Ledger;
    let (policy, _) = slow(Duration::from_secs(60));
    let ledger = Arc::new(MemoryLedger::default());
    let sampler = Sampler::new(
        driver(policy, 2, |_| reward(0.0)),
        Arc::new(Rows(50)),
        ledger.clone(),
    );
    let continuous = Continuous::start(&sampler, Step(0), 2, 4);
    tokio::time::sleep(Duration::from_millis(20)).await;
    drop(continuous);
    tokio::time::sleep(Duration::from_millis(20)).await;
    let draws: Vec<u64> = ledger
        .claim(Step(0), 4)
        .unwrap()
        .iter()
        .map(|c| c.draw)
        .collect();
    assert_eq!(draws, [0, 1, 2, 3]);
}

/// Answers after a time that looks random and depends on the request and a salt.
struct Shuffled(u64);

impl slime_core::ports::Policy for Shuffled {
    fn sample(
        &self,
        request: slime_core::ports::SampleRequest,
    ) -> slime_core::ports::BoxFuture<
        '_,
        Result<slime_core::ports::Sampled, slime_core::ports::PolicyError>,
    > {
        let seed = request.params.sampling_seed.unwrap();
        let wait = (seed ^ self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .wrapping_mul(0x2545_f491_4f6c_dd1d)
            >> 60;
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(wait)).await;
            Ok(turn(&format!("{}<|end|>", seed % 7), Stop, 1))
        })
    }
}

#[tokio::test]
async fn the_order_in_which_rollouts_arrive_never_changes_a_step() {
    let run = |salt: u64| async move {
        let judge = |item: &slime_core::ports::ScoreRequest| {
            reward(f64::from(u8::from(
                item.response.len() > 1 || item.seed.is_multiple_of(3),
            )))
        };
        let filters: Vec<Arc<dyn GroupFilter>> = vec![Arc::new(ZeroStd)];
        let sampler = Sampler::new(
            driver(Arc::new(Shuffled(salt)), 3, judge),
            Arc::new(Rows(9)),
            Arc::new(MemoryLedger::default()),
        );
        let sampler = sampler.with_filters(filters);
        let mut steps = Vec::new();
        for step in 0..3 {
            let collected = sampler.groups(Step(step), 3).await.unwrap();
            steps.push((collected.groups, collected.dropped));
        }
        steps
    };
    let first = run(0).await;
    for salt in 1..8 {
        assert_eq!(run(salt).await, first, "salt {salt}");
    }
}
