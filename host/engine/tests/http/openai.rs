//! The OpenAI paths: template and tools, usage, log-probs, streams.

use crate::support::*;
use serde_json::{Value, json};
use slime_core::ports::TextCodec;
use slime_core::{Message, Tool};
use slime_model::text::Text;

fn chat_body(more: Value) -> Value {
    let mut body = json!({
        "model": "whatever",
        "messages": [{"role": "user", "content": "What is 2+2?"}],
        "max_tokens": 12,
        "seed": 3,
        "ignore_eos": true,
    });
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chat_renders_the_template_and_says_what_it_used() {
    let server = start().await;
    let tool: Tool =
        json!({"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}});
    let a = server.post("/v1/chat/completions", chat_body(json!({"logprobs": true, "top_logprobs": 2, "return_meta_info": true, "return_prompt_token_ids": true, "tools": [tool], "rid": "chat-1"}))).await.ok();
    let c = &a["choices"][0];
    let text = Text::bytes().unwrap();
    let want = text
        .render_chat(
            &[Message::new("user", "What is 2+2?")],
            &[tool],
            true,
            &Default::default(),
        )
        .unwrap();
    assert_eq!(c["prompt_token_ids"], json!(want));
    assert_eq!(
        (&a["object"], &a["model"], &a["id"]),
        (
            &json!("chat.completion"),
            &json!("whatever"),
            &json!("chat-1")
        )
    );
    assert_eq!(a["usage"]["prompt_tokens"], want.len());
    assert_eq!(
        (
            &a["usage"]["completion_tokens"],
            &a["usage"]["total_tokens"]
        ),
        (&json!(12), &json!(want.len() + 12))
    );
    assert_eq!(c["finish_reason"], "length");
    assert_eq!(c["logprobs"]["content"].as_array().unwrap().len(), 12);
    assert_eq!(
        c["logprobs"]["content"][0]["top_logprobs"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    assert_eq!(
        c["meta_info"]["output_token_logprobs"]
            .as_array()
            .unwrap()
            .len(),
        12
    );
    // The same tokens through /generate.
    let plain = server.generate(ask(&want, 3, 12)).await;
    assert_eq!(c["message"]["content"], plain["text"]);
    // Without tools the prompt is another one; with tool_choice none they are not shown.
    let none = server.post("/v1/chat/completions", chat_body(json!({"tools": [{"type": "function"}], "tool_choice": "none", "return_prompt_token_ids": true}))).await.ok();
    let bare = text
        .render_chat(
            &[Message::new("user", "What is 2+2?")],
            &[],
            true,
            &Default::default(),
        )
        .unwrap();
    assert_eq!(none["choices"][0]["prompt_token_ids"], json!(bare));
    let parts = json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "What is "}, {"type": "text", "text": "2+2?"}]}], "return_prompt_token_ids": true});
    assert_eq!(
        server
            .post("/v1/chat/completions", chat_body(parts))
            .await
            .ok()["choices"][0]["prompt_token_ids"],
        json!(bare)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chat_stream_is_role_deltas_reason_usage() {
    let server = start().await;
    let whole = server
        .post("/v1/chat/completions", chat_body(json!({})))
        .await
        .ok();
    let body = chat_body(
        json!({"stream": true, "stream_options": {"include_usage": true}, "logprobs": true}),
    );
    let mut events = server
        .events("/v1/chat/completions", body)
        .await
        .all()
        .await;
    assert_eq!(
        events[0]["choices"][0]["delta"],
        json!({"role": "assistant", "content": ""})
    );
    let usage = events.pop().unwrap();
    assert_eq!(
        (&usage["choices"], &usage["usage"]),
        (&json!([]), &whole["usage"])
    );
    assert_eq!(
        events.last().unwrap()["choices"][0]["finish_reason"],
        "length"
    );
    let text: String = events
        .iter()
        .filter_map(|e| e["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(
        text,
        whole["choices"][0]["message"]["content"].as_str().unwrap()
    );
    let logprobs: usize = events
        .iter()
        .filter_map(|e| e["choices"][0]["logprobs"]["content"].as_array())
        .map(Vec::len)
        .sum();
    assert_eq!(logprobs, 12);
    let several = server
        .events(
            "/v1/chat/completions",
            chat_body(json!({"stream": true, "n": 2})),
        )
        .await
        .all()
        .await;
    for index in 0..2 {
        assert!(
            several.iter().any(|e| e["choices"][0]["index"] == index
                && e["choices"][0]["finish_reason"] == "length")
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completions_take_text_or_ids_one_or_many() {
    let server = start().await;
    let base = |prompt: Value| json!({"model": "m", "prompt": prompt, "max_tokens": 5, "temperature": 0, "logprobs": 2, "ignore_eos": true});
    let text = server
        .post("/v1/completions", base(json!("once upon")))
        .await
        .ok();
    let tokens = server
        .post("/v1/completions", base(json!(ids("once upon"))))
        .await
        .ok();
    assert_eq!(text["choices"], tokens["choices"]);
    let c = &text["choices"][0];
    assert_eq!(
        (
            c["logprobs"]["tokens"].as_array().unwrap().len(),
            c["logprobs"]["token_logprobs"].as_array().unwrap().len()
        ),
        (5, 5)
    );
    assert_eq!(
        text["usage"],
        json!({"prompt_tokens": 9, "total_tokens": 14, "completion_tokens": 5, "prompt_tokens_details": null, "reasoning_tokens": 0, "completion_tokens_details": null})
    );
    let many = server
        .post("/v1/completions", base(json!(["once upon", "another"])))
        .await
        .ok();
    assert_eq!(many["choices"][0]["text"], c["text"]);
    assert_eq!(many["choices"][1]["index"], 1);
    let mut echo = base(json!("once upon"));
    echo["echo"] = true.into();
    let echoed = server.post("/v1/completions", echo).await.ok();
    assert_eq!(
        echoed["choices"][0]["text"],
        json!(format!("once upon{}", c["text"].as_str().unwrap()))
    );
    assert_eq!(
        echoed["choices"][0]["logprobs"]["tokens"]
            .as_array()
            .unwrap()
            .len(),
        14
    );
    let mut stream = base(json!("once upon"));
    stream["stream"] = true.into();
    let events = server.events("/v1/completions", stream).await.all().await;
    let text: String = events
        .iter()
        .filter_map(|e| e["choices"][0]["text"].as_str())
        .collect();
    assert_eq!(json!(text), c["text"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_chat_requests_are_refused_in_openais_shape() {
    let server = start().await;
    let bodies = [
        json!({"model": "m"}),
        json!({"messages": []}),
        chat_body(json!({"temperature": -1})),
        chat_body(json!({"tool_choice": "required"})),
        chat_body(json!({"response_format": {"type": "json_object"}})),
        chat_body(json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})),
        chat_body(json!({"messages": [{"role": "nobody", "content": "x"}]})),
        chat_body(json!({"max_tokens": 5000})),
    ];
    for body in bodies {
        let a = server.post("/v1/chat/completions", body).await;
        assert_eq!(
            (a.status, &a.json()["object"], &a.json()["code"]),
            (400, &json!("error"), &json!(400)),
            "{a:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tokenizer_can_be_asked() {
    let server = start().await;
    let a = server
        .post("/v1/tokenize", json!({"model": "m", "prompt": "héllo"}))
        .await
        .ok();
    assert_eq!(
        a,
        json!({"count": 6, "tokens": ids("héllo"), "max_model_len": 1024})
    );
    let b = server
        .post("/v1/detokenize", json!({"tokens": a["tokens"]}))
        .await
        .ok();
    assert_eq!(b, json!({"text": "héllo"}));
    assert_eq!(
        server
            .post("/v1/detokenize", json!({"tokens": [5000]}))
            .await
            .status,
        400
    );
}
