//! What is sampled, and what is said about it.

use crate::support::*;
use futures::future::join_all;
use serde_json::{Value, json};
use slime_engine::EngineConfig;
use slime_kernels::{Cpu, Ops};
use slime_model::{HfDir, Network};
use std::sync::Arc;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sampled_logprobs_are_those_of_a_full_forward() {
    let server = start().await;
    let oracle = network(1);
    let mut worst = 0f32;
    let mut equal = (0, 0);
    for (i, temperature) in [1.0, 0.7, 2.0, 1.0].into_iter().enumerate() {
        let prompt: Vec<u32> = ids("The same bits, however they are computed. ").repeat(i + 1);
        let mut body = ask(&prompt, i as u64, 48);
        body["sampling_params"]["temperature"] = temperature.into();
        let answer = server.generate(body).await;
        let all: Vec<u32> = prompt.iter().copied().chain(output_ids(&answer)).collect();
        let want = full_forward(&oracle, &all, prompt.len(), temperature);
        for (x, y) in logprobs(&answer).iter().zip(&want) {
            worst = worst.max((x - y).abs());
            equal.0 += usize::from(x == y);
            equal.1 += 1;
        }
    }
    println!(
        "worst difference {worst:e}, {} of {} equal to the bit in f32",
        equal.0, equal.1
    );
    assert!(worst <= 1e-5, "{worst}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompt_logprobs_are_those_of_transformers() {
    for name in ["llama-tiny-tied", "llama3-tiny", "qwen2-tiny", "qwen3-tiny"] {
        let dir = HfDir::open(&golden(name)).unwrap();
        let ops = Arc::new(Cpu::<f32>::new());
        let mut tensors = Vec::new();
        dir.weights
            .load_params::<slime_model::Error>(&dir.spec, |p, values| {
                tensors.push(ops.tensor(p.rows, p.cols, &values)?);
                Ok(())
            })
            .unwrap();
        let network = Network::new(ops, Arc::new(dir.spec), tensors).unwrap();
        // Chunks of 8 rows: the prompt is read in pieces.
        let config = EngineConfig {
            chunked_prefill_size: 8,
            ..EngineConfig::default()
        };
        let server = start_with(network, config).await;
        let text = std::fs::read_to_string(golden(name).join("golden.json")).unwrap();
        let expected: Value = serde_json::from_str(&text).unwrap();
        for (tokens, want) in expected["sequences"]
            .as_array()
            .unwrap()
            .iter()
            .zip(expected["logprobs"]["1.0"].as_array().unwrap())
        {
            let body = json!({"input_ids": tokens, "return_logprob": true, "logprob_start_len": 0, "sampling_params": {"max_new_tokens": 0}});
            let got = server.generate(body).await["meta_info"]["input_token_logprobs"].clone();
            let (first, rest) = got.as_array().unwrap().split_first().unwrap();
            assert_eq!(first[0], Value::Null);
            assert_eq!(rest.len(), want.as_array().unwrap().len());
            for (x, y) in rest.iter().zip(want.as_array().unwrap()) {
                let gap = (x[0].as_f64().unwrap() - y.as_f64().unwrap()).abs();
                // Theirs are float64; a log-prob near -17 has an f32 ulp of 2e-6 to begin with.
                assert!(gap < 4e-5, "{name}: {x} {y}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_clients_get_what_each_gets_alone() {
    let server = start().await;
    let shared = ids("A beginning that many prompts share, long enough for blocks. ");
    let bodies: Vec<Value> = (0..64u64)
        .map(|i| {
            let mut prompt = if i % 2 == 0 {
                shared.clone()
            } else {
                Vec::new()
            };
            prompt.extend(ids(&format!("{} tail", i / 4)));
            let mut body = ask(&prompt, i, 8 + (i as usize % 5) * 8);
            body["sampling_params"]["temperature"] = (0.5 + (i % 3) as f64 / 2.0).into();
            if i % 5 == 0 {
                body["sampling_params"]["top_p"] = 0.9.into();
            }
            body
        })
        .collect();
    let together = join_all(bodies.iter().map(|b| server.generate(b.clone()))).await;
    assert!(
        together
            .iter()
            .any(|a| a["meta_info"]["cached_tokens"].as_u64().unwrap() > 0)
    );
    for (body, together) in bodies.iter().zip(&together) {
        assert!(server.engine.flush_cache().await.unwrap());
        let alone = server.generate(body.clone()).await;
        assert_eq!(alone["meta_info"]["cached_tokens"], 0);
        assert_eq!(output_ids(&alone), output_ids(together));
        assert_eq!(
            logprobs(&alone),
            logprobs(together),
            "a log-prob changed with the batch"
        );
        assert_eq!(alone["text"], together["text"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefix_cache_hit_changes_no_bit() {
    let server = start().await;
    let prompt = ids(&"words that come again ".repeat(8));
    let cold = server.generate(ask(&prompt, 3, 40)).await;
    let warm = server.generate(ask(&prompt, 3, 40)).await;
    assert_eq!(cold["meta_info"]["cached_tokens"], 0);
    let cached = warm["meta_info"]["cached_tokens"].as_u64().unwrap();
    assert!(cached > 100 && cached < prompt.len() as u64, "{cached}");
    assert_eq!(
        warm["meta_info"]["cached_tokens_details"],
        json!({"device": cached, "host": 0})
    );
    assert_eq!(output_ids(&cold), output_ids(&warm));
    assert_eq!(logprobs(&cold), logprobs(&warm));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_small_a_cache_retracts_and_changes_no_bit() {
    let roomy = start().await;
    let config = EngineConfig {
        max_total_tokens: 256,
        ..EngineConfig::default()
    };
    let tight = start_with(network(1), config).await;
    let bodies: Vec<Value> = (0..6)
        .map(|i| ask(&ids(&format!("prompt number {i}")), i, 100))
        .collect();
    let tight = join_all(bodies.iter().map(|b| tight.generate(b.clone()))).await;
    let mut retractions = 0;
    for (body, tight) in bodies.iter().zip(&tight) {
        let roomy = roomy.generate(body.clone()).await;
        assert_eq!(output_ids(&roomy), output_ids(tight));
        assert_eq!(logprobs(&roomy), logprobs(tight));
        retractions += tight["meta_info"]["num_retractions"].as_u64().unwrap();
    }
    assert!(retractions > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_shape_of_an_answer_is_sglangs() {
    let server = start().await;
    let prompt = ids("shape");
    let a = server.generate(json!({"input_ids": prompt, "rid": "r1", "return_logprob": true, "sampling_params": {"temperature": 0, "max_new_tokens": 6, "ignore_eos": true}})).await;
    let m = &a["meta_info"];
    assert_eq!(m["id"], "r1");
    assert_eq!(m["finish_reason"], json!({"type": "length", "length": 6}));
    assert_eq!(
        (&m["prompt_tokens"], &m["completion_tokens"]),
        (&json!(5), &json!(6))
    );
    assert_eq!(
        m["weight_versions"],
        json!([{"version": "default", "start": 0, "end": 6}])
    );
    assert_eq!(m["input_token_logprobs"], json!([]));
    let listed: Vec<u32> = m["output_token_logprobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|x| x[1].as_u64().unwrap() as u32)
        .collect();
    assert_eq!(listed, output_ids(&a));
    assert!(
        m["output_token_logprobs"]
            .as_array()
            .unwrap()
            .iter()
            .all(|x| x[0].as_f64().unwrap() <= 0.0 && x[2].is_null())
    );
    let plain = server.generate(json!({"text": "shape", "sampling_params": {"temperature": 0, "max_new_tokens": 6, "ignore_eos": true}})).await;
    assert_eq!(plain["output_ids"], a["output_ids"]);
    assert!(plain["meta_info"].get("output_token_logprobs").is_none());
    assert_eq!(plain["meta_info"]["id"].as_str().unwrap().len(), 32);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_keeps_order_ids_and_parameters_and_n_makes_an_array() {
    let server = start().await;
    let body = json!({
        "input_ids": [ids("first"), ids("second one")],
        "rid": ["a", "b"],
        "sampling_params": [{"max_new_tokens": 2, "ignore_eos": true}, {"max_new_tokens": 3, "ignore_eos": true}],
    });
    let a = server.generate(body).await;
    let a = a.as_array().unwrap();
    assert_eq!(
        (&a[0]["meta_info"]["id"], &a[1]["meta_info"]["id"]),
        (&json!("a"), &json!("b"))
    );
    assert_eq!((output_ids(&a[0]).len(), output_ids(&a[1]).len()), (2, 3));
    let several = server.generate(json!({"text": "n", "sampling_params": {"n": 3, "max_new_tokens": 8, "sampling_seed": 1, "ignore_eos": true}})).await;
    let several = several.as_array().unwrap();
    let one = server.generate(json!({"text": "n", "sampling_params": {"max_new_tokens": 8, "sampling_seed": 1, "ignore_eos": true}})).await;
    assert_eq!(several[0]["output_ids"], one["output_ids"]);
    assert_ne!(several[0]["output_ids"], several[1]["output_ids"]);
    assert_ne!(several[0]["meta_info"]["id"], several[1]["meta_info"]["id"]);
    // Without a seed, requests differ.
    let unseeded =
        json!({"text": "n", "sampling_params": {"max_new_tokens": 12, "ignore_eos": true}});
    let (x, y) = (
        server.generate(unseeded.clone()).await,
        server.generate(unseeded).await,
    );
    assert_ne!(x["output_ids"], y["output_ids"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn top_logprobs_start_and_text_are_returned_where_asked_for() {
    let server = start().await;
    let prompt = ids("abcdefghijklmnopqrstuvwxyz0123456789");
    server.generate(ask(&prompt, 0, 1)).await;
    let mut body = ask(&prompt, 0, 2);
    body["logprob_start_len"] = 30.into();
    body["top_logprobs_num"] = 2.into();
    body["return_text_in_logprobs"] = true.into();
    body["return_prompt_token_ids"] = true.into();
    let a = server.generate(body).await;
    let m = &a["meta_info"];
    let input = m["input_token_logprobs"].as_array().unwrap();
    assert_eq!(input.len(), 6);
    assert_eq!(input[0], json!([null, prompt[30], "4"]));
    assert_eq!(m["input_top_logprobs"][0], Value::Null);
    for list in [
        &m["input_top_logprobs"][1],
        &m["output_top_logprobs"][0],
        &m["output_top_logprobs"][1],
    ] {
        assert_eq!(list.as_array().unwrap().len(), 2);
        assert!(list[0][0].as_f64() >= list[1][0].as_f64());
    }
    let oracle = full_forward(&network(1), &prompt, 31, 1.0);
    for (x, y) in input[1..].iter().zip(oracle) {
        assert!((x[0].as_f64().unwrap() - f64::from(y)).abs() < 1e-5);
    }
    assert_eq!(a["prompt_token_ids"], json!(prompt));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_strings_cut_the_text_and_not_the_ids() {
    let server = start().await;
    let full = server.generate(ask(&ids("find a stop"), 11, 60)).await;
    let out = output_ids(&full);
    let at = (2..60)
        .find(|&i| (33..127).contains(&out[i]) && !out[..i].contains(&out[i]))
        .expect("a printable token");
    let stop = char::from(out[at] as u8).to_string();
    let mut body = ask(&ids("find a stop"), 11, 60);
    body["sampling_params"]["stop"] = json!(["no such thing", stop]);
    let a = server.generate(body.clone()).await;
    assert_eq!(output_ids(&a), out[..=at]);
    assert_eq!(logprobs(&a).len(), at + 1);
    assert_eq!(
        a["meta_info"]["finish_reason"],
        json!({"type": "stop", "matched": stop})
    );
    let text = a["text"].as_str().unwrap().to_owned();
    assert!(
        !text.contains(&stop)
            && full["text"]
                .as_str()
                .unwrap()
                .starts_with(&format!("{text}{stop}"))
    );
    body["sampling_params"]["no_stop_trim"] = true.into();
    assert_eq!(
        server.generate(body).await["text"],
        json!(format!("{text}{stop}"))
    );
    let mut by_id = ask(&ids("find a stop"), 11, 60);
    by_id["sampling_params"]["ignore_eos"] = false.into();
    by_id["sampling_params"]["stop_token_ids"] = json!([out[at]]);
    let b = server.generate(by_id).await;
    assert_eq!(output_ids(&b), out[..=at]);
    assert_eq!(
        b["meta_info"]["finish_reason"],
        json!({"type": "stop", "matched": out[at]})
    );
    assert_eq!(b["text"], json!(text), "the stop token is not shown");
}
