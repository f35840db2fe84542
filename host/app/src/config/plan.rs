//! What follows from a recipe: every default filled in, every quantity with its type, nothing contradictory.
//!
//! It is the only place where defaults live. It reads no file but the one that lays servers out; what depends on data or
//! weights is checked when they are opened (`wire`). Read `check` for what is refused.

use super::check::Check;
use super::eval_set::SourceSet;
use super::problem::Problems;
use super::sections::{Device, Dtype, Filter};
use super::servers::{self, LaunchPlan};
use super::{Resolved, units};
use crate::job::curriculum::Curriculum;
use crate::job::shape::{Overlong, Shaping};
use crate::wire::sources::Chat;
use serde_json::{Map, Value};
use slime_rollout::pool::PauseMode;
use slime_rollout::publish::Transport;
use slime_runtime::Grants;
use slime_runtime::trust::PublicKey;
use slime_trainer::TrainConfig;
use slime_trainer::optim::schedule::DecayStyle;
use slime_trainer::parallel::ParallelConfig;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// The whole loop.
    Run,
    /// Supervised fine-tuning.
    Sft,
    /// Rollouts only.
    Rollout,
    /// Training on recorded rollouts only.
    Train,
    /// Evaluation only.
    Eval,
}

impl Verb {
    /// As typed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Sft => "sft",
            Self::Rollout => "rollout",
            Self::Train => "train",
            Self::Eval => "eval",
        }
    }

    /// Sections whose keys have an effect.
    pub fn sections(self) -> &'static [&'static str] {
        match self {
            Self::Run => &[
                "run",
                "model",
                "data",
                "eval",
                "rollout",
                "algorithm",
                "train",
                "sft",
                "limits",
            ],
            Self::Sft => &["run", "model", "data", "train", "sft", "limits"],
            Self::Rollout => &["run", "model", "data", "rollout", "limits"],
            Self::Train => &["run", "model", "algorithm", "train"],
            Self::Eval => &[
                "run", "model", "data", "eval", "rollout", "limits", "grants",
            ],
        }
    }

    /// Keys of those sections that still have none.
    pub fn unread(self) -> &'static [&'static str] {
        match self {
            Self::Run => &[],
            Self::Sft => &[
                "run.shadow",
                "run.memoise",
                "run.gateway",
                "run.gateway_rewards",
                "run.num_rollout",
                "run.num_epoch",
                "run.save_interval",
                "run.keep_checkpoints",
                "model.ref_load",
                "model.teacher_load",
                "model.teacher_addrs",
                "model.judge_addrs",
                "data.verifier",
                "data.curriculum_target",
                "data.curriculum_rate",
            ],
            Self::Rollout => &[
                "data.curriculum_target",
                "data.curriculum_rate",
                "run.name",
                "run.save_interval",
                "run.keep_checkpoints",
                "model.ref_load",
                "model.teacher_load",
                "model.teacher_addrs",
                "rollout.max_lag",
                "rollout.fully_async",
                "rollout.pause_generation_mode",
                "rollout.mask_offpolicy",
                "rollout.mask_truncated",
                "rollout.overlong_buffer_len",
                "rollout.overlong_penalty_factor",
                "rollout.update_weight_disk_dir",
                "rollout.update_weight_transport",
                "rollout.update_weight_local_dir",
                "rollout.update_weight_dtype",
            ],
            Self::Train => &[
                "grants",
                "run.name",
                "run.plugins",
                "run.shadow",
                "run.memoise",
                "run.gateway",
                "run.gateway_rewards",
                "run.trusted_keys",
                "run.num_rollout",
                "run.num_epoch",
                "run.save_interval",
                "run.keep_checkpoints",
                "model.path",
                "model.builtin",
                "model.teacher_addrs",
                "model.judge_addrs",
            ],
            Self::Eval => &[
                "run.name",
                "run.num_rollout",
                "run.num_epoch",
                "run.save_interval",
                "run.keep_checkpoints",
                "model.ref_load",
                "model.teacher_load",
                "model.teacher_addrs",
                "eval.interval",
                "eval.skip_before_train",
                "data.curriculum_target",
                "data.curriculum_rate",
                "rollout.batch_size",
                "rollout.n_samples_per_prompt",
                "rollout.temperature",
                "rollout.max_lag",
                "rollout.fully_async",
                "rollout.pause_generation_mode",
                "rollout.over_sampling_batch_size",
                "rollout.mask_offpolicy",
                "rollout.mask_truncated",
                "rollout.overlong_buffer_len",
                "rollout.overlong_penalty_factor",
                "rollout.filter",
                "rollout.update_weight_disk_dir",
                "rollout.update_weight_transport",
                "rollout.update_weight_local_dir",
                "rollout.update_weight_dtype",
            ],
        }
    }
}

