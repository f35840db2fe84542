//! Who samples: the embedded engine on a loopback port, servers of our own, or servers given by address. All are
//! reached over HTTP.

use super::device::{Computer, Machine, Scale, bytes_of_number, on_device, published};
use super::model::{Model, model_failed};
use super::servers::Places;
use super::{refused, rollout_failed, servers};
use crate::config::plan::RolloutPlan;
use crate::config::{Device, Problem, Resolved};
use crate::error::{Failure, Result};
use slime_core::WeightVersion;
use slime_core::ports::TextCodec;
use slime_engine::{Engine, EngineConfig, EngineHandle, Inlet, ServerHandle, serve};
use slime_kernels::Ops;
use slime_model::{Network, hf};
use slime_rollout::pool::launch::Fleet;
use slime_rollout::pool::{Routing, Seat, Trust};
use slime_rollout::{Address, Fence, Pool, PoolConfig};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// From the first request to a server that should be up to its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// A pool and, where there is one, the engine behind it.
pub struct Serving {
    /// Where requests go.
    pub pool: Arc<Pool>,
    /// Prompt and response together.
    pub context_tokens: u32,
    /// For people.
    pub name: String,
    /// How weights are handed over. Servers run the edition of the model that the trainer was given.
    pub form: hf::Form,
    embedded: Option<(EngineHandle, ServerHandle)>,
    fleet: Option<Fleet>,
}

/// Servers that are launched: the places kept for them, and where they write.
#[derive(Clone, Copy)]
pub struct Launching<'a> {
    /// `None` where none are launched.
    pub places: Option<&'a Places>,
    /// A directory.
    pub logs: &'a Path,
}

/// Whose weights are served.
#[derive(Clone, Copy)]
pub struct Whose<'a> {
    /// Tells this run's weights from another's.
    pub label: &'a str,
    /// The weights never change.
    pub frozen: Option<WeightVersion>,
    /// The run may be continued elsewhere.
    pub fence: Option<&'a Fence>,
}

impl Whose<'_> {
    fn trust(&self) -> Trust {
        self.frozen.map_or(Trust::Proven, Trust::Frozen)
    }
}

impl Serving {
    /// Start the embedded engine on `device`, or launch and reach the servers of the plan.
    ///
    /// # Errors
    /// The engine cannot start, or a server does not answer.
    pub async fn start(
        device: Device,
        model: &Model,
        plan: &RolloutPlan,
        said: &Resolved,
        whose: Whose<'_>,
        launching: Launching<'_>,
    ) -> Result<Self> {
        if !plan.is_embedded() {
            return Self::beside(model, plan, said, whose, launching).await;
        }
        on_device!(Computer::open(device)?, ops => {
            Ok(Self::embedded(device, ops, model, plan, whose).await?.0)
        })
    }

