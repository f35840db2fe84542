//! `slime-host inspect`: a run's rows as a table, and what stands in its directory.

use super::mask::{self, Color};
use super::{Context, Outcome};
use crate::config::{Problem, schema};
use crate::error::Result;
use crate::job::run_dir;
use crate::telemetry::console::{COLUMNS, step_line};
use crate::telemetry::{Row, metrics, report};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// What to look at.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run directories; two are compared
    #[arg(required = true, num_args = 1..=2)]
    runs: Vec<PathBuf>,
    /// Show every step instead of at most 20
    #[arg(long)]
    all: bool,
    /// Print one metric of every step, tab-separated
    #[arg(long, value_name = "NAME")]
    metric: Option<String>,
    /// Print one rollout, the tokens that train in colour
    #[arg(long, value_name = "ROLLOUT_ID", conflicts_with = "metric")]
    mask: Option<u64>,
    /// When --mask writes colours
    #[arg(long, value_enum, default_value_t, requires = "mask")]
    color: Color,
}

/// Do it.
///
/// # Errors
/// A directory holds no run.
pub fn run(args: Args, context: &Context) -> Result<Outcome> {
    let files = args.runs.iter().filter(|path| path.is_file());
    super::collected(files.map(|path| file_given(path)).collect())?;
    if let (Some(id), Some(dir)) = (args.mask, args.runs.first()) {
        return mask::run(dir, id, args.color);
    }
    let mut runs = Vec::new();
    let mut problems = Vec::new();
    for dir in &args.runs {
        match metrics::read_counting(dir) {
            Ok((rows, num_torn)) => {
                if num_torn > 0 {
                    let file = dir.join("metrics.jsonl");
                    let said = format!(
                        " left out what could not be read: {num_torn} of {} lines in {}",
                        rows.len() + num_torn,
                        file.display()
                    );
                    context.console.line(&said);
                }
                runs.push((dir, rows));
            }
            Err(e) => problems.push(
                Problem::new(match e.kind() {
                    std::io::ErrorKind::NotFound => format!("there is no run at {}", dir.display()),
                    _ => format!("{}: {e}", dir.join("metrics.jsonl").display()),
                })
                .help("give a run's directory, like runs/arith-42"),
            ),
        }
    }
    super::collected(problems)?;
    let mut text = String::new();
    if let Some(name) = &args.metric {
        for (dir, rows) in &runs {
            series(dir, rows, name, &mut text)?;
        }
        return super::data(&text);
    }
    for (dir, rows) in &runs {
        describe(dir, rows, args.all, &mut text);
    }
    if let [(a, first), (b, second)] = &runs[..] {
        compare((a, first), (b, second), &mut text);
    }
    super::data(&text)
}

fn file_given(path: &Path) -> Problem {
    let run = path
        .parent()
        .filter(|run| run.join("metrics.jsonl").exists());
    Problem::new(format!("{} is a file", path.display())).help(match run {
        Some(run) => format!("give the run's directory: {}", run.display()),
        None => "give a run's directory, like runs/arith-42".into(),
    })
}

fn describe(dir: &Path, rows: &[Row], all: bool, text: &mut String) {
    let _ = writeln!(text, "{}: {} steps", dir.display(), rows.len());
    if let Some((first, last)) = report::reward(rows) {
        let _ = writeln!(
            text,
            " reward {first:.3} → {last:.3} (first and last tenth)"
        );
    }
    let _ = writeln!(text, "{COLUMNS}");
    let every = if all {
        1
    } else {
        rows.len().div_ceil(20).max(1)
    };
    for (index, row) in rows
        .iter()
        .enumerate()
        .filter(|(index, _)| index % every == 0 || index + 1 == rows.len())
    {
        let step = row
            .get("rollout/step")
            .or_else(|| row.get("train/step"))
            .map_or(index as u64, |step| step as u64);
        let _ = writeln!(text, "{}", step_line(step, row, (0.0, 1.0)));
    }
    let failures: Vec<String> = slime_core::Outcome::KINDS[1..]
        .iter()
        .filter_map(|kind| {
            let count: f64 = rows
                .iter()
                .filter_map(|row| row.get(&format!("rollout/outcome/{kind}")))
                .sum();
            (count > 0.0).then(|| format!("{count} {kind}"))
        })
        .collect();
    if !failures.is_empty() {
        let _ = writeln!(text, " not scored: {}", failures.join(", "));
    }
    let files: Vec<&str> = [
        report::FILE,
        run_dir::MODEL,
        run_dir::CHECKPOINTS,
        run_dir::DATABASE,
        "tensorboard",
        "trace.json",
    ]
    .into_iter()
    .filter(|file| dir.join(file).exists())
    .collect();
    let _ = writeln!(text, " files: {}\n", files.join("  "));
}