/// What follows from a recipe for one verb.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Everything random derives from it.
    pub seed: u64,
    /// Length, place and checkpoints.
    pub run: RunPlan,
    /// Component files or plugin folders.
    pub plugins: Vec<PathBuf>,
    /// A second verifier, whose disagreement is reported.
    pub shadow: Option<PathBuf>,
    /// Whether verdicts are kept for rollouts that say the same.
    pub memoise: bool,
    /// Where agents that are no plugins drive the rollouts.
    pub gateway: Option<GatewayPlan>,
    /// Only plugins that one of these signed are loaded; empty trusts every file.
    pub trusted: Vec<PublicKey>,
    /// Which weights, where.
    pub model: ModelPlan,
    /// Prompts from a file; `None` draws them from a source plugin.
    pub data: Option<DataPlan>,
    /// Several data sets, mixed by their weights.
    pub mix: Vec<MixPlan>,
    /// How hard a source plugin's prompts are, from 0 to 1.
    pub difficulty: f64,
    /// Makes source plugins' prompts harder and easier.
    pub curriculum: Option<Curriculum>,
    /// Who scores rollouts whose source names nobody.
    pub verifier: Option<String>,
    /// How prompts become conversations.
    pub chat: Chat,
    /// Variables handed to the chat template.
    pub template_kwargs: Map<String, Value>,
    /// Held-out prompts.
    pub eval: Option<EvalPlan>,
    /// How groups are sampled.
    pub rollout: RolloutPlan,
    /// Advantages, loss, optimizer and batches.
    pub train: TrainConfig,
    /// The ranks it trains on.
    pub ranks: RanksPlan,
    /// Supervised fine-tuning.
    pub sft: Option<SftPlan>,
    /// Budgets of one plugin call; `None` leaves the world's default.
    pub limits: LimitsPlan,
    /// Capabilities by the plugin's name; every other plugin has none.
    pub grants: BTreeMap<String, Grants>,
}

/// One of several data sets to train on.
#[derive(Clone, Debug, PartialEq)]
pub struct MixPlan {
    /// Its name in metrics.
    pub name: String,
    /// Its prompts.
    pub prompts: Prompts,
    /// How often it is drawn from, against the others.
    pub weight: f64,
    /// Who scores its rollouts.
    pub verifier: Option<String>,
}

/// Where the prompts of one of several sources come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompts {
    /// A file.
    File(DataPlan),
    /// A plugin makes them up.
    Plugin {
        /// Its name.
        plugin: String,
        /// How hard they are, from 0 to 1.
        difficulty: f64,
    },
}

/// The ranks a trainer has.
#[derive(Clone, Debug, PartialEq)]
pub struct RanksPlan {
    /// How the model is spread over them.
    pub parallel: ParallelConfig,
    /// How long they wait for each other.
    pub patience: Duration,
}

/// How long a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// Rollout steps.
    Steps(u64),
    /// Passes over the prompts.
    Epochs(u64),
}

/// Length, place and checkpoints.
#[derive(Clone, Debug)]
pub struct RunPlan {
    /// Part of the default directory's name.
    pub name: Option<String>,
    /// Where to write; `None` picks a free directory under `runs/`.
    pub dir: Option<PathBuf>,
    /// How long.
    pub length: Length,
    /// Rollout steps between checkpoints.
    pub save_interval: u64,
    /// Newest checkpoints kept.
    pub keep_checkpoints: usize,
}

/// Where weights come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Weights {
    /// An HF directory.
    Directory(PathBuf),
    /// The tiny model that is part of the program, random weights from the run's seed.
    Tiny,
}

/// Which weights, where.
#[derive(Clone, Debug)]
pub struct ModelPlan {
    /// The policy's.
    pub weights: Weights,
    /// The reference's, where it is not the policy's at the start.
    pub reference: Option<PathBuf>,
    /// The teacher's.
    pub teacher: Option<PathBuf>,
    /// Servers that hold the teacher.
    pub teacher_servers: Vec<String>,
    /// Servers of the models that judges may ask.
    pub judge_servers: BTreeMap<String, Vec<String>>,
    /// Where to compute.
    pub device: Device,
}

