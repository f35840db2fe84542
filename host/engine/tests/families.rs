//! Every family behind the real engine: what it samples has the log-probs that training computes, from a fresh prompt and
//! from a cached prefix, and its experts are told.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use slime_engine::{Engine, EngineConfig, serve};
use slime_kernels::{Cpu, Ops, Sequences};
use slime_model::text::Text;
use slime_model::{Error, Ffn, HfDir, Network};
use std::path::PathBuf;
use std::sync::Arc;

const MODELS: [&str; 16] = [
    "llama3-tiny",
    "llama-tiny-tied",
    "qwen2-tiny",
    "qwen3-tiny",
    "glm4-tiny",
    "qwen3-moe-tiny",
    "glm4-moe-tiny",
    "deepseek-v3-tiny",
    "moonlight-tiny",
    "qwen3-next-tiny",
    "glm4-moe-lite-tiny",
    "glm5-tiny",
    "qwen3.5-tiny",
    "qwen3.5-moe-tiny",
    "qwen3.5-published-tiny",
    "qwen3.5-moe-published-tiny",
];

fn network(name: &str) -> Network<Cpu<f32>> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden/models")
        .join(name);
    let (dir, ops) = (HfDir::open(&dir).unwrap(), Arc::new(Cpu::<f32>::new()));
    let mut weights = Vec::new();
    dir.weights
        .load_params(&dir.spec, |param, data| {
            weights.push(ops.tensor(param.rows, param.cols, &data)?);
            Ok::<_, Error>(())
        })
        .unwrap();
    Network::new(ops, Arc::new(dir.spec), weights).unwrap()
}

/// Log-probs of tokens `from..`, by one full forward.
fn trained(network: &Network<Cpu<f32>>, tokens: &[u32], from: usize) -> Vec<f64> {
    let rows: Vec<u32> = (from as u32 - 1..tokens.len() as u32 - 1).collect();
    let layout = Sequences::from_lengths([tokens.len()]);
    let hidden = network.forward(tokens, &layout, &rows).unwrap();
    let ops = network.ops();
    let targets = ops.ids(&tokens[from..]).unwrap();
    let logits = network.logits(&hidden).unwrap();
    ops.token_stats(&logits, &targets, 1.0, network.spec().vocab)
        .unwrap()
        .logprob
}

#[tokio::test]
async fn every_family_is_served_with_the_log_probs_of_training() {
    // Loopback must not go through a system's proxy.
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    for model in MODELS {
        let net = network(model);
        let config = EngineConfig {
            chunked_prefill_size: 24,
            ..EngineConfig::default()
        };
        let engine =
            Engine::start(network(model), Arc::new(Text::bytes().unwrap()), config).unwrap();
        let server = serve(engine, "127.0.0.1:0".parse().unwrap()).await.unwrap();
        let vocab = net.spec().vocab as u32;
        let prompt: Vec<u32> = (0..41).map(|i| (i * i * 7 + 3) % vocab).collect();
        let ask = |prompt: &[u32]| {
            let experts = net
                .spec()
                .layers
                .iter()
                .any(|l| matches!(l.ffn, Ffn::Moe(_)));
            let body = json!({
                "input_ids": prompt, "return_logprob": true, "return_routed_experts": experts,
                "sampling_params": {"max_new_tokens": 24, "sampling_seed": 7, "ignore_eos": true},
            });
            let request = client
                .post(format!("{}/generate", server.url()))
                .body(body.to_string());
            async move {
                let answer = request.send().await.unwrap();
                let status = answer.status();
                let text = answer.text().await.unwrap();
                assert_eq!(status, 200, "{model}: {text}");
                serde_json::from_str::<Value>(&text).unwrap()
            }
        };
        for again in [false, true] {
            let answer = ask(&prompt).await;
            let meta = &answer["meta_info"];
            let cached = meta["cached_tokens"].as_u64().unwrap();
            assert_eq!(cached, if again { 32 } else { 0 }, "{model}");
            let output: Vec<u32> = serde_json::from_value(answer["output_ids"].clone()).unwrap();
            assert_eq!(output.len(), 24);
            let tokens = [&prompt[..], &output].concat();
            let served = meta["output_token_logprobs"].as_array().unwrap().iter();
            let served: Vec<f64> = served.map(|x| x[0].as_f64().unwrap()).collect();
            for (got, want) in served.iter().zip(trained(&net, &tokens, prompt.len())) {
                assert!(
                    (got - want).abs() < 1e-4,
                    "{model}, cached {cached}: {got} is not {want}"
                );
            }
            check_routes(&net, &tokens, meta, model);
        }
    }
}

/// The experts that came with an answer are those of a full forward.
fn check_routes(network: &Network<Cpu<f32>>, tokens: &[u32], meta: &Value, model: &str) {
    let Some(text) = meta["routed_experts"].as_str() else {
        assert!(
            network
                .spec()
                .layers
                .iter()
                .all(|l| matches!(l.ffn, Ffn::SwiGlu { .. }))
        );
        return;
    };
    let bytes = STANDARD.decode(text).unwrap();
    let served: Vec<u32> = bytes
        .as_chunks()
        .0
        .iter()
        .map(|b| u32::from_le_bytes(*b))
        .collect();
    let every: Vec<u32> = (0..tokens.len() as u32).collect();
    let layout = Sequences::from_lengths([tokens.len()]);
    let (_, routes) = network.forward_recording(tokens, &layout, &every).unwrap();
    let layers = routes.layers.len();
    let top_k = routes.layers[layers - 1].len() / tokens.len();
    assert_eq!(served.len(), (tokens.len() - 1) * layers * top_k, "{model}");
    for (at, experts) in served.chunks(top_k).enumerate() {
        let (token, layer) = (at / layers, at % layers);
        match &routes.layers[layer] {
            of_layer if of_layer.is_empty() => assert!(experts.iter().all(|e| *e == 0)),
            of_layer => assert_eq!(
                experts,
                &of_layer[token * top_k..][..top_k],
                "{model}, token {token}, layer {layer}"
            ),
        }
    }
}

#[tokio::test]
async fn a_model_without_experts_refuses_to_tell_them() {
    let engine = Engine::start(
        network("qwen3-tiny"),
        Arc::new(Text::bytes().unwrap()),
        EngineConfig::default(),
    )
    .unwrap();
    let server = serve(engine, "127.0.0.1:0".parse().unwrap()).await.unwrap();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let body = json!({"input_ids": [1, 2, 3], "return_routed_experts": true});
    let answer = client
        .post(format!("{}/generate", server.url()))
        .body(body.to_string())
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 400);
    assert!(
        answer
            .text()
            .await
            .unwrap()
            .contains("return_routed_experts is set, but the model has no experts.")
    );
}
