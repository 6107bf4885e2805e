//! Cells and who runs them: each workload, load, fleet size and seed once for every policy.
//!
//! A run of one policy in one cell depends on nothing else, so threads change when it is done and nothing of what comes
//! out. Threads take runs in order; a failed one ends all.

use std::{
    num::NonZeroUsize,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use parking_lot::Mutex;

use super::{
    SimulationError,
    candidate::Candidate,
    comparison::CellName,
    figures::Figures,
    fleet::{Fleet, FleetConfig},
    workload::{Demand, Workload},
};

/// A workload at a load, in front of a fleet.
#[derive(Clone, Debug)]
pub struct Cell {
    /// How it is shown.
    pub name: CellName,
    /// What comes.
    pub workload: Workload,
    /// How much of it.
    pub demand: Demand,
    /// Who serves it.
    pub fleet: FleetConfig,
}

impl Cell {
    /// `workload` as `demand` wants it, called `load`, in front of a fleet like `fleet` of the demand's size and seed.
    pub fn new(workload: &Workload, load: String, demand: Demand, fleet: &FleetConfig) -> Self {
        let mut fleet = FleetConfig { workers: demand.workers, seed: demand.seed, ..fleet.clone() };
        fleet.engine.block_size = workload.block_size();
        let name = CellName {
            workload: workload.name().to_owned(),
            load,
            workers: fleet.workers,
            replicas: fleet.replicas,
            seed: fleet.seed,
        };
        Self { name, workload: workload.clone(), demand, fleet }
    }

    /// Runs it with one policy.
    ///
    /// # Errors
    /// The workload cannot be read, or the policy not be made.
    pub fn run(&self, candidate: &Candidate) -> Result<Figures, SimulationError> {
        let sessions = self.workload.sessions(&self.demand)?;
        Ok(Figures::of(&Fleet::new(self.fleet.clone(), candidate)?.run(sessions)?))
    }
}

/// Runs every policy in every cell; `done` is called after each run. Cells and policies come back in their order.
///
/// # Errors
/// The first run, in that order, that failed.
pub fn run(
    cells: &[Cell],
    candidates: &[Candidate],
    threads: NonZeroUsize,
    done: &(dyn Fn() + Sync),
) -> Result<Vec<(CellName, Vec<Figures>)>, SimulationError> {
    let runs = cells.len() * candidates.len();
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<Result<Figures, SimulationError>>>> = (0..runs).map(|_| Mutex::new(None)).collect();
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(slot) = results.get(at) else { return };
            let result = cells[at / candidates.len()].run(&candidates[at % candidates.len()]);
            if result.is_err() {
                next.store(runs, Ordering::Relaxed);
            }
            *slot.lock() = Some(result);
            done();
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.get().min(runs) {
            scope.spawn(work);
        }
        work();
    });
    let mut results = results.into_iter().map(Mutex::into_inner);
    let mut table = Vec::with_capacity(cells.len());
    for cell in cells {
        // Runs behind a failed one may not have been begun.
        let figures = results.by_ref().take(candidates.len()).flatten().collect::<Result<Vec<_>, _>>()?;
        table.push((cell.name.clone(), figures));
    }
    Ok(table)
}