/// Prompts from a file.
#[derive(Clone, Debug, PartialEq)]
pub struct DataPlan {
    /// Path with an optional slice.
    pub path: String,
    /// Column of the prompt.
    pub input_key: String,
    /// Column of the gold answer.
    pub label_key: Option<String>,
    /// Column of the metadata.
    pub metadata_key: String,
    /// Column of the tools.
    pub tool_key: String,
    /// Another order every epoch.
    pub shuffle: bool,
}

/// Held-out prompts.
#[derive(Clone, Debug)]
pub struct EvalPlan {
    /// Rollout steps between evaluations; `None` for the verb `eval`.
    pub interval: Option<u64>,
    /// Evaluate before the first step too.
    pub before_train: bool,
    /// Data sets by name, in order of name. Empty: the source plugin's own, drawn where training never draws.
    pub sets: Vec<EvalSetPlan>,
    /// Prompts drawn from a source plugin.
    pub num_prompts: u64,
    /// Rollouts of one prompt.
    pub n_samples_per_prompt: u32,
    /// How they are sampled.
    pub sampling: SamplingPlan,
}

/// One held-out data set.
#[derive(Clone, Debug)]
pub struct EvalSetPlan {
    /// Its name in metrics.
    pub name: String,
    /// Its prompts.
    pub data: DataPlan,
    /// Rollouts of one prompt.
    pub n_samples_per_prompt: u32,
    /// Who scores them.
    pub verifier: Option<String>,
    /// How they are sampled.
    pub sampling: SamplingPlan,
}

/// How tokens are sampled.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingPlan {
    /// 0 is greedy.
    pub temperature: f64,
    /// Nucleus mass.
    pub top_p: f64,
    /// Tokens kept; -1 keeps all.
    pub top_k: i64,
    /// Tokens one rollout may sample.
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

/// Supervised fine-tuning.
#[derive(Clone, Debug, PartialEq)]
pub struct SftPlan {
    /// Conversations; `None` takes a source plugin's prompts and labels.
    pub data: Option<DataPlan>,
    /// Train steps; `None` is one pass over the data.
    pub num_steps: Option<u64>,
    /// Share of the rows that learn another row's answer.
    pub shuffled_label_frac: f64,
    /// Sequences of one train step.
    pub batch_size: usize,
    /// Optimizer and batches.
    pub train: TrainConfig,
}

/// Agents that are no plugins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatewayPlan {
    /// Where they are answered.
    pub address: SocketAddr,
    /// Whether their rewards count, and no verifier's.
    pub rewards: bool,
}

/// Budgets of one plugin call; `None` leaves the world's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitsPlan {
    /// Guest time.
    pub cpu: Option<Duration>,
    /// Time from call to answer.
    pub wall: Option<Duration>,
    /// Linear memory.
    pub memory_bytes: Option<u64>,
}

impl Plan {
    /// What follows from `said` for `verb`.
    ///
    /// # Errors
    /// Every problem at once.
    pub fn new(said: &Resolved, verb: Verb) -> Result<Self, Problems> {
        Self::checked(said, verb, true)
    }

    /// The same for somebody who launches no servers, whatever `said` asks for: another rank of the trainer, a replay.
    ///
    /// # Errors
    /// Every problem at once.
    pub fn without_servers(said: &Resolved, verb: Verb) -> Result<Self, Problems> {
        Self::checked(said, verb, false)
    }

    fn checked(said: &Resolved, verb: Verb, launches: bool) -> Result<Self, Problems> {
        let mut check = Check::new(said, verb);
        let launch = match launches {
            true => servers::launch_plan(said, verb, &mut check),
            false => None,
        };
        check.rules(launch.as_ref());
        let plan = build(said, verb, launch, &mut check);
        check.done(plan)
    }
}

