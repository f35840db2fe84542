//! One chart as SVG: axes with round ticks, lines, dots, stacked areas, a legend.
//!
//! It knows nothing of runs or metrics. Coordinates are SVG's: x to the right, y down.

use std::fmt::Write;

/// Blue, orange, green, violet, grey: told apart by colour-blind readers too.
pub const COLORS: [&str; 5] = ["#2563eb", "#ea580c", "#059669", "#7c3aed", "#64748b"];

/// How a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A line.
    Line,
    /// A faint line with its moving average on top.
    Smoothed,
    /// Dots joined by a thin line.
    Dots,
    /// An area on top of the series before it.
    Stacked,
}

/// Named points, in order of x.
#[derive(Clone, Debug)]
pub struct Series {
    /// For the legend.
    pub name: String,
    /// Points.
    pub points: Vec<(f64, f64)>,
    /// How it is drawn.
    pub mark: Mark,
}

impl Series {
    /// Without the points that an axis of powers of ten has no place for.
    pub fn drawable(mut self, log: bool) -> Self {
        self.points.retain(|point| !log || point.1 > 0.0);
        self
    }
}

/// One chart.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What is shown.
    pub title: &'static str,
    /// Unit, or what to look for.
    pub note: &'static str,
    /// Powers of ten on the y axis.
    pub log: bool,
    /// The y axis begins at 0.
    pub from_zero: bool,
    /// What is drawn, in order.
    pub series: Vec<Series>,
}

/// A rectangle on the page.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    /// Left.
    pub x: f64,
    /// Top.
    pub y: f64,
    /// Width.
    pub w: f64,
    /// Height.
    pub h: f64,
}

struct Axis {
    low: f64,
    high: f64,
    log: bool,
}

impl Axis {
    fn place(&self, value: f64) -> f64 {
        let (low, high, value) = if self.log {
            (
                self.low.log10(),
                self.high.log10(),
                value.max(self.low).log10(),
            )
        } else {
            (self.low, self.high, value)
        };
        ((value - low) / (high - low)).clamp(0.0, 1.0)
    }

    fn ticks(&self, about: usize) -> Vec<f64> {
        if self.log {
            let (low, high) = (
                self.low.log10().round() as i32,
                self.high.log10().round() as i32,
            );
            let every = ((high - low) as usize).div_ceil(about).max(1);
            return (low..=high)
                .step_by(every)
                .map(|power| 10f64.powi(power))
                .collect();
        }
        let step = round_step((self.high - self.low) / about as f64);
        let first = (self.low / step).ceil() as i64;
        (first..)
            .map(|i| i as f64 * step)
            .take_while(|tick| *tick <= self.high + step * 1e-6)
            .collect()
    }
}

/// The next of 1, 2, 2.5, 5, 10 times a power of ten.
fn round_step(rough: f64) -> f64 {
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0]
        .iter()
        .map(|m| m * power)
        .find(|step| *step >= rough * 0.999)
        .unwrap_or(10.0 * power)
}

/// A number in as few characters as it needs.
pub fn short(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if size == 0.0 => "0".into(),
        _ if size >= 1e6 => format!("{}M", trim(format!("{:.1}", value / 1e6))),
        _ if size >= 1e4 => format!("{}k", trim(format!("{:.1}", value / 1e3))),
        _ if size >= 100.0 => format!("{value:.0}"),
        _ if size >= 1.0 => trim(format!("{value:.2}")),
        _ if size >= 1e-3 => trim(format!("{value:.4}")),
        _ => format!("{value:.0e}"),
    }
}

