//! Plugins loaded anew while a run goes on: SIGUSR1 asks for it, and the next step begins with them.
//!
//! Who drives rollouts and who scores them one by one is replaced; prompts, filters, group verifiers and shapers stay as
//! they were. A group that has begun, ahead of its step for example, ends with the plugins that it began with, so no
//! baseline compares two of them. What cannot be loaded changes nothing.

use super::Reload;
use super::opened::Opened;
use super::run_dir;
use crate::config::{Plan, Resolved};
use crate::error::Result;
use crate::telemetry::Console;
use crate::wire::{Model, Plugins, RunScoring, rollout_failed};
use slime_core::Step;
use slime_rollout::Buffer;
use slime_rollout::collect::Driver;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Everybody whose plugins change, and what it takes to load them.
pub struct Hot {
    plan: Plan,
    said: Resolved,
    model: Arc<Model>,
    buffer: Arc<Buffer>,
    console: Console,
    training: Driver,
    /// Of held-out sets, in order.
    sets: Vec<Driver>,
    asked: Arc<AtomicBool>,
}

impl Hot {
    /// Listen from now on.
    pub fn listen(
        opened: &Opened,
        buffer: &Arc<Buffer>,
        console: &Console,
        training: Driver,
        sets: impl Iterator<Item = Driver>,
    ) -> Self {
        let asked = Arc::new(AtomicBool::new(false));
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            let (asked, console) = (Arc::clone(&asked), console.clone());
            tokio::spawn(async move {
                let Ok(mut signals) = signal(SignalKind::user_defined1()) else {
                    return;
                };
                while signals.recv().await.is_some() {
                    asked.store(true, Relaxed);
                    console.line(" plugins will be loaded anew before the next step");
                }
            });
        }
        Self {
            plan: opened.plan.clone(),
            said: opened.said.clone(),
            model: Arc::clone(&opened.model),
            buffer: Arc::clone(buffer),
            console: console.clone(),
            training,
            sets: sets.collect(),
            asked,
        }
    }

    fn load(&self) -> Result<(Plugins, RunScoring)> {
        let mut plan = self.plan.clone();
        // The agents that are connected stay.
        plan.gateway = None;
        let plugins = Plugins::open(&plan, &self.said, &self.console)?;
        let only = plugins.only_source().map(|plugin| plugin.name());
        let scoring = RunScoring::new(&plan, &plugins.scorers, only, &self.said, true)?;
        Ok((plugins, scoring))
    }
}

impl Reload for Hot {
    fn before(&self, step: Step) -> Result<()> {
        if !self.asked.swap(false, Relaxed) {
            return Ok(());
        }
        if self.plan.gateway.is_some() {
            self.console
                .line(" a run with a gateway does not load plugins anew");
            return Ok(());
        }
        let (plugins, scoring) = match self.load() {
            Ok(loaded) => loaded,
            Err(error) => {
                self.console
                    .line(&format!(" the plugins stay as they are: {error}"));
                return Ok(());
            }
        };
        let identity = run_dir::identity(&self.said, &self.model, &plugins);
        self.buffer.renew(step, &identity).map_err(rollout_failed)?;
        self.training
            .relieve(plugins.generator.clone(), &scoring.training);
        for (index, set) in self.sets.iter().enumerate() {
            let own = scoring.sets.get(index).unwrap_or(&scoring.training);
            set.relieve(plugins.generator.clone(), own);
        }
        self.console
            .line(&format!(" from step {step} on: {}", identity.summary));
        Ok(())
    }
}
