use super::super::driver::Limits;
use super::super::live::{Live, Origin, Tally};
use super::super::render::prompt_tokens;
use super::{AB, Bytes, END, Script, Style, turn};
use crate::lock;
use futures::executor::block_on;
use proptest::prelude::*;
use slime_core::FinishReason::{Abort, Length, Stop};
use slime_core::ports::{LiveError, LiveTrajectory, TextCodec};
use slime_core::{Message, Prompt, PromptBody, PromptId, SamplingParams, Trajectory};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) struct Stage {
    pub(super) script: Arc<Script>,
    pub(super) tally: Arc<Tally>,
    pub(super) live: Arc<dyn LiveTrajectory>,
}

pub(super) fn stage_with(
    style: Style,
    body: PromptBody,
    limits: Limits,
    params: SamplingParams,
    script: Script,
) -> Stage {
    let codec: Arc<dyn TextCodec> = Arc::new(Bytes(style));
    let id = PromptId {
        source: "s".into(),
        row: 0,
    };
    let prompt = Prompt {
        id,
        body,
        label: None,
        tools: vec![],
        metadata: Default::default(),
    };
    let tokens = prompt_tokens(codec.as_ref(), &prompt, &Default::default()).unwrap();
    let script = Arc::new(script);
    let tally = Arc::new(Tally::default());
    let origin = Origin {
        policy: script.clone(),
        codec,
        prompt: Arc::new(prompt),
        template_kwargs: Arc::default(),
        params,
        limits,
        seed: 77,
        rid: "r".into(),
        session: 5,
        served: Arc::new(AtomicU64::new(1)),
        tally: Arc::clone(&tally),
        ownership: Default::default(),
        turns: Default::default(),
        next_id: AtomicU64::new(0),
    };
    Stage {
        script,
        tally,
        live: Arc::new(Live::start(Arc::new(origin), tokens)),
    }
}

pub(super) const WIDE: Limits = Limits {
    context_tokens: 1000,
    response_tokens: None,
    max_turns: 100,
};

pub(super) fn stage(style: Style, script: Script) -> Stage {
    stage_with(
        style,
        PromptBody::Messages(vec![Message::new("user", "q")]),
        WIDE,
        SamplingParams::default(),
        script,
    )
}

pub(super) fn trained(t: &Trajectory) -> Vec<u32> {
    t.response_tokens()
        .into_iter()
        .zip(t.loss_mask())
        .filter(|(_, m)| *m == 1)
        .map(|(t, _)| t)
        .collect()
}

pub(super) fn text(style: Style, tokens: &[u32]) -> String {
    Bytes(style).decode(tokens, false)
}

#[test]
fn a01_every_turn_of_the_policy_is_trained_and_nothing_else_is() {
    let s = stage(
        Style::Chat,
        Script::new([turn("one<|end|>", Stop, 1), turn("tw<|end|>", Stop, 2)]),
    );
    let first = block_on(s.live.sample(0, vec![])).unwrap();
    assert_eq!(
        (first.text.as_str(), first.finish, first.num_tokens),
        ("one", Stop, 4)
    );
    block_on(s.live.append(Message::new("tool", "t"))).unwrap();
    block_on(s.live.append(Message::new("user", "more"))).unwrap();
    let second = block_on(s.live.sample(0, vec![])).unwrap();
    assert_eq!(second.version.0, 2);

    let [t] = &s.live.finish()[..] else {
        panic!("one trajectory")
    };
    assert_eq!(
        text(Style::Chat, &t.tokens()),
        "<|user|>q<|end|>\n<|assistant|>one<|end|>\n<|tool|>t<|end|>\n<|user|>more<|end|>\n<|assistant|>tw<|end|>"
    );
    assert_eq!(text(Style::Chat, &trained(t)), "one<|end|>tw<|end|>");
    let runs =
        t.loss_mask().windows(2).filter(|w| w == &[0, 1]).count() + usize::from(t.loss_mask()[0]);
    assert_eq!(runs, 2);
    assert_eq!(t.response_tokens().len(), t.loss_mask().len());
    assert_eq!(t.logprobs().len(), t.loss_mask().len());
    assert_eq!(s.live.response(), "one\nt\nmore\ntw");
    // The second request began with exactly the tokens held after the first.
    let asked = lock(&s.script.asked);
    let first_held = [asked[0].tokens.clone(), turn("one<|end|>", Stop, 1).tokens].concat();
    assert!(asked[1].tokens.starts_with(&first_held));
}

