//! A step's stages as lanes of an SVG: coloured where a stage is busy, empty where it waits for another.

use super::replay::Outcome;
use std::fmt::Write;

const WIDTH: f64 = 1200.0;
const LEFT: f64 = 70.0;
const LANE: f64 = 22.0;

/// One lane a recorded rank, named by `label`.
pub fn timeline(outcome: &Outcome, title: &str, label: impl Fn(usize) -> String) -> String {
    let height = 60.0 + LANE * outcome.ranks.len() as f64;
    let scale = (WIDTH - LEFT - 10.0) / outcome.step_s.max(f64::MIN_POSITIVE);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"system-ui, DejaVu Sans, sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"18\">{title}</text>\n"
    );
    for (lane, rank) in outcome.ranks.iter().enumerate() {
        let y = 30.0 + LANE * lane as f64;
        let name = label(rank.rank);
        // Writing to a String cannot fail.
        let _ = writeln!(svg, "<text x=\"4\" y=\"{}\">{name}</text>", y + 14.0);
        let _ = writeln!(
            svg,
            "<rect x=\"{LEFT}\" y=\"{y}\" width=\"{:.1}\" height=\"{}\" fill=\"#eeeeee\"/>",
            outcome.step_s * scale,
            LANE - 4.0
        );
        for busy in &rank.busy {
            let _ = writeln!(
                svg,
                "<rect x=\"{:.2}\" y=\"{y}\" width=\"{:.2}\" height=\"{}\" fill=\"#3b7dd8\" stroke=\"white\" \
                 stroke-width=\"0.3\"/>",
                LEFT + busy.from * scale,
                (busy.to - busy.from) * scale,
                LANE - 4.0
            );
        }
    }
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{:.0}\">0</text>\n<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{:.2} s</text>\n</svg>",
        height - 8.0,
        WIDTH - 10.0,
        height - 8.0,
        outcome.step_s
    );
    svg
}
