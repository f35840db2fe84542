//! Bad requests: each refused in its shape and words, and the server lives on.

use crate::support::*;
use serde_json::{Value, json};

async fn message(server: &Server, body: Value) -> String {
    let a = server.post("/generate", body).await;
    assert_eq!(a.status, 400, "{a:?}");
    a.json()["error"]["message"]
        .as_str()
        .unwrap_or_else(|| panic!("{a:?}"))
        .to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_generated_is_refused_and_nothing_breaks() {
    let server = start().await;
    let n = 1024;
    assert_eq!(
        message(&server, json!({"input_ids": []})).await,
        "input_ids cannot be empty."
    );
    assert_eq!(
        message(&server, json!({"sampling_params": {}})).await,
        "Either text, input_ids or input_embeds should be provided."
    );
    assert_eq!(
        message(&server, json!({"input_ids": vec![1; n + 8]})).await,
        "The input (1032 tokens) is longer than the model's context length (1024 tokens)."
    );
    let total = message(
        &server,
        json!({"input_ids": vec![1; n - 8], "sampling_params": {"max_new_tokens": n}}),
    )
    .await;
    assert!(total.starts_with("Requested token count exceeds the model's maximum context length of 1024 tokens. You requested a total of 2040 tokens: 1016"), "{total}");
    for beyond in [264i64, 999_999, -1, 1 << 40] {
        let m = message(&server, json!({"input_ids": [1, beyond]})).await;
        assert!(m.starts_with("input_ids[1] is") && m.contains("264"), "{m}");
    }
    for (key, value) in [
        ("temperature", json!(-1)),
        ("top_p", json!(0)),
        ("top_p", json!(1.5)),
        ("top_k", json!(0)),
        ("max_new_tokens", json!(-1)),
    ] {
        assert!(
            message(
                &server,
                json!({"text": "a", "sampling_params": {key: value}})
            )
            .await
            .contains(key)
        );
    }
    for unsupported in [
        json!({"text": "a", "return_hidden_states": true}),
        json!({"text": "a", "sampling_params": {"json_schema": "{}"}}),
    ] {
        assert!(
            message(&server, unsupported)
                .await
                .contains("not supported by the embedded engine")
        );
    }
    assert!(
        message(&server, json!({"text": ["a", "b"], "rid": ["x"]}))
            .await
            .contains("rid has 1 entries for 2 prompts")
    );
    assert!(
        message(
            &server,
            json!({"text": "ab", "return_logprob": true, "logprob_start_len": 2})
        )
        .await
        .contains("logprob_start_len")
    );
    let unknown = server
        .post(
            "/generate",
            json!({"text": "a", "sampling_params": {"bogus": 1}}),
        )
        .await;
    assert_eq!(unknown.status, 400);
    assert!(
        unknown.json()["error"]
            .as_str()
            .unwrap()
            .starts_with("unknown field `bogus`, expected one of `max_new_tokens`")
    );
    assert_eq!(server.post("/generate", json!({"text": "a", "some_field_of_tomorrow": 1, "sampling_params": {"max_new_tokens": 1}})).await.status, 200);
    assert_eq!(server.get("/health_generate").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_paths_and_methods_that_do_not_exist_have_shapes_of_their_own() {
    let server = start().await;
    for (path, body) in [
        ("/generate", "{\"text\":"),
        ("/generate", "[1]"),
        ("/v1/chat/completions", "{}"),
        ("/update_weights_from_disk", "{}"),
    ] {
        let a = server.post_raw(path, body.into()).await;
        assert_eq!(
            (a.status, &a.json()["object"], &a.json()["code"]),
            (400, &json!("error"), &json!(400)),
            "{path} {a:?}"
        );
    }
    let a = server.get("/no/such/path").await;
    assert_eq!((a.status, a.json()), (404, json!({"detail": "Not Found"})));
    let a = server.get("/generate").await;
    assert_eq!(
        (a.status, a.json()),
        (405, json!({"detail": "Method Not Allowed"}))
    );
}

#[tokio::test]
async fn a_run_that_was_taken_over_is_not_listened_to_any_more() {
    let server = start().await;
    let ask = async |epoch: &str| {
        let call = server.client.post(format!("{}/generate", server.url));
        let call = call.header("x-slime-epoch", epoch);
        let body = json!({"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 1}});
        let answer = call.body(body.to_string()).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    assert_eq!(ask("a:1").await.0, 200);
    assert_eq!(ask("a:3").await.0, 200);
    let (status, words) = ask("a:1").await;
    assert_eq!(status, 409);
    assert!(
        words.contains("epoch 1 of this run is over: epoch 3 has taken it over"),
        "{words}"
    );
    // Weights too, and nothing else of the server changes: other runs and clients without the header are served.
    let publish = server
        .client
        .post(format!("{}/pause_generation", server.url));
    let publish = publish
        .header("x-slime-epoch", "a:2")
        .body("{}")
        .send()
        .await
        .unwrap();
    assert_eq!(publish.status().as_u16(), 409);
    assert_eq!(ask("b:1").await.0, 200);
    server
        .generate(json!({"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 1}}))
        .await;
}
