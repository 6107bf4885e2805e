//! Policies against a baseline: ratios by cell, and what they come to over all cells.
//!
//! A ratio below 1 is better than the baseline. Times below [`FLOOR`] count as that: nobody feels the difference, and
//! without it the quotient of two tiny times would decide a mean. Means of ratios are geometric.

use std::collections::BTreeMap;

use serde::Serialize;

use super::figures::Figures;

/// Shortest time to first token that a ratio is made of, in seconds.
pub const FLOOR: f64 = 0.02;

/// Which cell of a comparison.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct CellName {
    /// The workload.
    pub workload: String,
    /// How much of it, in words: a level, a rate or a speed.
    pub load: String,
    /// Workers.
    pub workers: u32,
    /// Selectors.
    pub replicas: u32,
    /// Of the workload and all random choices.
    pub seed: u64,
}

/// A policy's figures as multiples of the baseline's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratios {
    /// Of the median time to first token.
    pub p50: f64,
    /// Of its 90 % quantile.
    pub p90: f64,
    /// Of its 99 % quantile.
    pub p99: f64,
    /// Of the mean time to the last token.
    pub e2e: f64,
}

impl Ratios {
    /// Of two runs of one cell.
    pub fn of(figures: &Figures, baseline: &Figures) -> Self {
        let ratio = |of: f64, to: f64| of.max(FLOOR) / to.max(FLOOR);
        Self {
            p50: ratio(figures.ttft.p50, baseline.ttft.p50),
            p90: ratio(figures.ttft.p90, baseline.ttft.p90),
            p99: ratio(figures.ttft.p99, baseline.ttft.p99),
            e2e: ratio(figures.e2e.mean, baseline.e2e.mean),
        }
    }

    /// Geometric means; `None` of nothing.
    pub fn mean<'a>(ratios: impl Iterator<Item = &'a Self> + Clone) -> Option<Self> {
        let of = |pick: fn(&Self) -> f64| geometric_mean(ratios.clone().map(pick));
        Some(Self { p50: of(|r| r.p50)?, p90: of(|r| r.p90)?, p99: of(|r| r.p99)?, e2e: of(|r| r.e2e)? })
    }
}

/// `None` of nothing.
pub(super) fn geometric_mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value.ln(), count + 1));
    (count > 0).then(|| (sum / f64::from(count)).exp())
}

/// One policy in one cell.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyFigures {
    /// The policy, as the user named it.
    pub policy: String,
    /// What came out.
    pub figures: Figures,
    /// Against the baseline.
    pub ratio: Ratios,
}

/// All policies in one cell, the baseline first.
#[derive(Clone, Debug, Serialize)]
pub struct CellFigures {
    /// Which.
    #[serde(flatten)]
    pub cell: CellName,
    /// One entry a policy.
    pub policies: Vec<PolicyFigures>,
}

/// A workload and load, all seeds together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorstCell {
    /// The workload.
    pub workload: String,
    /// How much of it.
    pub load: String,
    /// Workers.
    pub workers: u32,
    /// Ratio of the 90 % quantile.
    pub p90: f64,
}

/// A policy over all cells.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The policy.
    pub policy: String,
    /// Ratios to the baseline.
    pub ratio: Ratios,
    /// By workload.
    pub by_workload: BTreeMap<String, Ratios>,
    /// Where it does worst.
    pub worst: WorstCell,
    /// Mean share of requests within the allowed time.
    pub within_slo: f64,
    /// Mean block hit rate.
    pub block_hit_rate: f64,
    /// Mean imbalance.
    pub imbalance: f64,
    /// Requests that were not finished.
    pub unfinished: u64,
    /// Mean wall-clock time of a decision, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ns_per_decision: Option<f64>,
}

/// Policies in cells.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// What ratios are to.
    pub baseline: String,
    /// Over all cells, the baseline first.
    pub summary: Vec<Summary>,
    /// Every cell.
    pub cells: Vec<CellFigures>,
    /// What was left out, and why.
    pub skipped: Vec<String>,
    /// What was done to workloads that nobody asked for.
    pub notes: Vec<String>,
}

impl Comparison {
    /// Puts runs together: the figures of each cell in the order of `policies`, whose first is the baseline.
    pub fn new(policies: &[String], runs: Vec<(CellName, Vec<Figures>)>, skipped: Vec<String>) -> Self {
        let cells: Vec<CellFigures> = runs
            .into_iter()
            .filter_map(|(cell, figures)| {
                let baseline = figures.first()?.clone();
                let named = policies.iter().cloned().zip(figures);
                let policies = named
                    .map(|(policy, figures)| {
                        let ratio = Ratios::of(&figures, &baseline);
                        PolicyFigures { policy, figures, ratio }
                    })
                    .collect();
                Some(CellFigures { cell, policies })
            })
            .collect();
        let summary = (0..policies.len()).filter_map(|at| Summary::of(at, &cells)).collect();
        Self { baseline: policies.first().cloned().unwrap_or_default(), summary, cells, skipped, notes: Vec::new() }
    }
}

