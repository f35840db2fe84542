//! Faults that a real server cannot be asked to make. The real servers come in the end-to-end tests.

mod aborts;
mod faults;
mod members;
mod pairs;
mod requests;
mod router;

use super::*;
use crate::publish::Publisher;
use serde_json::{Value, json};
use slime_core::{FinishReason, SamplingParams};
use std::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wiremock::matchers::{method, path};
use wiremock::{Mock, MockServer, Request, Respond, ResponseTemplate};

const V1: WeightVersion = WeightVersion(1);

fn config() -> PoolConfig {
    PoolConfig {
        backoff: (Duration::from_millis(5), Duration::from_millis(20)),
        request_deadline: Duration::from_secs(10),
        quick_deadline: Duration::from_secs(2),
        probe_interval: Duration::from_millis(50),
        trust: Trust::Frozen(V1),
        ..PoolConfig::new(1000, 100)
    }
}

fn address(server: &MockServer) -> Address {
    Address::parse(&server.uri()).unwrap()
}

fn request(rid: &str) -> SampleRequest {
    let params = SamplingParams {
        max_new_tokens: 8,
        sampling_seed: Some(3),
        ..SamplingParams::default()
    };
    SampleRequest {
        rid: rid.into(),
        session: 9,
        tokens: vec![1, 2, 3],
        params,
    }
}

/// What a server answers.
fn answer(tokens: &[u32], finish: Value, version: &str) -> ResponseTemplate {
    let logprobs: Vec<_> = tokens.iter().map(|id| json!([-0.5, id, null])).collect();
    ResponseTemplate::new(200).set_body_json(json!({
        "text": "x".repeat(tokens.len()),
        "output_ids": tokens,
        "meta_info": { "finish_reason": finish, "output_token_logprobs": logprobs, "cached_tokens": 2, "weight_version": version },
    }))
}

fn stop() -> Value {
    json!({ "type": "stop", "matched": 2 })
}

async fn generate(
    server: &MockServer,
    response: impl Respond + 'static,
    times: Option<u64>,
    priority: u8,
) {
    let mock = Mock::given(method("POST"))
        .and(path("/generate"))
        .respond_with(response)
        .with_priority(priority);
    match times {
        Some(n) => mock.up_to_n_times(n).mount(server).await,
        None => mock.mount(server).await,
    }
}

/// A server that takes requests and never answers them in a test's time.
async fn silent() -> MockServer {
    let server = server().await;
    let answer = answer(&[7], stop(), "1").set_delay(Duration::from_secs(60));
    generate(&server, answer, None, 5).await;
    server
}

/// A server that answers everything else with `{}`. Built, not started: started ones are handed from test to test, and with
/// them late requests of the test before.
async fn server() -> MockServer {
    let server = MockServer::builder().start().await;
    let body = json!({ "weight_version": "1", "model_path": "m" });
    Mock::given(path("/model_info"))
        .respond_with(ResponseTemplate::new(200).set_body_json(body))
        .mount(&server)
        .await;
    Mock::given(path("/abort_request"))
        .respond_with(ResponseTemplate::new(200))
        .mount(&server)
        .await;
    server
}

async fn calls(server: &MockServer, to: &str) -> Vec<Value> {
    let all = server.received_requests().await.unwrap();
    let body = |r: &Request| serde_json::from_slice(&r.body).unwrap_or(Value::Null);
    all.iter()
        .filter(|r| r.url.path() == to)
        .map(body)
        .collect()
}

/// The bodies sent to `to`, once there is one.
async fn first_calls(server: &MockServer, to: &str) -> Vec<Value> {
    for _ in 0..100 {
        let sent = calls(server, to).await;
        if !sent.is_empty() {
            return sent;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("nothing was sent to {to}");
}
