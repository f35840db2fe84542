//! Servers that die, stall or were never there.

use super::*;

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
    let server = silent().await;
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

/// The system's proxy is a black hole; a request inside the pool does not notice.
#[test]
fn g05_the_systems_proxy_is_not_used() {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
        child.env(name, "http://127.0.0.1:9");
    }
    child.env_remove("NO_PROXY").env_remove("no_proxy");
    let test =
        "pool::tests::requests::a_request_carries_ids_seed_and_session_and_only_known_members";
    let output = child.args(["--exact", test]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}