impl Summary {
    /// The policy `at` of every cell; `None` without cells.
    fn of(at: usize, cells: &[CellFigures]) -> Option<Self> {
        let entries: Vec<(&CellName, &PolicyFigures)> =
            cells.iter().filter_map(|cell| Some((&cell.cell, cell.policies.get(at)?))).collect();
        let mean = |of: fn(&Figures) -> f64| {
            entries.iter().map(|(_, entry)| of(&entry.figures)).sum::<f64>() / entries.len() as f64
        };
        let mut workloads: BTreeMap<String, Vec<Ratios>> = BTreeMap::new();
        for (cell, entry) in &entries {
            workloads.entry(cell.workload.clone()).or_default().push(entry.ratio);
        }
        let by_workload =
            workloads.into_iter().filter_map(|(name, ratios)| Some((name, Ratios::mean(ratios.iter())?))).collect();
        Some(Self {
            policy: entries.first()?.1.policy.clone(),
            ratio: Ratios::mean(entries.iter().map(|(_, entry)| &entry.ratio))?,
            by_workload,
            worst: worst(entries.iter().map(|(cell, entry)| (*cell, entry.ratio.p90)))?,
            within_slo: mean(|figures| figures.within_slo),
            block_hit_rate: mean(|figures| figures.block_hit_rate),
            imbalance: mean(|figures| figures.imbalance),
            unfinished: entries.iter().map(|(_, entry)| entry.figures.unfinished).sum(),
            ns_per_decision: entries
                .iter()
                .map(|(_, entry)| entry.figures.ns_per_decision)
                .sum::<Option<f64>>()
                .map(|sum| sum / entries.len() as f64),
        })
    }
}

/// The workload and load with the highest ratio, seeds taken together.
pub(super) fn worst<'a>(ratios: impl Iterator<Item = (&'a CellName, f64)>) -> Option<WorstCell> {
    let mut by_cell: BTreeMap<(&str, &str, u32), Vec<f64>> = BTreeMap::new();
    for (cell, ratio) in ratios {
        by_cell.entry((&cell.workload, &cell.load, cell.workers)).or_default().push(ratio);
    }
    let means = by_cell.into_iter().filter_map(|(cell, ratios)| Some((cell, geometric_mean(ratios.into_iter())?)));
    let ((workload, load, workers), p90) = means.max_by(|a, b| a.1.total_cmp(&b.1))?;
    Some(WorstCell { workload: workload.to_owned(), load: load.to_owned(), workers, p90 })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::simulation::figures::Times;

    /// Figures with these times to first token.
    pub(in crate::simulation) fn figures(p90: f64) -> Figures {
        let times = Times { p50: p90 / 2.0, p90, p99: p90 * 2.0, mean: p90 };
        Figures {
            ttft: times,
            e2e: Times { mean: p90 + 4.0, ..times },
            itl_mean: 0.02,
            block_hit_rate: 0.5,
            within_2s: 0.9,
            within_slo: 0.8,
            imbalance: 1.1,
            evictions: 3,
            counted: 900,
            unfinished: 0,
            refusal: None,
            ns_per_decision: Some(1_000.0),
        }
    }

    pub(in crate::simulation) fn cell(workload: &str, load: &str, seed: u64) -> CellName {
        CellName { workload: workload.to_owned(), load: load.to_owned(), workers: 8, replicas: 1, seed }
    }

    #[test]
    fn means_are_geometric_and_the_worst_cell_joins_its_seeds() {
        let policies = ["default".to_owned(), "other".to_owned()];
        let runs = [("a", 1, 0.25), ("a", 2, 4.0), ("b", 1, 2.0), ("b", 2, 2.0)];
        let runs = runs.map(|(workload, seed, ratio)| (cell(workload, "1", seed), vec![figures(1.0), figures(ratio)]));
        let comparison = Comparison::new(&policies, runs.to_vec(), Vec::new());
        let [own, other] = &comparison.summary[..] else { panic!("two policies") };
        assert_eq!((own.ratio.p90, own.ratio.e2e, own.worst.p90), (1.0, 1.0, 1.0));
        assert!((other.ratio.p90 - 2_f64.sqrt()).abs() < 1e-9, "{}", other.ratio.p90);
        assert!((other.worst.p90 - 2.0).abs() < 1e-9 && other.worst.workload == "b", "{:?}", other.worst);
        assert!((other.by_workload["a"].p90 - 1.0).abs() < 1e-9);
    }

    #[test]
    fn times_below_the_floor_are_equal() {
        assert_eq!(Ratios::of(&figures(0.001), &figures(0.004)).p90, 1.0);
        assert_eq!(Ratios::of(&figures(0.04), &figures(0.001)).p90, 2.0);
    }
}
