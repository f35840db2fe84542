//! Sessions over real HTTP, with a policy that was written beforehand.

use super::*;
use reqwest::{Client, StatusCode};
use serde_json::json;
use slime_core::{
    FinishReason, Origin, Prompt, PromptBody, PromptId, Segment, Trajectory, WeightVersion,
};

/// Says what it was told to, and writes down what was appended.
struct Script {
    prompt: Arc<Prompt>,
    turns: Mutex<VecDeque<&'static str>>,
    said: Mutex<Vec<String>>,
}

impl Script {
    fn new(turns: &[&'static str]) -> Arc<Self> {
        let id = PromptId {
            source: "t".into(),
            row: 0,
        };
        Arc::new(Self {
            prompt: Arc::new(Prompt {
                id,
                body: PromptBody::Messages(vec![Message::new("user", "2 + 2?")]),
                label: Some("4".into()),
                tools: Vec::new(),
                metadata: Map::new(),
            }),
            turns: Mutex::new(turns.iter().copied().collect()),
            said: Mutex::default(),
        })
    }

    fn said(&self) -> Vec<String> {
        crate::lock(&self.said).clone()
    }
}

impl LiveTrajectory for Script {
    fn prompt(&self) -> Arc<Prompt> {
        Arc::clone(&self.prompt)
    }

    fn response(&self) -> String {
        self.said().concat()
    }

    fn append(&self, message: Message) -> BoxFuture<'_, Result<(), LiveError>> {
        let line = format!("{}: {}", message.role, message.text());
        crate::lock(&self.said).push(line);
        Box::pin(std::future::ready(Ok(())))
    }

    fn sample(&self, _: u32, _: Vec<String>) -> BoxFuture<'_, Result<Turn, LiveError>> {
        let turn = crate::lock(&self.turns).pop_front();
        let answer = match turn {
            None => Err(LiveError::LimitExceeded("no tokens are left".into())),
            Some("unavailable") => Err(LiveError::Unavailable("no engine".into())),
            Some(text) => {
                crate::lock(&self.said).push(format!("policy: {text}"));
                Ok(Turn {
                    text: text.into(),
                    finish: FinishReason::Stop,
                    num_tokens: 3,
                    version: WeightVersion(7),
                })
            }
        };
        Box::pin(std::future::ready(answer))
    }

    fn remaining_tokens(&self) -> u32 {
        100
    }

    fn fork(&self) -> Result<Arc<dyn LiveTrajectory>, LiveError> {
        Err(LiveError::Cancelled)
    }

    fn finish(&self) -> Vec<Trajectory> {
        let mut trajectory = Trajectory::from_prompt(vec![1, 2]);
        for _ in self.said().iter().filter(|s| s.starts_with("policy")) {
            let segment = Segment {
                origin: Origin::Environment,
                tokens: vec![9; 3],
            };
            trajectory.push(segment).unwrap();
        }
        vec![trajectory]
    }
}

fn gateway(rewards: bool, wall: Duration) -> Gateway {
    Gateway::start(GatewayConfig {
        address: "127.0.0.1:0".parse().unwrap(),
        rewards,
        wall,
        temperature: 1.0,
    })
    .unwrap()
}

struct Agent {
    client: Client,
    base: String,
    key: String,
}

impl Agent {
    async fn take(gateway: &Gateway) -> (Self, Value) {
        let client = Client::builder().no_proxy().build().unwrap();
        let base = format!("http://{}/v1", gateway.address());
        let answer = client.post(format!("{base}/sessions")).send().await;
        let offer: Value = answer.unwrap().json().await.unwrap();
        let key = offer["api_key"].as_str().unwrap().to_owned();
        (Self { client, base, key }, offer)
    }

    async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        let request = self.client.post(format!("{}/{path}", self.base));
        let answer = request.bearer_auth(&self.key).json(&body).send().await;
        let answer = answer.unwrap();
        (answer.status(), answer.json().await.unwrap())
    }

    async fn chat(&self, messages: Value) -> (StatusCode, Value) {
        self.post(
            "chat/completions",
            json!({"model": "m", "messages": messages}),
        )
        .await
    }
}

fn spawn(
    gateway: &Gateway,
    live: &Arc<Script>,
    seed: u64,
) -> tokio::task::JoinHandle<Option<Outcome>> {
    let (gateway, live) = (gateway.clone(), Arc::clone(live));
    tokio::spawn(async move { gateway.generate(live, seed).await.failure })
}

