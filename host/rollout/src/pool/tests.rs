//! Faults that a real server cannot be asked to make. The real servers come in the end-to-end tests.

mod pairs;

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

/// A server that answers everything else with `{}`.
async fn server() -> MockServer {
    let server = MockServer::start().await;
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

#[tokio::test]
async fn a_request_carries_ids_seed_and_session_and_only_known_members() {
    let server = server().await;
    generate(&server, answer(&[7, 2], stop(), "1"), None, 5).await;
    let pool = Pool::new(vec![address(&server)], config()).unwrap();
    let got = pool.sample(request("r-1")).await.unwrap();
    assert_eq!(
        (got.tokens, got.logprobs, got.versions),
        (vec![7, 2], vec![-0.5, -0.5], vec![(V1, 2)])
    );
    assert_eq!(
        (got.finish, got.cached_tokens, got.text.as_str()),
        (Some(FinishReason::Stop), 2, "xx")
    );

    let expected = json!({
        "rid": "r-1", "input_ids": [1, 2, 3], "return_logprob": true, "stream": false,
        "sampling_params": { "max_new_tokens": 8, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "sampling_seed": 3, "ignore_eos": false },
    });
    assert_eq!(calls(&server, "/generate").await, [expected]);
    let all = server.received_requests().await.unwrap();
    let sent = all.iter().find(|r| r.url.path() == "/generate").unwrap();
    assert_eq!(sent.headers["X-SMG-Routing-Key"], "9");
}

#[tokio::test]
async fn experts_are_asked_for_where_they_are_wanted_and_kept_as_they_came() {
    let server = server().await;
    let told = json!({
        "text": "x", "output_ids": [7],
        "meta_info": {
            "finish_reason": stop(), "output_token_logprobs": [[-0.5, 7, null]], "weight_version": "1",
            "routed_experts": "AQAAAAIAAAA=",
        },
    });
    let told = ResponseTemplate::new(200).set_body_json(told);
    generate(&server, told, None, 5).await;
    let config = PoolConfig {
        routed_experts: true,
        ..config()
    };
    let pool = Pool::new(vec![address(&server)], config).unwrap();
    let got = pool.sample(request("r-1")).await.unwrap();
    assert_eq!(got.routed_experts.as_deref(), Some("AQAAAAIAAAA="));
    assert_eq!(
        calls(&server, "/generate").await[0]["return_routed_experts"],
        true
    );
}

#[tokio::test]
async fn a_refusal_is_not_repeated_and_not_held_against_the_server() {
    let server = server().await;
    let refusal = ResponseTemplate::new(400).set_body_json(
        json!({ "error": { "message": "temperature must be a non-negative float" } }),
    );
    generate(&server, refusal, Some(20), 1).await;
    generate(&server, answer(&[7], stop(), "1"), None, 5).await;
    let pool = Pool::new(vec![address(&server)], config()).unwrap();
    for i in 0..20 {
        let error = pool.sample(request(&format!("bad-{i}"))).await.unwrap_err();
        assert!(
            matches!(&error, PolicyError::Refused(m) if m.contains("non-negative")),
            "{error}"
        );
    }
    assert_eq!(calls(&server, "/generate").await.len(), 20);
    assert_eq!(pool.standings()[0].1, Standing::Serving(V1));
    assert!(pool.sample(request("good")).await.is_ok());
}

#[tokio::test]
async fn what_would_kill_a_server_is_not_sent() {
    let server = server().await;
    let pool = Pool::new(vec![address(&server)], config()).unwrap();
    let with = |tokens: Vec<u32>, max_new_tokens| {
        let mut request = request("r");
        (request.tokens, request.params.max_new_tokens) = (tokens, max_new_tokens);
        request
    };
    for (tokens, max_new, says) in [
        (vec![1, 1000], 1, "1000 is not in the vocabulary"),
        (vec![], 1, "empty"),
        (vec![1; 90], 11, "90 tokens and 11 new ones do not fit"),
        (vec![1; 101], 0, "do not fit"),
    ] {
        let error = pool
            .sample(with(tokens, max_new))
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(says), "{error}");
    }
    // Nothing to sample is no request either.
    let none = pool.sample(with(vec![1; 100], 0)).await.unwrap();
    assert_eq!(
        (none.finish, none.tokens.len()),
        (Some(FinishReason::Length), 0)
    );
    assert!(calls(&server, "/generate").await.is_empty());
}

