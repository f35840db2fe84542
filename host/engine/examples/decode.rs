//! Decode throughput, as `tests/bench/peer_decode.py` measures transformers:
//! `cargo run --release -p slime-engine --example decode -- DIR [BATCH] [PROMPT_TOKENS] [NEW_TOKENS] [REPEAT]`.
//!
//! All sequences run to the full length at temperature 1 over real HTTP. Prefill and first token are left out: the
//! same batch with one new token is timed and subtracted. Prints one JSON line; the best of REPEAT counts.

use serde_json::{Value, json};
use slime_engine::{Engine, EngineConfig, serve};
use slime_kernels::Cpu;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("give a model directory")?;
    let mut number = |default: usize| args.next().map_or(Ok(default), |a| a.parse());
    let (batch, prompt_tokens, new_tokens, repeat) =
        (number(16)?, number(32)?, number(128)?, number(2)?);
    let engine = Engine::open(
        Arc::new(Cpu::<f32>::new()),
        Path::new(&dir),
        EngineConfig::default(),
    )?;
    let server = serve(engine, ([127, 0, 0, 1], 0).into()).await?;
    let client = reqwest::Client::builder().no_proxy().build()?;
    // Prompts that share no first token, so that nothing is cached between them.
    let prompts: Vec<Vec<u64>> = (0..batch as u64)
        .map(|i| {
            (0..prompt_tokens as u64)
                .map(|j| 3 + (i * 7919 + j * 104_729) % 10_000)
                .collect()
        })
        .collect();
    let run = async |new: usize| -> Result<f64, Box<dyn Error>> {
        client
            .post(format!("{}/flush_cache", server.url()))
            .send()
            .await?
            .error_for_status()?;
        let body = json!({"input_ids": prompts, "return_logprob": true, "sampling_params": {"max_new_tokens": new, "ignore_eos": true}});
        let since = Instant::now();
        let answer = client
            .post(format!("{}/generate", server.url()))
            .json(&body)
            .send()
            .await?
            .error_for_status()?;
        let answer: Value = answer.json().await?;
        let seconds = since.elapsed().as_secs_f64();
        let whole = answer
            .as_array()
            .is_some_and(|a| a.iter().all(|x| x["meta_info"]["completion_tokens"] == new));
        if whole {
            Ok(seconds)
        } else {
            Err("an answer is not whole".into())
        }
    };
    run(4).await?;
    let (mut best, mut first) = (0.0, 0.0);
    for _ in 0..repeat {
        let prefill = run(1).await?;
        let seconds = run(new_tokens).await? - prefill;
        let rate = (batch * (new_tokens - 1)) as f64 / seconds;
        if rate > best {
            (best, first) = (rate, prefill);
        }
    }
    let line = json!({"engine": "slime-engine", "dtype": "f32", "batch": batch, "prompt_tokens": prompt_tokens,
        "new_tokens": new_tokens, "first_token_ms": first * 1000.0, "decode_tokens_per_s": best});
    eprintln!("{line}");
    Ok(())
}
