//! Decoding as CUDA graphs: the tokens and log-probs of decoding without them, bit for bit, while requests join and leave,
//! contexts grow past what a recording was made for, and weights change. On a machine without a GPU the kernels run on an
//! emulated one; where not even that can be built it says so and passes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::print_stdout, reason = "says what it skipped")]

mod gpu;

use serde_json::{Value, json};
use slime_engine::{Engine, EngineConfig, EngineHandle, Inlet, ServerHandle, serve};
use slime_kernels::Ops;
use slime_kernels::cuda::{Cuda, Tensor};
use slime_model::hf::{DEFAULT_SHARD_BYTES, save_weights};
use slime_model::text::Text;
use slime_model::{Dtype, Error, ModelSpec, Network, ParamSpec, families, init, params};
use std::sync::Arc;

/// A small model of a family, in widths that the kernels take.
fn spec(model_type: &str, more: &Value) -> Arc<ModelSpec> {
    let mut config = json!({
        "model_type": model_type, "vocab_size": 264, "hidden_size": 128, "intermediate_size": 192,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": true, "initializer_range": 0.2,
    });
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    let config = families::HfConfig::new("config.json", config).unwrap();
    Arc::new(families::from_config(&config).unwrap())
}

fn weights(ops: &Cuda, spec: &ModelSpec, seed: u64) -> Vec<Tensor> {
    let tensor = |p: &ParamSpec| {
        let values = init::fresh(spec, p, seed);
        ops.tensor(p.rows, p.cols, &values).unwrap()
    };
    params(spec).iter().map(tensor).collect()
}

/// Tokens and log-probs of requests.
type Answers = Vec<(Value, Vec<f64>)>;

struct Server {
    url: String,
    client: reqwest::Client,
    engine: EngineHandle,
    inlet: Inlet<Cuda>,
    _server: ServerHandle,
}

impl Server {
    async fn start(spec: &Arc<ModelSpec>, cuda_graph_max_bs: usize) -> Self {
        let ops = Arc::new(Cuda::open_poisoning(0).unwrap());
        let first = weights(&ops, spec, 1);
        let network = Network::new(ops, spec.clone(), first).unwrap();
        let config = EngineConfig {
            max_total_tokens: 4096,
            // A prompt is always read whole: in parts it has other bits.
            chunked_prefill_size: 4096,
            cuda_graph_max_bs,
            ..EngineConfig::default()
        };
        let text = Arc::new(Text::bytes().unwrap());
        let (engine, inlet) = Engine::start_with_inlet(network, text, config).unwrap();
        let server = serve(engine.clone(), "127.0.0.1:0".parse().unwrap());
        let server = server.await.unwrap();
        Self {
            url: server.url(),
            // Loopback must not go through a system's proxy.
            client: reqwest::Client::builder().no_proxy().build().unwrap(),
            engine,
            inlet,
            _server: server,
        }
    }

    /// Tokens and log-probs of one request.
    async fn ask(&self, seed: u32, prompt: usize, new: usize) -> (Value, Vec<f64>) {
        let prompt: Vec<u32> = (0..prompt as u32)
            .map(|i| (i * i * 7 + i * seed + seed) % 256)
            .collect();
        // One of them greedy.
        let temperature = if seed == 3 { 0.0 } else { 1.0 };
        let body = json!({
            "input_ids": prompt, "return_logprob": true,
            "sampling_params": {
                "max_new_tokens": new, "sampling_seed": seed, "ignore_eos": true, "temperature": temperature,
            },
        });
        let url = format!("{}/generate", self.url);
        let answer = self.client.post(url).body(body.to_string()).send().await;
        let answer: Value = serde_json::from_str(&answer.unwrap().text().await.unwrap()).unwrap();
        let logprobs = answer["meta_info"]["output_token_logprobs"].as_array();
        let logprobs = logprobs.unwrap_or_else(|| panic!("{answer}")).iter();
        let logprobs = logprobs.map(|x| x[0].as_f64().unwrap()).collect();
        (answer["output_ids"].clone(), logprobs)
    }

    /// Requests that end at different times and one that comes later, the longest context growing past 512.
    async fn ask_all(&self) -> Answers {
        let late = async {
            self.ask(6, 2, 3).await;
            self.ask(7, 11, 6).await
        };
        let (a, b, c, d, e, late) = tokio::join!(
            self.ask(1, 5, 14),
            self.ask(2, 40, 9),
            self.ask(3, 503, 18),
            self.ask(4, 1, 4),
            self.ask(5, 17, 12),
            late,
        );
        vec![a, b, c, d, e, late]
    }

