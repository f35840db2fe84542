//! `log`: a plugin's lines go to the host's log, clipped and counted.

use crate::bindings::log::{Host, Level};
use crate::context::Context;
use crate::host::clip;

/// Bytes of a line that are kept.
const LINE_BYTES: usize = 2048;

impl Host for Context {
    fn log(&mut self, level: Level, message: String) -> wasmtime::Result<()> {
        self.count_host_call()?;
        if !self.log_lines.take(1) {
            return Ok(());
        }
        let (plugin, message) = (&*self.plugin.name, clip(&message, LINE_BYTES));
        match level {
            Level::Trace => tracing::trace!(target: "plugin", plugin, message),
            Level::Debug => tracing::debug!(target: "plugin", plugin, message),
            Level::Info => tracing::info!(target: "plugin", plugin, message),
            Level::Warn => tracing::warn!(target: "plugin", plugin, message),
            Level::Error => tracing::error!(target: "plugin", plugin, message),
        }
        Ok(())
    }
}