fn build(said: &Resolved, verb: Verb, launch: Option<LaunchPlan>, check: &mut Check<'_>) -> Plan {
    let c = &said.config;
    let plugins = c.run.plugins.clone().unwrap_or_default();
    if plugins.is_empty() && matches!(verb, Verb::Run | Verb::Rollout | Verb::Eval) {
        check.refuse(
            "run.plugins",
            format!("`{}` needs a verifier plugin", verb.name()),
            format!(
                "name a component or a plugin folder: slime-host {} plugins/math -c FILE",
                verb.name()
            ),
        );
    }
    let train = train_config(said, check);
    let sft = sft_plan(said, verb, &train);
    check.train(&train, "");
    if let Some(sft) = &sft {
        check.train(&sft.train, "sft");
    }
    Plan {
        seed: c.seed.unwrap_or(42),
        run: RunPlan {
            name: c.run.name.clone(),
            dir: c.run.dir.clone(),
            length: match (c.run.num_rollout, c.run.num_epoch) {
                (_, Some(epochs)) => Length::Epochs(epochs),
                (steps, None) => Length::Steps(steps.unwrap_or(1)),
            },
            save_interval: c.run.save_interval.unwrap_or(20),
            keep_checkpoints: c.run.keep_checkpoints.unwrap_or(2) as usize,
        },
        plugins,
        shadow: c.run.shadow.clone(),
        memoise: c.run.memoise.unwrap_or(false),
        gateway: gateway(said, check),
        trusted: trusted(said, check),
        model: ModelPlan {
            weights: match &c.model.path {
                Some(path) => Weights::Directory(path.clone()),
                None => Weights::Tiny,
            },
            reference: c.model.ref_load.clone(),
            teacher: c.model.teacher_load.clone(),
            teacher_servers: c.model.teacher_addrs.clone().unwrap_or_default(),
            judge_servers: c.model.judge_addrs.clone(),
            device: c.model.device.unwrap_or_default(),
        },
        data: c
            .data
            .prompt_data
            .as_ref()
            .map(|path| data_plan(said, path)),
        mix: c
            .data
            .sources
            .iter()
            .map(|(name, set)| mix_plan(said, name, set))
            .collect(),
        difficulty: c.data.difficulty.unwrap_or(0.0),
        curriculum: c.data.curriculum_target.map(|target| Curriculum {
            target,
            rate: c.data.curriculum_rate.unwrap_or(0.05),
        }),
        verifier: c.data.verifier.clone(),
        chat: Chat {
            wrap_text: c.data.apply_chat_template.unwrap_or(false),
            system: c.data.system_prompt.clone(),
        },
        template_kwargs: match serde_json::to_value(&c.data.apply_chat_template_kwargs) {
            Ok(Value::Object(kwargs)) => kwargs,
            _ => Map::new(),
        },
        eval: eval_plan(said, verb),
        rollout: RolloutPlan {
            launch,
            ..rollout_plan(said)
        },
        sft,
        train,
        ranks: ranks_plan(said, check),
        limits: LimitsPlan {
            cpu: c
                .limits
                .cpu
                .as_deref()
                .and_then(|text| check.parse("limits.cpu", units::duration(text))),
            wall: c
                .limits
                .wall
                .as_deref()
                .and_then(|text| check.parse("limits.wall", units::duration(text))),
            memory_bytes: c
                .limits
                .memory
                .as_deref()
                .and_then(|text| check.parse("limits.memory", units::bytes(text))),
        },
        grants: grants(said, check),
    }
}

/// Keys that must have signed every plugin.
fn trusted(said: &Resolved, check: &mut Check<'_>) -> Vec<PublicKey> {
    let keys = said.config.run.trusted_keys.iter().flatten();
    keys.filter_map(|text| match text.parse() {
        Ok(key) => Some(key),
        Err(error) => {
            let help = "`slime-host plugin keygen FILE` prints one";
            check.refuse("run.trusted_keys", error, help);
            None
        }
    })
    .collect()
}

/// Where agents are answered, and what of theirs counts.
fn gateway(said: &Resolved, check: &mut Check<'_>) -> Option<GatewayPlan> {
    let run = &said.config.run;
    let Some(text) = &run.gateway else {
        if run.gateway_rewards == Some(true) {
            let help = "add `gateway = \"127.0.0.1:8900\"` to [run]";
            check.refuse(
                "run.gateway_rewards",
                "`run.gateway_rewards` has no effect without `run.gateway`",
                help,
            );
        }
        return None;
    };
    match text.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_loopback() => Some(GatewayPlan {
            address,
            rewards: run.gateway_rewards.unwrap_or(false),
        }),
        found => {
            let what = match found {
                Ok(_) => format!("`run.gateway`: {text} can be reached from other machines"),
                Err(_) => format!("`run.gateway`: {text} is no address with a port"),
            };
            let help = "write `127.0.0.1:PORT`; an agent elsewhere comes through `ssh -L`";
            check.refuse("run.gateway", what, help);
            None
        }
    }
}

/// What each plugin is granted.
fn grants(said: &Resolved, check: &mut Check<'_>) -> BTreeMap<String, Grants> {
    let mut all = BTreeMap::new();
    for (name, value) in &said.config.grants {
        match value.clone().try_into::<Grants>() {
            Ok(grants) => {
                all.insert(name.clone(), grants);
            }
            Err(error) => check.refuse(
                "grants",
                format!("grants.{name}: {}", error.message()),
                "write [grants.NAME] with code_exec, kv, http, models, clock, random, env or files",
            ),
        }
    }
    all
}