#[tokio::test]
async fn a_server_that_is_busy_or_failing_is_asked_again_under_the_same_id() {
    let server = server().await;
    generate(&server, ResponseTemplate::new(503), Some(1), 1).await;
    generate(&server, ResponseTemplate::new(429), Some(1), 2).await;
    generate(
        &server,
        ResponseTemplate::new(500).set_body_string("boom"),
        Some(1),
        3,
    )
    .await;
    generate(&server, answer(&[7], stop(), "1"), None, 5).await;
    let pool = Pool::new(vec![address(&server)], config()).unwrap();
    assert_eq!(pool.sample(request("same")).await.unwrap().tokens, [7]);
    let rids: Vec<_> = calls(&server, "/generate")
        .await
        .iter()
        .map(|b| b["rid"].clone())
        .collect();
    assert_eq!(rids, ["same"; 4]);
    assert_eq!((pool.stats().num_calls, pool.stats().num_retries), (4, 3));
}

#[tokio::test]
async fn answers_that_cannot_be_used_end_a_request_before_its_deadline() {
    let server = server().await;
    let bad = json!({ "text": "", "output_ids": [7], "meta_info": { "finish_reason": stop(), "output_token_logprobs": [[null, 7, null]] } });
    generate(
        &server,
        ResponseTemplate::new(200).set_body_json(bad),
        None,
        5,
    )
    .await;
    let pool = Pool::new(vec![address(&server)], config()).unwrap();
    let error = pool.sample(request("r")).await.unwrap_err().to_string();
    assert!(
        error.contains("8 unusable answers") && error.contains("log-prob"),
        "{error}"
    );
}

#[tokio::test]
async fn a_dead_member_costs_nothing_but_a_retry() {
    let live = server().await;
    generate(&live, answer(&[7], stop(), "1"), None, 5).await;
    let dead = Address::new("127.0.0.1", 1);
    let pool = Pool::new(
        vec![dead, address(&live)],
        PoolConfig {
            routing: Routing::LeastLoaded,
            ..config()
        },
    )
    .unwrap();
    let rids: Vec<String> = (0..12).map(|i| i.to_string()).collect();
    let all = futures::future::join_all(rids.iter().map(|rid| pool.sample(request(rid)))).await;
    assert!(all.iter().all(Result::is_ok), "{all:?}");
    assert_eq!(pool.standings()[0].1, Standing::Down);
}

#[tokio::test]
async fn g07_without_a_server_every_request_ends_at_its_deadline_and_says_why() {
    let pool = Pool::new(
        vec![Address::new("127.0.0.1", 1)],
        PoolConfig {
            request_deadline: Duration::from_millis(300),
            ..config()
        },
    )
    .unwrap();
    let begin = Instant::now();
    let rids: Vec<String> = (0..5).map(|i| i.to_string()).collect();
    for result in futures::future::join_all(rids.iter().map(|rid| pool.sample(request(rid)))).await
    {
        let error = result.unwrap_err().to_string();
        assert!(
            error.contains("http://127.0.0.1:1: cannot connect"),
            "{error}"
        );
    }
    assert!(
        begin.elapsed() < Duration::from_secs(3),
        "{:?}",
        begin.elapsed()
    );
}

#[tokio::test]
async fn g08_a_server_that_never_answers_is_given_up_at_the_deadline() {
    let server = server().await;
    generate(
        &server,
        answer(&[7], stop(), "1").set_delay(Duration::from_secs(60)),
        None,
        5,
    )
    .await;
    let pool = Pool::new(
        vec![address(&server)],
        PoolConfig {
            request_deadline: Duration::from_millis(800),
            ..config()
        },
    )
    .unwrap();
    assert!(matches!(
        pool.sample(request("slow")).await,
        Err(PolicyError::Unavailable(_))
    ));
    assert_eq!(
        first_calls(&server, "/abort_request").await,
        [json!({ "rid": "slow" })],
        "the server is told to stop"
    );
}

