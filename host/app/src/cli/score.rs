//! `slime-host score`: run a verifier offline, with budgets and accounting.

use super::{Context, Outcome};
use crate::config::plan::LimitsPlan;
use crate::config::{Problem, units};
use crate::error::{Failure, Result, at_path, input};
use crate::wire::plugins;
use serde_json::Value;
use slime_rollout::whole::Place;
use slime_runtime::{Plugin, RuntimeError};
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

/// What to score.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Component (.wasm) or plugin folder
    plugin: PathBuf,
    /// Lines of {"prompt", "response", "label", "metadata"}
    #[arg(long, value_name = "FILE.jsonl")]
    input: PathBuf,
    /// Lines of {"index", "outcome", "reward", "metrics", "cpu_ms", "wall_ms", "peak_memory_bytes"}
    #[arg(long, value_name = "FILE.jsonl")]
    output: PathBuf,
    /// Time in which the guest runs, for one call
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    cpu: Option<std::time::Duration>,
    /// Time from call to answer
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    wall: Option<std::time::Duration>,
    /// Linear memory
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    memory: Option<u64>,
    /// Fixes the randomness that the plugin may see
    #[arg(long, value_name = "N", default_value_t = 42)]
    seed: u64,
    /// Score with a second plugin too, and list the rows on which they differ
    #[arg(long, value_name = "PLUGIN")]
    compare: Option<PathBuf>,
    #[command(flatten)]
    grants: super::plugin::GrantArgs,
    /// `seed=N`, as for a run
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
}

/// Do it.
///
/// # Errors
/// The plugin or a row cannot be used.
pub fn run(args: Args, context: &Context) -> Result<Outcome> {
    let seed = seed(&args)?;
    let limits = LimitsPlan {
        cpu: args.cpu,
        wall: args.wall,
        memory_bytes: args.memory,
    };
    let runtime = plugins::start()?;
    let grants = args.grants.read()?;
    let load = |path: &Path| {
        let plugin = plugins::load(&runtime, path, limits, grants.clone(), &context.console)
            .map_err(|e| plugins::problem(&e))?;
        plugin.serve(plugins::services(&runtime, &grants)?);
        Ok::<_, Failure>(plugin)
    };
    super::two_files(("--input", &args.input), ("--output", &args.output))?;
    if rows(&args.input)? == 0 {
        let problem = Problem::new(format!("{} has no rows", args.input.display()));
        let row = "a row is {\"prompt\": \"2 + 2\", \"response\": \"4\", \"label\": \"4\", \"metadata\": {}}";
        return Err(problem.help(row).into());
    }
    let first = load(&args.plugin)?;
    super::writable(&args.output)?;
    let output = BufWriter::new(Late::new(&args.output));
    score(&first, &args.input, seed, output, context)?;
    let Some(other) = &args.compare else {
        return Ok(Outcome::Done);
    };
    let mut second = Vec::new();
    score(&load(other)?, &args.input, seed, &mut second, context)?;
    let first = std::fs::read_to_string(&args.output).map_err(at_path(&args.output))?;
    let report = compare(&first, &String::from_utf8_lossy(&second));
    super::data(&report)
}

/// A file that is emptied by its first byte, so that what cannot be scored leaves an older one as it is.
struct Late {
    path: PathBuf,
    file: Option<File>,
}

impl Late {
    fn new(path: &Path) -> Self {
        Self {
            path: path.into(),
            file: None,
        }
    }
}

impl Write for Late {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(match Place::of(&self.path) {
                Place::File(path) => File::create(path)?,
                // Standard output may be a file that holds something already.
                Place::Stream => File::options().append(true).open(&self.path)?,
            }),
        };
        file.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.as_mut().map_or(Ok(()), File::flush)
    }
}