fn data_plan(said: &Resolved, path: &str) -> DataPlan {
    let data = &said.config.data;
    DataPlan {
        path: path.to_owned(),
        input_key: data.input_key.clone().unwrap_or_else(|| "input".into()),
        label_key: data.label_key.clone(),
        metadata_key: data
            .metadata_key
            .clone()
            .unwrap_or_else(|| "metadata".into()),
        tool_key: data.tool_key.clone().unwrap_or_else(|| "tools".into()),
        shuffle: data.shuffle.unwrap_or(false),
    }
}

fn mix_plan(said: &Resolved, name: &str, set: &SourceSet) -> MixPlan {
    let own = &set.own;
    let prompts = match &own.plugin {
        Some(plugin) => Prompts::Plugin {
            plugin: plugin.clone(),
            difficulty: own
                .difficulty
                .or(said.config.data.difficulty)
                .unwrap_or(0.0),
        },
        None => {
            let mut data = data_plan(said, &set.path);
            if let Some(key) = &own.input_key {
                data.input_key.clone_from(key);
            }
            if own.label_key.is_some() {
                data.label_key.clone_from(&own.label_key);
            }
            Prompts::File(data)
        }
    };
    MixPlan {
        name: name.to_owned(),
        prompts,
        weight: own.weight.unwrap_or(1.0),
        verifier: own.verifier.clone(),
    }
}

fn eval_plan(said: &Resolved, verb: Verb) -> Option<EvalPlan> {
    let (eval, rollout) = (&said.config.eval, rollout_plan(said));
    if verb != Verb::Eval && eval.interval.is_none() {
        return None;
    }
    let n_samples_per_prompt = eval.n_samples_per_prompt.unwrap_or(1);
    let sampling = SamplingPlan {
        temperature: eval.temperature.unwrap_or(0.0),
        top_p: eval.top_p.unwrap_or(rollout.sampling.top_p),
        top_k: eval.top_k.unwrap_or(rollout.sampling.top_k),
        max_response_len: eval
            .max_response_len
            .unwrap_or(rollout.sampling.max_response_len),
        ..rollout.sampling
    };
    let sets = eval.prompt_data.iter().map(|(name, set)| {
        let own = set.own.clone();
        let mut data = data_plan(said, &set.path);
        if let Some(key) = own.input_key.or(eval.input_key.clone()) {
            data.input_key = key;
        }
        data.label_key = own.label_key.or(eval.label_key.clone()).or(data.label_key);
        data.shuffle = false;
        EvalSetPlan {
            name: name.clone(),
            data,
            n_samples_per_prompt: own.n_samples_per_prompt.unwrap_or(n_samples_per_prompt),
            verifier: own.verifier,
            sampling: SamplingPlan {
                temperature: own.temperature.unwrap_or(sampling.temperature),
                top_p: own.top_p.unwrap_or(sampling.top_p),
                top_k: own.top_k.unwrap_or(sampling.top_k),
                max_response_len: own.max_response_len.unwrap_or(sampling.max_response_len),
                stop: own.stop.unwrap_or_else(|| sampling.stop.clone()),
                stop_token_ids: sampling.stop_token_ids.clone(),
            },
        }
    });
    Some(EvalPlan {
        interval: eval.interval,
        before_train: !eval.skip_before_train.unwrap_or(false),
        sets: sets.collect(),
        num_prompts: eval.num_prompts.unwrap_or(64),
        n_samples_per_prompt,
        sampling,
    })
}

