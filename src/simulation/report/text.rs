//! The table of the terminal.

use std::fmt::Write;

use super::{decision, ratio, time};
use crate::simulation::comparison::{CellFigures, Comparison, PolicyFigures, Summary};

/// The whole comparison: each cell, then the means when there are several.
pub fn text(comparison: &Comparison) -> String {
    let mut out = String::new();
    let names = comparison.summary.iter().map(|summary| summary.policy.chars().count());
    let width = names.max().unwrap_or(0).max(8);
    for cell in &comparison.cells {
        write_cell(&mut out, cell, width, &comparison.baseline);
    }
    if comparison.cells.len() > 1 {
        write_summary(&mut out, comparison, width);
    }
    for skipped in &comparison.skipped {
        // Writing to a string cannot fail, here and below.
        writeln!(out, "left out: {skipped}").ok();
    }
    for note in &comparison.notes {
        writeln!(out, "note: {note}").ok();
    }
    out
}

fn write_cell(out: &mut String, cell: &CellFigures, width: usize, baseline: &str) {
    let name = &cell.cell;
    let counted = cell.policies.first().map_or(0, |first| first.figures.counted);
    let selectors = if name.replicas > 1 { format!(", {} selectors", name.replicas) } else { String::new() };
    writeln!(
        out,
        "{}, {}, {} workers{selectors}, seed {}: {counted} requests",
        name.workload, name.load, name.workers, name.seed
    )
    .ok();
    writeln!(
        out,
        "  {:<width$} {:>9} {:>9} {:>7} {:>9} {:>7} {:>9} {:>7} {:>8} {:>6} {:>6} {:>6}",
        "policy", "TTFT p50", "p90", "", "p99", "", "e2e mean", "", "ITL", "hits", "SLO", "imbal."
    )
    .ok();
    for entry in &cell.policies {
        write_entry(out, entry, width, baseline);
    }
    writeln!(out).ok();
}

fn write_entry(out: &mut String, entry: &PolicyFigures, width: usize, baseline: &str) {
    let PolicyFigures { policy, figures, ratio: against } = entry;
    let shown = |value: f64| if policy == baseline { String::new() } else { ratio(value) };
    writeln!(
        out,
        "  {policy:<width$} {:>9} {:>9} {:>7} {:>9} {:>7} {:>9} {:>7} {:>8} {:>5.0}% {:>5.1}% {:>6.2}",
        time(figures.ttft.p50),
        time(figures.ttft.p90),
        shown(against.p90),
        time(figures.ttft.p99),
        shown(against.p99),
        time(figures.e2e.mean),
        shown(against.e2e),
        time(figures.itl_mean),
        figures.block_hit_rate * 100.0,
        figures.within_slo * 100.0,
        figures.imbalance,
    )
    .ok();
    if figures.unfinished > 0 {
        let reason = figures.refusal.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        writeln!(
            out,
            "  {:<width$} {} requests were not finished and count as waiting to the end, ten minutes at least{reason}",
            "", figures.unfinished
        )
        .ok();
    }
}

fn write_summary(out: &mut String, comparison: &Comparison, width: usize) {
    let cells = comparison.cells.len();
    writeln!(out, "all {cells} cells, as multiples of {} (geometric means)", comparison.baseline).ok();
    writeln!(
        out,
        "  {:<width$} {:>7} {:>7} {:>7} {:>7} {:>6} {:>6} {:>6} {:>11}  worst p90",
        "policy", "p50", "p90", "p99", "e2e", "hits", "SLO", "imbal.", "a decision"
    )
    .ok();
    for summary in &comparison.summary {
        let Summary { policy, ratio: against, worst, .. } = summary;
        writeln!(
            out,
            "  {policy:<width$} {:>7} {:>7} {:>7} {:>7} {:>5.0}% {:>5.1}% {:>6.2} {:>11}  {} ({}, {}, {} workers)",
            ratio(against.p50),
            ratio(against.p90),
            ratio(against.p99),
            ratio(against.e2e),
            summary.block_hit_rate * 100.0,
            summary.within_slo * 100.0,
            summary.imbalance,
            decision(summary.ns_per_decision),
            ratio(worst.p90),
            worst.workload,
            worst.load,
            worst.workers,
        )
        .ok();
    }
}