/// Serves two events of a stream, then the process "dies".
async fn dying_server() -> Address {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Address::new("127.0.0.1", listener.local_addr().unwrap().port());
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            // All of it: closing a socket with something unread would discard what was written.
            let mut asked = String::new();
            let mut buffer = [0; 4096];
            while !asked.contains("\r\n\r\n")
                || (asked.starts_with("POST") && !asked.ends_with('}'))
            {
                let n = socket.read(&mut buffer).await.unwrap();
                asked.push_str(std::str::from_utf8(&buffer[..n]).unwrap());
            }
            if !asked.starts_with("POST /generate") {
                let _ = socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 24\r\n\r\n{\"weight_version\": \"1\"  }").await;
                continue;
            }
            let event = |n: usize| {
                let ids: Vec<_> = (50..50 + n).collect();
                let logprobs: Vec<_> = ids.iter().map(|id| json!([-1.0, id, null])).collect();
                let meta = json!({ "finish_reason": null, "output_token_logprobs": logprobs, "weight_version": "1", "cached_tokens": 1 });
                format!(
                    "data: {}\n\n",
                    json!({ "text": "ab"[..n].to_owned(), "output_ids": ids, "meta_info": meta })
                )
            };
            let body = format!("{}{}data: {{\"te", event(1), event(2));
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n",
                body.len() + 100
            );
            let _ = socket.write_all(format!("{head}{body}").as_bytes()).await;
        }
    });
    address
}

#[tokio::test]
async fn a_stream_that_breaks_goes_on_elsewhere_with_the_tokens_it_has() {
    let live = server().await;
    let events = |tokens: &[u32], finish: Value| {
        let logprobs: Vec<_> = tokens.iter().map(|id| json!([-0.5, id, null])).collect();
        let meta = json!({ "finish_reason": finish, "output_token_logprobs": logprobs, "weight_versions": [{ "version": "2", "start": 0, "end": tokens.len() }] });
        format!(
            "data: {}\n\n",
            json!({ "text": "c", "output_ids": tokens, "meta_info": meta })
        )
    };
    let body = format!(
        "{}{}data: [DONE]\n\n",
        events(&[60], Value::Null),
        events(&[60, 2], stop())
    );
    generate(
        &live,
        ResponseTemplate::new(200).set_body_raw(body, "text/event-stream"),
        None,
        5,
    )
    .await;
    let pool = Pool::new(
        vec![dying_server().await, address(&live)],
        PoolConfig {
            stream: true,
            routing: Routing::LeastLoaded,
            ..config()
        },
    )
    .unwrap();
    let got = pool.sample(request("r")).await.unwrap();
    assert_eq!(got.tokens, [50, 51, 60, 2]);
    assert_eq!(got.logprobs, [-1.0, -1.0, -0.5, -0.5]);
    assert_eq!(
        (got.text.as_str(), got.cached_tokens, got.finish),
        ("abc", 1, Some(FinishReason::Stop))
    );
    let sent = &calls(&live, "/generate").await[0];
    assert_eq!(
        (
            &sent["input_ids"],
            &sent["sampling_params"]["max_new_tokens"]
        ),
        (&json!([1, 2, 3, 50, 51]), &json!(6))
    );
    assert_eq!(pool.stats().num_continued, 1);
}

#[tokio::test]
async fn a_pause_that_aborts_costs_no_token() {
    let server = server().await;
    let aborted =
        json!({ "type": "abort", "message": "Aborted", "status_code": null, "err_type": null });
    generate(&server, answer(&[50, 51, 52], aborted, "1"), Some(1), 1).await;
    generate(&server, answer(&[60, 2], stop(), "1"), None, 5).await;
    let pool = Pool::new(vec![address(&server)], config()).unwrap();
    let got = pool.sample(request("r")).await.unwrap();
    assert_eq!(
        (got.tokens, got.finish),
        (vec![50, 51, 52, 60, 2], Some(FinishReason::Stop))
    );
    assert_eq!(
        calls(&server, "/generate").await[1]["sampling_params"]["max_new_tokens"],
        5
    );
}

#[tokio::test]
async fn f06_partial_tokens_never_grow_past_the_budget() {
    let server = server().await;
    let aborted = json!({ "type": "abort", "message": "Aborted" });
    generate(&server, answer(&[50; 8], aborted, "1"), None, 1).await;
    let pool = Pool::new(vec![address(&server)], config()).unwrap();
    let got = pool.sample(request("r")).await.unwrap();
    assert_eq!(
        (got.tokens.len(), got.finish),
        (8, Some(FinishReason::Length))
    );
    assert_eq!(calls(&server, "/generate").await.len(), 1);
}

