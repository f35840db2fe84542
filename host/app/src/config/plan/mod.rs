//! What follows from a recipe: every default filled in, every quantity with its type, nothing contradictory.
//!
//! It is the only place where defaults live. It reads no file but the one that lays servers out; what depends on data or
//! weights is checked when they are opened (`wire`). Read `check` for what is refused.

mod data;
mod plugins;
mod rollout;
mod train;
mod verb;

pub use data::{DataPlan, EvalPlan, MixPlan, Prompts};
pub use plugins::{GatewayPlan, LimitsPlan};
pub use rollout::{RolloutPlan, SamplingPlan};
pub use train::{IS_LAYOUT, RanksPlan, SftPlan};
pub use verb::Verb;

use super::check::Check;
use super::problem::Problems;
use super::sections::Device;
use super::servers::{self, LaunchPlan};
use super::{Resolved, units};
use crate::job::curriculum::Curriculum;
use crate::wire::sources::Chat;
use data::{data_plan, eval_plan, mix_plan};
use plugins::{gateway, grants, trusted};
use rollout::rollout_plan;
use serde_json::{Map, Value};
use slime_runtime::Grants;
use slime_runtime::trust::PublicKey;
use slime_trainer::TrainConfig;
use std::collections::BTreeMap;
use std::path::PathBuf;
use train::{ranks_plan, sft_plan, train_config};

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
