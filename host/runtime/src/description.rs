//! What `plugin inspect` shows of a loaded component.

use crate::{Limits, units};
use serde::Serialize;
use std::fmt;

/// A loaded component in words and numbers; [`fmt::Display`] is for people, serde for programs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Description {
    /// What metrics and messages call it.
    pub name: String,
    /// Name and version that the plugin gives itself.
    pub about: Option<(String, String)>,
    /// The worlds that this host runs.
    pub worlds: Vec<String>,
    /// What the component imports; WASI meets an empty context.
    pub imports: Vec<String>,
    /// Capabilities that it asks for and an operator may grant.
    pub asks: Vec<String>,
    /// Names of the tools it offers.
    pub tools: Vec<String>,
    /// `sha256:…` of the component.
    pub digest: String,
    /// Size of the component.
    pub size_bytes: u64,
    /// Smallest and largest reward, of a verifier.
    pub reward_range: Option<(f64, f64)>,
    /// Rows of one epoch, of a source that has any.
    pub num_rows: Option<u64>,
    /// Budgets of one call.
    pub limits: Limits,
    /// Capabilities granted beyond the empty sandbox.
    pub grants: Vec<String>,
    /// Whether same input and seed give the same result.
    pub is_deterministic: bool,
    /// Whether its compiled form came from the cache.
    pub was_cached: bool,
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let about = self
            .about
            .as_ref()
            .map_or(String::new(), |(name, version)| {
                format!(" ({name} {version})")
            });
        writeln!(f, "{}{about}", self.name)?;
        let mut row = |key: &str, value: String| writeln!(f, "  {key:<13}{value}");
        row("worlds", self.worlds.join(", "))?;
        if let Some((min, max)) = self.reward_range {
            row("reward", format!("{min} to {max}"))?;
        }
        if let Some(rows) = self.num_rows {
            row("rows", rows.to_string())?;
        }
        if !self.tools.is_empty() {
            row("tools", self.tools.join(", "))?;
        }
        if !self.asks.is_empty() {
            row("asks for", self.asks.join(", "))?;
        }
        row("size", units::bytes::text(self.size_bytes))?;
        row("digest", self.digest.clone())?;
        row(
            "grants",
            if self.grants.is_empty() {
                "none".into()
            } else {
                self.grants.join(", ")
            },
        )?;
        row(
            "repeatable",
            if self.is_deterministic {
                "yes: same input and seed, same result"
            } else {
                "no"
            }
            .into(),
        )?;
        let limits = &self.limits;
        row("cpu", units::duration::text(limits.cpu))?;
        row(
            "wall",
            format!(
                "{}, a rollout {}",
                units::duration::text(limits.wall),
                units::duration::text(limits.rollout_wall)
            ),
        )?;
        row("memory", units::bytes::text(limits.memory_bytes))?;
        row(
            "crossing",
            format!(
                "{} in one direction of a call",
                units::bytes::text(limits.hostcall_bytes)
            ),
        )?;
        row("host calls", limits.host_calls.to_string())?;
        row("tokens", limits.tokens.to_string())?;
        let mut imports = self.imports.iter();
        row(
            "imports",
            imports.next().map_or("nothing".into(), Clone::clone),
        )?;
        for import in imports {
            row("", import.clone())?;
        }
        Ok(())
    }
}