#[tokio::test]
async fn g01_an_abort_of_ours_returns_what_was_sampled_though_one_member_is_dead() {
    let (a, b) = (server().await, server().await);
    for server in [&a, &b] {
        let aborted = json!({ "type": "abort", "message": "Aborted" });
        generate(
            server,
            answer(&[50, 51], aborted, "1").set_delay(Duration::from_millis(1500)),
            None,
            1,
        )
        .await;
    }
    // A member that refuses the abort does not keep the others from stopping.
    let pool = Arc::new(
        Pool::new(
            vec![Address::new("127.0.0.1", 1), address(&a), address(&b)],
            config(),
        )
        .unwrap(),
    );
    let rids: Vec<String> = (0..4).map(|i| i.to_string()).collect();
    let running = futures::future::join_all(rids.iter().map(|rid| pool.sample(request(rid))));
    let aborting = async {
        tokio::time::sleep(Duration::from_millis(600)).await;
        pool.abort_all().await;
    };
    let (results, ()) = futures::future::join(running, aborting).await;
    for result in results {
        let got = result.unwrap();
        assert_eq!(
            (got.tokens, got.finish),
            (vec![50, 51], Some(FinishReason::Abort))
        );
    }
}

#[tokio::test]
async fn g11_a_caller_that_goes_away_stops_its_request() {
    let server = server().await;
    generate(
        &server,
        answer(&[7], stop(), "1").set_delay(Duration::from_secs(60)),
        None,
        5,
    )
    .await;
    let pool = Pool::new(vec![address(&server)], config()).unwrap();
    let _ = tokio::time::timeout(Duration::from_millis(600), pool.sample(request("gone"))).await;
    assert_eq!(
        first_calls(&server, "/abort_request").await,
        [json!({ "rid": "gone" })]
    );
    // Its id is free again.
    assert!(lock(&pool.inner.live).is_empty());
}

#[tokio::test]
async fn an_id_that_still_runs_at_the_server_is_aborted_and_asked_again() {
    let server = server().await;
    let duplicate = ResponseTemplate::new(400)
        .set_body_json(json!({ "error": { "message": "Duplicate request ID detected: r" } }));
    generate(&server, duplicate, Some(1), 1).await;
    generate(&server, answer(&[7], stop(), "1"), None, 5).await;
    let pool = Pool::new(vec![address(&server)], config()).unwrap();
    assert_eq!(pool.sample(request("r")).await.unwrap().tokens, [7]);
    assert_eq!(
        first_calls(&server, "/abort_request").await,
        [json!({ "rid": "r" })]
    );
}

#[tokio::test]
async fn f03_one_server_never_has_more_requests_than_its_limit_and_all_end() {
    let server = server().await;
    generate(
        &server,
        answer(&[7], stop(), "1").set_delay(Duration::from_millis(100)),
        None,
        5,
    )
    .await;
    let pool = Pool::new(
        vec![address(&server)],
        PoolConfig {
            concurrency: 2,
            ..config()
        },
    )
    .unwrap();
    let rids: Vec<String> = (0..8).map(|i| i.to_string()).collect();
    let begin = Instant::now();
    let all = futures::future::join_all(rids.iter().map(|rid| pool.sample(request(rid)))).await;
    assert!(all.iter().all(Result::is_ok));
    assert!(
        begin.elapsed() >= Duration::from_millis(400),
        "{:?}",
        begin.elapsed()
    );
}

#[tokio::test]
async fn tokens_of_unknown_weights_are_thrown_away() {
    let server = server().await;
    for endpoint in ["/pause_generation", "/continue_generation"] {
        Mock::given(path(endpoint))
            .respond_with(ResponseTemplate::new(200))
            .mount(&server)
            .await;
    }
    let updated =
        ResponseTemplate::new(200).set_body_json(json!({ "success": true, "message": "" }));
    Mock::given(path("/update_weights_from_disk"))
        .respond_with(updated)
        .mount(&server)
        .await;
    // The process was replaced by one that serves what it was started with.
    generate(&server, answer(&[7], stop(), "default"), Some(1), 1).await;
    generate(&server, answer(&[8], stop(), "1"), None, 5).await;
    let pool = Arc::new(
        Pool::new(
            vec![address(&server)],
            PoolConfig {
                trust: Trust::Proven,
                ..config()
            },
        )
        .unwrap(),
    );
    let dir = crate::publish::tests::weights(&[("w", &[2, 2])]);
    Publisher::new(Arc::clone(&pool), PauseMode::Abort, Duration::from_secs(5))
        .publish(dir.path(), V1)
        .await
        .unwrap();
    assert_eq!(pool.sample(request("r")).await.unwrap().tokens, [8]);
    assert_eq!(pool.stats().num_unproven_tokens, 1);
}

