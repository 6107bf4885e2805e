//! What work ahead comes to, for reports.

use std::sync::Arc;

use super::{PartitionFilter, SelectionCore};
use crate::selection::load::WorkForm;

/// Prefill work ahead in one partition whose policy asks for it.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkReport {
    /// Model name.
    pub model_name: Arc<str>,
    /// Routing group.
    pub routing_group: Arc<str>,
    /// Ranks by how their work is known, as a stable word.
    pub ranks: Vec<(&'static str, u64)>,
    /// Tokens booked and not computed yet, all ranks together, as of the last look at each.
    pub tokens: u64,
    /// Prefill tokens a second of one rank, as learned from first tokens.
    pub rate: f64,
    /// Ranks whose events are late, broken or absent.
    pub unheard_ranks: u64,
}

impl SelectionCore {
    /// Work ahead in the partitions that pass; those whose policy does not ask for it are left out.
    pub fn work_reports(&self, filter: &PartitionFilter) -> Vec<WorkReport> {
        let (partitions, now) = (self.partitions(filter), self.clock.now());
        let reports = partitions.iter().filter_map(|partition| {
            let report = partition.with_state(|state| {
                let slots = state.load.slots();
                let work = state.load.reported_work(now)?;
                let tokens = slots.into_iter().map(|slot| work.ahead(slot).0);
                Some(WorkReport {
                    model_name: Arc::clone(&partition.key.model_name),
                    routing_group: Arc::clone(&partition.key.routing_group),
                    ranks: WorkForm::ALL.iter().map(|form| form.as_str()).zip(work.forms()).collect(),
                    tokens: tokens.fold(0, u64::saturating_add),
                    rate: work.rate(),
                    unheard_ranks: work.unheard() as u64,
                })
            });
            report.ok().flatten()
        });
        reports.collect()
    }
}
