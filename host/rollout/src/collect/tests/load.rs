//! Many trajectories at once against a server with faults, in a process of its own so that only the host's work is
//! measured. Every token is recomputed: nothing is lost, nothing comes twice.
//!
//! The small run is one of the tests. The large one prints what a request costs:
//! `cargo test -p slime-rollout --lib -- --ignored --nocapture two_thousand`

use super::{Bytes, Judge, Style, reward};
use crate::collect::{Driver, MemoryLedger, Sampler, SamplerConfig};
use crate::pool::{Address, Pool, PoolConfig, Trust};
use crate::seed::hash64;
use serde_json::{Value, json};
use slime_core::ports::{BoxFuture, Generated, Generator, LiveTrajectory, Source, SourceError};
use slime_core::{
    Message, Origin, Outcome, Prompt, PromptBody, PromptId, SamplingParams, Step, WeightVersion,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

const CHILD: &str = "SLIME_ROLLOUT_LOAD_SERVER";
const TURNS: usize = 3;
const TOKENS: usize = 16;

/// What the server samples after `context`: digits, and the end of the turn.
fn sampled(context: &[u32]) -> Vec<u32> {
    let bytes: Vec<u8> = context.iter().flat_map(|t| t.to_le_bytes()).collect();
    let mut word = hash64("load", &[&bytes]);
    let mut tokens: Vec<u32> = (1..TOKENS)
        .map(|_| {
            word = word.rotate_left(7).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            u32::from(b'0') + (word >> 60) as u32 % 10
        })
        .collect();
    tokens.push(super::END);
    tokens
}

#[derive(Default)]
struct Told {
    calls: AtomicU64,
    faults: [AtomicU64; 4],
}

/// Answers one connection until it closes.
async fn answer(socket: TcpStream, told: Arc<Told>, slowest_ms: u64) -> std::io::Result<()> {
    let mut socket = BufReader::new(socket);
    loop {
        let (mut first, mut len) = (String::new(), 0);
        if socket.read_line(&mut first).await? == 0 {
            return Ok(());
        }
        loop {
            let mut line = String::new();
            socket.read_line(&mut line).await?;
            if line == "\r\n" {
                break;
            }
            let lower = line.to_ascii_lowercase();
            if let Some(value) = lower.strip_prefix("content-length:") {
                len = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; len];
        socket.read_exact(&mut body).await?;
        let reply = if first.starts_with("POST /generate") {
            let call = told.calls.fetch_add(1, Ordering::Relaxed);
            let asked: Value = serde_json::from_slice(&body).unwrap();
            let context: Vec<u32> = serde_json::from_value(asked["input_ids"].clone()).unwrap();
            let chance = hash64("fault", &[&call.to_le_bytes()]);
            tokio::time::sleep(Duration::from_millis(5 + chance % slowest_ms)).await;
            let tokens = sampled(&context);
            let logprobs: Vec<Value> = tokens.iter().map(|t| json!([-0.5, t, null])).collect();
            let text = json!({ "text": "", "output_ids": tokens, "meta_info": { "finish_reason": { "type": "stop" },
                "output_token_logprobs": logprobs, "weight_version": "1", "cached_tokens": 0 } })
            .to_string();
            // One in a hundred, of four kinds.
            let fault = ((chance >> 32) % 400) as usize;
            if let Some(count) = told.faults.get(fault) {
                count.fetch_add(1, Ordering::Relaxed);
            }
            match fault {
                0 => {
                    "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 4\r\n\r\nboom".to_owned()
                }
                1 => return Ok(()),
                2 => {
                    // Slow loris: a byte now and then, never the whole.
                    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", text.len());
                    socket.write_all(head.as_bytes()).await?;
                    for byte in text.bytes().take(text.len() - 1) {
                        socket.write_all(&[byte]).await?;
                        tokio::time::sleep(Duration::from_millis(200)).await;
                    }
                    return Ok(());
                }
                3 => {
                    let half = &text[..text.len() / 2];
                    format!(
                        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{half}",
                        half.len()
                    )
                }
                _ => format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}",
                    text.len()
                ),
            }
        } else {
            let count = |a: &AtomicU64| a.load(Ordering::Relaxed);
            let text = if first.starts_with("GET /told") {
                json!({ "calls": count(&told.calls), "faults": told.faults.iter().map(count).collect::<Vec<_>>() })
            } else {
                json!({ "weight_version": "1", "model_path": "m" })
            }
            .to_string();
            format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}",
                text.len()
            )
        };
        socket.write_all(reply.as_bytes()).await?;
    }
}

/// Not a test: the server that the tests below start.
#[test]
#[ignore = "the server that other tests of this file start"]
fn a_server_with_faults() {
    let Ok(slowest) = std::env::var(CHILD) else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("port={}", listener.local_addr().unwrap().port());
        let told = Arc::new(Told::default());
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            socket.set_nodelay(true).unwrap();
            tokio::spawn(answer(socket, told.clone(), slowest.parse().unwrap()));
        }
    });
}

struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(slowest_ms: u64) -> (Child, u16) {
    use std::io::BufRead;
    let test = "collect::tests::load::a_server_with_faults";
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env(CHILD, slowest_ms.to_string())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    let port = lines
        .map_while(Result::ok)
        .find_map(|line| line.split("port=").nth(1)?.trim().parse().ok());
    (Child(child), port.unwrap())
}

