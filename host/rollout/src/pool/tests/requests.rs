//! What a request is, and what is answered to it.

use super::*;

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
