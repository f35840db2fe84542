//! Requests that are given up.

use super::*;

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
    let server = silent().await;
    let pool = Pool::new(vec![address(&server)], config()).unwrap();
    let _ = tokio::time::timeout(Duration::from_millis(600), pool.sample(request("gone"))).await;
    assert_eq!(
        first_calls(&server, "/abort_request").await,
        [json!({ "rid": "gone" })]
    );
    // Its id is free again.
    assert!(lock(&pool.inner.live).is_empty());
}
