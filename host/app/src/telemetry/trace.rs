//! `trace.json`: the run's spans on a time line, for Perfetto or `chrome://tracing`.
//!
//! A `tracing` layer that writes a span when it closes, with the fields it had. One lane for the loop and its parts,
//! one for the sampler, so overlap is visible. The list is left open while the run goes on; readers accept that.

use serde_json::{Map, Value, json};
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

/// Spans of the loop's lane.
const LOOP: [&str; 10] = [
    "sft", "step", "train", "forward", "backward", "reduce", "update", "publish", "save", "eval",
];
/// Spans of the sampler's lane.
const SAMPLER: [&str; 1] = ["collect"];
const END: &str = "\n]\n";

/// Where spans go; cheap to clone. Empty until a run opens a file.
#[derive(Clone, Default)]
pub struct Trace(Arc<Mutex<Option<Writer>>>);

struct Writer {
    file: BufWriter<File>,
    start: Instant,
    /// Microseconds already on the time line of a resumed run.
    offset_us: u64,
}

impl Trace {
    /// The file's name in a run's directory.
    pub const FILE: &str = "trace.json";

    /// Write to `dir` from now on, after what a resumed run wrote before.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn open(&self, dir: &Path, resume: bool) -> io::Result<()> {
        let path = dir.join(Self::FILE);
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(!resume)
            .read(true)
            .write(true)
            .open(path)?;
        let offset_us = if resume { reopen(&mut file)? } else { 0 };
        let mut file = BufWriter::new(file);
        if file.stream_position()? == 0 {
            write!(file, "[{}", lane(1, "loop"))?;
            write!(file, ",\n{}", lane(2, "sampler"))?;
        }
        *self.lock() = Some(Writer {
            file,
            start: Instant::now(),
            offset_us,
        });
        Ok(())
    }

    /// Close the list.
    pub fn close(&self) {
        if let Some(mut writer) = self.lock().take() {
            // A trace that cannot be finished is still readable, and no reason to fail a run.
            let _ = writer
                .file
                .write_all(END.as_bytes())
                .and_then(|()| writer.file.flush());
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Writer>> {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn lane(tid: u32, name: &str) -> Value {
    json!({"name": "thread_name", "ph": "M", "pid": 1, "tid": tid, "args": {"name": name}})
}

/// Cut the end of the list, or a torn last line, and find the end of the time line.
fn reopen(file: &mut File) -> io::Result<u64> {
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let whole = text.trim_end_matches(END).trim_end_matches(",\n");
    let keep = if whole.ends_with('}') {
        whole.len()
    } else {
        whole.rfind(",\n").unwrap_or(0)
    };
    file.set_len(keep as u64)?;
    file.seek(SeekFrom::End(0))?;
    let ends = text[..keep].lines().filter_map(|line| {
        let event: Value =
            serde_json::from_str(line.trim_start_matches('[').trim_end_matches(',')).ok()?;
        Some(event.get("ts")?.as_u64()? + event.get("dur")?.as_u64()?)
    });
    Ok(ends.max().unwrap_or(0))
}

struct Open {
    since: Instant,
    lane: u32,
    fields: Map<String, Value>,
}

impl<S> Layer<S> for Trace
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let name = attributes.metadata().name();
        let lane = match name {
            name if LOOP.contains(&name) => 1,
            name if SAMPLER.contains(&name) => 2,
            _ => return,
        };
        let mut open = Open {
            since: Instant::now(),
            lane,
            fields: Map::new(),
        };
        attributes.record(&mut Fields(&mut open.fields));
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(open);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(open) = span.extensions_mut().get_mut::<Open>()
        {
            values.record(&mut Fields(&mut open.fields));
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else {
            return;
        };
        let Some(open) = span.extensions_mut().remove::<Open>() else {
            return;
        };
        if let Some(writer) = self.lock().as_mut() {
            let since_start = open
                .since
                .saturating_duration_since(writer.start)
                .as_micros() as u64;
            let event = json!({
                "name": span.name(), "ph": "X", "pid": 1, "tid": open.lane,
                "ts": writer.offset_us + since_start,
                "dur": open.since.elapsed().as_micros() as u64,
                "args": open.fields,
            });
            // As in `close`: a full disk must not end the run from inside a span.
            let _ = write!(writer.file, ",\n{event}").and_then(|()| writer.file.flush());
        }
    }
}

struct Fields<'a>(&'a mut Map<String, Value>);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0
            .insert(field.name().into(), format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().into(), value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::layer::SubscriberExt;

    fn events(dir: &Path) -> Vec<Value> {
        serde_json::from_str(&std::fs::read_to_string(dir.join(Trace::FILE)).unwrap()).unwrap()
    }

    #[test]
    fn a_resumed_run_continues_the_time_line() {
        let dir = tempfile::tempdir().unwrap();
        let trace = Trace::default();
        let subscriber = tracing_subscriber::registry().with(trace.clone());
        tracing::subscriber::with_default(subscriber, || {
            trace.open(dir.path(), false).unwrap();
            tracing::info_span!("step", step = 0u64)
                .in_scope(|| tracing::info_span!("train").in_scope(|| ()));
            tracing::info_span!("elsewhere").in_scope(|| ());
            trace.close();
            assert_eq!(events(dir.path()).len(), 4);
            trace.open(dir.path(), true).unwrap();
            tracing::info_span!("step", step = 1u64).in_scope(|| ());
            trace.close();
        });
        let events = events(dir.path());
        let steps: Vec<_> = events.iter().filter(|e| e["name"] == "step").collect();
        assert_eq!((steps.len(), &steps[1]["args"]["step"]), (2, &json!(1)));
        assert!(steps[1]["ts"].as_u64() >= steps[0]["ts"].as_u64());
        let (train, step) = (&events[2], &events[3]);
        assert_eq!(
            (&train["name"], &step["name"]),
            (&json!("train"), &json!("step"))
        );
        assert!(
            train["ts"].as_u64() >= step["ts"].as_u64(),
            "a part begins after its whole"
        );
    }
}
