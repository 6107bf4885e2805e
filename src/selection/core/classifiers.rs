//! The request classifiers of a core: installed once, one instance a partition, made when its first tracked request
//! comes.

use std::sync::Arc;

use super::{PartitionFilter, SelectionCore};
use crate::selection::{
    error::SelectionError,
    identity::WorkerWithDpRank,
    partition::{Partition, PartitionRef},
    policy::{
        classifier::{
            ClassifierHost, ClassifierLimits, ClassifierRuntime, HostParts,
            config::RequestClassifierFactory,
            context::{RequestClassifierContext, RequestClassifierWorker},
            counts::{ClassifierCounts, ClassifyOutcome},
            lifecycle::RequestLifecycle,
        },
        failures::{contained, is_worth_a_line},
    },
};

/// Who tells of a request's way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LifecycleOwner {
    /// A booking is the lifecycle: it begins with `select_and_reserve` and ends with the booking.
    #[default]
    Booking,
    /// The host, by [`SelectionCore::begin_request_lifecycle`]; other requests are not classified.
    Host,
}

/// How requests are classified.
#[derive(Clone)]
pub struct ClassifierSetup {
    /// Makes the classifiers.
    pub factory: RequestClassifierFactory,
    /// Delivers their events.
    pub runtime: Arc<dyn ClassifierRuntime>,
    /// Limits of each.
    pub limits: ClassifierLimits,
    /// Who tells of requests.
    pub owner: LifecycleOwner,
}

impl std::fmt::Debug for ClassifierSetup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClassifierSetup")
            .field("limits", &self.limits)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

/// What is installed.
#[derive(Debug)]
pub(super) struct Classifiers {
    pub(super) setup: ClassifierSetup,
    pub(super) counts: Arc<ClassifierCounts>,
}

impl SelectionCore {
    /// Lets requests be classified from now on. Call it before the first request; a second call changes nothing and
    /// answers `false`.
    pub fn install_request_classifier(&self, setup: ClassifierSetup) -> bool {
        self.classifiers.set(Classifiers { setup, counts: Arc::default() }).is_ok()
    }

    /// What classifiers did; `None` without any.
    pub fn classifier_counts(&self) -> Option<&ClassifierCounts> {
        self.classifiers.get().map(|classifiers| &*classifiers.counts)
    }

    /// Requests that classifiers track, and events that wait for them.
    pub fn classifier_backlog(&self) -> (usize, usize) {
        let partitions = self.partitions(&PartitionFilter::default());
        let sizes = partitions.iter().filter_map(|partition| partition.classifier.get()).map(|host| host.size());
        sizes.fold((0, 0), |sum, size| (sum.0 + size.0, sum.1 + size.1))
    }

    /// Tracks a request of the host's under its id, which is the selection id of its booking. `None` without a
    /// classifier, or where bookings are the lifecycles.
    ///
    /// # Errors
    /// 409 for an id that is live; 503 when nobody can take requests, or too many are tracked; 500 when the classifier
    /// cannot be made.
    pub fn begin_request_lifecycle(
        &self,
        model_name: &str,
        routing_group: &str,
        request_id: &str,
    ) -> Result<Option<RequestLifecycle>, SelectionError> {
        let Some(classifiers) = self.classifiers.get() else { return Ok(None) };
        if classifiers.setup.owner != LifecycleOwner::Host {
            return Ok(None);
        }
        let partition = self.ready_partition(model_name, routing_group)?;
        self.classifier_of(classifiers, &partition)?.register(request_id.into(), true).map(Some)
    }

    /// The classifier of a partition; made when there is none, or when making it failed before.
    pub(super) fn classifier_of(
        &self,
        classifiers: &Classifiers,
        partition: &PartitionRef,
    ) -> Result<Arc<ClassifierHost>, SelectionError> {
        let mut slot = partition.classifier.lock();
        if let Some(host) = &*slot {
            return Ok(Arc::clone(host));
        }
        let Classifiers { setup, counts } = classifiers;
        let of_partition = Arc::downgrade(partition);
        let clock = Arc::clone(&self.clock);
        let context = RequestClassifierContext::new(partition.block_size, move || {
            of_partition.upgrade().map(|partition| bookable(&partition)).unwrap_or_default()
        })
        .with_clock(move || clock.instant(clock.now()));
        let classifier = contained(|| (setup.factory)(context)).map_err(|text| {
            let times = counts.count(ClassifyOutcome::Panic);
            if is_worth_a_line(times) {
                tracing::error!(partition = %partition.key, panic = text, times, "request classifier factory panicked");
            }
            SelectionError::Classifier(format!("request classifier factory panicked: {text}"))
        })?;
        let parts =
            HostParts { classifier, limits: setup.limits, clock: Arc::clone(&self.clock), counts: Arc::clone(counts) };
        let host = ClassifierHost::new(parts);
        setup.runtime.drive(Arc::clone(&host).driver());
        *slot = Some(Arc::clone(&host));
        drop(slot);
        if self.has_closed_queues() {
            host.refuse_waiting();
        }
        if self.refuse_when_shutting_down().is_err() {
            host.close();
        }
        Ok(host)
    }

    /// Requests that wait for a classifier, and those that would, are refused; the rest go on.
    pub(super) fn refuse_waiting_for_classifiers(&self) {
        for partition in self.partitions(&PartitionFilter::default()) {
            if let Some(host) = partition.classifier.get() {
                host.refuse_waiting();
            }
        }
    }

    /// Shutting down: requests that wait for a classifier are told, events that wait for it are dropped.
    pub(super) fn close_classifiers(&self) {
        for partition in self.partitions(&PartitionFilter::default()) {
            if let Some(host) = partition.classifier.get() {
                host.close();
            }
        }
    }
}

/// Ranks that take bookings, by worker and rank.
fn bookable(partition: &Partition) -> Vec<RequestClassifierWorker> {
    let list = partition.with_state(|state| {
        let workers = state.workers.values().filter(|facts| !facts.draining);
        let ranks = workers.flat_map(|facts| {
            let of = |dp_rank| WorkerWithDpRank::new(facts.worker_id, dp_rank);
            facts.ranks.clone().map(move |dp_rank| RequestClassifierWorker::new(of(dp_rank), facts.total_kv_blocks))
        });
        ranks.collect::<Vec<_>>()
    });
    let mut list = list.unwrap_or_default();
    list.sort_unstable_by_key(|rank| (rank.worker().worker_id, rank.worker().dp_rank));
    list
}
