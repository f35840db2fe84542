//! `slime-host plugin test` and `plugin bench`: a plugin's own cases, and what its calls cost.

use super::super::{Context, Outcome};
use crate::config::Problem;
use crate::config::plan::LimitsPlan;
use crate::error::{Failure, Result, input};
use crate::wire::plugins;
use slime_core::ports::ScoreRequest;
use slime_runtime::{Grants, Plugin, Runtime, RuntimeError};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Generators that wait at once while they are measured, and slots for them.
const IN_FLIGHT: usize = 4096;
const BENCH_SLOTS: u32 = 4096;
const CASES: &str = "docs/book/plugin-cases.md shows a case of every world";

/// Run the cases; exit 1 where one fails.
///
/// # Errors
/// The plugin cannot be loaded, or the file is no file of cases.
pub fn test(
    path: &Path,
    cases: Option<PathBuf>,
    grants: &Grants,
    context: &Context,
) -> Result<Outcome> {
    let file = cases_file(path, cases)?;
    let text = std::fs::read_to_string(&file).map_err(input(&file))?;
    let plugin = load(path, grants, context)?;
    let cases = plugin.run_cases(&text).map_err(|e| failure(&file, e))?;
    if cases.is_empty() {
        let problem = Problem::new(format!("there is no case in {}", file.display()));
        return Err(problem.help(CASES).into());
    }
    let mut lines = String::new();
    let mut failed = 0;
    for case in cases.iter().filter(|case| !case.differences.is_empty()) {
        failed += 1;
        for (member, wanted, found) in &case.differences {
            lines.push_str(&format!(
                "✗ {}:{}  {member}: expected {wanted}, found {found}\n",
                file.display(),
                case.line
            ));
        }
    }
    let passed = cases.len() - failed;
    lines.push_str(&format!("{passed} passed, {failed} failed\n"));
    super::super::data(&lines)?;
    Ok(if failed == 0 {
        Outcome::Done
    } else {
        Outcome::NotWell
    })
}

/// Measure.
///
/// # Errors
/// As [`test`]; the plugin is neither a verifier nor a generator.
pub fn bench(
    path: &Path,
    cases: Option<PathBuf>,
    seconds: u64,
    grants: &Grants,
    context: &Context,
) -> Result<Outcome> {
    let file = cases_file(path, cases)?;
    let text = std::fs::read_to_string(&file).map_err(input(&file))?;
    let items = items(&text);
    let runtime = plugins::start_with_slots(BENCH_SLOTS)?;
    let component = plugins::component(path, &context.console).map_err(|e| plugins::problem(&e))?;
    let name = plugins::name(path);
    let plugin = load_as(&runtime, &component, &name, grants)?;
    let measured = measured(&plugin)?;
    let time = Duration::from_secs(seconds.clamp(1, 3600));
    let again = std::time::Instant::now();
    // Compiled a moment ago, so this reads the component and its machine code, and tries it: what a start costs.
    load_as(&runtime, &component, &name, grants)?;
    let loaded_in = again.elapsed();
    if measured == Measured::InFlight {
        return bench_generator(&plugin, loaded_in, &file, context);
    }
    let costs = context
        .console
        .doing("measuring", || plugin.bench(&items, time))
        .map_err(|e| failure(&file, e))?;
    let us = |time: Duration| format!("{:.1} µs", time.as_secs_f64() * 1e6);
    let pair = |(median, p99): (Duration, Duration)| format!("{:<12} p99 {}", us(median), us(p99));
    let megabytes = costs.peak_memory_bytes as f64 / f64::from(1 << 20);
    super::super::data(&format!(
        "load         {}\ninstantiate  {}\ncall         {}\nguest time   {}\nthroughput   {:.0} calls a second on {} threads\n\
         memory       {megabytes:.1} MiB\nhost calls   {}\ntimers       at most {} late\nended        {}\n",
        ms(loaded_in),
        pair(costs.start),
        pair(costs.call),
        us(costs.cpu),
        costs.calls_per_second,
        costs.threads,
        costs.host_calls,
        ms(costs.timers_late),
        costs.outcome
    ))
}

