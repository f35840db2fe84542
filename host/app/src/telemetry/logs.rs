//! The log: warnings on stderr by default, everything as JSON with `--log json`, chosen by `RUST_LOG`.

use super::console::above_bars;
use super::trace::Trace;
use std::io::{self, IsTerminal, Write};
use tracing_subscriber::filter::{EnvFilter, LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Start logging and hand back the trace that a run may open.
pub fn start(format: LogFormat) -> Trace {
    let default = match format {
        LogFormat::Text => "warn",
        LogFormat::Json => "warn,slime_host=info",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let trace = Trace::default();
    let spans = Targets::new().with_target("slime", LevelFilter::INFO);
    let text = || tracing_subscriber::fmt::layer().with_writer(Stderr);
    let colors =
        io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let log = match format {
        LogFormat::Text => text()
            .with_target(false)
            .with_ansi(colors)
            .without_time()
            .boxed(),
        LogFormat::Json => text().json().flatten_event(true).boxed(),
    };
    // A second start (in tests) keeps the first subscriber.
    let _ = tracing_subscriber::registry()
        .with(trace.clone().with_filter(spans))
        .with(log.with_filter(filter))
        .try_init();
    trace
}

/// Writes above the progress bars.
#[derive(Clone, Copy)]
struct Stderr;

impl<'a> MakeWriter<'a> for Stderr {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line(Vec::new())
    }
}

/// One event's bytes, written at once.
struct Line(Vec<u8>);

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        above_bars(&self.0);
    }
}
