//! Generators reach the policy by handles alone, within their token budget.
//!
//! The policy here is a script: the pool's own trajectories are tested where they live.

use crate::support::{component, hostile, hostile_with, limits, runtime};
use slime_core::ports::{BoxFuture, Generated, LiveError, LiveTrajectory, Turn};
use slime_core::{
    FinishReason, Message, Origin, Prompt, PromptBody, PromptId, Segment, Trajectory, WeightVersion,
};
use slime_runtime::{Grants, Limits};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Writes the tokens 7, 7, … until told to stop; a token a character of the text.
pub(crate) struct Script {
    prompt: Arc<Prompt>,
    state: Mutex<State>,
}

#[derive(Clone)]
struct State {
    trajectory: Trajectory,
    response: String,
    room: u32,
    asked: Vec<(u32, Vec<String>)>,
    fails: bool,
    delay: Duration,
}

impl Script {
    pub(crate) fn start(word: &str) -> Arc<Self> {
        Self::with(word, |_| {})
    }

    /// Its policy thinks for `delay` before each turn.
    pub(crate) fn slow(word: &str, delay: Duration) -> Arc<Self> {
        Self::with(word, |state| state.delay = delay)
    }

    fn with(word: &str, change: impl FnOnce(&mut State)) -> Arc<Self> {
        let prompt = Prompt {
            id: PromptId {
                source: "test".into(),
                row: 0,
            },
            body: PromptBody::Messages(vec![Message::new("user", word)]),
            label: Some("secret".into()),
            tools: Vec::new(),
            metadata: serde_json::Map::new(),
        };
        let mut state = State {
            trajectory: Trajectory::from_prompt(vec![1, 2, 3]),
            response: String::new(),
            room: 1000,
            asked: Vec::new(),
            fails: false,
            delay: Duration::ZERO,
        };
        change(&mut state);
        Arc::new(Self {
            prompt: Arc::new(prompt),
            state: Mutex::new(state),
        })
    }

    /// Everything after the prompt, as text.
    pub(crate) fn text(&self) -> String {
        self.state.lock().unwrap().response.clone()
    }

    pub(crate) fn asked(&self) -> Vec<(u32, Vec<String>)> {
        self.state.lock().unwrap().asked.clone()
    }
}

impl LiveTrajectory for Script {
    fn prompt(&self) -> Arc<Prompt> {
        Arc::clone(&self.prompt)
    }

    fn response(&self) -> String {
        self.state.lock().unwrap().response.clone()
    }

    fn append(&self, message: Message) -> BoxFuture<'_, Result<(), LiveError>> {
        Box::pin(async move {
            let mut state = self.state.lock().unwrap();
            let tokens = vec![9; message.text().len()];
            state.response.push_str(message.text());
            state
                .trajectory
                .push(Segment {
                    origin: Origin::Environment,
                    tokens,
                })
                .unwrap();
            Ok(())
        })
    }

    fn sample(&self, max_tokens: u32, stop: Vec<String>) -> BoxFuture<'_, Result<Turn, LiveError>> {
        Box::pin(async move {
            let delay = {
                let mut state = self.state.lock().unwrap();
                state.asked.push((max_tokens, stop));
                state.delay
            };
            tokio::time::sleep(delay).await;
            let mut state = self.state.lock().unwrap();
            if state.fails {
                return Err(LiveError::Unavailable("the engine is gone".into()));
            }
            let n = max_tokens.min(state.room) as usize;
            state.room -= max_tokens.min(state.room);
            let origin = Origin::Policy {
                logprobs: vec![-0.5; n],
                version: WeightVersion(4),
            };
            state
                .trajectory
                .push(Segment {
                    origin,
                    tokens: vec![7; n],
                })
                .unwrap();
            state.trajectory.finish = Some(FinishReason::Length);
            let text = "z".repeat(n);
            state.response.push_str(&text);
            Ok(Turn {
                text,
                finish: FinishReason::Length,
                num_tokens: n as u32,
                version: WeightVersion(4),
            })
        })
    }

    fn remaining_tokens(&self) -> u32 {
        self.state.lock().unwrap().room
    }

    fn fork(&self) -> Result<Arc<dyn LiveTrajectory>, LiveError> {
        let state = self.state.lock().unwrap().clone();
        Ok(Arc::new(Self {
            prompt: Arc::clone(&self.prompt),
            state: Mutex::new(state),
        }))
    }

    fn finish(&self) -> Vec<Trajectory> {
        vec![self.state.lock().unwrap().trajectory.clone()]
    }
}

pub(crate) fn generate(plugin: &slime_runtime::Plugin, start: &Arc<Script>) -> Generated {
    let generator = plugin.generator().unwrap();
    let start: Arc<dyn LiveTrajectory> = start.clone();
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    tokio.block_on(generator.generate(start, 0))
}

fn failure(generated: &Generated) -> String {
    generated
        .failure
        .as_ref()
        .map_or("none".into(), ToString::to_string)
}

#[test]
fn two_turns_leave_masks_and_logprobs_that_the_plugin_never_saw() {
    let script = Script::start("two-turns");
    let generated = generate(hostile(), &script);
    assert_eq!(failure(&generated), "none");
    let [trajectory] = &generated.trajectories[..] else {
        panic!("{}", generated.trajectories.len())
    };
    let said = "you said zzzz".len();
    let mask: Vec<u8> = [vec![1; 4], vec![0; said], vec![1; 4]].concat();
    assert_eq!(trajectory.loss_mask(), mask);
    assert_eq!(trajectory.num_sampled(), 8);
    assert_eq!(
        script.asked(),
        [(4, vec!["\n".to_owned()]), (4, vec!["\n".to_owned()])]
    );
    assert!(generated.cost.host_calls >= 4);
}

