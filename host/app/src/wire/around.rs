//! What a recipe puts around its verifier: verdicts kept for rollouts that say the same, and a second verifier whose
//! disagreement is reported.

use super::plugins;
use crate::config::plan::Plan;
use crate::config::{Problem, Resolved};
use crate::telemetry::Console;
use slime_core::ports::Verifier;
use slime_runtime::{Memoised, Plugin, Runtime, Shadowed};
use std::sync::Arc;

/// The second verifier, where the recipe names one.
///
/// # Errors
/// It cannot be loaded, or scores nothing.
pub fn shadow(
    runtime: &Runtime,
    plan: &Plan,
    said: &Resolved,
    console: &Console,
) -> Result<Option<Plugin>, Problem> {
    let Some(path) = &plan.shadow else {
        return Ok(None);
    };
    let at = |problem: Problem| problem.at(said.place("run.shadow"));
    let grants = plugins::granted(&plan.grants, path);
    let plugin = plugins::load(runtime, path, plan.limits, grants.clone(), console)
        .map_err(|error| at(plugins::problem(&error)))?;
    plugin
        .verifier()
        .map_err(|error| at(plugins::problem(&error)))?;
    let services = plugins::services(runtime, &grants);
    plugin.serve(services.map_err(|error| at(Problem::new(error.to_string())))?);
    Ok(Some(plugin))
}

/// `verifier` as the run calls it.
pub fn around(
    verifier: Arc<dyn Verifier>,
    plan: &Plan,
    shadow: Option<&Plugin>,
) -> Arc<dyn Verifier> {
    let kept = |verifier: Arc<dyn Verifier>| -> Arc<dyn Verifier> {
        if plan.memoise {
            Arc::new(Memoised::new(verifier))
        } else {
            verifier
        }
    };
    let first = kept(verifier);
    match shadow.and_then(|plugin| plugin.verifier().ok()) {
        Some(second) => Arc::new(Shadowed::new(first, kept(second))),
        None => first,
    }
}