#[test]
fn sampled_tokens_stay_as_they_were_sampled_though_the_tokenizer_spells_otherwise() {
    let s = stage(
        Style::Chat,
        Script::new([turn("ab<|end|>", Stop, 1), turn("x<|end|>", Stop, 1)]),
    );
    block_on(s.live.sample(0, vec![])).unwrap();
    block_on(s.live.append(Message::new("user", "ab"))).unwrap();
    block_on(s.live.sample(0, vec![])).unwrap();
    let [t] = &s.live.finish()[..] else {
        panic!("one trajectory")
    };
    assert_eq!(trained(t), [97, 98, END, 120, END]);
    // The user's own `ab` is the tokenizer's.
    assert_eq!(t.tokens().iter().filter(|&&id| id == AB).count(), 1);
    assert_eq!(s.tally.retokenised_turns.load(Ordering::Relaxed), 1);
}

#[test]
fn a18_a_template_that_rewrites_history_starts_a_new_trajectory() {
    let script = Script::new([
        turn("hm</think>one<|end|>", Stop, 1),
        turn("so</think>two<|end|>", Stop, 1),
    ]);
    let s = stage(Style::Forgetful, script);
    block_on(s.live.sample(0, vec![])).unwrap();
    block_on(s.live.append(Message::new("user", "q2"))).unwrap();
    block_on(s.live.sample(0, vec![])).unwrap();
    let all = s.live.finish();
    assert_eq!(all.len(), 2);
    assert_eq!(
        text(Style::Forgetful, &all[0].tokens()),
        "<|user|>q<|end|>\n<|assistant|>hm</think>one<|end|>"
    );
    assert_eq!(
        text(Style::Forgetful, &all[1].tokens()),
        "<|user|>q<|end|>\n<|assistant|>one<|end|>\n<|user|>q2<|end|>\n<|assistant|>so</think>two<|end|>"
    );
    let trained: Vec<String> = all
        .iter()
        .map(|t| text(Style::Forgetful, &trained(t)))
        .collect();
    assert_eq!(trained, ["hm</think>one<|end|>", "so</think>two<|end|>"]);
    assert_eq!(s.tally.rewritten_histories.load(Ordering::Relaxed), 1);
    assert_eq!(s.live.response(), "hm</think>oneq2so</think>two");
}

#[test]
fn a08_the_role_tag_that_ends_a_turn_belongs_to_the_policy() {
    let s = stage(
        Style::Glm,
        Script::new([turn("a<|user|>", Stop, 1), turn("b<|tool|>", Stop, 1)]),
    );
    block_on(s.live.sample(0, vec![])).unwrap();
    block_on(s.live.append(Message::new("user", "q2"))).unwrap();
    assert_eq!(block_on(s.live.sample(0, vec![])).unwrap().text, "b");
    let [t] = &s.live.finish()[..] else {
        panic!("one trajectory")
    };
    assert_eq!(
        text(Style::Glm, &t.tokens()),
        "<|user|>q<|assistant|>a<|user|>q2<|assistant|>b<|tool|>"
    );
    assert_eq!(text(Style::Glm, &trained(t)), "a<|user|>b<|tool|>");

    // The policy called for a tool and gets a user instead: its tag is not what the template writes.
    let s = stage(
        Style::Glm,
        Script::new([turn("a<|tool|>", Stop, 1), turn("b<|user|>", Stop, 1)]),
    );
    block_on(s.live.sample(0, vec![])).unwrap();
    block_on(s.live.append(Message::new("user", "q2"))).unwrap();
    block_on(s.live.sample(0, vec![])).unwrap();
    assert_eq!(s.live.finish().len(), 2);
}

#[test]
fn a12_a_turn_gets_what_is_left_of_the_context() {
    let limits = Limits {
        context_tokens: 100,
        ..WIDE
    };
    let params = SamplingParams {
        max_new_tokens: 50,
        ..SamplingParams::default()
    };
    let prompt = PromptBody::Tokens((0..40).map(|i| 65 + i % 20).collect());
    let script = Script::new([
        turn(&"x".repeat(40), Length, 1),
        turn(&"y".repeat(15), Length, 1),
    ]);
    let s = stage_with(Style::None, prompt, limits, params, script);
    assert_eq!(s.live.remaining_tokens(), 60);
    block_on(s.live.sample(0, vec![])).unwrap();
    block_on(s.live.append(Message::new("tool", "12345"))).unwrap();
    assert_eq!(s.live.remaining_tokens(), 15);
    block_on(s.live.sample(0, vec![])).unwrap();
    let asked: Vec<u32> = lock(&s.script.asked)
        .iter()
        .map(|r| r.params.max_new_tokens)
        .collect();
    assert_eq!(asked, [50, 15]);

    assert_eq!(s.live.remaining_tokens(), 0);
    let empty = block_on(s.live.sample(0, vec![])).unwrap();
    assert_eq!((empty.finish, empty.num_tokens), (Length, 0));
    assert!(matches!(
        block_on(s.live.sample(0, vec![])),
        Err(LiveError::LimitExceeded(_))
    ));
    assert_eq!(lock(&s.script.asked).len(), 2);
    let [t] = &s.live.finish()[..] else {
        panic!("one trajectory")
    };
    assert_eq!(
        (t.finish, t.num_tokens(), trained(t).len()),
        (Some(Length), 100, 55)
    );
}