/// What of a plugin is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Measured {
    Calls,
    InFlight,
}

fn measured(plugin: &Plugin) -> Result<Measured> {
    let worlds = plugin.worlds();
    let exports = |names: &[&str]| worlds.iter().any(|world| names.contains(world));
    if exports(&["verifier", "judge"]) {
        return Ok(Measured::Calls);
    }
    if exports(&["generator"]) {
        return Ok(Measured::InFlight);
    }
    let (name, worlds) = (plugin.name(), worlds.join(" and "));
    Err(Problem::new(format!("{name} cannot be measured: it exports {worlds}"))
        .help("`plugin bench` measures verifiers, judges and generators; `plugin test` runs the cases of every plugin")
        .into())
}

/// A generator mostly waits: what counts is what many of them hold meanwhile.
fn bench_generator(
    plugin: &Plugin,
    loaded_in: Duration,
    file: &Path,
    context: &Context,
) -> Result<Outcome> {
    let found = context
        .console
        .doing("measuring", || plugin.bench_in_flight(IN_FLIGHT, "4"))
        .map_err(|e| failure(file, e))?;
    super::super::data(&format!(
        "load         {}\nin flight    {} rollouts hold {:.1} MiB\nstarted in   {}\nended in     {}\nended        {}\n",
        ms(loaded_in),
        found.count,
        found.resident_bytes as f64 / f64::from(1 << 20),
        ms(found.started_in),
        ms(found.ended_in),
        found.outcome
    ))
}

fn ms(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

/// What a file of cases asks a verifier.
fn items(text: &str) -> Vec<ScoreRequest> {
    let rows = text
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    rows.filter_map(|row| {
        let input = row.get("input")?;
        let text = |key: &str| input.get(key).and_then(|v| v.as_str()).map(str::to_owned);
        Some(ScoreRequest {
            prompt: text("prompt").unwrap_or_default(),
            response: text("response")?,
            label: text("label"),
            metadata: input
                .get("metadata")
                .and_then(|m| m.as_object().cloned())
                .unwrap_or_default(),
            ..ScoreRequest::default()
        })
    })
    .collect()
}

fn cases_file(path: &Path, cases: Option<PathBuf>) -> Result<PathBuf> {
    if !path.exists() {
        let missing = RuntimeError::Read {
            path: path.into(),
            source: std::io::ErrorKind::NotFound.into(),
        };
        return Err(plugins::problem(&missing).into());
    }
    if cases.is_none() && path.is_file() {
        let message = format!(
            "{} is a component, and its cases are not named",
            path.display()
        );
        let help = "name them: --cases FILE.jsonl; a plugin's folder has its own";
        return Err(Problem::new(message).help(help).into());
    }
    let file = cases.unwrap_or_else(|| path.join("cases.jsonl"));
    // Whatever is there is tried: a pipe is no regular file, and holds cases all the same.
    if file.exists() && !file.is_dir() {
        return Ok(file);
    }
    Err(
        Problem::new(format!("there are no cases at {}", file.display()))
            .help("write some, a JSON object a line, or name the file: --cases FILE.jsonl")
            .into(),
    )
}

fn load(path: &Path, grants: &Grants, context: &Context) -> Result<Plugin> {
    let component = plugins::component(path, &context.console).map_err(|e| plugins::problem(&e))?;
    load_as(&plugins::start()?, &component, &plugins::name(path), grants)
}

fn load_as(runtime: &Runtime, component: &Path, name: &str, grants: &Grants) -> Result<Plugin> {
    let limits = LimitsPlan::default();
    let plugin = plugins::load_as(runtime, component, name, limits, grants.clone())
        .map_err(|e| plugins::problem(&e))?;
    plugin.serve(plugins::services(runtime, grants)?);
    Ok(plugin)
}

fn failure(file: &Path, error: RuntimeError) -> Failure {
    match error {
        RuntimeError::BadRow { line, reason } => {
            Problem::new(format!("{}: line {line}: {reason}", file.display()))
                .help(CASES)
                .into()
        }
        other => plugins::problem(&other).into(),
    }
}
