//! What a person sees while a run goes on: a header, one line a step, a bar with the time left on a terminal, and a
//! closing summary that names the files.
//!
//! Everything goes to stderr; stdout belongs to data. With `--log json` it says nothing, the log does.

use super::metrics::Row;
use super::report::is_eval;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Write, stderr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// The bars on the screen, shared with the log so that neither overwrites the other.
static BARS: LazyLock<MultiProgress> =
    LazyLock::new(|| MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(8)));

/// How to talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Voice {
    /// Lines, and a bar where stderr is a terminal.
    People,
    /// Nothing; a machine reads the log.
    Silent,
}

/// Talks to the person at the keyboard.
#[derive(Clone)]
pub struct Console {
    voice: Voice,
    terminal: bool,
}

/// A long task with an end. Cheap to clone; the bar goes when the last clone does.
#[derive(Clone)]
pub struct Progress {
    shown: Arc<Shown>,
}

struct Shown {
    bar: Option<ProgressBar>,
}

impl Console {
    /// For this process's stderr.
    pub fn new(voice: Voice) -> Self {
        Self {
            voice,
            terminal: stderr().is_terminal(),
        }
    }

    /// One line.
    pub fn line(&self, text: &str) {
        if self.voice == Voice::People {
            above_bars(format!("{text}\n").as_bytes());
        }
    }

    /// Do something that takes a while: a spinner on a terminal, a line elsewhere.
    pub fn doing<T>(&self, what: &str, work: impl FnOnce() -> T) -> T {
        if self.voice == Voice::Silent {
            return work();
        }
        if !self.terminal {
            self.line(&format!(" {what} …"));
            return work();
        }
        let spinner = BARS.add(ProgressBar::new_spinner().with_message(what.to_owned()));
        spinner.enable_steady_tick(Duration::from_millis(120));
        let result = work();
        spinner.finish_and_clear();
        BARS.remove(&spinner);
        result
    }

    /// A bar with an ETA where stderr is a terminal, else nothing: the caller's lines are the progress.
    pub fn progress(&self, what: &'static str, total: u64) -> Progress {
        let bar = (self.voice == Voice::People && self.terminal).then(|| {
            let style = ProgressStyle::with_template(
                " {prefix} {wide_bar:.cyan/dim} {pos}/{len} {elapsed} · {eta} left {msg}",
            )
            .unwrap_or_else(|_| ProgressStyle::default_bar());
            let bar = ProgressBar::new(total)
                .with_style(style.progress_chars("━╸─"))
                .with_prefix(what);
            BARS.add(bar)
        });
        Progress {
            shown: Arc::new(Shown { bar }),
        }
    }
}

impl Progress {
    /// One more is done.
    pub fn advance(&self) {
        if let Some(bar) = &self.shown.bar {
            bar.inc(1);
        }
    }

    /// So many are done already; they say nothing of the time left.
    pub fn set(&self, done: u64) {
        if let Some(bar) = &self.shown.bar {
            bar.set_position(done);
            bar.reset_eta();
        }
    }

    /// So many are done now.
    pub fn set_exact(&self, done: u64) {
        if let Some(bar) = &self.shown.bar {
            bar.set_position(done);
        }
    }

    /// What is being done now.
    pub fn say(&self, what: String) {
        if let Some(bar) = &self.shown.bar {
            bar.set_message(what);
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
            BARS.remove(bar);
        }
    }
}

/// Write to stderr without tearing a bar.
pub fn above_bars(text: &[u8]) {
    // Nobody is left to be told when stderr is gone.
    BARS.suspend(|| drop(stderr().write_all(text)));
}