    /// Decode steps without and with a graph.
    async fn decode_steps(&self) -> [u64; 2] {
        let text = self.client.get(format!("{}/metrics", self.url)).send();
        let text = text.await.unwrap().text().await.unwrap();
        ["decode_none", "decode_cuda_graph"].map(|mode| {
            let mode = format!("mode=\"{mode}\"");
            let is_it = |l: &&str| l.starts_with("sglang:cuda_graph_passes") && l.contains(&mode);
            let line = text.lines().find(is_it).unwrap();
            line.rsplit(' ').next().unwrap().parse().unwrap()
        })
    }

    /// Answers and decode steps under three versions of the weights: the first, handed tensors, and a directory's.
    async fn answers(&self, spec: &ModelSpec) -> ([Answers; 3], [[u64; 2]; 3]) {
        let version = || Some("next".to_owned());
        let first = self.ask_all().await;
        let steps = self.decode_steps().await;
        let handed = weights(self.inlet.ops(), spec, 2);
        let update = self.inlet.update(handed, version(), true, false);
        update.await.unwrap();
        let second = self.ask_all().await;
        let more_steps = self.decode_steps().await;
        let dir = tempfile::tempdir().unwrap();
        let (dir, dtype) = (dir.path(), Dtype::F32);
        let fresh = |p: &_| Ok(init::fresh(spec, p, 3));
        save_weights::<Error>(dir, spec, dtype, DEFAULT_SHARD_BYTES, fresh).unwrap();
        let engine = &self.engine;
        let update = engine.update_weights_from_disk(dir, version(), true, false);
        update.await.unwrap();
        let third = self.ask_all().await;
        let steps = [steps, more_steps, self.decode_steps().await];
        ([first, second, third], steps)
    }
}

#[tokio::test]
async fn graphs_sample_what_plain_steps_sample_under_every_version_of_the_weights() {
    if !gpu::is_here("graphs_sample_what_plain_steps_sample_under_every_version_of_the_weights") {
        return;
    }
    let spec = spec("qwen3", &json!({}));
    let plain = Server::start(&spec, 0).await;
    let graphs = Server::start(&spec, 256).await;
    let (want, plain_steps) = plain.answers(&spec).await;
    let (got, steps) = graphs.answers(&spec).await;
    assert_ne!(want[0], want[1]);
    assert_ne!(want[1], want[2]);
    assert_eq!(got, want);
    assert_eq!(plain_steps.map(|[_, replayed]| replayed), [0; 3]);
    let mut before = [0, 0];
    for steps in steps {
        let [plain, replayed] = [0, 1].map(|i| steps[i] - before[i]);
        println!("{plain} plain decode steps, {replayed} replayed");
        // Of each size the first: 1 to 8 rows, contexts up to 512 and beyond.
        assert!(plain <= 8 && replayed >= 8, "{plain}, {replayed}");
        before = steps;
    }
}

#[tokio::test]
async fn every_dense_family_decodes_with_graphs() {
    if !gpu::is_here("every_dense_family_decodes_with_graphs") {
        return;
    }
    for family in ["llama", "qwen2", "glm4"] {
        let spec = spec(family, &json!({}));
        let plain = Server::start(&spec, 0).await;
        let graphs = Server::start(&spec, 256).await;
        assert_eq!(graphs.ask(1, 9, 7).await, plain.ask(1, 9, 7).await);
        assert_eq!(graphs.decode_steps().await, [1, 5], "{family}");
    }
}

#[tokio::test]
async fn a_model_whose_steps_need_the_host_decodes_without_graphs() {
    if !gpu::is_here("a_model_whose_steps_need_the_host_decodes_without_graphs") {
        return;
    }
    let spec = spec(
        "qwen3_5_text",
        &json!({
            "full_attention_interval": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 16,
            "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
        }),
    );
    let (plain, graphs) = (
        Server::start(&spec, 0).await,
        Server::start(&spec, 256).await,
    );
    let want = tokio::join!(plain.ask(1, 9, 7), plain.ask(2, 3, 5));
    let got = tokio::join!(graphs.ask(1, 9, 7), graphs.ask(2, 3, 5));
    assert_eq!(got, want);
    let [plain, replayed] = graphs.decode_steps().await;
    assert!(plain >= 4 && replayed == 0, "{plain}, {replayed}");
}