/// Rows on which two plugins differ, one a line, and how many there are.
fn compare(first: &str, second: &str) -> String {
    let said = |line: &str| {
        let row: Value = serde_json::from_str(line).unwrap_or_default();
        match row["reward"].as_f64() {
            Some(reward) => reward.to_string(),
            None => row["outcome"].as_str().unwrap_or_default().to_owned(),
        }
    };
    let (mut report, mut flips, mut rows) = (String::from("index\tfirst\tsecond\n"), 0, 0);
    for (index, (a, b)) in first.lines().zip(second.lines()).enumerate() {
        rows += 1;
        let (a, b) = (said(a), said(b));
        if a != b {
            flips += 1;
            report.push_str(&format!("{index}\t{a}\t{b}\n"));
        }
    }
    report.push_str(&format!("{flips} of {rows} rows differ\n"));
    report
}

fn score(
    plugin: &Plugin,
    path: &PathBuf,
    seed: u64,
    output: impl std::io::Write,
    context: &Context,
) -> Result<()> {
    let rows_in = BufReader::new(File::open(path).map_err(input(path))?);
    let total = rows(path)?;
    let bar = context.console.progress("rows", total);
    let summary = slime_runtime::score(plugin, seed, rows_in, output, |done| bar.set_exact(done))
        .map_err(|e| match e {
        RuntimeError::BadRow { line, reason } => {
            let problem = Problem::new(format!("{}: line {line}: {reason}", path.display()));
            Failure::from(problem.help("nothing was scored; correct the line"))
        }
        RuntimeError::NoWorld { .. } => plugins::problem(&e).into(),
        other => Failure::run(other.to_string()),
    })?;
    drop(bar);
    let outcomes: Vec<String> = summary
        .outcomes
        .iter()
        .map(|(kind, count)| format!("{count} {kind}"))
        .collect();
    let mean = summary
        .mean_reward
        .map_or_else(String::new, |mean| format!(", mean reward {mean:.4}"));
    let rate = summary.num_rows as f64 / summary.elapsed.as_secs_f64().max(1e-9);
    context.console.line(&format!(
        " {} rows: {}{mean}; {rate:.0} a second, {:.3} ms of guest time each",
        summary.num_rows,
        outcomes.join(", "),
        summary.cpu.as_secs_f64() * 1e3 / summary.num_rows.max(1) as f64
    ));
    Ok(())
}

fn seed(args: &Args) -> Result<u64> {
    let mut seed = args.seed;
    let mut problems = Vec::new();
    for set in &args.sets {
        match set.split_once('=') {
            Some(("seed", value)) if value.trim().parse::<u64>().is_ok() => {
                seed = value.trim().parse().unwrap_or(seed)
            }
            Some(("seed", _)) => problems.push(
                Problem::new(format!(
                    "--set {set}: the seed is no whole number of 0 or more"
                ))
                .help("write --set seed=N, like seed=42"),
            ),
            _ => problems.push(
                Problem::new(format!("--set {set} has no effect in `score`"))
                    .help("only --set seed=N has"),
            ),
        }
    }
    super::collected(problems)?;
    Ok(seed)
}

fn rows(path: &PathBuf) -> Result<u64> {
    let bytes = std::fs::read(path).map_err(input(path))?;
    Ok(bytes
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.trim_ascii().is_empty())
        .count() as u64)
}

#[cfg(test)]
mod tests {
    use super::compare;

    #[test]
    fn two_plugins_are_compared_row_by_row_and_failures_are_no_zeros() {
        let first =
            "{\"outcome\":\"scored\",\"reward\":1.0}\n{\"outcome\":\"scored\",\"reward\":0.0}\n";
        let second =
            "{\"outcome\":\"scored\",\"reward\":1.0}\n{\"outcome\":\"timeout\",\"reward\":null}\n";
        assert_eq!(
            compare(first, second),
            "index\tfirst\tsecond\n1\t0\ttimeout\n1 of 2 rows differ\n"
        );
        assert!(compare(first, first).ends_with("\n0 of 2 rows differ\n"));
    }
}
