//! How groups are sampled, and by whom.

use super::Resolved;
use crate::config::sections::{Dtype, Filter};
use crate::config::servers::{self, LaunchPlan};
use crate::job::shape::{Overlong, Shaping};
use slime_rollout::pool::PauseMode;
use slime_rollout::publish::Transport;
use std::path::PathBuf;

/// How tokens are sampled.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingPlan {
    /// 0 is greedy.
    pub temperature: f64,
    /// Nucleus mass.
    pub top_p: f64,
    /// Tokens kept; -1 keeps all.
    pub top_k: i64,
    /// Tokens of one rollout's response, what tools answer included.
    pub max_response_len: u32,
    /// Strings that end a turn.
    pub stop: Vec<String>,
    /// Ids that end a turn.
    pub stop_token_ids: Vec<u32>,
}

/// How groups are sampled.
#[derive(Clone, Debug)]
pub struct RolloutPlan {
    /// Groups of one step.
    pub batch_size: u64,
    /// Rollouts of one group.
    pub n_samples_per_prompt: u32,
    /// How they are sampled.
    pub sampling: SamplingPlan,
    /// Prompt and response together.
    pub max_context_len: Option<u32>,
    /// Versions a trained token may be behind.
    pub max_lag: u64,
    /// Sampling never pauses.
    pub fully_async: bool,
    /// Prompts that a round draws at least.
    pub over_sampling: usize,
    /// What rewards and masks become on their way to the trainer.
    pub shaping: Shaping,
    /// Which groups are trained on.
    pub filter: Filter,
    /// How often a step draws more prompts because groups were left out.
    pub max_refills: u32,
    /// Requests in flight.
    pub concurrency: usize,
    /// The embedded engine's decode steps of up to so many requests run as CUDA graphs.
    pub cuda_graph_max_bs: usize,
    /// Running servers.
    pub servers: Vec<String>,
    /// Servers to launch; without these and those the embedded engine samples.
    pub launch: Option<LaunchPlan>,
    /// A router in front of them.
    pub router: Option<String>,
    /// Receive tokens as they are sampled.
    pub stream: bool,
    /// Ask which experts every token went to.
    pub routed_experts: bool,
    /// Where new weights are handed to them.
    pub publish_dir: Option<PathBuf>,
    /// How weights travel.
    pub transport: Transport,
    /// The embedded engine takes the trainer's tensors as they are; no directory was asked for.
    pub hands_over: bool,
    /// Where deltas are applied.
    pub local_dir: Option<PathBuf>,
    /// In which type; `None` is the servers' own.
    pub publish_dtype: Option<Dtype>,
    /// What becomes of running requests meanwhile.
    pub pause_mode: PauseMode,
}

impl RolloutPlan {
    /// Whether the embedded engine samples.
    pub fn is_embedded(&self) -> bool {
        self.servers.is_empty() && self.launch.is_none()
    }
}

pub(super) fn rollout_plan(said: &Resolved) -> RolloutPlan {
    let r = &said.config.rollout;
    RolloutPlan {
        batch_size: r.batch_size.unwrap_or(16),
        n_samples_per_prompt: r.n_samples_per_prompt.unwrap_or(8),
        sampling: SamplingPlan {
            temperature: r.temperature.unwrap_or(1.0),
            top_p: r.top_p.unwrap_or(1.0),
            top_k: r.top_k.unwrap_or(-1),
            max_response_len: r.max_response_len.unwrap_or(256),
            stop: r.stop.clone().unwrap_or_default(),
            stop_token_ids: r.stop_token_ids.clone().unwrap_or_default(),
        },
        max_context_len: r.max_context_len,
        max_lag: r.max_lag.unwrap_or(0),
        fully_async: r.fully_async.unwrap_or(false),
        over_sampling: r.over_sampling_batch_size.unwrap_or(0) as usize,
        shaping: Shaping {
            overlong: r.overlong_buffer_len.map(|buffer| Overlong {
                limit: r.max_response_len.unwrap_or(256),
                buffer,
                factor: r.overlong_penalty_factor.unwrap_or(1.0),
            }),
            mask_offpolicy: r.mask_offpolicy.unwrap_or(false),
            mask_truncated: r.mask_truncated.unwrap_or(false),
        },
        filter: r.filter.unwrap_or_default(),
        max_refills: r.max_refills.unwrap_or(20),
        concurrency: r.concurrency.unwrap_or(64),
        cuda_graph_max_bs: match r.disable_cuda_graph {
            Some(true) => 0,
            _ => r.cuda_graph_max_bs.unwrap_or(256),
        },
        servers: r.external_engine_addrs.clone().unwrap_or_default(),
        launch: None,
        router: r.router_addr.clone(),
        stream: r.stream.unwrap_or(servers::asked(said)),
        routed_experts: said
            .config
            .algorithm
            .use_rollout_routing_replay
            .unwrap_or(false),
        publish_dir: r.update_weight_disk_dir.clone(),
        transport: r.update_weight_transport.unwrap_or_default(),
        hands_over: r.update_weight_transport.is_none() && r.update_weight_disk_dir.is_none(),
        local_dir: r.update_weight_local_dir.clone(),
        publish_dtype: r.update_weight_dtype,
        pause_mode: r.pause_generation_mode.unwrap_or_default(),
    }
}
