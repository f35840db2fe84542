//! Requests that pass through two servers. The real pair is in `tests/pairs.rs` of the crate.

use super::*;
use std::sync::OnceLock;

fn seat(server: &MockServer, part: Part, bootstrap_port: Option<u16>) -> Seat {
    Seat {
        part,
        bootstrap_port,
        ..address(server).into()
    }
}

fn length() -> Value {
    json!({ "type": "length", "length": 1 })
}

/// A prefill server that does its part, and a decode server.
async fn pair() -> (MockServer, MockServer) {
    let (prefill, decode) = (server().await, server().await);
    generate(&prefill, answer(&[7], length(), "1"), None, 5).await;
    let answer = answer(&[7, 8, 2], stop(), "1").set_delay(Duration::from_millis(100));
    generate(&decode, answer, None, 5).await;
    (prefill, decode)
}

fn seats(prefill: &MockServer, decode: &MockServer) -> Vec<Seat> {
    vec![
        seat(prefill, Part::Prefill, Some(8998)),
        seat(decode, Part::Decode, None),
    ]
}

#[tokio::test]
async fn both_halves_of_a_pair_get_the_request_and_one_place_to_meet() {
    let (prefill, decode) = pair().await;
    let pool = Pool::new(seats(&prefill, &decode), config()).unwrap();
    let got = pool.sample(request("r-1")).await.unwrap();
    assert_eq!(got.tokens, [7, 8, 2], "the one that decodes answers");
    pool.sample(request("r-2")).await.unwrap();
    let (first, second) = (
        calls(&prefill, "/generate").await,
        calls(&decode, "/generate").await,
    );
    assert_eq!(first, second, "both are sent the same");
    let body = &first[0];
    assert_eq!(body["rid"], "r-1");
    assert_eq!(body["bootstrap_host"], "127.0.0.1");
    assert_eq!(body["bootstrap_port"], 8998);
    let rooms: Vec<i64> = first
        .iter()
        .map(|body| body["bootstrap_room"].as_i64().unwrap())
        .collect();
    assert_ne!(rooms[0], rooms[1], "no two requests meet in one room");
    assert!(calls(&prefill, "/abort_request").await.is_empty());
    assert!(calls(&decode, "/abort_request").await.is_empty());
}

#[tokio::test]
async fn a_dead_prefill_server_costs_a_retry_and_leaves_no_request_waiting() {
    let (prefill, decode) = (server().await, server().await);
    generate(&prefill, answer(&[7], length(), "1"), None, 5).await;
    // As a real one: it waits for what never comes.
    let waits = answer(&[7, 2], stop(), "1").set_delay(Duration::from_secs(9));
    generate(&decode, waits, Some(1), 1).await;
    generate(&decode, answer(&[7, 2], stop(), "1"), None, 5).await;
    let dead = Seat {
        part: Part::Prefill,
        bootstrap_port: Some(1),
        ..Address::new("127.0.0.1", 1).into()
    };
    let mut config = config();
    config.routing = Routing::LeastLoaded;
    // The first turn is the first prefill server's.
    let all = [vec![dead], seats(&prefill, &decode)].concat();
    let pool = Pool::new(all, config).unwrap();
    let mut got = Vec::new();
    for i in 0..2 {
        got.push(
            pool.sample(request(&format!("r-{i}")))
                .await
                .unwrap()
                .tokens,
        );
    }
    assert_eq!(got, [[7, 2], [7, 2]]);
    assert_eq!(pool.standings()[0].1, Standing::Down);
    assert_eq!(pool.stats().num_retries, 1);
    let aborted = first_calls(&decode, "/abort_request").await;
    assert_eq!(aborted.len(), 1);
}

#[tokio::test]
async fn a_refusal_of_either_half_is_the_requests_own_fault() {
    let (prefill, decode) = (server().await, server().await);
    let refusal = ResponseTemplate::new(400)
        .set_body_json(json!({ "error": { "message": "temperature must be non-negative" } }));
    generate(&prefill, refusal, None, 5).await;
    let waits = answer(&[7, 2], stop(), "1").set_delay(Duration::from_secs(9));
    generate(&decode, waits, None, 5).await;
    let pool = Pool::new(seats(&prefill, &decode), config()).unwrap();
    let error = pool.sample(request("r")).await.unwrap_err();
    assert!(
        matches!(&error, PolicyError::Refused(m) if m.contains("non-negative")),
        "{error}"
    );
    for (_, standing) in pool.standings() {
        assert_eq!(standing, Standing::Serving(V1));
    }
}

#[tokio::test]
async fn a_prefill_server_that_gave_up_is_asked_again() {
    let (prefill, decode) = (server().await, server().await);
    // The first meeting that either half hears of comes to nothing: one gives it up, the other waits there.
    let doomed: Arc<OnceLock<Value>> = Arc::default();
    let is_doomed = move |asked: &wiremock::Request| {
        let body: Value = asked.body_json().unwrap();
        let room = &body["bootstrap_room"];
        doomed.get_or_init(|| room.clone()) == room
    };
    let of_decode = is_doomed.clone();
    let reads = move |asked: &wiremock::Request| match is_doomed(asked) {
        true => answer(&[], json!({ "type": "abort", "message": "paused" }), "1"),
        false => answer(&[7], length(), "1"),
    };
    let writes = move |asked: &wiremock::Request| match of_decode(asked) {
        true => answer(&[9], stop(), "1").set_delay(Duration::from_secs(9)),
        false => answer(&[7, 2], stop(), "1").set_delay(Duration::from_millis(500)),
    };
    generate(&prefill, reads, None, 5).await;
    generate(&decode, writes, None, 5).await;
    let pool = Pool::new(seats(&prefill, &decode), config()).unwrap();
    let got = pool.sample(request("r")).await.unwrap();
    assert_eq!(
        got.tokens,
        [7, 2],
        "a call that is repeated meets elsewhere"
    );
}

#[tokio::test]
async fn a_decode_server_alone_gets_no_request() {
    let (_, decode) = pair().await;
    let mut config = config();
    config.request_deadline = Duration::from_millis(300);
    let pool = Pool::new(vec![seat(&decode, Part::Decode, None)], config).unwrap();
    let error = pool.sample(request("r")).await.unwrap_err();
    assert!(matches!(error, PolicyError::Unavailable(_)), "{error}");
    assert!(calls(&decode, "/generate").await.is_empty());
}
