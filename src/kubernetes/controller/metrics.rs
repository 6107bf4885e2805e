//! What a scrape shows of the operator.
//!
//! Labels: sets by namespace and name, at most [`MAX_SETS`] of them; reasons from fixed lists.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};
use tokio::sync::watch;

use super::lease::Leadership;
use crate::{
    discovery::metrics::{Series, counter, gauge},
    kubernetes::source::{Sets, SourceCounters},
    telemetry::metrics::Metrics,
};

/// Sets that have series of their own.
const MAX_SETS: usize = 256;

/// What the operator counts itself.
#[derive(Debug, Default)]
pub(super) struct Counts {
    reconciles: Mutex<BTreeMap<&'static str, u64>>,
    pub(super) statuses_written: AtomicU64,
    pub(super) statuses_failed: AtomicU64,
}

impl Counts {
    /// A SelectorSet was reconciled, or not, for a reason.
    pub(super) fn reconciled(&self, result: &'static str) {
        *self.reconciles.lock().entry(result).or_default() += 1;
    }
}

/// Shows the operator in `metrics`.
pub(super) fn register(
    metrics: &Metrics,
    counts: Arc<Counts>,
    sets: watch::Receiver<Arc<Sets>>,
    source: Arc<SourceCounters>,
    leadership: watch::Receiver<Leadership>,
) {
    let collector = Box::new(ControllerCollector { counts, sets, source, leadership });
    metrics.register(|registry| registry.register_collector(collector));
}

struct ControllerCollector {
    counts: Arc<Counts>,
    sets: watch::Receiver<Arc<Sets>>,
    source: Arc<SourceCounters>,
    leadership: watch::Receiver<Leadership>,
}

impl fmt::Debug for ControllerCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ControllerCollector")
    }
}

impl Collector for ControllerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let epoch = self.leadership.borrow().epoch;
        gauge(
            &mut encoder,
            "controller_leading",
            "Whether this process leads",
            vec![(Vec::new(), u64::from(epoch.is_some()))],
        )?;
        gauge(
            &mut encoder,
            "controller_epoch",
            "Epoch of the term that this process leads, 0 while another does",
            vec![(Vec::new(), epoch.unwrap_or(0))],
        )?;
        let reconciles = self.counts.reconciles.lock().clone();
        counter(
            &mut encoder,
            "controller_reconciles",
            "Reconciles of SelectorSets, by result",
            reconciles.iter().map(|(result, count)| (vec![("result", *result)], *count)).collect(),
        )?;
        let statuses = [
            ("written", self.counts.statuses_written.load(Ordering::Relaxed)),
            ("failed", self.counts.statuses_failed.load(Ordering::Relaxed)),
        ];
        counter(
            &mut encoder,
            "controller_status_writes",
            "Statuses written, or not, by result",
            statuses.iter().map(|(result, count)| (vec![("result", *result)], *count)).collect(),
        )?;
        let sets = self.sets.borrow().clone();
        let (mut workers, mut selectors, mut rejected) = (Vec::new(), Vec::new(), Vec::new());
        for (key, state) in sets.iter().take(MAX_SETS) {
            let labels = || vec![("namespace", key.namespace.as_str()), ("selector_set", key.name.as_str())];
            workers.push((labels(), state.snapshot.as_ref().map_or(0, |s| s.workers().len()) as u64));
            rejected.push((labels(), state.pools.values().map(|pool| pool.rejected as u64).sum()));
            for (word, ready) in [("ready", true), ("not_ready", false)] {
                let count = state.selectors.iter().filter(|pod| pod.ready == ready && !pod.finished).count() as u64;
                selectors.push(([labels(), vec![("state", word)]].concat(), count));
            }
        }
        gauge(&mut encoder, "controller_workers", "Workers in the catalog of a SelectorSet", workers)?;
        gauge(&mut encoder, "controller_rejected", "Pods and endpoints that are no workers", rejected)?;
        gauge(&mut encoder, "controller_selectors", "Selectors of a SelectorSet, by state", selectors)?;
        self.encode_source(encoder)
    }
}

impl ControllerCollector {
    fn encode_source(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let source = &self.source;
        let of_kind = |counts: &mut dyn Iterator<Item = (&'static str, u64)>| -> Series<'static> {
            counts.map(|(kind, count)| (vec![("kind", kind)], count)).collect()
        };
        counter(
            &mut encoder,
            "controller_watch_errors",
            "Lists and watches that failed, by kind and reason",
            source.errors().map(|(kind, why, count)| (vec![("kind", kind), ("reason", why)], count)).collect(),
        )?;
        let lists = of_kind(&mut source.lists());
        counter(&mut encoder, "controller_lists", "Complete lists read from the apiserver", lists)?;
        let watches = of_kind(&mut source.watches());
        counter(&mut encoder, "controller_watches", "Watches begun", watches)?;
        let unreadable = of_kind(&mut source.unreadable());
        counter(&mut encoder, "controller_unreadable_objects", "Objects that could not be read", unreadable)?;
        let pools = vec![(Vec::new(), source.recomputed_pools())];
        counter(&mut encoder, "controller_pools_computed", "Pools whose workers were worked out anew", pools)?;
        let snapshots = vec![(Vec::new(), source.snapshots())];
        counter(&mut encoder, "controller_snapshots", "Snapshots of a set that differed from the one before", snapshots)
    }
}