fn trim(text: String) -> String {
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Text with XML's special characters replaced.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

impl Chart {
    /// Draw into `area` of `out`.
    pub fn draw(&self, area: Area, out: &mut String) {
        let Area { x, y, w, h } = area;
        let _ = write!(
            out,
            r##"<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="8" fill="#fff" stroke="#e2e8f0"/>"##
        );
        let _ = write!(
            out,
            r#"<text x="{}" y="{}" class="t">{}</text>"#,
            x + 16.0,
            y + 25.0,
            escape(self.title)
        );
        let _ = write!(
            out,
            r#"<text x="{}" y="{}" class="n">{}</text>"#,
            x + 16.0,
            y + 42.0,
            escape(self.note)
        );
        let below = self.legend(area, out);
        let plot = Area {
            x: x + 56.0,
            y: y + 56.0 + below,
            w: w - 76.0,
            h: h - 86.0 - below,
        };
        let stacked = self.stack();
        let Some((across, up)) = self.axes(&stacked) else {
            let (x, y) = (plot.x + plot.w / 2.0, plot.y + plot.h / 2.0);
            let _ = write!(
                out,
                r#"<text x="{x}" y="{y}" class="n" text-anchor="middle">not measured in this run</text>"#
            );
            return;
        };
        grid(plot, &across, &up, out);
        let point = |&(px, py): &(f64, f64)| {
            (
                plot.x + across.place(px) * plot.w,
                plot.y + (1.0 - up.place(py)) * plot.h,
            )
        };
        for (index, series) in stacked.iter().enumerate().rev() {
            let color = COLORS[index % COLORS.len()];
            let at: Vec<(f64, f64)> = series.points.iter().map(point).collect();
            match series.mark {
                Mark::Line => line(&at, color, 2.0, 1.0, out),
                Mark::Smoothed => {
                    line(&at, color, 1.0, 0.35, out);
                    line(
                        &smoothed(&series.points)
                            .iter()
                            .map(point)
                            .collect::<Vec<_>>(),
                        color,
                        2.4,
                        1.0,
                        out,
                    );
                }
                Mark::Dots => {
                    line(&at, color, 1.2, 0.7, out);
                    for (px, py) in &at {
                        let _ = write!(
                            out,
                            r##"<circle cx="{px:.1}" cy="{py:.1}" r="4" fill="{color}" stroke="#fff"/>"##
                        );
                    }
                }
                Mark::Stacked => stack_area(&at, plot, color, out),
            }
        }
    }

    /// Stacked series carry the sum of those before them; drawn last to first, each covers the rest.
    fn stack(&self) -> Vec<Series> {
        let mut sums: Vec<f64> = Vec::new();
        let mut result = self.series.clone();
        for series in result.iter_mut().filter(|s| s.mark == Mark::Stacked) {
            sums.resize(series.points.len().max(sums.len()), 0.0);
            for (sum, point) in sums.iter_mut().zip(&mut series.points) {
                *sum += point.1;
                point.1 = *sum;
            }
        }
        result
    }

    fn axes(&self, series: &[Series]) -> Option<(Axis, Axis)> {
        let points = || {
            series
                .iter()
                .flat_map(|s| &s.points)
                .filter(|p| !self.log || p.1 > 0.0)
        };
        let range = |values: &mut dyn Iterator<Item = f64>| {
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| {
                (low.min(v), high.max(v))
            })
        };
        let (left, right) = range(&mut points().map(|p| p.0));
        let (mut low, mut high) = range(&mut points().map(|p| p.1));
        if !low.is_finite() {
            return None;
        }
        if self.log {
            low = 10f64.powf(low.log10().floor());
            high = 10f64.powf(high.log10().ceil()).max(low * 10.0);
        } else {
            if self.from_zero {
                low = low.min(0.0);
            }
            let room = if high > low {
                (high - low) * 0.06
            } else {
                high.abs().max(1.0) * 0.1
            };
            high += room;
            if low != 0.0 {
                low -= room;
            }
        }
        Some((
            Axis {
                low: left,
                high: right.max(left + 1.0),
                log: false,
            },
            Axis {
                low,
                high,
                log: self.log,
            },
        ))
    }

    /// Beside the title where both fit, else in a line of its own; answers how much room that line takes.
    fn legend(&self, area: Area, out: &mut String) -> f64 {
        let labels: Vec<String> = self
            .series
            .iter()
            .map(|series| match series.points.last() {
                Some(last) => format!("{} {}", series.name, short(last.1)),
                None => series.name.clone(),
            })
            .collect();
        let widths = labels.iter().map(|label| 14.0 + text_width(label, 12.0));
        let widths: Vec<f64> = widths.collect();
        let total = widths.iter().sum::<f64>() + 14.0 * widths.len().saturating_sub(1) as f64;
        let beside = area.w - 48.0 - 1.1 * text_width(self.title, 15.0);
        let below = if total <= beside { 0.0 } else { 20.0 };
        let y = area.y + if below > 0.0 { 62.0 } else { 25.0 };
        let mut x = area.x + area.w - 16.0 - total;
        for (index, (label, width)) in labels.iter().zip(widths).enumerate() {
            let color = COLORS[index % COLORS.len()];
            let _ = write!(
                out,
                r#"<rect x="{x:.1}" y="{}" width="10" height="10" rx="2" fill="{color}"/><text x="{:.1}" y="{y}" class="l">{}</text>"#,
                y - 9.0,
                x + 14.0,
                escape(label)
            );
            x += width + 14.0;
        }
        below
    }
}