struct Numbers;

impl Source for Numbers {
    fn name(&self) -> &str {
        "numbers"
    }
    fn len(&self) -> Option<u64> {
        None
    }
    fn draw(&self, index: u64, _seed: u64) -> BoxFuture<'_, Result<Prompt, SourceError>> {
        let prompt = Prompt {
            id: PromptId {
                source: "numbers".into(),
                row: index,
            },
            body: PromptBody::Messages(vec![Message::new("user", index.to_string())]),
            label: None,
            tools: vec![],
            metadata: Default::default(),
        };
        Box::pin(std::future::ready(Ok(prompt)))
    }
}

/// Asks, is told something, asks again.
struct Turns;

impl Generator for Turns {
    fn name(&self) -> &str {
        "turns"
    }
    fn generate(&self, start: Arc<dyn LiveTrajectory>, _seed: u64) -> BoxFuture<'_, Generated> {
        Box::pin(async move {
            let mut failure = None;
            for turn in 0..TURNS {
                if turn > 0 {
                    start
                        .append(Message::new("tool", format!("t{turn}")))
                        .await
                        .unwrap();
                }
                if let Err(error) = start.sample(0, vec![]).await {
                    failure = Some(Outcome::InfraFailed(error.to_string()));
                    break;
                }
            }
            Generated {
                trajectories: start.finish(),
                failure,
                cost: Default::default(),
            }
        })
    }
}

/// Seconds of CPU and the most memory this process has used.
fn used() -> (f64, u64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status
        .lines()
        .find_map(|l| l.strip_prefix("VmHWM:"))
        .unwrap();
    (
        ticks / 100.0,
        peak.trim()
            .split(' ')
            .next()
            .unwrap()
            .parse::<u64>()
            .unwrap()
            << 10,
    )
}

/// `groups` × 8 trajectories at once; what it took is printed.
async fn run(groups: usize, slowest_ms: u64) {
    let (_child, port) = start(slowest_ms);
    let config = PoolConfig {
        concurrency: 4096,
        trust: Trust::Frozen(WeightVersion(1)),
        backoff: (Duration::from_millis(5), Duration::from_millis(50)),
        quick_deadline: Duration::from_secs(2),
        // One fault in a row of a hundred answers is no reason to leave the only server.
        ..PoolConfig::new(301, 2000)
    };
    let pool = Arc::new(Pool::new(vec![Address::new("127.0.0.1", port)], config).unwrap());
    let config = SamplerConfig::new(1, 8, SamplingParams::default(), 2000);
    let driver = Driver::new(
        pool.clone(),
        Arc::new(Bytes(Style::Chat)),
        Arc::new(Turns),
        Arc::new(Judge(|_: &slime_core::ports::ScoreRequest| reward(1.0))),
        config,
    );
    driver.serve(WeightVersion(1));
    let sampler = Sampler::new(driver, Arc::new(Numbers), Arc::new(MemoryLedger::default()));
    let (before, begin) = (used(), Instant::now());
    let collected = sampler.groups(Step(0), groups).await.unwrap();
    let (after, wall) = (used(), begin.elapsed());

    let rollouts: Vec<_> = collected.groups.iter().flat_map(|g| &g.rollouts).collect();
    assert_eq!(rollouts.len(), groups * 8);
    for rollout in &rollouts {
        assert!(
            matches!(rollout.outcome, Outcome::Scored(_)),
            "{:?}",
            rollout.outcome
        );
        let [trajectory] = &rollout.trajectories[..] else {
            panic!("one trajectory")
        };
        let (mut context, mut turns) = (Vec::new(), 0);
        for segment in trajectory.segments() {
            if matches!(segment.origin, Origin::Policy { .. }) {
                assert_eq!(segment.tokens, sampled(&context), "turn {turns}");
                turns += 1;
            }
            context.extend(&segment.tokens);
        }
        assert_eq!(turns, TURNS);
    }
    let told: Value = reqwest::get(format!("http://127.0.0.1:{port}/told"))
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    let faults: Vec<u64> = serde_json::from_value(told["faults"].clone()).unwrap();
    let (stats, requests) = (pool.stats(), (groups * 8 * TURNS) as u64);
    assert!(faults.iter().all(|n| *n > 0), "{faults:?}");
    assert_eq!(told["calls"], requests + faults.iter().sum::<u64>());
    assert_eq!(stats.num_calls, requests + faults.iter().sum::<u64>());
    assert_eq!(stats.num_retries, faults.iter().sum::<u64>());
    assert_eq!(
        crate::lock(&pool.inner.live).len(),
        0,
        "no request is left behind"
    );
    println!(
        "{} trajectories, {requests} requests, faults {faults:?}: {:.1} s, {:.3} ms of CPU a request, peak {} MB ({} MB before)",
        groups * 8,
        wall.as_secs_f64(),
        (after.0 - before.0) * 1000.0 / requests as f64,
        after.1 >> 20,
        before.1 >> 20,
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g07_faults_of_every_kind_lose_no_token_and_count_right() {
    run(80, 20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute and prints what a request costs"]
async fn two_thousand_trajectories_at_once() {
    run(250, 495).await;
}
