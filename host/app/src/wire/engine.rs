//! Who samples: the embedded engine on a loopback port, or servers given by address. Both are reached over HTTP.

use super::device::{Computer, Scale, bytes_of_number, on_device};
use super::model::{Model, model_failed};
use super::rollout_failed;
use crate::config::plan::RolloutPlan;
use crate::config::{Device, Problem, Resolved};
use crate::error::{Failure, Result};
use slime_core::WeightVersion;
use slime_core::ports::TextCodec;
use slime_engine::{Engine, EngineConfig, EngineHandle, ServerHandle, serve};
use slime_kernels::Ops;
use slime_model::Network;
use slime_rollout::pool::{Routing, Trust};
use slime_rollout::{Address, Pool, PoolConfig};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A pool and, where there is one, the engine behind it.
pub struct Serving {
    /// Where requests go.
    pub pool: Arc<Pool>,
    /// Prompt and response together.
    pub context_tokens: u32,
    /// For people.
    pub name: String,
    embedded: Option<(EngineHandle, ServerHandle)>,
}

impl Serving {
    /// Start the embedded engine on `device`, or reach the servers given. `label` tells this run's weights from another's;
    /// `frozen` says that the weights never change.
    ///
    /// # Errors
    /// The engine cannot start, or a server does not answer.
    pub async fn start(
        device: Device,
        model: &Model,
        plan: &RolloutPlan,
        said: &Resolved,
        label: &str,
        frozen: Option<WeightVersion>,
    ) -> Result<Self> {
        let limit = plan.max_context_len.map_or(model.spec.max_positions, |n| {
            (n as usize).min(model.spec.max_positions)
        });
        let (addresses, embedded, context, name) = if plan.servers.is_empty() {
            let engine = embedded(device, model, plan, limit)?;
            let context = engine.context_length();
            let server = serve(engine.clone(), SocketAddr::from(([127, 0, 0, 1], 0)))
                .await
                .map_err(engine_failed)?;
            let name = format!("embedded, {}", server.url());
            (
                vec![Address::new("127.0.0.1", server.addr.port())],
                Some((engine, server)),
                context,
                name,
            )
        } else {
            let addresses = plan.servers.iter().map(|text| Address::parse(text));
            let addresses = addresses.collect::<Result<Vec<_>, _>>().map_err(|e| {
                Problem::new(e.to_string()).at(said.place("rollout.external_engine_addrs"))
            })?;
            (addresses, None, limit, plan.servers.join(", "))
        };
        let config = PoolConfig {
            concurrency: plan.concurrency,
            routing: Routing::default(),
            label_prefix: if embedded.is_some() {
                String::new()
            } else {
                format!("{label}-")
            },
            trust: frozen.map_or(Trust::Proven, Trust::Frozen),
            ..PoolConfig::new(model.text.vocab_size(), context)
        };
        let pool = Pool::new(addresses, config).map_err(rollout_failed)?;
        pool.wait_until_up(Duration::from_secs(30)).await.map_err(|e| {
            Problem::new(e.to_string())
                .help("start the servers first (python -m sglang.launch_server …), or correct the addresses")
                .at(said.place("rollout.external_engine_addrs"))
        })?;
        Ok(Self {
            pool: Arc::new(pool),
            context_tokens: context as u32,
            name,
            embedded,
        })
    }

    /// End the embedded engine.
    pub async fn stop(self) {
        if let Some((engine, server)) = self.embedded {
            server.shutdown().await;
            engine.stop();
        }
    }
}

fn embedded(
    device: Device,
    model: &Model,
    plan: &RolloutPlan,
    context: usize,
) -> Result<EngineHandle> {
    let running = plan.concurrency.min(256);
    let wanted = running * context.min(plan.sampling.max_response_len as usize + 256);
    let scale = Scale::of(device);
    let room = scale.cache_bytes / (numbers_in_cache(model) * bytes_of_number(device));
    let config = EngineConfig {
        max_total_tokens: wanted.clamp(context, room.max(context)),
        max_running_requests: running,
        context_length: Some(context),
        chunked_prefill_size: scale.step_tokens,
        served_model_name: model.name(),
        ..EngineConfig::default()
    };
    on_device!(Computer::open(device)?, ops => start(model, ops, config))
}

/// Keys and values of one token.
fn numbers_in_cache(model: &Model) -> usize {
    let per_layer = model
        .spec
        .layers
        .iter()
        .map(|layer| 2 * layer.attn.heads.kv * layer.attn.heads.dim);
    per_layer.sum::<usize>().max(1)
}

/// An engine over a model.
///
/// # Errors
/// The model does not fit the device, or the engine's configuration cannot work.
pub fn start<O: Ops>(model: &Model, ops: Arc<O>, config: EngineConfig) -> Result<EngineHandle> {
    let weights = model.load(&*ops).map_err(model_failed)?;
    let network =
        Network::new(ops, model.spec.clone(), weights).map_err(|e| Failure::run(e.to_string()))?;
    Engine::start(network, model.text.clone(), config).map_err(engine_failed)
}

/// An engine's error; a port in use carries its own cure.
pub fn engine_failed(error: slime_engine::Error) -> Failure {
    match error {
        slime_engine::Error::PortInUse { host, port } => {
            Problem::new(format!("port {port} of {host} is in use"))
                .help("stop the other server, give another port, or --port 0 for a free one")
                .into()
        }
        slime_engine::Error::Config(reason) => Problem::new(reason).into(),
        other => Failure::run(other.to_string()),
    }
}
