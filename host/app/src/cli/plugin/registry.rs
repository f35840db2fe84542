//! `slime-host plugin push` and `plugin pull`.

use super::super::{Context, Outcome};
use crate::config::plan::LimitsPlan;
use crate::error::{Result, at_path};
use crate::wire::plugins;
use crate::wire::registry::{self, Reference};
use slime_runtime::Grants;
use std::path::Path;

/// Load it as a run would, so that nothing broken is shared, and put it there.
///
/// # Errors
/// It does not load, or the registry does not take it.
pub fn push(plugin: &Path, reference: &str, context: &Context) -> Result<Outcome> {
    let to = Reference::parse(reference)?;
    let runtime = plugins::start()?;
    let looking = Grants::default().looking();
    let limits = LimitsPlan::default();
    let loaded = plugins::load(&runtime, plugin, limits, looking, &context.console);
    let description = loaded.map_err(|e| plugins::problem(&e))?.describe();
    let path = plugins::component(plugin, &context.console).map_err(|e| plugins::problem(&e))?;
    let bytes = std::fs::read(&path).map_err(at_path(&path))?;
    let push = registry::push(&to, bytes, &description.imports, &description.worlds);
    let pinned = super::super::block_on(push)??;
    super::super::data(&format!("{pinned}\n"))
}

/// Get it.
///
/// # Errors
/// There is none, or it was changed on the way.
pub fn pull(reference: &str, out: &Path) -> Result<Outcome> {
    let from = Reference::parse(reference)?;
    let (bytes, pinned) = super::super::block_on(registry::pull(&from))??;
    std::fs::write(out, bytes).map_err(at_path(out))?;
    super::super::data(&format!("{pinned}\n"))
}
