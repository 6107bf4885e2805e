//! Charts as inline SVG. Colours come from the page's style, by class, so that they follow light and dark.

use std::fmt::Write;

use super::{ratio, time};
use crate::simulation::comparison::{CellFigures, Summary};

/// Width of a chart, in its own units.
const WIDTH: f64 = 720.0;
/// Height of a row.
const ROW: f64 = 26.0;
/// Where names end and values begin.
const NAMES: f64 = 190.0;
/// Room for the numbers behind the values.
const NUMBERS: f64 = 150.0;

/// Text that may stand in markup.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            _ => out.push(letter),
        }
    }
    out
}

/// A name that fits its column.
fn short(name: &str) -> String {
    let letters = name.chars().count();
    if letters <= 26 { name.to_owned() } else { name.chars().take(25).chain(['…']).collect() }
}

/// A logarithmic scale.
struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    /// Covers all of `values`, which are positive.
    fn covering(values: impl Iterator<Item = f64>, at_least: (f64, f64)) -> Self {
        let (low, high) = values.fold(at_least, |(low, high), value| (low.min(value), high.max(value)));
        Self { low: low / 1.1, high: high * 1.1 }
    }

    fn x(&self, value: f64) -> f64 {
        let share = (value.max(self.low) / self.low).ln() / (self.high / self.low).ln();
        NAMES + share.min(1.0) * (WIDTH - NAMES - NUMBERS)
    }

    /// Round values to mark.
    fn marks(&self) -> Vec<f64> {
        let decades = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
        let steps: &[f64] = if self.high / self.low > 300.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let all = decades.flat_map(|decade| steps.iter().map(move |step| step * 10_f64.powi(decade)));
        all.filter(|mark| (self.low..=self.high).contains(mark)).collect()
    }
}

fn open(out: &mut String, title: &str, rows: usize) -> f64 {
    let height = rows as f64 * ROW + 30.0;
    // Writing to a string cannot fail, here and below.
    write!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\"><title>{}</title>",
        escaped(title),
        escaped(title)
    )
    .ok();
    rows as f64 * ROW + 6.0
}

fn axis(out: &mut String, scale: &Scale, bottom: f64, label: impl Fn(f64) -> String) {
    for mark in scale.marks() {
        let x = scale.x(mark);
        write!(
            out,
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"4\" y2=\"{bottom:.1}\"/>\
             <text class=\"axis\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 14.0,
            label(mark)
        )
        .ok();
    }
}

fn row_name(out: &mut String, y: f64, name: &str) {
    write!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\"><title>{}</title>{}</text>",
        NAMES - 10.0,
        y + 4.0,
        escaped(name),
        escaped(&short(name))
    )
    .ok();
}

/// A bar a policy: the geometric mean of its 90 % quantiles as a multiple of the baseline's.
pub(super) fn means(summaries: &[Summary]) -> String {
    let mut out = String::new();
    let bottom = open(&mut out, "TTFT p90 as a multiple of the baseline", summaries.len());
    let scale = Scale::covering(summaries.iter().map(|summary| summary.ratio.p90), (0.5, 1.2));
    axis(&mut out, &scale, bottom, ratio);
    let one = scale.x(1.0);
    for (at, summary) in summaries.iter().enumerate() {
        let y = at as f64 * ROW + ROW / 2.0 + 4.0;
        let x = scale.x(summary.ratio.p90);
        let class = if summary.ratio.p90 <= 1.0 { "better" } else { "worse" };
        row_name(&mut out, y, &summary.policy);
        write!(
            out,
            "<rect class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"14\" rx=\"2\"/>\
             <text class=\"value\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            x.min(one),
            y - 7.0,
            (x - one).abs().max(1.5),
            WIDTH - NUMBERS + 12.0,
            y + 4.0,
            ratio(summary.ratio.p90)
        )
        .ok();
    }
    write!(out, "<line class=\"one\" x1=\"{one:.1}\" x2=\"{one:.1}\" y1=\"4\" y2=\"{bottom:.1}\"/></svg>").ok();
    out
}

/// A line a policy from the median to the 99 % quantile of its times to first token, with a mark at 90 %.
pub(super) fn spread(cell: &CellFigures) -> String {
    let mut out = String::new();
    let bottom = open(&mut out, "time to first token: p50, p90, p99", cell.policies.len());
    let times = || cell.policies.iter().map(|entry| entry.figures.ttft);
    let values = times().flat_map(|ttft| [ttft.p50, ttft.p90, ttft.p99]).map(|value| value.max(1e-3));
    let lowest = times().map(|ttft| ttft.p50.max(1e-3)).fold(f64::INFINITY, f64::min);
    let scale = Scale::covering(values, (lowest, lowest * 2.0));
    axis(&mut out, &scale, bottom, time);
    for (at, entry) in cell.policies.iter().enumerate() {
        let y = at as f64 * ROW + ROW / 2.0 + 4.0;
        let ttft = entry.figures.ttft;
        let [p50, p90, p99] = [ttft.p50, ttft.p90, ttft.p99].map(|value| scale.x(value));
        let class = if at == 0 { "baseline" } else { "policy" };
        row_name(&mut out, y, &entry.policy);
        let against = if at == 0 { String::new() } else { format!(" ({})", ratio(entry.ratio.p90)) };
        write!(
            out,
            "<g class=\"{class}\"><line class=\"range\" x1=\"{p50:.1}\" x2=\"{p99:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <circle cx=\"{p50:.1}\" cy=\"{y:.1}\" r=\"3.5\"/>\
             <rect x=\"{:.1}\" y=\"{:.1}\" width=\"5\" height=\"16\" rx=\"1\"/>\
             <circle class=\"hollow\" cx=\"{p99:.1}\" cy=\"{y:.1}\" r=\"3.5\"/></g>\
             <text class=\"value\" x=\"{:.1}\" y=\"{:.1}\">{}{against}</text>",
            p90 - 2.5,
            y - 8.0,
            WIDTH - NUMBERS + 12.0,
            y + 4.0,
            time(ttft.p90),
        )
        .ok();
    }
    out.push_str("</svg>");
    out
}