#[tokio::test]
async fn nobody_is_asked_before_a_version_is_proven() {
    let server = server().await;
    generate(&server, answer(&[7], stop(), "1"), None, 5).await;
    let config = PoolConfig {
        trust: Trust::Proven,
        request_deadline: Duration::from_millis(200),
        ..config()
    };
    let pool = Pool::new(vec![address(&server)], config).unwrap();
    let error = pool.sample(request("r")).await.unwrap_err().to_string();
    assert!(error.contains("no weights were published"), "{error}");
    assert!(calls(&server, "/generate").await.is_empty());
}

#[tokio::test]
async fn a_pool_needs_different_addresses() {
    assert!(Pool::new(Vec::<Address>::new(), config()).is_err());
    let twice = vec![Address::new("h", 1), Address::new("h", 1)];
    assert!(
        Pool::new(twice, config())
            .err()
            .unwrap()
            .to_string()
            .contains("given twice")
    );
}

#[tokio::test]
async fn loads_and_infos_are_read_from_new_and_old_servers() {
    let server = MockServer::start().await;
    let rank = json!({ "dp_rank": 0, "num_running_reqs": 3, "num_waiting_reqs": 1, "num_used_tokens": 5, "max_total_num_tokens": 100, "gen_throughput": 2.5, "new_member": {} });
    let loads = json!({ "version": "0.5.23", "loads": [rank.clone(), rank] });
    Mock::given(path("/v1/loads"))
        .respond_with(ResponseTemplate::new(200).set_body_json(loads))
        .mount(&server)
        .await;
    let info =
        json!({ "version": "0.5.17", "max_running_requests": 32, "max_total_tokens": 20000 });
    Mock::given(path("/get_server_info"))
        .respond_with(ResponseTemplate::new(200).set_body_json(info))
        .mount(&server)
        .await;
    Mock::given(path("/get_model_info"))
        .respond_with(ResponseTemplate::new(200).set_body_json(json!({ "model_path": "m" })))
        .mount(&server)
        .await;
    Mock::given(path("/get_weight_version"))
        .respond_with(ResponseTemplate::new(200).set_body_json(json!({ "weight_version": "w" })))
        .mount(&server)
        .await;
    let pool = Pool::new(vec![address(&server)], config()).unwrap();
    let server = pool.servers().next().unwrap();
    let loads = endpoint::v1_loads::v1_loads(server).await.unwrap();
    assert_eq!(
        (
            loads.num_running,
            loads.num_waiting,
            loads.num_total_tokens,
            loads.tokens_per_sec
        ),
        (6, 2, 200, 5.0)
    );
    let info = endpoint::server_info::server_info(server).await.unwrap();
    assert_eq!(
        (
            info.version(),
            info.max_running_requests(),
            info.max_total_tokens()
        ),
        (Some("0.5.17"), Some(32), Some(20000))
    );
    assert_eq!(
        endpoint::get_weight_version::get_weight_version(server)
            .await
            .unwrap(),
        "w"
    );
    assert_eq!(
        endpoint::weights_checker::weights_checker(server, Duration::from_secs(1))
            .await
            .unwrap(),
        None
    );
}

