//! SGLang servers that this program launches: all alike by a few flags, or as a `--sglang-config` file lays them out.
//!
//! Both become one [`LaunchPlan`]: every server's command line follows from it. Read `file` for what a file may say,
//! `flags` for whose flag wins, `layout` for who gets which GPUs.

mod file;
mod flags;
mod layout;
#[cfg(test)]
mod tests;
mod yaml;

pub use file::ServerFile;

use super::check::Check;
use super::problem::Problem;
use super::{Resolved, Verb, units};
use slime_rollout::pool::Part;
use slime_rollout::pool::launch::Sglang;
use std::path::PathBuf;
use std::time::Duration;

/// With this flag SGLang tells which experts a token went to.
const TELLS_EXPERTS: &str = "--enable-return-routed-experts";

/// Servers to launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchPlan {
    /// What stands before the flags.
    pub command: Vec<String>,
    /// From start to first answer.
    pub start_timeout: Duration,
    /// The key that asks for them.
    pub asked_by: &'static str,
    /// The models they serve; one of them is the policy.
    pub models: Vec<ServedModel>,
}

/// One model and its servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedModel {
    /// What its servers call it.
    pub name: String,
    /// An HF directory.
    pub path: PathBuf,
    /// Who asks it.
    pub usage: Usage,
    /// Its servers.
    pub groups: Vec<ServerGroup>,
}

/// Who asks a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// Generators; it gets every new version of the weights.
    Policy,
    /// The trainer, which distils from it.
    Teacher,
    /// Judges, by its name.
    Judge,
}

/// Servers that are alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerGroup {
    /// Which part of a request they do.
    pub part: Part,
    /// How many.
    pub num_servers: usize,
    /// GPUs of one. `None` leaves devices to the server.
    pub gpus_per_server: Option<u32>,
    /// The first one's first GPU.
    pub base_gpu: u32,
    /// Flags, verbatim.
    pub args: Vec<String>,
}

/// The servers that `said` asks for.
pub fn launch_plan(said: &Resolved, verb: Verb, check: &mut Check<'_>) -> Option<LaunchPlan> {
    let r = &said.config.rollout;
    let samples = matches!(verb, Verb::Run | Verb::Rollout | Verb::Eval);
    let timeout = r.engine_start_timeout.as_deref().map(units::duration);
    let plan = |asked_by, models| LaunchPlan {
        command: r
            .engine_command
            .clone()
            .unwrap_or_else(Sglang::stock_command),
        // A text that is no duration was refused by `check`.
        start_timeout: timeout
            .clone()
            .and_then(Result::ok)
            .unwrap_or(Duration::from_secs(900)),
        asked_by,
        models,
    };
    let mut plan = match &r.sglang_config {
        Some(path) if samples => {
            let name = path.display().to_string();
            let text = std::fs::read_to_string(path).map_err(|e| {
                let problem = Problem::new(format!("cannot read {name}: {e}"))
                    .help("--sglang-config takes the path of a YAML file")
                    .at(said.place("rollout.sglang_config"));
                vec![problem]
            });
            let models = text
                .and_then(|text| ServerFile::parse(&name, &text))
                .and_then(|file| layout::models(&file, said, verb));
            match models {
                Ok(models) => plan("rollout.sglang_config", models),
                Err(problems) => {
                    problems.into_iter().for_each(|problem| check.add(problem));
                    return None;
                }
            }
        }
        Some(_) => return None,
        None => plan("rollout.num_engines", vec![alike(said)?]),
    };
    if said.config.algorithm.use_rollout_routing_replay == Some(true) {
        let policies = plan.models.iter_mut();
        let policies = policies.filter(|model| model.usage == Usage::Policy);
        for group in policies.flat_map(|model| &mut model.groups) {
            if !group.args.iter().any(|arg| arg == TELLS_EXPERTS) {
                group.args.push(TELLS_EXPERTS.into());
            }
        }
    }
    Some(plan)
}

/// Whether servers are to be launched.
pub fn asked(said: &Resolved) -> bool {
    let r = &said.config.rollout;
    r.sglang_config.is_some() || num_alike(said).is_some()
}

/// How many servers there are without a file.
fn num_alike(said: &Resolved) -> Option<u32> {
    let r = &said.config.rollout;
    let by_gpus = r
        .num_gpus
        .filter(|_| r.sglang_config.is_none())
        .map(|gpus| gpus / r.num_gpus_per_engine.unwrap_or(1).max(1));
    r.num_engines.or(by_gpus)
}

/// Servers of the policy, all alike.
fn alike(said: &Resolved) -> Option<ServedModel> {
    let r = &said.config.rollout;
    let group = ServerGroup {
        part: Part::Whole,
        num_servers: num_alike(said)? as usize,
        gpus_per_server: r.num_gpus_per_engine.or(r.num_gpus.map(|_| 1)),
        base_gpu: r.base_gpu_id.unwrap_or(0),
        args: r.sglang_args.clone().unwrap_or_default(),
    };
    Some(ServedModel {
        name: "policy".into(),
        path: said.config.model.path.clone().unwrap_or_default(),
        usage: Usage::Policy,
        groups: vec![group],
    })
}
