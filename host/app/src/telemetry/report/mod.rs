//! `report.svg`: a run on one page, made from its `metrics.jsonl`.
//!
//! Six charts, those that tell a healthy run from a broken one. The chart itself is `chart`'s.

mod chart;

use super::metrics::Row;
use chart::{Area, COLORS, Chart, Mark, Series, escape, short};
use std::cmp::Ordering;
use std::fmt::Write;

/// The file's name in a run's directory.
pub const FILE: &str = "report.svg";

const WIDTH: f64 = 1240.0;
const HEAD: f64 = 84.0;
const GAP: f64 = 16.0;
const TILE: (f64, f64) = ((WIDTH - 3.0 * GAP) / 2.0, 300.0);

/// The page for the rows of a run. `title` is the run's name, `facts` what it trained.
pub fn render(title: &str, facts: &str, rows: &[Row]) -> String {
    let charts = charts(rows);
    let height = HEAD + charts.len().div_ceil(2) as f64 * (TILE.1 + GAP) + GAP;
    let mut out = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"><style>.h{{font-size:22px;font-weight:700;fill:#0f172a}}.t{{font-size:15px;font-weight:600;fill:#0f172a}}.n{{font-size:12px;fill:#64748b}}.l{{font-size:12px;fill:#334155}}.a{{font-size:11px;fill:#64748b}}</style><rect width="100%" height="100%" fill="#f8fafc"/>"##
    );
    let _ = write!(
        out,
        r#"<text x="{GAP}" y="38" class="h">{}</text>"#,
        escape(title)
    );
    let _ = write!(
        out,
        r#"<text x="{GAP}" y="62" class="n">{}</text>"#,
        escape(facts)
    );
    if let Some((first, last)) = reward(rows) {
        let text = format!("reward {} → {}", short(first), short(last));
        let x = WIDTH - GAP;
        let _ = write!(
            out,
            r#"<text x="{x}" y="38" class="h" text-anchor="end" style="fill:{}">{text}</text>"#,
            COLORS[0]
        );
        let _ = write!(
            out,
            r#"<text x="{x}" y="62" class="n" text-anchor="end">mean of the first and last tenth of {} steps</text>"#,
            rows.len()
        );
    }
    for (index, chart) in charts.iter().enumerate() {
        let (column, line) = ((index % 2) as f64, (index / 2) as f64);
        let (x, y) = (GAP + column * (TILE.0 + GAP), HEAD + line * (TILE.1 + GAP));
        chart.draw(
            Area {
                x,
                y,
                w: TILE.0,
                h: TILE.1,
            },
            &mut out,
        );
    }
    out.push_str("</svg>\n");
    out
}

/// Mean reward of the first and of the last tenth of a run.
pub fn reward(rows: &[Row]) -> Option<(f64, f64)> {
    let rewards: Vec<f64> = rows
        .iter()
        .filter_map(|row| row.get("rollout/reward"))
        .collect();
    let part = rewards.len().div_ceil(10);
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    (!rewards.is_empty()).then(|| {
        (
            mean(&rewards[..part]),
            mean(&rewards[rewards.len() - part..]),
        )
    })
}

/// How a reward moved, by what is shown of it.
pub fn moved(first: f64, last: f64) -> String {
    let (first, last) = (format!("{first:.2}"), format!("{last:.2}"));
    let shown = |text: &str| text.parse::<f64>().unwrap_or(f64::NAN);
    let verb = match shown(&last).total_cmp(&shown(&first)) {
        Ordering::Equal => return format!("reward stayed at {first}. "),
        Ordering::Greater => "rose",
        Ordering::Less => "went",
    };
    format!("reward {verb} from {first} to {last}. ")
}

