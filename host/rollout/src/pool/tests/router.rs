//! An `sglang_router` in front of the members.

use super::*;

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

/// Found by a run whose router was killed: once a request's waits were as long as a router is passed by, each of its tries met
/// the router again, and none a server.
#[tokio::test]
async fn after_the_router_failed_the_next_try_goes_to_a_member_however_late_it_is() {
    let (router, member) = (server().await, server().await);
    let workers = json!({ "workers": [{ "url": member.uri() }], "total": 1 });
    Mock::given(method("GET"))
        .and(path("/workers"))
        .respond_with(ResponseTemplate::new(200).set_body_json(workers))
        .mount(&router)
        .await;
    generate(&router, ResponseTemplate::new(503), None, 5).await;
    generate(&member, answer(&[8], stop(), "1"), None, 5).await;
    let config = PoolConfig {
        router: Some(address(&router)),
        router_passed_by: Duration::ZERO,
        request_deadline: Duration::from_secs(5),
        ..config()
    };
    let pool = Pool::new(vec![address(&member)], config).unwrap();
    pool.introduce().await.unwrap();
    for rid in ["a", "b"] {
        assert_eq!(pool.sample(request(rid)).await.unwrap().tokens, [8]);
    }
    assert_eq!(calls(&router, "/generate").await.len(), 2);
    assert_eq!(calls(&member, "/generate").await.len(), 2);
}
