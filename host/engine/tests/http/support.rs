//! A server over a small random model, and the same network outside of it as the oracle.

use futures::StreamExt;
use serde_json::{Value, json};
use slime_engine::{Engine, EngineConfig, EngineHandle, Inlet, ServerHandle, serve};
use slime_kernels::{Cpu, Ops, Sequences};
use slime_model::text::Text;
use slime_model::{ModelSpec, Network, families, init, params};
use std::path::PathBuf;
use std::sync::Arc;

pub(crate) type Net = Network<Cpu<f32>>;

/// Vocabulary of the byte tokenizer.
pub(crate) const VOCAB: usize = 264;

/// The built-in model's shape with weights ten times as large, so that its distributions have peaks.
pub(crate) fn spec() -> ModelSpec {
    ModelSpec {
        init_std: 0.2,
        ..families::demo::spec()
    }
}

pub(crate) fn network(seed: u64) -> Net {
    let ops = Arc::new(Cpu::<f32>::new());
    let spec = spec();
    let weights = params(&spec)
        .iter()
        .map(|p| {
            ops.tensor(p.rows, p.cols, &init::fresh(&spec, p, seed))
                .unwrap()
        })
        .collect();
    Network::new(ops, Arc::new(spec), weights).unwrap()
}

pub(crate) fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden/models")
        .join(name)
}

pub(crate) struct Server {
    pub(crate) url: String,
    pub(crate) engine: EngineHandle,
    pub(crate) client: reqwest::Client,
    _server: ServerHandle,
}

pub(crate) async fn start_with(network: Net, config: EngineConfig) -> Server {
    start_with_inlet(network, config).await.0
}

pub(crate) async fn start_with_inlet(
    network: Net,
    config: EngineConfig,
) -> (Server, Inlet<Cpu<f32>>) {
    let text = Arc::new(Text::bytes().unwrap());
    let (engine, inlet) = Engine::start_with_inlet(network, text, config).unwrap();
    let server = serve(engine.clone(), "127.0.0.1:0".parse().unwrap())
        .await
        .unwrap();
    // Loopback must not go through a system's proxy.
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let server = Server {
        url: server.url(),
        engine,
        client,
        _server: server,
    };
    (server, inlet)
}

pub(crate) async fn start() -> Server {
    start_with(network(1), EngineConfig::default()).await
}

/// Status and body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) raw: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.raw).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()
    }
}

impl Server {
    pub(crate) async fn get(&self, path: &str) -> Answer {
        let r = self
            .client
            .get(format!("{}{path}", self.url))
            .send()
            .await
            .unwrap();
        Answer {
            status: r.status().as_u16(),
            raw: r.text().await.unwrap(),
        }
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.post_raw(path, body.to_string()).await
    }

    pub(crate) async fn post_raw(&self, path: &str, body: String) -> Answer {
        let r = self
            .client
            .post(format!("{}{path}", self.url))
            .body(body)
            .send()
            .await
            .unwrap();
        Answer {
            status: r.status().as_u16(),
            raw: r.text().await.unwrap(),
        }
    }

    pub(crate) async fn generate(&self, body: Value) -> Value {
        self.post("/generate", body).await.ok()
    }

    /// A stream's events as they come; `[DONE]` ends it and is checked for.
    pub(crate) async fn events(&self, path: &str, body: Value) -> Events {
        let r = self
            .client
            .post(format!("{}{path}", self.url))
            .body(body.to_string())
            .send()
            .await
            .unwrap();
        assert_eq!(r.status(), 200);
        assert!(
            r.headers()["content-type"]
                .to_str()
                .unwrap()
                .starts_with("text/event-stream")
        );
        Events {
            bytes: r.bytes_stream().boxed(),
            buffer: Vec::new(),
            done: false,
        }
    }
}

pub(crate) struct Events {
    bytes: futures::stream::BoxStream<'static, reqwest::Result<axum::body::Bytes>>,
    buffer: Vec<u8>,
    done: bool,
}

impl Events {
    /// The next event; `None` after `[DONE]`. Every line has to be UTF-8 and JSON.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|w| w == b"\n\n") {
                let line: Vec<u8> = self.buffer.drain(..end + 2).collect();
                let line = String::from_utf8(line).expect("an event is whole UTF-8");
                let data = line
                    .trim_end()
                    .strip_prefix("data: ")
                    .expect("an event begins with data:");
                if data == "[DONE]" {
                    self.done = true;
                    return None;
                }
                return Some(serde_json::from_str(data).expect("an event is JSON"));
            }
            match self.bytes.next().await {
                Some(more) => self.buffer.extend_from_slice(&more.unwrap()),
                None => panic!("the stream ended without [DONE]"),
            }
        }
    }

    pub(crate) async fn all(mut self) -> Vec<Value> {
        let mut all = Vec::new();
        while let Some(event) = self.next().await {
            all.push(event);
        }
        assert!(self.done && self.buffer.is_empty());
        all
    }
}

pub(crate) fn ids(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// `{"input_ids", "sampling_params", "return_logprob"}` with a seed.
pub(crate) fn ask(prompt: &[u32], seed: u64, max_new_tokens: usize) -> Value {
    json!({
        "input_ids": prompt,
        "return_logprob": true,
        "sampling_params": {"max_new_tokens": max_new_tokens, "sampling_seed": seed, "ignore_eos": true},
    })
}

pub(crate) fn output_ids(answer: &Value) -> Vec<u32> {
    serde_json::from_value(answer["output_ids"].clone()).unwrap()
}

/// Log-probs of sampled tokens, exactly as they came.
pub(crate) fn logprobs(answer: &Value) -> Vec<f32> {
    let list = answer["meta_info"]["output_token_logprobs"]
        .as_array()
        .unwrap();
    list.iter().map(|x| x[0].as_f64().unwrap() as f32).collect()
}

/// The oracle: one full forward over all tokens, log-probs of tokens `from..` at a temperature.
pub(crate) fn full_forward(
    network: &Net,
    tokens: &[u32],
    from: usize,
    temperature: f64,
) -> Vec<f32> {
    let rows: Vec<u32> = (from as u32 - 1..tokens.len() as u32 - 1).collect();
    let hidden = network
        .forward(tokens, &Sequences::from_lengths([tokens.len()]), &rows)
        .unwrap();
    let ops = network.ops();
    let targets = ops.ids(&tokens[from..]).unwrap();
    let stats = ops
        .token_stats(
            &network.logits(&hidden).unwrap(),
            &targets,
            1.0 / temperature,
            VOCAB,
        )
        .unwrap();
    stats.logprob.iter().map(|&x| x as f32).collect()
}