fn charts(rows: &[Row]) -> Vec<Chart> {
    let series = |name: &str, metric: &str, mark| Series {
        name: name.into(),
        points: points(rows, metric),
        mark,
    };
    let mut rewards = vec![series("rollouts", "rollout/reward", Mark::Smoothed)];
    // An evaluation is of the weights after as many steps as it says, not of the row's.
    let evals = |metric: &str| {
        rows.iter()
            .filter_map(|row| Some((row.get("eval/step")?, row.get(metric)?)))
            .collect()
    };
    rewards.extend(eval_names(rows).into_iter().map(|metric| Series {
        name: metric.replace("eval/", "held-out "),
        points: evals(&metric),
        mark: Mark::Dots,
    }));
    let chart = |title, note, log, from_zero, series: Vec<Series>| Chart {
        title,
        note,
        log,
        from_zero,
        series: series
            .into_iter()
            .map(|s| s.drawable(log))
            .filter(|s| !s.points.is_empty())
            .collect(),
    };
    vec![
        chart(
            "Reward",
            "mean of scored rollouts, before shaping",
            false,
            true,
            rewards,
        ),
        chart(
            "Trainer against engine",
            "|log-prob gap| of the same token: a rise means a wrong system",
            true,
            false,
            vec![
                series("mean", "train/train_rollout_logprob_abs_diff", Mark::Line),
                series(
                    "max",
                    "train/train_rollout_logprob_abs_diff_max",
                    Mark::Line,
                ),
                series("ppo_kl", "train/ppo_kl", Mark::Line),
                series("KL to reference", "train/kl_loss", Mark::Line),
            ],
        ),
        chart(
            "Entropy and clipping",
            "nats a token; share of tokens at the clip",
            false,
            true,
            vec![
                series("entropy", "train/entropy", Mark::Smoothed),
                series("clipped", "train/pg_clipfrac", Mark::Line),
            ],
        ),
        chart(
            "Response length",
            "tokens",
            false,
            true,
            vec![
                series("median", "rollout/response_len/median", Mark::Line),
                series("longest", "rollout/response_len/max", Mark::Line),
                series("mean", "rollout/response_len/mean", Mark::Line),
            ],
        ),
        chart(
            "Throughput",
            "tokens a second",
            false,
            true,
            vec![
                series("sampled", "perf/tokens_per_sec", Mark::Smoothed),
                series("trained", "perf/actor_train_tok_per_s", Mark::Smoothed),
            ],
        ),
        chart(
            "Where a step goes",
            "seconds",
            false,
            true,
            vec![
                series("sample + score", "perf/rollout_time", Mark::Stacked),
                series("train", "perf/train_time", Mark::Stacked),
                series("publish", "perf/update_weights_time", Mark::Stacked),
            ],
        ),
    ]
}

fn points(rows: &[Row], metric: &str) -> Vec<(f64, f64)> {
    rows.iter()
        .filter_map(|row| Some((row.get("rollout/step")?, row.get(metric)?)))
        .collect()
}

/// `eval/<name>` of every data set, without its parts.
fn eval_names(rows: &[Row]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (name, _) in rows.iter().flat_map(Row::numbers) {
        if is_eval(name) && !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    names
}

/// Whether a metric is the mean reward of a held-out data set.
pub fn is_eval(name: &str) -> bool {
    name.strip_prefix("eval/").is_some_and(|name| {
        let part = name.contains("-pass@") || name.ends_with("-truncated_ratio");
        name != "step" && !name.contains('/') && !part
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reward_rises_where_what_is_shown_of_it_does() {
        assert_eq!(moved(0.126, 0.134), "reward stayed at 0.13. ");
        assert_eq!(moved(0.13, 0.14), "reward rose from 0.13 to 0.14. ");
        assert_eq!(moved(0.5, -0.5), "reward went from 0.50 to -0.50. ");
    }

    /// A run as it might be, for looking at: `SLIME_REPORT=file cargo test -p slime-host a_report`.
    #[test]
    fn a_report_shows_every_chart_of_a_run() {
        let rows: Vec<Row> = (0..80u64)
            .map(|step| {
                let (t, mut row) = (step as f64 / 80.0, Row::at("rollout/step", step));
                let noise = |k: u64| ((step * 7919 + k * 104_729) % 101) as f64 / 101.0 - 0.5;
                row.set(
                    "rollout/reward",
                    0.1 + 0.85 / (1.0 + (-12.0 * (t - 0.4)).exp()) + 0.08 * noise(1),
                );
                if step % 10 == 0 {
                    row.set_count("eval/step", step);
                    row.set("eval/arith", 0.1 + 0.85 / (1.0 + (-12.0 * (t - 0.4)).exp()));
                }
                row.set(
                    "train/train_rollout_logprob_abs_diff",
                    3e-7 * (1.0 + noise(2)),
                );
                row.set(
                    "train/train_rollout_logprob_abs_diff_max",
                    9e-6 * (1.0 + noise(3)),
                );
                row.set("train/ppo_kl", 2e-4 * (1.0 + noise(4)));
                row.set("train/entropy", 1.6 - 1.3 * t + 0.1 * noise(5));
                row.set("train/pg_clipfrac", 0.02 + 0.02 * noise(6));
                row.set("rollout/response_len/median", 4.0 + noise(7));
                row.set("rollout/response_len/max", 7.0 + noise(8));
                row.set("perf/tokens_per_sec", 5200.0 + 600.0 * noise(9));
                row.set("perf/actor_train_tok_per_s", 9100.0 + 900.0 * noise(10));
                row.set("perf/rollout_time", 0.6 + 0.1 * noise(11));
                row.set("perf/train_time", 0.4 + 0.05 * noise(12));
                row.set("perf/update_weights_time", 0.05 + 0.01 * noise(13));
                row
            })
            .collect();
        let svg = render(
            "demo-42",
            "tiny · 1.4 M parameters · grpo 16 × 8 · cpu",
            &rows,
        );
        for title in [
            "Reward",
            "held-out arith",
            "Trainer against engine",
            "Where a step goes",
        ] {
            assert!(svg.contains(title), "{title}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("not measured"));
        if let Ok(path) = std::env::var("SLIME_REPORT") {
            std::fs::write(path, svg).unwrap();
        }
    }

    #[test]
    fn a_run_without_steps_still_has_a_page() {
        assert!(render("empty", "", &[]).contains("not measured in this run"));
    }
}
