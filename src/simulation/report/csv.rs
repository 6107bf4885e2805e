//! One line a policy and cell.

use std::fmt::Write;

use crate::simulation::comparison::Comparison;

/// The columns.
const HEADER: &str = "workload,load,workers,replicas,seed,policy,ttft_p50_s,ttft_p90_s,ttft_p99_s,ttft_mean_s,e2e_p50_s,\
e2e_p90_s,e2e_p99_s,e2e_mean_s,itl_mean_s,block_hit_rate,within_2s,within_slo,imbalance,evictions,counted,unfinished,\
ns_per_decision,ratio_p50,ratio_p90,ratio_p99,ratio_e2e";

/// The cells as comma-separated values, with a header.
pub fn csv(comparison: &Comparison) -> String {
    let mut out = format!("{HEADER}\n");
    for cell in &comparison.cells {
        let name = &cell.cell;
        for entry in &cell.policies {
            let (f, r) = (&entry.figures, &entry.ratio);
            let words = [&name.workload, &name.load].map(|text| quoted(text));
            let times = [
                f.ttft.p50,
                f.ttft.p90,
                f.ttft.p99,
                f.ttft.mean,
                f.e2e.p50,
                f.e2e.p90,
                f.e2e.p99,
                f.e2e.mean,
                f.itl_mean,
                f.block_hit_rate,
                f.within_2s,
                f.within_slo,
                f.imbalance,
            ];
            let times = times.map(|value| format!("{value:.6}")).join(",");
            // Writing to a string cannot fail.
            writeln!(
                out,
                "{},{},{},{},{},{times},{},{},{},{},{:.4},{:.4},{:.4},{:.4}",
                words.join(","),
                name.workers,
                name.replicas,
                name.seed,
                quoted(&entry.policy),
                f.evictions,
                f.counted,
                f.unfinished,
                f.ns_per_decision.map(|nanos| format!("{nanos:.0}")).unwrap_or_default(),
                r.p50,
                r.p90,
                r.p99,
                r.e2e,
            )
            .ok();
        }
    }
    out
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::comparison::tests::{cell, figures};

    #[test]
    fn every_line_has_a_value_a_column() {
        let policies = ["default".to_owned(), "default:scale=4,credit=1".to_owned()];
        let runs = vec![(cell("a", "level 1", 1), vec![figures(1.0), figures(0.5)])];
        let text = csv(&Comparison::new(&policies, runs, Vec::new()));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[1].split(',').count(), HEADER.split(',').count());
        assert!(lines[2].contains(",\"default:scale=4,credit=1\",0.250000,0.500000,1.000000,"), "{}", lines[2]);
    }
}