    /// The same beside a trainer on the device `O`. It can hand its tensors to the embedded engine, where that samples.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_beside<O: Machine>(
        device: Device,
        model: &Model,
        plan: &RolloutPlan,
        said: &Resolved,
        whose: Whose<'_>,
        launching: Launching<'_>,
    ) -> Result<(Self, Option<Inlet<O>>)> {
        if !plan.is_embedded() {
            let serving = Self::beside(model, plan, said, whose, launching).await?;
            return Ok((serving, None));
        }
        let (serving, inlet) = Self::embedded(device, O::own()?, model, plan, whose).await?;
        Ok((serving, Some(inlet)))
    }

    /// The engine of this process.
    async fn embedded<O: Ops>(
        device: Device,
        ops: Arc<O>,
        model: &Model,
        plan: &RolloutPlan,
        whose: Whose<'_>,
    ) -> Result<(Self, Inlet<O>)> {
        let (engine, inlet) = embedded(device, ops, model, plan)?;
        let context = engine.context_length();
        let server = serve(engine.clone(), SocketAddr::from(([127, 0, 0, 1], 0)))
            .await
            .map_err(engine_failed)?;
        let config = PoolConfig {
            concurrency: plan.concurrency,
            routing: Routing::default(),
            routed_experts: plan.routed_experts,
            trust: whose.trust(),
            fence: whose.fence.cloned(),
            ..PoolConfig::new(model.text.vocab_size(), context)
        };
        let address = Address::new("127.0.0.1", server.addr.port());
        let pool = Pool::new(vec![address], config).map_err(rollout_failed)?;
        pool.wait_until_up(ANSWER_TIMEOUT)
            .await
            .map_err(rollout_failed)?;
        let serving = Self {
            pool: Arc::new(pool),
            context_tokens: context as u32,
            name: format!("embedded, {}", server.url()),
            form: published(device).into(),
            embedded: Some((engine, server)),
            fleet: None,
        };
        Ok((serving, inlet))
    }

    /// Servers of other processes.
    async fn beside(
        model: &Model,
        plan: &RolloutPlan,
        said: &Resolved,
        whose: Whose<'_>,
        launching: Launching<'_>,
    ) -> Result<Self> {
        let (Launching { places, logs }, limit) = (launching, context_limit(model, plan));
        let attached = servers::attached(&plan.servers, said)?;
        let mut seats: Vec<Seat> = attached.into_iter().map(Seat::from).collect();
        let fleet = match (&plan.launch, places) {
            (Some(launch), Some(places)) => {
                seats.extend(places.policy());
                Some(servers::launch(launch, places, said, logs).await?)
            }
            _ => None,
        };
        let launched = places.map_or(0, Places::num_servers);
        let config = PoolConfig {
            concurrency: plan.concurrency,
            routing: Routing::default(),
            label_prefix: format!("{}-", whose.label),
            fence: whose.fence.cloned(),
            stream: plan.stream,
            routed_experts: plan.routed_experts,
            router: servers::router(plan.router.as_deref(), said)?,
            trust: whose.trust(),
            ..PoolConfig::new(model.text.vocab_size(), limit)
        };
        let pool = Pool::new(seats.clone(), config.clone()).map_err(rollout_failed)?;
        pool.wait_until_up(ANSWER_TIMEOUT).await.map_err(|e| {
            Problem::new(e.to_string())
                .help("start the servers first (python -m sglang.launch_server …), let this program launch them (--rollout-num-engines N), or correct the addresses")
                .at(said.place("rollout.external_engine_addrs"))
        })?;
        pool.introduce()
            .await
            .map_err(|e| refused(said, &["rollout.router_addr"], e))?;
        let facts = servers::ask(&pool, limit, model.dtype()).await?;
        let pool = if facts.context_tokens == limit {
            pool
        } else {
            let config = PoolConfig {
                context_tokens: facts.context_tokens,
                ..config
            };
            Pool::new(seats, config).map_err(rollout_failed)?
        };
        let name = match (launched, plan.servers.is_empty()) {
            (0, _) => plan.servers.join(", "),
            (n, true) => format!("{n} SGLang, logs in {}", logs.display()),
            (n, false) => format!("{n} SGLang and {}", plan.servers.join(", ")),
        };
        Ok(Self {
            pool: Arc::new(pool),
            context_tokens: facts.context_tokens as u32,
            name,
            form: hf::Form {
                dtype: facts.dtype,
                blocks: Arc::new(model.blocks()),
            },
            embedded: None,
            fleet,
        })
    }

    /// End the embedded engine, or the servers that were launched.
    pub async fn stop(self) {
        if let Some((engine, server)) = self.embedded {
            server.shutdown().await;
            engine.stop();
        }
        if let Some(fleet) = self.fleet {
            fleet.stop().await;
        }
    }
}

/// Prompt and response together, at most.
fn context_limit(model: &Model, plan: &RolloutPlan) -> usize {
    let positions = model.spec.max_positions;
    plan.max_context_len
        .map_or(positions, |n| (n as usize).min(positions))
}

fn embedded<O: Ops>(
    device: Device,
    ops: Arc<O>,
    model: &Model,
    plan: &RolloutPlan,
) -> Result<(EngineHandle, Inlet<O>)> {
    let context = context_limit(model, plan);
    let running = plan.concurrency.min(256);
    let wanted = running * context.min(plan.sampling.max_response_len as usize + 256);
    let scale = Scale::of(device);
    let room = scale.cache_bytes / (numbers_in_cache(model) * bytes_of_number(device));
    let config = EngineConfig {
        max_total_tokens: wanted.clamp(context, room.max(context)),
        max_running_requests: running,
        context_length: Some(context),
        chunked_prefill_size: scale.step_tokens,
        cuda_graph_max_bs: plan.cuda_graph_max_bs,
        served_model_name: model.name(),
        ..EngineConfig::default()
    };
    start_with_inlet(model, ops, config)
}

/// Keys and values of one token; engines' blocks are of 16 tokens.
fn numbers_in_cache(model: &Model) -> usize {
    model.spec.cached_numbers(16).max(1)
}

/// An engine over a model.
///
/// # Errors
/// The model does not fit the device, or the engine's configuration cannot work.
pub fn start<O: Ops>(model: &Model, ops: Arc<O>, config: EngineConfig) -> Result<EngineHandle> {
    Ok(start_with_inlet(model, ops, config)?.0)
}

fn start_with_inlet<O: Ops>(
    model: &Model,
    ops: Arc<O>,
    config: EngineConfig,
) -> Result<(EngineHandle, Inlet<O>)> {
    let weights = model.load(&*ops).map_err(model_failed)?;
    let network =
        Network::new(ops, model.spec.clone(), weights).map_err(|e| Failure::run(e.to_string()))?;
    Engine::start_with_inlet(network, model.text.clone(), config).map_err(engine_failed)
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
