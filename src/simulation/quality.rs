//! The routing quality index: one number for a policy.
//!
//! RQI is the geometric mean, over all cells, of the 90 % quantile of the time to first token as a multiple of the
//! baseline's, with a floor of 20 ms under both. The cells are six workloads at four loads on 8 and on 32 workers, with
//! three seeds: 144. Beside it always stand the same without `agentic`, whose cells the default cost of the reference
//! loses by an order of magnitude, the same for other figures, the worst cell and the spread over seeds.
//!
//! The small form, for continuous integration, has the workloads `tenants` and `hot` on 8 workers with one seed.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{
    comparison::{CellFigures, CellName, Comparison, Ratios, WorstCell, geometric_mean, worst},
    figures::{Figures, Times},
};

/// The workload that is also left out.
const AGENTIC: &str = "agentic";

/// Lowest and highest of several seeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Lowest.
    pub min: f64,
    /// Highest.
    pub max: f64,
}

/// What many selectors cost compared with one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ReplicaPenalty {
    /// How many.
    pub replicas: u32,
    /// Geometric mean of the 90 % quantile as a multiple of that of the same policy with one selector.
    pub p90: f64,
    /// Cells it is the mean of.
    pub cells: usize,
}

/// The highest load at which first tokens come in time, as a multiple of that of level 4.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sustainable {
    /// Geometric mean of the policy's as a multiple of the baseline's.
    pub ratio: f64,
    /// By workload: the policy's, and the baseline's.
    pub by_workload: BTreeMap<String, [f64; 2]>,
}

impl Sustainable {
    /// Puts workloads together; `None` without any.
    pub fn of(by_workload: BTreeMap<String, [f64; 2]>) -> Option<Self> {
        let ratios = by_workload.values().map(|[policy, baseline]| policy / baseline);
        Some(Self { ratio: geometric_mean(ratios)?, by_workload })
    }
}

/// One cell of the index.
#[derive(Clone, Debug, Serialize)]
pub struct QualityCell {
    /// Which.
    #[serde(flatten)]
    pub cell: CellName,
    /// The policy as a multiple of the baseline.
    pub ratio: Ratios,
    /// Times to first token of the policy.
    pub policy: Times,
    /// Those of the baseline.
    pub baseline: Times,
    /// Block hit rates, the policy's first.
    pub block_hit_rate: [f64; 2],
    /// Requests that were not finished, the policy's first.
    pub unfinished: [u64; 2],
}

/// The index of a policy.
#[derive(Clone, Debug, Serialize)]
pub struct Quality {
    /// The policy.
    pub policy: String,
    /// What it is compared with.
    pub baseline: String,
    /// The index; lower is better, 1 is the baseline.
    pub rqi: f64,
    /// Without `agentic`.
    pub rqi_without_agentic: Option<f64>,
    /// The same of the median.
    pub rqi_p50: f64,
    /// The same of the 99 % quantile.
    pub rqi_p99: f64,
    /// The same of the mean time to the last token.
    pub rqi_e2e: f64,
    /// The worst workload and load, seeds taken together.
    pub worst: WorstCell,
    /// The index by seed.
    pub seeds: Spread,
    /// By number of workers.
    pub by_workers: BTreeMap<u32, Ratios>,
    /// By workload.
    pub by_workload: BTreeMap<String, Ratios>,
    /// Cells of the index.
    pub cells_present: usize,
    /// Cells it would have with all traces.
    pub cells_defined: usize,
    /// What was left out, and why.
    pub skipped: Vec<String>,
    /// What was done to workloads that nobody asked for.
    pub notes: Vec<String>,
    /// What many selectors cost, when that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica_penalty: Option<ReplicaPenalty>,
    /// How much the policy can be asked, when that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sustainable: Option<Sustainable>,
    /// Every cell.
    pub cells: Vec<QualityCell>,
}

