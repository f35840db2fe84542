//! Servers beside this process: those it launches, and those given by address.
//!
//! It reads what they say about themselves and changes nothing of it. Read `engine` for how they become a pool.

use super::{refused, rollout_failed};
use crate::config::plan::LaunchPlan;
use crate::config::{Problem, Resolved};
use crate::error::Result;
use slime_model::hf;
use slime_rollout::pool::endpoint::server_info::server_info;
use slime_rollout::pool::launch::{Care, Fleet, Sglang};
use slime_rollout::{Address, Pool};
use std::path::Path;

/// What servers call the model of a run.
pub const POLICY: &str = "policy";

/// Launch the servers of `plan` and wait until they answer. Their output goes to `logs`.
///
/// # Errors
/// A server that does not come up, in its own words.
pub async fn launch(plan: &LaunchPlan, said: &Resolved, logs: &Path) -> Result<Fleet> {
    let sglang = Sglang {
        command: plan.command.clone(),
        model: std::path::absolute(&plan.model).unwrap_or_else(|_| plan.model.clone()),
        name: POLICY.into(),
        args: plan.args.clone(),
        gpus_per_server: plan.gpus_per_server,
        base_gpu: plan.base_gpu,
        num_servers: plan.num_servers,
    };
    let specs = sglang.specs(logs).map_err(rollout_failed)?;
    let care = Care {
        start_timeout: plan.start_timeout,
        ..Care::default()
    };
    Fleet::start(specs, care).await.map_err(|e| {
        Problem::new(e.to_string())
            .help(format!(
                "everything the servers wrote is in {}; `rollout.engine_command` says what launches them",
                logs.display()
            ))
            .at(said.place("rollout.num_engines"))
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
