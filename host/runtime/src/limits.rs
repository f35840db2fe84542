//! What one plugin call may use, and what the operator grants a plugin.
//!
//! Numbers only: [`crate::call`] enforces them, [`crate::sandbox`] hands the grants out.

use crate::host::http;
use crate::units;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Budgets of one call. Each is separate; running out is an outcome of the rollout, not an error of the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Time in which the guest itself runs. Waiting for the policy or in a queue is not billed.
    #[serde(with = "units::duration")]
    pub cpu: Duration,
    /// Time a verifier's or source's call may take from start to answer.
    #[serde(with = "units::duration")]
    pub wall: Duration,
    /// The same for a generator's call, which mostly waits for the policy.
    #[serde(with = "units::duration")]
    pub rollout_wall: Duration,
    /// Linear memory, all of the instance's memories together.
    #[serde(with = "units::bytes")]
    pub memory_bytes: u64,
    /// Bytes that cross between guest and host in one direction of one call.
    #[serde(with = "units::bytes")]
    pub hostcall_bytes: u64,
    /// Calls into the host.
    pub host_calls: u64,
    /// Tokens that a generator may sample, all of its trajectories together, or that a judge may have a model write.
    pub tokens: u64,
    /// Programs that one call may run, where `code_exec` is granted.
    pub programs: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            cpu: Duration::from_secs(2),
            wall: Duration::from_secs(10),
            rollout_wall: Duration::from_secs(30 * 60),
            memory_bytes: 256 << 20,
            hostcall_bytes: 16 << 20,
            host_calls: 100_000,
            tokens: 262_144,
            programs: 256,
        }
    }
}

/// Capabilities beyond the empty sandbox. The default grants nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Grants {
    /// The real time of day and a real stopwatch; without it clocks are virtual and start at the same instant in
    /// every call.
    pub clock: bool,
    /// Real randomness; without it random numbers follow from the call's seed.
    pub random: bool,
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// Directories to be read: path inside the sandbox → path outside.
    pub files: BTreeMap<String, PathBuf>,
    /// Running programs in a sandbox of their own, each within these budgets.
    pub code_exec: Option<ProgramLimits>,
    /// Bytes that all values of one scope of `kv` may hold together.
    #[serde(with = "units::optional_bytes")]
    pub kv: Option<u64>,
    /// Servers that may be asked over HTTP: `https://host`, `http://host:port`; scheme, host and port are compared
    /// literally.
    pub http: Vec<String>,
    /// Models of the pool that may be asked, by name.
    pub models: Vec<String>,
}

/// The most that one program of `code-exec` gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProgramLimits {
    /// Time in which it computes.
    #[serde(with = "units::duration")]
    pub cpu: Duration,
    /// Memory that it holds.
    #[serde(with = "units::bytes")]
    pub memory_bytes: u64,
    /// Bytes of each of its outputs that are kept.
    #[serde(with = "units::bytes")]
    pub output_bytes: u64,
}

impl Default for ProgramLimits {
    fn default() -> Self {
        Self {
            cpu: Duration::from_secs(5),
            memory_bytes: 256 << 20,
            output_bytes: 64 << 10,
        }
    }
}

impl Grants {
    /// Whether a request can ever match what is granted; if not, why.
    ///
    /// # Errors
    /// A server under `http` that is no address of one.
    pub fn check(&self) -> Result<(), String> {
        self.http
            .iter()
            .try_for_each(|url| http::server(url).map(drop))
    }

    /// Whether same input and seed still give the same result.
    pub fn is_deterministic(&self) -> bool {
        !self.clock
            && !self.random
            && self.files.is_empty()
            && self.kv.is_none()
            && self.http.is_empty()
            && self.models.is_empty()
    }

    /// The same, with whatever a component may ask for: enough to look at it, not to run it for anything.
    #[must_use]
    pub fn looking(&self) -> Self {
        let mut all = self.clone();
        all.code_exec.get_or_insert_default();
        all.kv.get_or_insert(0);
        if all.http.is_empty() {
            all.http.push("http://nowhere.invalid".into());
        }
        if all.models.is_empty() {
            all.models.push(String::new());
        }
        all
    }

    /// The grants in words, for `inspect`; empty where there are none.
    pub fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        if self.clock {
            names.push("clock".into());
        }
        if self.random {
            names.push("random".into());
        }
        if let Some(limits) = &self.code_exec {
            names.push(format!(
                "code-exec ({} and {} a program)",
                units::duration::text(limits.cpu),
                units::bytes::text(limits.memory_bytes)
            ));
        }
        if let Some(bytes) = self.kv {
            names.push(format!("kv ({} a scope)", units::bytes::text(bytes)));
        }
        names.extend(self.http.iter().map(|server| format!("http {server}")));
        names.extend(self.models.iter().map(|model| format!("model {model}")));
        names.extend(self.env.keys().map(|key| format!("env {key}")));
        names.extend(
            self.files
                .iter()
                .map(|(guest, host)| format!("files {guest} = {} (read only)", host.display())),
        );
        names
    }
}
