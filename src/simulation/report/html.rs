//! One page with charts and tables: no script, nothing loaded from anywhere, light or dark as the reader has it.

use std::fmt::Write;

use super::{
    chart::{self, escaped},
    decision, ratio, time,
};
use crate::simulation::comparison::{CellFigures, Comparison};

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c2330;--dim:#667085;--paper:#fff;--line:#dfe3ea;--good:#1f8a5b;--bad:#c2492f;\
--own:#2f6fde;--base:#8a94a6}\
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ef;--dim:#98a2b3;--paper:#14181f;--line:#2c333f;--good:#4cc38a;\
--bad:#f0785c;--own:#7aa8ff;--base:#8a94a6}}\
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:60rem;margin:2rem auto;\
padding:0 1rem}\
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2.5rem}p,figcaption{color:var(--dim)}\
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.9rem}\
th,td{padding:.3rem .5rem;text-align:right;border-bottom:1px solid var(--line)}\
th:first-child,td:first-child{text-align:left}th{color:var(--dim);font-weight:600}\
.scroll{overflow-x:auto}figure{margin:1rem 0}svg{width:100%;height:auto;max-width:48rem;font-size:12px}\
svg text{fill:var(--ink)}svg .axis{fill:var(--dim);font-size:11px}.grid{stroke:var(--line)}\
.one{stroke:var(--dim);stroke-width:1.5}.better{fill:var(--good)}.worse{fill:var(--bad)}\
.policy{fill:var(--own);stroke:var(--own)}.baseline{fill:var(--base);stroke:var(--base)}\
.range{stroke-width:3;stroke-opacity:.45}.hollow{fill:var(--paper);stroke-width:1.5}";

/// The page.
pub fn html(comparison: &Comparison) -> String {
    let mut out = String::new();
    let cells = comparison.cells.len();
    // Writing to a string cannot fail, here and below.
    write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>Routing policies, simulated</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <h1>Routing policies, simulated</h1>\n\
         <p>{} in {cells} {}. Ratios are to <b>{}</b>; below 1 is better. Made by pointsman {} on simulated engines: \
         compare policies by it, not hardware.</p>\n",
        count(comparison.summary.len(), "policy", "policies"),
        if cells == 1 { "cell" } else { "cells" },
        escaped(&comparison.baseline),
        env!("CARGO_PKG_VERSION"),
    )
    .ok();
    if !comparison.summary.is_empty() {
        summary(&mut out, comparison);
    }
    for cell in &comparison.cells {
        section(&mut out, cell);
    }
    for skipped in &comparison.skipped {
        writeln!(out, "<p>Left out: {}.</p>", escaped(skipped)).ok();
    }
    for note in &comparison.notes {
        writeln!(out, "<p>Note: {}.</p>", escaped(note)).ok();
    }
    out.push_str("</body>\n</html>\n");
    out
}

fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

fn summary(out: &mut String, comparison: &Comparison) {
    write!(
        out,
        "<h2>Over all cells</h2>\n<figure>{}<figcaption>90 % quantile of the time to first token as a multiple of the \
         baseline's, geometric mean over all cells.</figcaption></figure>\n",
        chart::means(&comparison.summary)
    )
    .ok();
    let columns = [
        "policy",
        "p50",
        "p90",
        "p99",
        "e2e",
        "block hits",
        "within SLO",
        "imbalance",
        "a decision",
        "worst cell, p90",
    ];
    table(out, &columns, |out| {
        for summary in &comparison.summary {
            let worst = &summary.worst;
            let cells = [
                ratio(summary.ratio.p50),
                ratio(summary.ratio.p90),
                ratio(summary.ratio.p99),
                ratio(summary.ratio.e2e),
                format!("{:.0} %", summary.block_hit_rate * 100.0),
                format!("{:.1} %", summary.within_slo * 100.0),
                format!("{:.2}", summary.imbalance),
                decision(summary.ns_per_decision),
                format!("{} ({}, {}, {})", ratio(worst.p90), worst.workload, worst.load, worst.workers),
            ];
            row(out, &summary.policy, &cells);
        }
    });
}

fn section(out: &mut String, cell: &CellFigures) {
    let name = &cell.cell;
    let selectors = if name.replicas > 1 { format!(", {} selectors", name.replicas) } else { String::new() };
    write!(
        out,
        "<h2>{}, {}</h2>\n<p>{} workers{selectors}, seed {}</p>\n<figure>{}<figcaption>Time to first token: from the \
         median (dot) over 90 % (bar) to 99 % (ring).</figcaption></figure>\n",
        escaped(&name.workload),
        escaped(&name.load),
        name.workers,
        name.seed,
        chart::spread(cell)
    )
    .ok();
    let columns = [
        "policy",
        "TTFT p50",
        "p90",
        "p99",
        "e2e mean",
        "ITL",
        "block hits",
        "within 2 s",
        "within SLO",
        "imbalance",
        "evictions",
        "not finished",
    ];
    table(out, &columns, |out| {
        for entry in &cell.policies {
            let figures = &entry.figures;
            let cells = [
                time(figures.ttft.p50),
                time(figures.ttft.p90),
                time(figures.ttft.p99),
                time(figures.e2e.mean),
                time(figures.itl_mean),
                format!("{:.0} %", figures.block_hit_rate * 100.0),
                format!("{:.1} %", figures.within_2s * 100.0),
                format!("{:.1} %", figures.within_slo * 100.0),
                format!("{:.2}", figures.imbalance),
                figures.evictions.to_string(),
                figures.unfinished.to_string(),
            ];
            row(out, &entry.policy, &cells);
        }
    });
}

fn table(out: &mut String, columns: &[&str], rows: impl FnOnce(&mut String)) {
    out.push_str("<div class=\"scroll\"><table>\n<tr>");
    for column in columns {
        write!(out, "<th>{column}</th>").ok();
    }
    out.push_str("</tr>\n");
    rows(out);
    out.push_str("</table></div>\n");
}

fn row(out: &mut String, name: &str, cells: &[String]) {
    write!(out, "<tr><td>{}</td>", escaped(name)).ok();
    for cell in cells {
        write!(out, "<td>{}</td>", escaped(cell)).ok();
    }
    out.push_str("</tr>\n");
}