/// What the header says of a run, as pairs of name and text.
pub fn header(pairs: &[(&str, String)]) -> String {
    let lines = pairs.chunks(2).map(|pair| {
        let text = |(name, value): &(&str, String)| format!("{name:<9}{value}");
        match pair {
            [left, right] => format!(" {:<58} {}", text(left), text(right)),
            _ => format!(" {}", pair.iter().map(text).collect::<String>()),
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Names of the columns of [`step_line`].
pub const COLUMNS: &str = " step   reward     eval    lag   loss      kl        gap      tok/s   sample ▸ train ▸ publish (s)";

/// One step on one line. `range` is the range of rewards.
pub fn step_line(step: u64, row: &Row, range: (f64, f64)) -> String {
    let number =
        |name: &str, form: fn(f64) -> String| row.get(name).map_or_else(|| "–".into(), form);
    let reward = row.get("rollout/reward");
    let seconds = |name: &str| number(name, |s| format!("{s:.2}"));
    format!(
        "{step:>5}   {:>6} {}   {:>6}  {:>3}   {:>8}  {:>8}  {:>7}  {:>6}   {} ▸ {} ▸ {}",
        number("rollout/reward", |r| format!("{r:.3}")),
        reward.map_or(' ', |r| spark(r, range)),
        eval(row).map_or_else(String::new, |r| format!("{r:.3}")),
        number("rollout/lag/max", |l| format!("{l:.0}")),
        number("train/loss", |l| format!(
            "{:+.4}",
            if l.abs() < 5e-5 { 0.0 } else { l }
        )),
        number("train/ppo_kl", |k| format!("{k:.1e}")),
        number("train/train_rollout_logprob_abs_diff_max", |g| format!(
            "{g:.0e}"
        )),
        number("perf/tokens_per_sec", |t| format!("{t:.0}")),
        seconds("perf/rollout_time"),
        seconds("perf/train_time"),
        seconds("perf/update_weights_time"),
    )
}

/// The first data set's mean reward.
fn eval(row: &Row) -> Option<f64> {
    row.numbers()
        .find(|(name, _)| is_eval(name))
        .map(|(_, value)| value)
}

/// A bar from ▁ to █.
fn spark(value: f64, (low, high): (f64, f64)) -> char {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let share = if high > low {
        (value - low) / (high - low)
    } else {
        0.0
    };
    BARS[(share.clamp(0.0, 1.0) * 7.0).round() as usize]
}

/// What a run ends with: one sentence, and the files there are.
pub fn summary(sentence: &str, dir: &Path, files: &[&str], next: &[String]) -> String {
    let there: Vec<String> = files
        .iter()
        .filter(|file| dir.join(file).exists())
        .map(|file| (*file).to_owned())
        .collect();
    let dir: PathBuf = dir.into();
    let mut text = format!(
        " {sentence} Run saved in {}: {}",
        dir.display(),
        there.join("  ")
    );
    if !next.is_empty() {
        text.push_str(&format!("\n next:  {}", next.join("      ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_one_line_under_its_columns() {
        let mut row = Row::at("rollout/step", 7);
        for (name, value) in [
            ("rollout/reward", 0.5),
            ("rollout/lag/max", 0.0),
            ("eval/step", 8.0),
            ("eval/arith", 0.625),
            ("eval/arith/response_len/mean", 4.0),
            ("train/loss", -0.0123),
            ("train/ppo_kl", 2.5e-4),
            ("train/train_rollout_logprob_abs_diff_max", 3e-6),
            ("perf/tokens_per_sec", 5123.4),
            ("perf/rollout_time", 0.61),
            ("perf/train_time", 0.4),
            ("perf/update_weights_time", 0.05),
        ] {
            row.set(name, value);
        }
        let lines = format!(
            "{COLUMNS}\n{}\n{}",
            step_line(7, &row, (0.0, 1.0)),
            step_line(8, &Row::default(), (0.0, 1.0))
        );
        insta::assert_snapshot!(lines);
    }

    #[test]
    fn the_reward_bar_spans_the_verifiers_range() {
        assert_eq!(
            [
                spark(-1.0, (-1.0, 1.0)),
                spark(0.0, (-1.0, 1.0)),
                spark(1.0, (-1.0, 1.0))
            ],
            ['▁', '▅', '█']
        );
    }
}