impl Quality {
    /// Makes an index of a comparison of the baseline and one policy; `None` without cells.
    pub fn of(comparison: &Comparison, cells_defined: usize) -> Option<Self> {
        let cells: Vec<QualityCell> = comparison.cells.iter().filter_map(quality_cell).collect();
        let of = |wanted: &dyn Fn(&CellName) -> bool| {
            let some: Vec<Ratios> = cells.iter().filter(|cell| wanted(&cell.cell)).map(|cell| cell.ratio).collect();
            Ratios::mean(some.iter())
        };
        let all = of(&|_| true)?;
        let by_seed: BTreeMap<u64, f64> = cells
            .iter()
            .filter_map(|cell| Some((cell.cell.seed, of(&|other| other.seed == cell.cell.seed)?.p90)))
            .collect();
        let by_workers = cells
            .iter()
            .filter_map(|cell| Some((cell.cell.workers, of(&|other| other.workers == cell.cell.workers)?)))
            .collect();
        let by_workload = cells
            .iter()
            .filter_map(|cell| Some((cell.cell.workload.clone(), of(&|other| other.workload == cell.cell.workload)?)))
            .collect();
        Some(Self {
            policy: comparison.summary.last()?.policy.clone(),
            baseline: comparison.baseline.clone(),
            rqi: all.p90,
            rqi_without_agentic: of(&|cell| cell.workload != AGENTIC).map(|ratios| ratios.p90),
            rqi_p50: all.p50,
            rqi_p99: all.p99,
            rqi_e2e: all.e2e,
            worst: worst(cells.iter().map(|cell| (&cell.cell, cell.ratio.p90)))?,
            seeds: Spread {
                min: by_seed.values().copied().fold(f64::INFINITY, f64::min),
                max: by_seed.values().copied().fold(0.0, f64::max),
            },
            by_workers,
            by_workload,
            cells_present: cells.len(),
            cells_defined,
            skipped: comparison.skipped.clone(),
            notes: comparison.notes.clone(),
            replica_penalty: None,
            sustainable: None,
            cells,
        })
    }
}

impl ReplicaPenalty {
    /// Compares runs of one policy in the same cells, with one selector and with `replicas`; `None` without cells.
    pub fn of(replicas: u32, one: &[Figures], many: &[Figures]) -> Option<Self> {
        let ratios: Vec<Ratios> = many.iter().zip(one).map(|(many, one)| Ratios::of(many, one)).collect();
        Some(Self { replicas, p90: Ratios::mean(ratios.iter())?.p90, cells: ratios.len() })
    }
}

fn quality_cell(cell: &CellFigures) -> Option<QualityCell> {
    let [baseline, policy] = &cell.policies[..] else { return None };
    Some(QualityCell {
        cell: cell.cell.clone(),
        ratio: policy.ratio,
        policy: policy.figures.ttft,
        baseline: baseline.figures.ttft,
        block_hit_rate: [policy.figures.block_hit_rate, baseline.figures.block_hit_rate],
        unfinished: [policy.figures.unfinished, baseline.figures.unfinished],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::comparison::tests::{cell, figures};

    #[test]
    fn the_index_is_a_geometric_mean_with_agentic_and_without() {
        let policies = ["default".to_owned(), "other".to_owned()];
        let runs = [("tenants", 1, 0.5), ("tenants", 2, 0.5), ("agentic", 1, 0.125), ("agentic", 2, 0.5)];
        let runs = runs.map(|(workload, seed, ratio)| (cell(workload, "1", seed), vec![figures(1.0), figures(ratio)]));
        let comparison = Comparison::new(&policies, runs.to_vec(), Vec::new());
        let quality = Quality::of(&comparison, 24).expect("there are cells");
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} is not {b}");
        near(quality.rqi, 0.5 * 0.25_f64.powf(0.25));
        near(quality.rqi_without_agentic.expect("tenants"), 0.5);
        near(quality.seeds.min, 0.25);
        near(quality.seeds.max, 0.5);
        near(quality.worst.p90, 0.5);
        assert_eq!((quality.cells_present, quality.cells_defined, &*quality.policy), (4, 24, "other"));
    }

    #[test]
    fn many_selectors_are_compared_with_one() {
        let penalty = ReplicaPenalty::of(9, &[figures(1.0), figures(2.0)], &[figures(2.0), figures(4.0)]);
        assert_eq!(penalty.map(|penalty| (penalty.replicas, penalty.p90, penalty.cells)), Some((9, 2.0, 2)));
    }
}
