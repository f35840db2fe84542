//! What plugins are granted, trusted with and limited to.

use super::Resolved;
use crate::config::check::Check;
use slime_runtime::Grants;
use slime_runtime::trust::PublicKey;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

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

/// Keys that must have signed every plugin.
pub(super) fn trusted(said: &Resolved, check: &mut Check<'_>) -> Vec<PublicKey> {
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
pub(super) fn gateway(said: &Resolved, check: &mut Check<'_>) -> Option<GatewayPlan> {
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
pub(super) fn grants(said: &Resolved, check: &mut Check<'_>) -> BTreeMap<String, Grants> {
    let mut all = BTreeMap::new();
    for (name, value) in &said.config.grants {
        match value.clone().try_into::<Grants>() {
            Ok(grants) => {
                if let Err(why) = grants.check() {
                    let help = "write http = [\"http://HOST:PORT\"], a server a string";
                    check.refuse("grants", format!("grants.{name}.http: {why}"), help);
                }
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