async fn scored(gateway: &Gateway, seed: u64) -> Outcome {
    let item = ScoreRequest {
        seed,
        ..ScoreRequest::default()
    };
    gateway.score(item).await.outcome
}

#[tokio::test]
async fn a_session_of_two_turns_is_a_rollout_with_the_agents_reward() {
    let (gateway, live) = (
        gateway(true, Duration::from_secs(20)),
        Script::new(&["5", "4"]),
    );
    let rollout = spawn(&gateway, &live, 11);
    let (agent, offer) = Agent::take(&gateway).await;
    assert_eq!(
        offer["messages"],
        json!([{"role": "user", "content": "2 + 2?"}])
    );
    assert_eq!(offer["label"], "4");
    let (status, first) = agent.chat(offer["messages"].clone()).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(
        first["choices"][0]["message"],
        json!({"role": "assistant", "content": "5"})
    );
    assert_eq!(first["choices"][0]["finish_reason"], "stop");
    let usage = json!({"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5});
    assert_eq!(first["usage"], usage);
    assert_eq!(first["metadata"]["weight_version"], 7);
    let more = json!([
        {"role": "user", "content": [{"type": "text", "text": "2 + 2?"}]},
        {"role": "assistant", "content": "5"},
        {"role": "user", "content": "Sure?"},
    ]);
    let (_, second) = agent.chat(more.clone()).await;
    assert_eq!(second["choices"][0]["message"]["content"], "4");
    // An answer that got lost is given again, not sampled again.
    assert_eq!(agent.chat(more).await.1, second);
    let reward = json!({"reward": 0.5, "metrics": {"steps": 2}});
    assert_eq!(agent.post("sessions/end", reward).await.0, StatusCode::OK);
    assert_eq!(rollout.await.unwrap(), None);
    assert_eq!(live.said(), ["policy: 5", "user: Sure?", "policy: 4"]);
    let verdict = scored(&gateway, 11).await;
    assert_eq!(verdict.reward(), Some(0.5));
    assert_eq!(
        verdict.verdict().unwrap().metrics,
        [("steps".to_owned(), 2.0)]
    );
    assert_eq!(
        scored(&gateway, 11).await.kind(),
        "error",
        "a reward is given once"
    );
    let (status, said) = agent.chat(offer["messages"].clone()).await;
    assert_eq!(
        (status, &said["error"]["type"]),
        (StatusCode::UNAUTHORIZED, &json!("no_such_session"))
    );
}

#[tokio::test]
async fn a_history_that_is_not_the_sessions_is_refused_and_nothing_is_appended() {
    let (gateway, live) = (gateway(false, Duration::from_secs(20)), Script::new(&["5"]));
    let rollout = spawn(&gateway, &live, 1);
    let (agent, offer) = Agent::take(&gateway).await;
    assert!(
        offer.get("label").is_none(),
        "the verifier's, not the agent's"
    );
    agent.chat(offer["messages"].clone()).await;
    let (user, policy) = (
        json!({"role": "user", "content": "2 + 2?"}),
        json!({"role": "assistant", "content": "5"}),
    );
    for (messages, reason) in [
        (json!([]), "there are 0 messages, this session has 2"),
        (
            json!([{"role": "user", "content": "3 + 3?"}, policy]),
            "messages[0] is user of 6 characters",
        ),
        (
            json!([user, {"role": "assistant", "content": "four"}]),
            "messages[1] is assistant of 4 characters",
        ),
        (json!([user, policy]), "the policy spoke last"),
        (
            json!([user, policy, {"role": "user", "content": "so"}, {"role": "assistant", "content": "6"}]),
            "(`6`) cannot be added",
        ),
        (
            json!([user, policy, {"role": "user", "content": [{"type": "image_url"}]}]),
            "only parts of type text",
        ),
    ] {
        let (status, said) = agent.chat(messages).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        let message = said["error"]["message"].as_str().unwrap();
        assert!(message.contains(reason), "{message}");
    }
    assert_eq!(live.said(), ["policy: 5"]);
    assert_eq!(
        agent.post("sessions/end", json!({})).await.0,
        StatusCode::OK
    );
    assert_eq!(rollout.await.unwrap(), None);
}

#[tokio::test]
async fn what_the_run_decides_is_not_the_agents_to_set() {
    let (gateway, live) = (gateway(true, Duration::from_secs(20)), Script::new(&[]));
    let rollout = spawn(&gateway, &live, 1);
    let (agent, offer) = Agent::take(&gateway).await;
    let messages = &offer["messages"];
    for (field, value, reason) in [
        ("temperature", json!(0.2), "the run samples at 1"),
        ("top_p", json!(0.9), "`top_p` is not for the agent to set"),
        (
            "tools",
            json!([{"type": "function"}]),
            "tools are called in the text",
        ),
        ("stream", json!(true), "not streamed"),
        ("n", json!(2), "a turn is one"),
        ("messages", json!("hello"), "the body"),
    ] {
        let mut body = json!({"messages": messages, "temperature": 1.0, "tools": [], "user": "me"});
        body[field] = value;
        let (status, said) = agent.post("chat/completions", body).await;
        let message = said["error"]["message"].as_str().unwrap();
        assert!(
            status == StatusCode::BAD_REQUEST && message.contains(reason),
            "{message}"
        );
    }
    for (body, reason) in [
        (json!({}), "rewards come from its agents"),
        (json!({"reward": 1, "metrics": {"": 1}}), "finite numbers"),
        (json!({"rewards": 1}), "unknown field `rewards`"),
    ] {
        let (status, said) = agent.post("sessions/end", body).await;
        let message = said["error"]["message"].as_str().unwrap();
        assert!(
            status == StatusCode::BAD_REQUEST && message.contains(reason),
            "{message}"
        );
    }
    let (status, said) = agent.post("completions", json!({})).await;
    let message = said["error"]["message"].as_str().unwrap();
    assert!(
        status == StatusCode::NOT_FOUND && message.contains("POST /v1/completions is not served"),
        "{message}"
    );
    // The script is empty: as where no token fits any more.
    let (status, said) = agent.chat(messages.clone()).await;
    assert_eq!(
        (status, &said["error"]["type"]),
        (StatusCode::BAD_REQUEST, &json!("context_length_exceeded"))
    );
    agent
        .post("sessions/end", json!({"error": "lost my way"}))
        .await;
    assert_eq!(
        rollout.await.unwrap(),
        Some(Outcome::Error("lost my way".into()))
    );
}

#[tokio::test]
async fn a_session_that_is_never_ended_times_out_and_one_without_an_engine_fails_as_the_machines_fault()
 {
    let short = gateway(true, Duration::from_millis(50));
    let rollout = spawn(&short, &Script::new(&["5"]), 1);
    let _held = Agent::take(&short).await;
    assert_eq!(rollout.await.unwrap().unwrap().kind(), "timeout");

    let gateway = gateway(true, Duration::from_secs(20));
    let rollout = spawn(&gateway, &Script::new(&["unavailable"]), 2);
    let (agent, offer) = Agent::take(&gateway).await;
    let (status, _) = agent.chat(offer["messages"].clone()).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(rollout.await.unwrap().unwrap().kind(), "infra-failed");
}

#[tokio::test]
async fn every_agent_gets_a_session_of_its_own_and_one_that_was_given_up_is_offered_to_nobody() {
    let gateway = gateway(true, Duration::from_secs(20));
    let given_up = spawn(&gateway, &Script::new(&[]), 0);
    tokio::time::sleep(Duration::from_millis(20)).await;
    given_up.abort();
    let _ = given_up.await;
    let agents: Vec<_> = (0..4)
        .map(|_| {
            let gateway = gateway.clone();
            tokio::spawn(async move { Agent::take(&gateway).await.0 })
        })
        .collect();
    let rollouts: Vec<_> = (1..5)
        .map(|seed| spawn(&gateway, &Script::new(&["x"]), seed))
        .collect();
    let mut keys = std::collections::BTreeSet::new();
    for agent in agents {
        let agent = agent.await.unwrap();
        keys.insert(agent.key.clone());
        agent.post("sessions/end", json!({"reward": 1})).await;
    }
    assert_eq!(keys.len(), 4);
    for rollout in rollouts {
        assert_eq!(rollout.await.unwrap(), None);
    }
    for seed in 1..5 {
        assert_eq!(scored(&gateway, seed).await.reward(), Some(1.0));
    }
}

#[test]
fn only_this_machine_is_listened_to() {
    let config = GatewayConfig {
        address: "0.0.0.0:0".parse().unwrap(),
        rewards: true,
        wall: Duration::from_secs(1),
        temperature: 1.0,
    };
    let error = Gateway::start(config).err().unwrap().to_string();
    assert!(error.contains("127.0.0.1"), "{error}");
}
