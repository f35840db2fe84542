//! Aborts, pauses, clients that leave, and what the server says about itself.

use crate::support::*;
use serde_json::{Value, json};
use slime_engine::{EngineConfig, Error, serve};
use std::time::Duration;

/// A stream of many tokens whose first event has been seen.
async fn long(server: &Server, rid: &str) -> (Events, Value) {
    let mut body = ask(&ids("a long answer"), 21, 900);
    body["rid"] = rid.into();
    body["stream"] = true.into();
    let mut events = server.events("/generate", body).await;
    let first = events.next().await.expect("an event");
    (events, first)
}

async fn last(events: Events) -> Value {
    events.all().await.pop().expect("an event")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_keeps_the_partial_answer_and_a_continuation_is_the_whole() {
    let server = start().await;
    let (events, _) = long(&server, "ab1").await;
    assert_eq!(
        server
            .post("/abort_request", json!({"rid": "ab"}))
            .await
            .status,
        200
    );
    assert_eq!(
        server
            .post("/abort_request", json!({"rid": "ab1"}))
            .await
            .status,
        200
    );
    let part = last(events).await;
    assert_eq!(
        part["meta_info"]["finish_reason"],
        json!({"type": "abort", "message": "Aborted", "status_code": null, "err_type": null})
    );
    let out = output_ids(&part);
    assert!(!out.is_empty() && out.len() < 900);
    assert_eq!(logprobs(&part).len(), out.len());
    // The same seed on the longer prompt goes on where it was cut.
    let whole = server
        .generate(ask(&ids("a long answer"), 21, out.len() + 20))
        .await;
    let prompt: Vec<u32> = ids("a long answer")
        .into_iter()
        .chain(out.iter().copied())
        .collect();
    let rest = server.generate(ask(&prompt, 21, 20)).await;
    assert_eq!(output_ids(&whole), [out, output_ids(&rest)].concat());
    for body in [json!({"rid": "nobody"}), json!({})] {
        assert_eq!(server.post("/abort_request", body).await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abort_all_ends_everything_and_leaves_the_engine_well() {
    let server = start().await;
    let (a, _) = long(&server, "x").await;
    let (b, _) = long(&server, "y").await;
    assert_eq!(
        server
            .post("/abort_request", json!({"abort_all": true}))
            .await
            .status,
        200
    );
    for events in [a, b] {
        assert_eq!(
            last(events).await["meta_info"]["finish_reason"]["type"],
            "abort"
        );
    }
    assert_eq!(server.get("/health_generate").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_is_not_worked_for() {
    let server = start().await;
    let (events, _) = long(&server, "leaver").await;
    let again = server
        .post("/generate", json!({"text": "a", "rid": "leaver"}))
        .await;
    assert_eq!(
        (again.status, again.json()["error"]["message"].clone()),
        (400, json!("Duplicate request ID detected: leaver"))
    );
    drop(events);
    // A plain request whose client gives up, too.
    let mut body = ask(&ids("given up"), 0, 1000);
    body["sampling_params"]["n"] = 64.into();
    let body = body.to_string();
    let gone = server
        .client
        .post(format!("{}/generate", server.url))
        .body(body)
        .timeout(Duration::from_millis(300))
        .send()
        .await;
    assert!(gone.is_err());
    for _ in 0..200 {
        let loads = server.get("/v1/loads").await.ok();
        let load = &loads["loads"][0];
        if load["num_running_reqs"] == 0 && load["num_waiting_reqs"] == 0 {
            assert_eq!(load["num_used_tokens"], 0);
            assert_eq!(server.post("/generate", json!({"text": "a", "rid": "leaver", "sampling_params": {"max_new_tokens": 1}})).await.status, 200);
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("still running after five seconds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pauses_hold_requests_back_in_the_mode_that_was_asked_for() {
    let server = start().await;
    for (mode, flush, ends) in [
        ("abort", 200, "abort"),
        ("retract", 200, "length"),
        ("in_place", 400, "length"),
    ] {
        let (events, _) = long(&server, mode).await;
        let paused = server
            .post("/pause_generation", json!({"mode": mode}))
            .await
            .ok();
        assert_eq!(
            paused,
            json!({"message": "Generation paused successfully.", "status": "ok"})
        );
        assert_eq!(server.get("/ready").await.status, 503);
        assert_eq!(server.get("/health").await.status, 200);
        assert_eq!(server.get("/health_generate").await.status, 503);
        let flushed = server.post_raw("/flush_cache", String::new()).await;
        assert_eq!(flushed.status, flush, "{mode}: {flushed:?}");
        if flush == 400 {
            assert!(flushed.raw.starts_with("Flush cache failed."));
        }
        let held = server.generate(
            json!({"text": "held", "sampling_params": {"max_new_tokens": 2, "ignore_eos": true}}),
        );
        let early = tokio::time::timeout(Duration::from_millis(200), held).await;
        assert!(early.is_err(), "a paused server answered");
        for _ in 0..2 {
            server.post("/continue_generation", json!({})).await.ok();
        }
        assert_eq!(server.get("/ready").await.status, 200);
        let end = last(events).await;
        assert_eq!(end["meta_info"]["finish_reason"]["type"], ends, "{mode}");
        assert_eq!(
            end["meta_info"]["num_retractions"],
            u64::from(mode == "retract")
        );
    }
    let unknown = server
        .post("/pause_generation", json!({"mode": "sideways"}))
        .await;
    assert_eq!(unknown.status, 400);
    assert_eq!(server.get("/ready").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_says_what_it_is() {
    let config = EngineConfig {
        served_model_name: "tiny".into(),
        context_length: Some(500),
        seed: 9,
        ..EngineConfig::default()
    };
    let server = start_with(network(1), config).await;
    let health = server.get("/health").await;
    assert_eq!((health.status, health.raw.as_str()), (200, ""));
    let info = server.get("/model_info").await.ok();
    assert_eq!(info, server.get("/get_model_info").await.ok());
    assert_eq!(
        (
            &info["weight_version"],
            &info["is_generation"],
            &info["model_type"]
        ),
        (&json!("default"), &json!(true), &json!("llama"))
    );
    let what = server.get("/get_server_info").await.ok();
    assert_eq!(
        (
            &what["random_seed"],
            &what["context_length"],
            &what["tp_size"]
        ),
        (&json!(9), &json!(500), &json!(1))
    );
    let models = server.get("/v1/models").await.ok();
    assert_eq!(
        (
            &models["data"][0]["id"],
            &models["data"][0]["max_model_len"]
        ),
        (&json!("tiny"), &json!(500))
    );
    assert_eq!(
        server.get("/get_weight_version").await.ok(),
        json!({"weight_version": "default"})
    );
    let paths = server.get("/openapi.json").await.ok()["paths"].clone();
    for (path, methods) in paths.as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let answer = if method == "get" {
                server.get(path).await
            } else {
                server.post(path, json!({})).await
            };
            assert!(
                answer.status != 404 && answer.status != 405,
                "{method} {path}: {answer:?}"
            );
        }
    }
    server.post("/continue_generation", json!({})).await.ok();
    server.generate(json!({"text": "count me", "sampling_params": {"max_new_tokens": 3, "ignore_eos": true}})).await;
    let metrics = server.get("/metrics").await.raw;
    for line in [
        "sglang:num_running_reqs{model_name=\"tiny\"} 0",
        "sglang:prompt_tokens_total{model_name=\"tiny\"} 9",
        "# TYPE sglang:e2e_request_latency_seconds histogram",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_in_use_is_named_with_the_cure() {
    let server = start().await;
    let addr = server.url.strip_prefix("http://").unwrap().parse().unwrap();
    match serve(server.engine.clone(), addr).await {
        Err(e @ Error::PortInUse { .. }) => {
            let message = e.to_string();
            assert!(
                message.contains(&addr.port().to_string()) && message.contains("port 0"),
                "{message}"
            );
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("two servers on one port"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_on_port_zero_get_ports_of_their_own() {
    let server = start().await;
    let mut ports = Vec::new();
    for _ in 0..16 {
        let other = serve(server.engine.clone(), "127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        ports.push(other.addr.port());
        if ports.len() % 2 == 0 {
            other.shutdown().await;
        }
    }
    assert!(ports.iter().all(|&p| p != 0));
}
