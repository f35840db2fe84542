//! Processes of one run on one or many machines: who starts them, and what they know of each other.
//!
//! Placing them is somebody else's: Ray, Slurm, torchrun, mpirun. `contract` is what a rank is told (torchrun's variables),
//! `node` what a node agent finds out from whichever of those started it, `agent` how it keeps its ranks. None of them knows
//! what a rank computes; `job::processes` does. Read `contract` first.

pub mod agent;
pub mod contract;
pub mod hosts;
pub mod node;
pub mod output;

use std::collections::BTreeMap;

/// Environment variables, as they are or as a test has them.
#[derive(Clone, Debug, Default)]
pub struct Env(pub BTreeMap<String, String>);

impl Env {
    /// This process's.
    pub fn own() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self(std::env::vars_os().filter_map(text).collect())
    }

    /// A variable that says something.
    pub fn get(&self, name: &str) -> Option<&str> {
        let value = self.0.get(name).map(|value| value.trim());
        value.filter(|value| !value.is_empty())
    }

    /// The first of `names` that says something, and which it was.
    pub fn first<'a>(&self, names: &[&'a str]) -> Option<(&str, &'a str)> {
        names.iter().find_map(|name| Some((self.get(name)?, *name)))
    }
}