#[test]
fn a_response_budget_counts_what_tools_wrote() {
    let limits = Limits {
        response_tokens: Some(10),
        ..WIDE
    };
    let s = stage_with(
        Style::None,
        PromptBody::Text("p".into()),
        limits,
        SamplingParams::default(),
        Script::new([turn("xxxx", Length, 1), turn("yyy", Length, 1)]),
    );
    block_on(s.live.sample(4, vec![])).unwrap();
    block_on(s.live.append(Message::new("tool", "ttt"))).unwrap();
    block_on(s.live.sample(0, vec![])).unwrap();
    let asked: Vec<u32> = lock(&s.script.asked)
        .iter()
        .map(|r| r.params.max_new_tokens)
        .collect();
    assert_eq!(asked, [4, 3]);
    assert_eq!(s.live.remaining_tokens(), 0);
}

#[test]
fn c18_forks_share_a_past_that_is_trained_once() {
    let script = Script::new([
        turn("one<|end|>", Stop, 1),
        turn("L<|end|>", Stop, 1),
        turn("R<|end|>", Stop, 1),
    ]);
    let s = stage(Style::Chat, script);
    block_on(s.live.sample(0, vec![])).unwrap();
    let fork = s.live.fork().unwrap();
    for live in [&s.live, &fork] {
        block_on(live.append(Message::new("user", "q2"))).unwrap();
        block_on(live.sample(0, vec![])).unwrap();
    }
    let all = [fork.finish(), s.live.finish(), fork.finish()].concat();
    assert_eq!(text(Style::Chat, &trained(&all[0])), "one<|end|>R<|end|>");
    assert_eq!(text(Style::Chat, &trained(&all[1])), "L<|end|>");
    assert_eq!(all[2], all[0], "finishing twice changes nothing");
    let seeds: Vec<_> = lock(&s.script.asked)
        .iter()
        .map(|r| r.params.sampling_seed.unwrap())
        .collect();
    assert_eq!(
        seeds[0], 77,
        "the first turn samples with the rollout's own seed"
    );
    assert!(seeds[0] != seeds[1] && seeds[1] != seeds[2]);
    let rids: std::collections::HashSet<_> = lock(&s.script.asked)
        .iter()
        .map(|r| r.rid.clone())
        .collect();
    assert_eq!(rids.len(), 3);
}

#[test]
fn stop_strings_are_cut_from_the_text_and_not_from_the_tokens() {
    let params = SamplingParams {
        stop: vec!["STOP".into()],
        ..SamplingParams::default()
    };
    let s = stage_with(
        Style::None,
        PromptBody::Text("p".into()),
        WIDE,
        params,
        Script::new([turn("xy</s>", Stop, 1), turn("more", Length, 1)]),
    );
    let first = block_on(s.live.sample(0, vec!["</s>".into()])).unwrap();
    assert_eq!((first.text.as_str(), first.num_tokens), ("xy", 6));
    assert_eq!(lock(&s.script.asked)[0].params.stop, ["STOP", "</s>"]);
    // A stop string does not end the turn for good: the policy may go on.
    block_on(s.live.append(Message::new("tool", "[t]"))).unwrap();
    block_on(s.live.sample(0, vec![])).unwrap();
    assert_eq!(s.live.response(), "xy</s>[t]more");
}

