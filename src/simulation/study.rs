//! The routing quality index and what stands beside it, from cells to figures.
//!
//! Sustainable load is found by bisection over multiples of level 4 in steps of 0.05: the highest at which the 90 %
//! quantile of the time to first token keeps to 5 s on traces, whose prompts are long, and to 2 s elsewhere, and every
//! request is finished.

use std::{
    collections::BTreeMap,
    num::NonZeroUsize,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use parking_lot::Mutex;

use super::{
    SimulationError,
    candidate::Candidate,
    catalogue::{self, CatalogueError},
    comparison::Comparison,
    figures::Figures,
    fleet::FleetConfig,
    grid::{self, Cell},
    quality::{Quality, ReplicaPenalty, Sustainable},
    workload::{Demand, LEVELS, Load, Workload},
};

/// Steps of the multiples of level 4.
const STEP: f64 = 0.05;
/// Highest multiple tried, in steps.
const STEPS: u32 = 80;
/// Workers of the fleets whose sustainable load is looked for.
const WORKERS: u32 = 8;

/// Which cells an index is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Names of workloads.
    pub workloads: Vec<&'static str>,
    /// Fleet sizes.
    pub workers: Vec<u32>,
    /// Seeds.
    pub seeds: Vec<u64>,
}

impl Scope {
    /// All cells.
    pub fn full() -> Self {
        Self { workloads: catalogue::NAMES.to_vec(), workers: vec![8, 32], seeds: vec![1, 2, 3] }
    }

    /// A few cells that need no trace and take seconds.
    pub fn small() -> Self {
        Self { workloads: vec!["tenants", "hot"], workers: vec![8], seeds: vec![1] }
    }

    /// How many cells it has, were all workloads there.
    pub fn cells(&self) -> usize {
        self.workloads.len() * usize::from(LEVELS) * self.workers.len() * self.seeds.len()
    }
}

/// A load level, and how it is called.
pub fn level(level: u8) -> (String, Load) {
    (format!("load {level}"), Load::Level(level))
}

/// One policy against a baseline.
#[derive(Clone, Debug)]
pub struct Study<'a> {
    /// What ratios are to.
    pub baseline: &'a Candidate,
    /// The policy.
    pub policy: &'a Candidate,
    /// Which cells.
    pub scope: Scope,
    /// Folder of the traces.
    pub traces: Option<&'a Path>,
    /// The fleet of every cell but for its size and seed. More than one selector are compared with one.
    pub fleet: FleetConfig,
    /// Runs at a time.
    pub threads: NonZeroUsize,
}