/// About how wide a text is in a font as wide as DejaVu Sans.
fn text_width(text: &str, size: f64) -> f64 {
    let width = |c: char| match c {
        'i' | 'j' | 'l' | '.' | ',' | '|' | '\'' | ' ' => 0.31,
        'f' | 't' | 'r' | '-' | '(' | ')' => 0.4,
        'm' | 'w' | 'M' | 'W' | '+' => 0.9,
        'A'..='Z' => 0.7,
        _ => 0.62,
    };
    size * text.chars().map(width).sum::<f64>()
}

fn grid(plot: Area, across: &Axis, up: &Axis, out: &mut String) {
    for tick in up.ticks(5) {
        let y = plot.y + (1.0 - up.place(tick)) * plot.h;
        let _ = write!(
            out,
            r##"<line x1="{}" y1="{y:.1}" x2="{}" y2="{y:.1}" stroke="#eef2f7"/>"##,
            plot.x,
            plot.x + plot.w
        );
        let _ = write!(
            out,
            r#"<text x="{}" y="{:.1}" class="a" text-anchor="end">{}</text>"#,
            plot.x - 8.0,
            y + 4.0,
            short(tick)
        );
    }
    for tick in across
        .ticks(7)
        .into_iter()
        .filter(|tick| tick.fract() == 0.0)
    {
        let x = plot.x + across.place(tick) * plot.w;
        let _ = write!(
            out,
            r#"<text x="{x:.1}" y="{:.1}" class="a" text-anchor="middle">{tick:.0}</text>"#,
            plot.y + plot.h + 18.0
        );
    }
    let bottom = plot.y + plot.h;
    let _ = write!(
        out,
        r##"<line x1="{}" y1="{bottom}" x2="{}" y2="{bottom}" stroke="#cbd5e1"/>"##,
        plot.x,
        plot.x + plot.w
    );
}

fn path(points: &[(f64, f64)]) -> String {
    points
        .iter()
        .map(|(x, y)| format!("{x:.1},{y:.1}"))
        .collect::<Vec<_>>()
        .join(" ")
}

fn line(points: &[(f64, f64)], color: &str, width: f64, opacity: f64, out: &mut String) {
    if let [(x, y)] = points {
        let _ = write!(
            out,
            r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{color}"/>"#
        );
    }
    let _ = write!(
        out,
        r#"<polyline points="{}" fill="none" stroke="{color}" stroke-width="{width}" stroke-opacity="{opacity}" stroke-linejoin="round"/>"#,
        path(points)
    );
}