/// The system's proxy is a black hole; a request inside the pool does not notice.
#[test]
fn g05_the_systems_proxy_is_not_used() {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
        child.env(name, "http://127.0.0.1:9");
    }
    child.env_remove("NO_PROXY").env_remove("no_proxy");
    let test = "pool::tests::a_request_carries_ids_seed_and_session_and_only_known_members";
    let output = child.args(["--exact", test]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

/// A server that counts what it is asked at once; requests take a while.
async fn counting() -> (Address, Arc<Mutex<Counts>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Address::new("127.0.0.1", listener.local_addr().unwrap().port());
    let counts = Arc::new(Mutex::new(Counts::default()));
    let shared = counts.clone();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let counts = shared.clone();
            tokio::spawn(async move {
                let mut asked = String::new();
                let mut buffer = [0; 8192];
                loop {
                    let Ok(n) = socket.read(&mut buffer).await else {
                        return;
                    };
                    if n == 0 {
                        return;
                    }
                    asked.push_str(std::str::from_utf8(&buffer[..n]).unwrap());
                    let whole = asked.contains("\r\n\r\n")
                        && (asked.starts_with("GET") || asked.ends_with('}'));
                    if !whole {
                        continue;
                    }
                    let text = std::mem::take(&mut asked);
                    let body = if text.starts_with("POST /generate") {
                        {
                            let mut counts = lock(&counts);
                            counts.now += 1;
                            counts.most = counts.most.max(counts.now);
                            counts.under_update |= counts.updating;
                        }
                        tokio::time::sleep(Duration::from_millis(300)).await;
                        let mut counts = lock(&counts);
                        counts.now -= 1;
                        let label = counts.label.clone();
                        json!({ "text": "", "output_ids": [7], "meta_info": { "finish_reason": stop(),
                            "output_token_logprobs": [[-0.5, 7, null]], "weight_version": label } })
                    } else if text.starts_with("POST /update_weights_from_disk") {
                        lock(&counts).updating = true;
                        tokio::time::sleep(Duration::from_millis(300)).await;
                        let mut counts = lock(&counts);
                        counts.updating = false;
                        let at = text.find("weight_version\":\"").unwrap() + "weight_version\":\"".len();
                        counts.label = text[at..].split('"').next().unwrap().to_owned();
                        json!({ "success": true, "message": "" })
                    } else {
                        json!({ "weight_version": lock(&counts).label.clone(), "model_path": "m" })
                    }
                    .to_string();
                    let head = format!(
                        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
                        body.len()
                    );
                    if socket.write_all(head.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, counts)
}

#[derive(Debug, Default)]
struct Counts {
    now: usize,
    most: usize,
    updating: bool,
    /// A request came while weights were being loaded.
    under_update: bool,
    label: String,
}

#[tokio::test]
async fn f10_h14_nothing_is_asked_during_an_update_and_every_slot_is_filled_after_it() {
    let (address, counts) = counting().await;
    let config = PoolConfig {
        concurrency: 8,
        trust: Trust::Proven,
        ..config()
    };
    let pool = Arc::new(Pool::new(vec![address], config).unwrap());
    let publisher = Publisher::new(pool.clone(), PauseMode::Retract, Duration::from_secs(5));
    let dir = crate::publish::tests::weights(&[("w", &[2])]);
    // Asked before anything is served, and during the update.
    let rids: Vec<String> = (0..16).map(|i| i.to_string()).collect();
    let asking = futures::future::join_all(rids.iter().map(|rid| pool.sample(request(rid))));
    let publishing = publisher.publish(dir.path(), V1);
    let (answers, published) = futures::future::join(asking, publishing).await;
    published.unwrap();
    for answer in answers {
        assert_eq!(answer.unwrap().versions, [(V1, 1)]);
    }
    let counts = lock(&counts);
    assert!(!counts.under_update, "{counts:?}");
    assert_eq!(counts.most, 8, "back to full at once");
}

#[tokio::test]
async fn a_router_picks_the_member_and_no_request_depends_on_it() {
    let (router, a, b) = (server().await, server().await, server().await);
    let workers = json!({ "workers": [{ "url": a.uri() }, { "url": b.uri() }], "total": 2 });
    Mock::given(method("GET"))
        .and(path("/workers"))
        .respond_with(ResponseTemplate::new(200).set_body_json(workers))
        .mount(&router)
        .await;
    generate(&router, answer(&[7], stop(), "1"), Some(2), 1).await;
    let none = json!({ "error": { "type": "Service Unavailable", "code": "no_available_workers", "message": "No available workers" } });
    generate(
        &router,
        ResponseTemplate::new(503).set_body_json(none),
        None,
        5,
    )
    .await;
    for member in [&a, &b] {
        generate(member, answer(&[8], stop(), "1"), None, 5).await;
    }
    let config = PoolConfig {
        router: Some(address(&router)),
        ..config()
    };
    let pool = Pool::new(vec![address(&a), address(&b)], config).unwrap();
    pool.introduce().await.unwrap();
    let mut tokens = Vec::new();
    for rid in 0..5 {
        tokens.extend(pool.sample(request(&rid.to_string())).await.unwrap().tokens);
    }
    assert_eq!(tokens, [7, 7, 8, 8, 8]);
    assert_eq!(
        calls(&router, "/generate").await.len(),
        3,
        "it is passed by for a while"
    );
    assert!(
        pool.standings()
            .iter()
            .all(|(_, s)| *s == Standing::Serving(V1))
    );
    // Its workers are known to it already.
    let posted = router.received_requests().await.unwrap();
    assert!(
        !posted
            .iter()
            .any(|r| r.url.path() == "/workers" && r.method.as_str() == "POST")
    );
}
