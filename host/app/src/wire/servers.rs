//! Servers beside this process: those it launches, and those given by address.
//!
//! It reads what they say about themselves and changes nothing of it. Read `engine` for how they become a pool.

use super::{refused, rollout_failed};
use crate::config::plan::ModelPlan;
use crate::config::servers::{LaunchPlan, ServedModel, ServerGroup, Usage};
use crate::config::{Problem, Resolved};
use crate::error::Result;
use slime_model::hf;
use slime_rollout::pool::Seat;
use slime_rollout::pool::endpoint::server_info::server_info;
use slime_rollout::pool::launch::{Care, Fleet, HeldPorts, Sglang, hold_ports, seats, specs};
use slime_rollout::{Address, Pool};
use std::path::Path;

/// Places kept for the servers of a plan. Judges and the teacher are told of theirs before any server runs.
pub struct Places {
    ports: HeldPorts,
    groups: Vec<Sglang>,
    /// Who is asked at each group's servers.
    asked: Vec<(Usage, String, Vec<Seat>)>,
}

impl Places {
    /// Keep a port for every server of `plan`.
    ///
    /// # Errors
    /// The machine has none left.
    pub fn keep(plan: &LaunchPlan) -> Result<Self> {
        let groups: Vec<Sglang> = plan
            .models
            .iter()
            .flat_map(|model| model.groups.iter().map(|group| sglang(plan, model, group)))
            .collect();
        let ports = hold_ports(&groups).map_err(rollout_failed)?;
        let usages = plan
            .models
            .iter()
            .flat_map(|model| model.groups.iter().map(|_| (model.usage, &model.name)));
        let asked = usages
            .zip(seats(&groups, ports.numbers()))
            .map(|((usage, name), seats)| (usage, name.clone(), seats))
            .collect();
        Ok(Self {
            ports,
            groups,
            asked,
        })
    }

    /// Tell `plan` where its teacher and its judges will be.
    pub fn tell(&self, plan: &mut ModelPlan) {
        for (usage, name, seats) in &self.asked {
            let addresses = seats.iter().map(|seat| seat.address.to_string());
            match usage {
                Usage::Policy => {}
                Usage::Teacher => plan.teacher_servers.extend(addresses),
                Usage::Judge => {
                    let servers = plan.judge_servers.entry(name.clone()).or_default();
                    servers.extend(addresses);
                }
            }
        }
    }

    /// The policy's servers.
    pub fn policy(&self) -> Vec<Seat> {
        let policy = self
            .asked
            .iter()
            .filter(|(usage, ..)| *usage == Usage::Policy);
        policy.flat_map(|(_, _, seats)| seats.clone()).collect()
    }

    /// All servers.
    pub fn num_servers(&self) -> usize {
        self.asked.iter().map(|(_, _, seats)| seats.len()).sum()
    }
}

fn sglang(plan: &LaunchPlan, model: &ServedModel, group: &ServerGroup) -> Sglang {
    Sglang {
        command: plan.command.clone(),
        model: std::path::absolute(&model.path).unwrap_or_else(|_| model.path.clone()),
        name: model.name.clone(),
        args: group.args.clone(),
        gpus_per_server: group.gpus_per_server,
        base_gpu: group.base_gpu,
        num_servers: group.num_servers,
        part: group.part,
    }
}

/// Launch the servers of `plan` at their places and wait until they answer. Their output goes to `logs`.
///
/// # Errors
/// A server that does not come up, in its own words.
pub async fn launch(
    plan: &LaunchPlan,
    places: &Places,
    said: &Resolved,
    logs: &Path,
) -> Result<Fleet> {
    let specs = specs(&places.groups, places.ports.numbers(), logs).map_err(rollout_failed)?;
    let care = Care {
        start_timeout: plan.start_timeout,
        ..Care::default()
    };
    places.ports.release();
    Fleet::start(specs, care).await.map_err(|e| {
        Problem::new(e.to_string())
            .help(format!(
                "everything the servers wrote is in {}; `rollout.engine_command` says what launches them",
                logs.display()
            ))
            .at(said.place(plan.asked_by).or_else(|| said.place("rollout.num_gpus")))
            .into()
    })
}

/// The addresses given.
///
/// # Errors
/// One that is none.
pub fn attached(servers: &[String], said: &Resolved) -> Result<Vec<Address>> {
    let addresses = servers.iter().map(|text| Address::parse(text));
    let addresses = addresses.collect::<Result<Vec<_>, _>>();
    addresses.map_err(|e| {
        Problem::new(e.to_string())
            .at(said.place("rollout.external_engine_addrs"))
            .into()
    })
}

/// The router's address, where one is given.
///
/// # Errors
/// It is none.
pub fn router(address: Option<&str>, said: &Resolved) -> Result<Option<Address>> {
    let parsed = address.map(Address::parse).transpose();
    parsed.map_err(|e| refused(said, &["rollout.router_addr"], e).into())
}

/// What servers say about themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Tokens that each of them holds for one request.
    pub context_tokens: usize,
    /// The type all of them hold weights in, or f32.
    pub dtype: hf::Dtype,
}

/// Ask every server. `context_tokens` is the model's; `dtype` its file's, which `auto` stands for.
///
/// # Errors
/// A server that does not answer.
pub async fn ask(pool: &Pool, context_tokens: usize, dtype: hf::Dtype) -> Result<Facts> {
    let (mut limit, mut dtypes) = (context_tokens, Vec::new());
    for server in pool.servers() {
        let info = server_info(server)
            .await
            .map_err(|e| Problem::new(format!("{}: {e}", server.address())))?;
        for said in [info.context_length(), info.max_total_tokens()] {
            limit = limit.min(said.map_or(usize::MAX, |n| n as usize));
        }
        dtypes.push(match info.dtype() {
            Some("bfloat16") => hf::Dtype::Bf16,
            Some("half" | "float16") => hf::Dtype::F16,
            Some("float" | "float32") => hf::Dtype::F32,
            _ => dtype,
        });
    }
    // Where they differ, what one of them needs in full does no other one harm.
    dtypes.dedup();
    Ok(Facts {
        context_tokens: limit,
        dtype: match dtypes.as_slice() {
            [one] => *one,
            _ => hf::Dtype::F32,
        },
    })
}