fn stack_area(points: &[(f64, f64)], plot: Area, color: &str, out: &mut String) {
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return;
    };
    let bottom = plot.y + plot.h;
    // A white edge under the colour keeps neighbours apart.
    let _ = write!(
        out,
        r##"<polygon points="{:.1},{bottom:.1} {} {:.1},{bottom:.1}" fill="{color}" stroke="#fff" stroke-width="1"/>"##,
        first.0,
        path(points),
        last.0
    );
}

/// Mean of each point and its neighbours, a fifteenth of the run to either side, so that it lags behind nothing.
fn smoothed(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let reach = points.len() / 15;
    let mean = |at: usize| {
        // As many on one side as on the other, else the ends would lean inwards.
        let reach = reach.min(at).min(points.len() - 1 - at);
        let near = &points[at - reach..=at + reach];
        near.iter().map(|p| p.1).sum::<f64>() / near.len() as f64
    };
    points
        .iter()
        .enumerate()
        .map(|(at, p)| (p.0, mean(at)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside_the_axis() {
        let axis = Axis {
            low: 0.03,
            high: 0.97,
            log: false,
        };
        assert_eq!(
            axis.ticks(5).iter().map(|t| short(*t)).collect::<Vec<_>>(),
            ["0.2", "0.4", "0.6", "0.8"]
        );
        let axis = Axis {
            low: 1e-7,
            high: 1e-1,
            log: true,
        };
        assert_eq!(
            axis.ticks(5).first().map(|t| short(*t)).as_deref(),
            Some("1e-7")
        );
    }

    /// The demo's own page had its legend written over a title.
    #[test]
    fn a_legend_that_does_not_fit_beside_the_title_gets_a_line_of_its_own() {
        let chart = |names: &[&str]| Chart {
            title: "Trainer against engine",
            note: "",
            log: true,
            from_zero: false,
            series: names
                .iter()
                .map(|name| Series {
                    name: (*name).into(),
                    points: vec![(0.0, 0.6788)],
                    mark: Mark::Line,
                })
                .collect(),
        };
        let area = Area {
            x: 0.0,
            y: 0.0,
            w: 596.0,
            h: 300.0,
        };
        let left = |svg: &str| {
            let from = svg.split("<rect x=\"").nth(1).unwrap();
            from.split('"').next().unwrap().parse::<f64>().unwrap()
        };
        let title_ends = 16.0 + 1.1 * text_width("Trainer against engine", 15.0);
        let (mut few, mut many) = (String::new(), String::new());
        assert_eq!(chart(&["mean", "max"]).legend(area, &mut few), 0.0);
        let names = ["mean", "max", "ppo_kl", "KL to reference"];
        assert_eq!(chart(&names).legend(area, &mut many), 20.0);
        assert!(left(&few) > title_ends, "{few}");
        assert!(left(&many) > 16.0 && left(&many) < title_ends, "{many}");
    }

    #[test]
    fn stacked_series_add_up() {
        let series = |y: f64| Series {
            name: String::new(),
            points: vec![(0.0, y), (1.0, y)],
            mark: Mark::Stacked,
        };
        let chart = Chart {
            title: "",
            note: "",
            log: false,
            from_zero: true,
            series: vec![series(1.0), series(2.0)],
        };
        assert_eq!(chart.stack()[1].points, [(0.0, 3.0), (1.0, 3.0)]);
    }

    #[test]
    fn a_run_of_one_step_or_none_is_drawn_without_nan() {
        for points in [vec![], vec![(0.0, 0.0)], vec![(0.0, 0.5), (1.0, 0.5)]] {
            let mut svg = String::new();
            let series = vec![Series {
                name: "x".into(),
                points,
                mark: Mark::Smoothed,
            }];
            for log in [false, true] {
                let chart = Chart {
                    title: "t",
                    note: "",
                    log,
                    from_zero: false,
                    series: series.clone(),
                };
                chart.draw(
                    Area {
                        x: 0.0,
                        y: 0.0,
                        w: 500.0,
                        h: 300.0,
                    },
                    &mut svg,
                );
            }
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