fn series(dir: &Path, rows: &[Row], name: &str, text: &mut String) -> Result<()> {
    if !rows.iter().any(|row| row.0.contains_key(name)) {
        let mut known: Vec<&str> = rows
            .iter()
            .flat_map(Row::numbers)
            .map(|(name, _)| name)
            .collect();
        known.sort_unstable();
        known.dedup();
        let help = meant(name, &known);
        return Err(
            Problem::new(format!("{} has no metric {name}", dir.display()))
                .help(help)
                .into(),
        );
    }
    for (index, row) in rows.iter().enumerate() {
        let value = row
            .0
            .get(name)
            .map_or_else(String::new, ToString::to_string);
        let _ = writeln!(
            text,
            "{}\t{value}",
            row.get("rollout/step")
                .map_or(index as u64, |step| step as u64)
        );
    }
    Ok(())
}

/// What was probably meant by `name`, or all that is known: a name a line, because it is cut where a line ends.
fn meant(name: &str, known: &[&str]) -> String {
    let mut near: Vec<&str> = known
        .iter()
        .copied()
        .filter(|known| known.split('/').any(|part| part == name))
        .collect();
    if near.is_empty() {
        near.extend(schema::nearest(name, known.iter().map(|k| (*k, *k))));
    }
    match &near[..] {
        [] => format!("it has\n{}", known.join("\n")),
        [one] => format!("did you mean {one}?"),
        several => format!("did you mean one of these?\n{}", several.join("\n")),
    }
}

/// The first step at which two runs differ, and in what.
fn compare((a, first): (&Path, &[Row]), (b, second): (&Path, &[Row]), text: &mut String) {
    let is_clock = |name: &str| name.starts_with("perf/");
    for (step, (x, y)) in first.iter().zip(second).enumerate() {
        let differing: Vec<String> =
            x.0.iter()
                .filter(|(name, value)| !is_clock(name) && y.0.get(*name) != Some(value))
                .map(|(name, value)| {
                    format!(
                        "{name}: {value} and {}",
                        y.0.get(name)
                            .map_or_else(|| "absent".into(), ToString::to_string)
                    )
                })
                .collect();
        if !differing.is_empty() {
            let _ = writeln!(
                text,
                "{} and {} differ from step {step} on:\n  {}",
                a.display(),
                b.display(),
                differing.join("\n  ")
            );
            return;
        }
    }
    let steps = first.len().min(second.len());
    let _ = writeln!(
        text,
        "{} and {} are equal in all {steps} steps they share, clocks aside",
        a.display(),
        b.display()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_found_by_a_part_of_its_name_or_all_are_listed_one_a_line() {
        let known = [
            "perf/actor_train_tok_per_s",
            "rollout/reward",
            "train/kl",
            "rollout/kl",
        ];
        assert_eq!(meant("reward", &known), "did you mean rollout/reward?");
        assert_eq!(
            meant("rollout/rewrd", &known),
            "did you mean rollout/reward?"
        );
        assert_eq!(
            meant("kl", &known),
            "did you mean one of these?\ntrain/kl\nrollout/kl"
        );
        let all = meant("nothing of the kind", &known);
        assert_eq!(all, format!("it has\n{}", known.join("\n")));
    }
}