#[test]
fn the_component_single_turn_does_what_its_one_line_says() {
    let plugin = runtime()
        .load(
            &component("plugins/single-turn"),
            "single-turn",
            Limits {
                tokens: 5000,
                ..limits()
            },
            Grants::default(),
        )
        .unwrap();
    let script = Script::start("anything");
    let generated = generate(&plugin, &script);
    assert_eq!(failure(&generated), "none");
    assert_eq!(
        generated.trajectories[0].num_sampled(),
        1000,
        "all that fits"
    );
    assert_eq!(script.asked().len(), 1);
}

#[test]
fn sampling_without_end_runs_into_the_token_budget_and_not_over_it() {
    let script = Script::start("spam");
    let generated = generate(hostile(), &script);
    assert!(
        failure(&generated).starts_with("limit-exceeded: the call's budget of 20 tokens"),
        "{}",
        failure(&generated)
    );
    assert_eq!(
        generated.trajectories[0].num_sampled(),
        20,
        "what was sampled is kept"
    );
    let asked: Vec<u32> = script.asked().iter().map(|(n, _)| *n).collect();
    assert_eq!(asked, [4, 4, 4, 4, 4]);
}

#[test]
fn all_that_fits_means_the_budget_where_that_is_less() {
    let script = Script::start("greedy");
    assert_eq!(failure(&generate(hostile(), &script)), "none");
    assert_eq!(script.asked()[0].0, 20);
    let full = Script::with("greedy", |state| state.room = 0);
    assert!(failure(&generate(hostile(), &full)).starts_with("limit-exceeded: no token fits"));
}

#[test]
fn forks_are_bounded_and_a_batch_shares_the_budget() {
    let bomb = generate(hostile(), &Script::start("fork-bomb"));
    assert!(
        failure(&bomb).starts_with("limit-exceeded: more than 64 trajectories"),
        "{}",
        failure(&bomb)
    );
    assert_eq!(bomb.trajectories.len(), 64);

    let tree = generate(hostile(), &Script::start("tree"));
    assert_eq!(failure(&tree), "none");
    let sampled: Vec<usize> = tree
        .trajectories
        .iter()
        .map(Trajectory::num_sampled)
        .collect();
    assert_eq!(sampled, [8, 8, 8], "4 shared and 4 of its own each");
    let tight = hostile_with(
        Limits {
            tokens: 10,
            ..limits()
        },
        Grants::default(),
    );
    let tree = generate(&tight, &Script::start("tree"));
    assert!(
        failure(&tree).starts_with("limit-exceeded"),
        "{}",
        failure(&tree)
    );
}

#[test]
fn what_generators_hold_while_they_wait_is_measured_with_all_of_them_waiting() {
    let path = component("plugins/single-turn");
    let plugin = runtime().load(&path, "single-turn", limits(), Grants::default());
    let plugin = plugin.unwrap();
    let found = plugin.bench_in_flight(40, "4").unwrap();
    assert_eq!((found.count, found.outcome.as_str()), (40, "went well"));
    assert!(found.resident_bytes < 200 << 20);
}

#[test]
fn failures_of_the_policy_are_not_the_plugins() {
    let dead = Script::with("", |state| state.fails = true);
    assert_eq!(
        failure(&generate(hostile(), &dead)),
        "infra-failed: the engine is gone"
    );
}

#[test]
fn failures_of_the_plugin_keep_what_was_sampled() {
    let late = generate(hostile(), &Script::start("fail-late"));
    assert_eq!(failure(&late), "error: no use");
    assert_eq!(late.trajectories[0].num_sampled(), 4);
    let none = generate(hostile(), &Script::start("none"));
    assert_eq!(
        failure(&none),
        "error: the generator returned no trajectory"
    );
    let stop = generate(hostile(), &Script::start("bad-stop"));
    assert!(
        failure(&stop).starts_with("error: a stop string of 0 bytes"),
        "{}",
        failure(&stop)
    );
    let spin = generate(hostile(), &Script::start("loop"));
    assert!(
        failure(&spin).starts_with("timeout: the guest ran for 500ms"),
        "{}",
        failure(&spin)
    );
}

#[test]
fn waiting_for_the_policy_costs_no_cpu() {
    let slow = Script::with("two-turns", |state| {
        state.delay = Duration::from_millis(400)
    });
    let short = hostile_with(
        Limits {
            cpu: Duration::from_millis(100),
            ..limits()
        },
        Grants::default(),
    );
    let generated = generate(&short, &slow);
    assert_eq!(
        failure(&generated),
        "none",
        "800 ms of waiting fit into 100 ms of CPU"
    );
    assert!(generated.cost.wall >= Duration::from_millis(800));
    assert!(
        generated.cost.cpu < Duration::from_millis(100),
        "{:?}",
        generated.cost
    );
}

#[test]
fn an_engine_that_never_answers_ends_with_the_rollouts_wall() {
    let never = Script::with("", |state| state.delay = Duration::from_secs(3600));
    let short = hostile_with(
        Limits {
            rollout_wall: Duration::from_millis(200),
            ..limits()
        },
        Grants::default(),
    );
    let generated = generate(&short, &never);
    assert!(
        failure(&generated).starts_with("timeout: no answer after 200ms"),
        "{}",
        failure(&generated)
    );
    assert_eq!(generated.trajectories.len(), 1);
}