fn rollout_plan(said: &Resolved) -> RolloutPlan {
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

/// Keys of `[algorithm]` that are this program's and not the trainer's.
const OURS: [&str; 1] = ["allow_uncorrected_lag"];
/// Keys of `[train]` that say how the model is spread over ranks.
const IS_LAYOUT: [&str; 12] = [
    "tensor_model_parallel_size",
    "sequence_parallel",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "decoder_first_pipeline_num_layers",
    "decoder_last_pipeline_num_layers",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "data_parallel_size",
    "ddp_bucket_size",
    "distributed_timeout",
];

fn ranks_plan(said: &Resolved, check: &mut Check<'_>) -> RanksPlan {
    let t = &said.config.train;
    let patience = t
        .distributed_timeout
        .as_deref()
        .and_then(|text| check.parse("train.distributed_timeout", units::duration(text)));
    RanksPlan {
        parallel: ParallelConfig {
            tensor_model_parallel_size: t.tensor_model_parallel_size.unwrap_or(1),
            sequence_parallel: t.sequence_parallel.unwrap_or(false),
            pipeline_model_parallel_size: t.pipeline_model_parallel_size.unwrap_or(1),
            virtual_pipeline_model_parallel_size: t
                .virtual_pipeline_model_parallel_size
                .unwrap_or(1),
            decoder_first_pipeline_num_layers: t.decoder_first_pipeline_num_layers,
            decoder_last_pipeline_num_layers: t.decoder_last_pipeline_num_layers,
            context_parallel_size: t.context_parallel_size.unwrap_or(1),
            expert_model_parallel_size: t.expert_model_parallel_size.unwrap_or(1),
            expert_tensor_parallel_size: t.expert_tensor_parallel_size,
            data_parallel_size: t.data_parallel_size.unwrap_or(1),
            ddp_bucket_size: t.ddp_bucket_size,
        },
        patience: patience.unwrap_or(Duration::from_secs(600)),
    }
}

/// The trainer's options: what `[algorithm]` and `[train]` say over the trainer's own defaults.
fn train_config(said: &Resolved, check: &mut Check<'_>) -> TrainConfig {
    let (c, rollout) = (&said.config, rollout_plan(said));
    let mut all = Map::new();
    for section in [
        serde_json::to_value(&c.algorithm),
        serde_json::to_value(&c.train),
    ] {
        if let Ok(Value::Object(section)) = section {
            all.extend(section.into_iter().filter(|(key, value)| {
                !value.is_null()
                    && !OURS.contains(&key.as_str())
                    && !IS_LAYOUT.contains(&key.as_str())
            }));
        }
    }
    let mut config: TrainConfig = serde_json::from_value(Value::Object(all)).unwrap_or_else(|e| {
        check.refuse(
            "train",
            format!("the trainer refuses its options: {e}"),
            "report this: the keys should agree",
        );
        TrainConfig::default()
    });
    config.rollout_temperature = rollout.sampling.temperature;
    if config.lr_decay_style != DecayStyle::Constant && config.lr_decay_iters.is_none() {
        let rollouts = rollout.batch_size as usize * rollout.n_samples_per_prompt as usize;
        let per_step = config
            .num_steps_per_rollout
            .or(config.global_batch_size.map(|size| rollouts / size.max(1)));
        config.lr_decay_iters = c
            .run
            .num_rollout
            .map(|steps| steps * per_step.unwrap_or(1) as u64);
    }
    config
}

fn sft_plan(said: &Resolved, verb: Verb, train: &TrainConfig) -> Option<SftPlan> {
    let s = &said.config.sft;
    let wanted = verb == Verb::Sft || (verb == Verb::Run && s.num_steps.is_some());
    wanted.then(|| SftPlan {
        data: s.data.as_ref().map(|path| {
            let mut plan = data_plan(said, path);
            plan.input_key = s.input_key.clone().unwrap_or_else(|| "messages".into());
            plan.label_key.clone_from(&s.label_key);
            plan
        }),
        num_steps: s.num_steps,
        shuffled_label_frac: s.shuffled_label_frac.unwrap_or(0.0),
        batch_size: s.batch_size.unwrap_or(32) as usize,
        train: TrainConfig {
            lr: s.lr.unwrap_or(train.lr),
            min_lr: s.min_lr.unwrap_or(0.0),
            lr_warmup_iters: s.lr_warmup_iters.unwrap_or(0),
            lr_decay_style: s.lr_decay_style.unwrap_or(DecayStyle::Constant),
            lr_decay_iters: s
                .lr_decay_style
                .filter(|style| *style != DecayStyle::Constant)
                .and(s.num_steps),
            // What the algorithm says is of no concern to fine-tuning.
            max_tokens_per_gpu: train.max_tokens_per_gpu,
            recompute_granularity: train.recompute_granularity,
            recompute_num_layers: train.recompute_num_layers,
            log_probs_chunk_size: train.log_probs_chunk_size,
            weight_decay: train.weight_decay,
            adam_beta1: train.adam_beta1,
            adam_beta2: train.adam_beta2,
            adam_eps: train.adam_eps,
            clip_grad: train.clip_grad,
            use_precision_aware_optimizer: train.use_precision_aware_optimizer,
            ..TrainConfig::default()
        },
    })
}
