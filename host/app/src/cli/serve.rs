//! `slime-host serve`: the embedded engine behind SGLang's API.

use super::{Context, Outcome};
use crate::config::{Device, Problem};
use crate::error::Result;
use crate::job::stop::Stop;
use crate::wire::device::{Scale, on_device};
use crate::wire::engine::{engine_failed, start};
use crate::wire::{Computer, Model};
use slime_engine::{EngineConfig, SamplingDefaults, serve};
use std::net::SocketAddr;
use std::path::PathBuf;

/// What to serve.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// HF directory
    #[arg(long, value_name = "DIR", alias = "model-path")]
    model: PathBuf,
    /// Address to listen on, or this machine's name
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 30000)]
    port: u16,
    /// Where to compute
    #[arg(long, value_enum, default_value_t)]
    device: Device,
    /// Longest prompt and answer together; the model's by default
    #[arg(long, value_name = "N")]
    context_length: Option<usize>,
    /// Tokens the cache holds [default: 32768, on a GPU 262144]
    #[arg(long, value_name = "N")]
    max_total_tokens: Option<usize>,
    /// Requests that run at once [default: 64, on a GPU 256]
    #[arg(long, value_name = "N")]
    max_running_requests: Option<usize>,
    /// Rows of one step [default: 512, on a GPU 8192]
    #[arg(long, value_name = "N")]
    chunked_prefill_size: Option<usize>,
    /// Decode without CUDA graphs
    #[arg(long)]
    disable_cuda_graph: bool,
    /// Most requests of a decode step that runs as a CUDA graph [default: 256]
    #[arg(long, value_name = "N", conflicts_with = "disable_cuda_graph")]
    cuda_graph_max_bs: Option<usize>,
    /// Name that `/v1/models` gives
    #[arg(long, value_name = "NAME")]
    served_model_name: Option<String>,
    /// Seeds requests that bring no seed
    #[arg(long, value_name = "N", default_value_t = 0)]
    random_seed: u64,
}

/// Do it, until Ctrl-C.
///
/// # Errors
/// The model cannot be opened, or the port is taken.
pub fn run(args: Args, context: &Context) -> Result<Outcome> {
    if args.device == Device::Cpu {
        for (flag, is_said) in [
            ("--disable-cuda-graph", args.disable_cuda_graph),
            ("--cuda-graph-max-bs", args.cuda_graph_max_bs.is_some()),
        ] {
            if is_said {
                let what = format!("`{flag}` has no effect: the CPU has no graphs");
                return Err(Problem::new(what)
                    .help("leave it out, or add --device cuda")
                    .into());
            }
        }
    }
    super::block_on(listen(args, context))?
}

/// What a name stands for; of several addresses one of IPv4, which is what most clients try.
async fn address(host: &str, port: u16) -> Result<SocketAddr> {
    let wrong = |why: String| {
        Problem::new(format!("`--host {host}`: {why}")).help(
            "give an address of this machine: 127.0.0.1 for itself alone, 0.0.0.0 for everybody",
        )
    };
    let found = tokio::net::lookup_host((host, port)).await;
    let found: Vec<SocketAddr> = found.map_err(|e| wrong(e.to_string()))?.collect();
    let best = found.iter().find(|a| a.is_ipv4()).or(found.first());
    Ok(*best.ok_or_else(|| wrong("it has no address".into()))?)
}

async fn listen(args: Args, context: &Context) -> Result<Outcome> {
    let address = address(&args.host, args.port).await?;
    let model = Model::directory(&args.model).map_err(|e| Problem::new(e.to_string()))?;
    let usual = Scale::of(args.device);
    let config = EngineConfig {
        max_total_tokens: args.max_total_tokens.unwrap_or(usual.cache_tokens),
        max_running_requests: args.max_running_requests.unwrap_or(usual.running),
        context_length: args.context_length,
        chunked_prefill_size: args.chunked_prefill_size.unwrap_or(usual.step_tokens),
        cuda_graph_max_bs: match args.disable_cuda_graph {
            true => 0,
            false => args.cuda_graph_max_bs.unwrap_or(256),
        },
        seed: args.random_seed,
        served_model_name: args.served_model_name.unwrap_or_else(|| model.name()),
        model_path: args.model,
        sampling_defaults: defaults(&model),
        ..EngineConfig::default()
    };
    let name = config.served_model_name.clone();
    let engine = on_device!(Computer::open(args.device)?, ops => start(&model, ops, config))?;
    let server = serve(engine.clone(), address)
        .await
        .map_err(engine_failed)?;
    context.console.line(&format!(
        " {name} ({}) at {}   Ctrl-C ends",
        model.size(),
        server.url()
    ));
    // The address is data: a script that asked for port 0 reads it here.
    super::data(&format!("{}\n", server.url()))?;
    Stop::listen(context.console.clone(), "stopping")
        .asked()
        .await;
    server.shutdown().await;
    engine.stop();
    Ok(Outcome::Done)
}

/// What `generation_config.json` asks for where a chat request says nothing.
fn defaults(model: &Model) -> SamplingDefaults {
    let json = model
        .files
        .json("generation_config.json")
        .ok()
        .flatten()
        .unwrap_or_default();
    SamplingDefaults {
        temperature: json["temperature"].as_f64(),
        top_p: json["top_p"].as_f64(),
        top_k: json["top_k"].as_i64(),
        min_p: json["min_p"].as_f64(),
        repetition_penalty: json["repetition_penalty"].as_f64(),
    }
}