impl Study<'_> {
    /// Runs the cells, and with several selectors the policy again; `done` is called after each run.
    ///
    /// # Errors
    /// A trace that cannot be read; no workload at all.
    pub fn quality(&self, done: &(dyn Fn() + Sync)) -> Result<Quality, SimulationError> {
        let mut skipped = Vec::new();
        let workloads = self.workloads(&mut skipped)?;
        let candidates = [self.baseline.clone(), self.policy.clone()];
        let alone = FleetConfig { replicas: 1, ..self.fleet.clone() };
        let runs = grid::run(&self.cells(&workloads, &alone), &candidates, self.threads, done)?;
        let own: Vec<Figures> = runs.iter().filter_map(|(_, figures)| figures.get(1).cloned()).collect();
        let labels = [self.baseline, self.policy].map(|candidate| candidate.label().to_owned());
        let reasons = skipped.join("; ");
        let mut comparison = Comparison::new(&labels, runs, skipped);
        comparison.notes = workloads.iter().filter_map(Workload::note).collect();
        let quality = Quality::of(&comparison, self.scope.cells());
        let mut quality = quality.ok_or(SimulationError::NoCells(reasons))?;
        if self.fleet.replicas > 1 {
            let runs = grid::run(&self.cells(&workloads, &self.fleet), &candidates[1..], self.threads, done)?;
            let many: Vec<Figures> = runs.into_iter().filter_map(|(_, figures)| figures.into_iter().next()).collect();
            quality.replica_penalty = ReplicaPenalty::of(self.fleet.replicas, &own, &many);
        }
        Ok(quality)
    }

    /// Runs of [`Self::quality`], were all workloads there.
    pub fn runs(&self) -> usize {
        self.scope.cells() * if self.fleet.replicas > 1 { 3 } else { 2 }
    }

    /// Looks for the highest load that both policies sustain, with eight workers and the first seed.
    ///
    /// # Errors
    /// A trace that cannot be read.
    pub fn sustainable(&self) -> Result<Option<Sustainable>, SimulationError> {
        let workloads = self.workloads(&mut Vec::new())?;
        let searches: Vec<(&Workload, &Candidate)> = workloads
            .iter()
            .flat_map(|workload| [self.policy, self.baseline].map(|candidate| (workload, candidate)))
            .collect();
        let next = AtomicUsize::new(0);
        let found = Mutex::new(vec![None; searches.len()]);
        let search = || -> Result<(), SimulationError> {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some((workload, candidate)) = searches.get(at) else { return Ok(()) };
                let multiple = self.highest(workload, candidate)?;
                found.lock()[at] = Some(multiple);
            }
        };
        thread::scope(|scope| {
            let others: Vec<_> = (1..self.threads.get().min(searches.len())).map(|_| scope.spawn(search)).collect();
            let own = search();
            // A panic goes on when the scope ends.
            others.into_iter().fold(own, |outcome, other| outcome.and(other.join().unwrap_or(Ok(()))))
        })?;
        let found = found.into_inner();
        let pairs = workloads.iter().zip(found.chunks(2)).filter_map(|(workload, pair)| match pair {
            [Some(policy), Some(baseline)] => Some((workload.name().to_owned(), [*policy, *baseline])),
            _ => None,
        });
        Ok(Sustainable::of(pairs.collect::<BTreeMap<_, _>>()))
    }

    /// The highest multiple of level 4 that `candidate` sustains; the lowest step when it sustains none.
    fn highest(&self, workload: &Workload, candidate: &Candidate) -> Result<f64, SimulationError> {
        let highest_share = catalogue::highest_share(workload.name()).unwrap_or(1.0);
        let limit = if matches!(workload, Workload::Trace(_)) { 5.0 } else { 2.0 };
        let seed = self.scope.seeds.first().copied().unwrap_or(1);
        let (mut sustained, mut too_much) = (1, STEPS);
        while too_much - sustained > 1 {
            let step = sustained.midpoint(too_much);
            let load = Load::Share(highest_share * STEP * f64::from(step));
            let demand = Demand { workers: WORKERS, load, seed, jitter: None };
            let alone = FleetConfig { replicas: 1, ..self.fleet.clone() };
            let figures = Cell::new(workload, String::new(), demand, &alone).run(candidate)?;
            if figures.ttft.p90 <= limit && figures.unfinished == 0 {
                sustained = step;
            } else {
                too_much = step;
            }
        }
        Ok(STEP * f64::from(sustained))
    }

    /// The workloads that are there; those whose traces are not are named in `skipped`.
    fn workloads(&self, skipped: &mut Vec<String>) -> Result<Vec<Workload>, SimulationError> {
        let mut workloads = Vec::new();
        for name in &self.scope.workloads {
            match catalogue::workload(name, self.traces) {
                Ok(workload) => workloads.push(workload),
                Err(missing @ CatalogueError::Missing { .. }) => skipped.push(missing.to_string()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(workloads)
    }

    fn cells(&self, workloads: &[Workload], fleet: &FleetConfig) -> Vec<Cell> {
        let mut cells = Vec::new();
        for workload in workloads {
            for &workers in &self.scope.workers {
                for (label, load) in (1..=LEVELS).map(level) {
                    for &seed in &self.scope.seeds {
                        let demand = Demand { workers, load, seed, jitter: None };
                        cells.push(Cell::new(workload, label.clone(), demand, fleet));
                    }
                }
            }
        }
        cells
    }
}
