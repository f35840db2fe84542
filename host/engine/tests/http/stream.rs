//! Streams: cumulative, whole characters, the same as the plain answer.

use crate::support::*;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_grows_to_the_plain_answer_and_never_takes_anything_back() {
    let server = start().await;
    for seed in 0..6 {
        // A random model over bytes writes plenty of broken and unfinished characters.
        let mut body = ask(&ids("stream é"), seed, 80);
        let plain = server.generate(body.clone()).await;
        body["stream"] = true.into();
        let events = server.events("/generate", body).await.all().await;
        let (mut text, mut tokens) = (String::new(), 0);
        for event in &events {
            let now = event["text"].as_str().unwrap();
            assert!(now.starts_with(&text), "{now:?} does not continue {text:?}");
            let out = output_ids(event);
            assert!(out.len() > tokens);
            assert_eq!(
                event["meta_info"]["output_token_logprobs"]
                    .as_array()
                    .unwrap()
                    .len(),
                out.len()
            );
            (text, tokens) = (now.to_owned(), out.len());
        }
        let (last, before) = events.split_last().unwrap();
        assert!(
            before
                .iter()
                .all(|e| e["meta_info"]["finish_reason"].is_null())
        );
        assert_eq!(
            last["meta_info"]["finish_reason"],
            json!({"type": "length", "length": 80})
        );
        assert_eq!(last["output_ids"], plain["output_ids"]);
        assert_eq!(last["text"], plain["text"]);
        assert_eq!(logprobs(last), logprobs(&plain));
        assert!(events.len() > 1, "everything came at once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_become_a_stop_string_is_held_until_decided() {
    let server = start().await;
    let full = server.generate(ask(&ids("hold"), 2, 60)).await;
    let text = full["text"].as_str().unwrap();
    // A stop string of several characters from the middle of the answer.
    let chars: Vec<char> = text.chars().collect();
    let at = (5..chars.len() - 3)
        .find(|&i| {
            chars[i..i + 3].iter().all(|c| c.is_ascii())
                && text.find(&chars[i..i + 3].iter().collect::<String>())
                    == Some(chars[..i].iter().map(|c| c.len_utf8()).sum())
        })
        .expect("three ASCII characters in a row");
    let stop: String = chars[at..at + 3].iter().collect();
    let mut body = ask(&ids("hold"), 2, 60);
    body["sampling_params"]["stop"] = json!(stop);
    body["stream"] = true.into();
    let events = server.events("/generate", body).await.all().await;
    let want: String = chars[..at].iter().collect();
    for event in &events {
        let now = event["text"].as_str().unwrap();
        assert!(want.starts_with(now), "{now:?} shows more than {want:?}");
    }
    let last = events.last().unwrap();
    assert_eq!(last["text"], json!(want));
    assert_eq!(last["meta_info"]["finish_reason"]["matched"], json!(stop));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_streamed_batch_says_which_answer_grows() {
    let server = start().await;
    let body = json!({"text": ["a", "b"], "stream": true, "sampling_params": {"max_new_tokens": 4, "ignore_eos": true}});
    let events = server.events("/generate", body).await.all().await;
    for index in 0..2 {
        let mine: Vec<&Value> = events.iter().filter(|e| e["index"] == index).collect();
        assert_eq!(output_ids(mine.last().unwrap()).len(), 4);
    }
}