#[test]
fn a_turn_cut_short_goes_on_as_one_message() {
    let script = Script::new([
        turn("on", Length, 1),
        turn("e<|end|>", Stop, 1),
        turn("two<|end|>", Stop, 1),
    ]);
    let s = stage(Style::Chat, script);
    block_on(s.live.sample(2, vec![])).unwrap();
    block_on(s.live.sample(0, vec![])).unwrap();
    assert!(
        matches!(block_on(s.live.sample(0, vec![])), Err(LiveError::InvalidInput(m)) if m.contains("append a message"))
    );
    block_on(s.live.append(Message::new("user", "q2"))).unwrap();
    block_on(s.live.sample(0, vec![])).unwrap();
    let [t] = &s.live.finish()[..] else {
        panic!("one trajectory")
    };
    assert_eq!(
        text(Style::Chat, &t.tokens()),
        "<|user|>q<|end|>\n<|assistant|>one<|end|>\n<|user|>q2<|end|>\n<|assistant|>two<|end|>"
    );
}

#[test]
fn an_aborted_turn_keeps_its_tokens() {
    let s = stage(Style::Chat, Script::new([turn("par", Abort, 3)]));
    assert!(matches!(
        block_on(s.live.sample(0, vec![])),
        Err(LiveError::Cancelled)
    ));
    let [t] = &s.live.finish()[..] else {
        panic!("one trajectory")
    };
    assert_eq!(
        (text(Style::Chat, &trained(t)), t.finish),
        ("par".into(), Some(Abort))
    );
}

#[test]
fn each_version_that_sampled_a_part_is_on_it() {
    let mut answer = turn("abcde", Length, 0);
    answer.versions = vec![
        (slime_core::WeightVersion(3), 2),
        (slime_core::WeightVersion(4), 3),
    ];
    let s = stage(Style::Chat, Script::new([answer.clone()]));
    assert_eq!(block_on(s.live.sample(0, vec![])).unwrap().version.0, 4);
    let versions: Vec<u64> = s.live.finish()[0].versions().iter().map(|v| v.0).collect();
    assert_eq!(versions, [3, 3, 4, 4, 4]);

    answer.versions.pop();
    let s = stage(Style::Chat, Script::new([answer]));
    assert!(
        matches!(
            block_on(s.live.sample(0, vec![])),
            Err(LiveError::Unavailable(_))
        ),
        "tokens without a version are refused"
    );
}

#[test]
fn turns_are_bounded() {
    let s = stage_with(
        Style::Chat,
        PromptBody::Messages(vec![Message::new("user", "q")]),
        Limits {
            max_turns: 1,
            ..WIDE
        },
        SamplingParams::default(),
        Script::new([turn("a<|end|>", Stop, 1)]),
    );
    block_on(s.live.sample(0, vec![])).unwrap();
    block_on(s.live.append(Message::new("user", "x"))).unwrap();
    assert!(
        matches!(block_on(s.live.sample(0, vec![])), Err(LiveError::LimitExceeded(m)) if m.contains("1 turns"))
    );
}

#[derive(Clone, Debug)]
enum Op {
    Sample(String, bool),
    Append(String),
    Fork,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => ("[abx]{0,6}", any::<bool>()).prop_map(|(text, end)| Op::Sample(text, end)),
        3 => "[abxé]{0,4}".prop_map(Op::Append),
        1 => Just(Op::Fork),
    ]
}

proptest! {
    /// Whatever a generator does, every sampled token trains exactly once, and lengths agree.
    #[test]
    fn a05_every_sampled_token_trains_exactly_once(ops in prop::collection::vec(op(), 0..16), style in 0usize..3) {
        let style = [Style::Chat, Style::Forgetful, Style::Glm][style];
        let s = stage(style, Script::default());
        let mut lives = vec![s.live.clone()];
        let mut sampled = 0;
        for op in ops {
            let live = lives.last().unwrap().clone();
            match op {
                Op::Sample(text, end) => {
                    let end = if style == Style::Glm { "<|user|>" } else { "<|end|>" }.repeat(usize::from(end));
                    let finish = if end.is_empty() { Length } else { Stop };
                    let answer = turn(&format!("{text}</think>{text}{end}"), finish, 1);
                    let len = answer.tokens.len();
                    lock(&s.script.answers).clear();
                    lock(&s.script.answers).push_back(Ok(answer));
                    if block_on(live.sample(0, vec![])).is_ok() {
                        sampled += len;
                    }
                }
                Op::Append(text) => block_on(live.append(Message::new("user", text))).unwrap(),
                Op::Fork => lives.push(live.fork().unwrap()),
            }
        }
        let all: Vec<Trajectory> = lives.iter().flat_map(|live| live.finish()).collect();
        prop_assert_eq!(all.iter().map(Trajectory::num_sampled).sum::<usize>(), sampled);
        for t in &all {
            prop_assert_eq!(t.loss_mask().len(), t.num_tokens() - t.prompt_length());
            prop_assert_eq!(t.logprobs().len(), t.loss_mask().len());
        }
    }
}
