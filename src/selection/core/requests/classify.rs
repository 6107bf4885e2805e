//! What a request classifier hears of a request, and what it may change before the request queues.

use std::sync::Arc;

use super::{admit::best_cached_tokens, lookup::Scratch};
use crate::selection::{
    core::{SelectionCore, bookings::SharedLifecycle, classifiers::LifecycleOwner},
    error::SelectionError,
    identity::WorkerWithDpRank,
    moment::Moment,
    partition::{Partition, PartitionRef},
    policy::classifier::{
        Classified, ClassifierHost, Inquiry, LifecycleKey, lifecycle::RequestLifecycle, request::RequestFacts,
    },
    queue::Placement,
    request::{SelectRequest, SessionContext},
};

/// A booking that is being made, as a classifier sees it. Dropped before it is sent, its request was aborted.
#[derive(Debug)]
pub(super) enum Tracked {
    /// No classifier, or none that knows of the request.
    Not,
    /// The booking is the lifecycle.
    Booking(RequestLifecycle, Moment),
    /// The host tells of it.
    Host(Arc<ClassifierHost>, LifecycleKey, Moment),
}

impl Tracked {
    /// The booking counts on `rank` from now on; what comes is told by what is handed out.
    pub(super) fn sent(&mut self, rank: WorkerWithDpRank) -> Option<SharedLifecycle> {
        match std::mem::replace(self, Self::Not) {
            Self::Booking(mut lifecycle, _) => {
                lifecycle.sent(rank);
                Some(SharedLifecycle::new(lifecycle.into()))
            }
            Self::Not | Self::Host(..) => None,
        }
    }

    /// The booking failed.
    pub(super) fn failed(self, error: &SelectionError) {
        if let Self::Booking(mut lifecycle, _) = self {
            lifecycle.abort(Some(Arc::new(error.clone())));
        }
    }
}

impl SelectionCore {
    /// Begins to track a booking under its claimed id.
    ///
    /// # Errors
    /// As for [`ClassifierHost::register`]; 500 when the classifier cannot be made.
    pub(super) fn track(&self, partition: &PartitionRef, id: &Arc<str>) -> Result<Tracked, SelectionError> {
        let Some(classifiers) = self.classifiers.get() else { return Ok(Tracked::Not) };
        let now = self.clock.now();
        match classifiers.setup.owner {
            LifecycleOwner::Booking => {
                // The id is claimed: a lifecycle that is still live under it is just about to end.
                let lifecycle = self.classifier_of(classifiers, partition)?.register(Arc::clone(id), false)?;
                Ok(Tracked::Booking(lifecycle, now))
            }
            LifecycleOwner::Host => {
                let Some(host) = partition.classifier.get() else { return Ok(Tracked::Not) };
                Ok(host.find(id).map_or(Tracked::Not, |key| Tracked::Host(host, key, now)))
            }
        }
    }

    /// Asks the classifier, and puts what it says into the request. What it says of the target is returned.
    ///
    /// # Errors
    /// As for [`ClassifierHost::classify`]; 429 for a due time that has passed.
    pub(super) async fn classify(
        &self,
        partition: &PartitionRef,
        tracked: &Tracked,
        request: &mut SelectRequest,
        scratch: &mut Scratch,
        deadline: Option<Moment>,
    ) -> Result<Option<Option<WorkerWithDpRank>>, SelectionError> {
        let (host, key, ingress) = match tracked {
            Tracked::Not => return Ok(None),
            Tracked::Booking(lifecycle, ingress) => (lifecycle.host(), lifecycle.key(), *ingress),
            Tracked::Host(host, key, ingress) => (host, *key, *ingress),
        };
        let facts = self.facts(partition, request, scratch, ingress)?;
        let inquiry = Inquiry { key, facts, deadline };
        let profile = self.profile_of(&request.model_name);
        let is_known = |class: &str| profile.knows(class);
        let Classified { policy_class, scheduling_cost_tokens, due_at, target } =
            host.classify(inquiry, is_known).await?;
        let steering = &mut request.steering;
        steering.came = Some(ingress);
        if let Some(due_at) = due_at {
            let due = self.clock.moment(due_at);
            if due <= self.clock.now() {
                return Err(SelectionError::DeadlineExceeded);
            }
            steering.due = Some(due);
        }
        if policy_class.is_some() {
            steering.policy_class = policy_class;
        }
        if let Some(tokens) = scheduling_cost_tokens {
            steering.scheduling_cost = Some(tokens as u64);
        }
        // A pin goes before it.
        Ok(target.filter(|_| steering.pinned_worker.is_none()))
    }

    fn facts(
        &self,
        partition: &Partition,
        request: &SelectRequest,
        scratch: &mut Scratch,
        ingress: Moment,
    ) -> Result<RequestFacts, SelectionError> {
        scratch.look_up(partition)?;
        let weights = self.cache_weights();
        let steering = &request.steering;
        let placement = Placement::of(steering);
        let cached =
            partition.with_state(|state| best_cached_tokens(partition, &state.load, scratch, &placement, weights))?;
        let isl_tokens = scratch.prompt.isl_tokens();
        let bare = |id: &String| SessionContext::new(id.clone(), None, None, None);
        Ok(RequestFacts {
            input_tokens: tokens(isl_tokens),
            cached_tokens: tokens(cached.min(isl_tokens)),
            ingress_at: self.clock.instant(ingress),
            policy_class: steering.policy_class.clone(),
            session: request.session_context.clone().or_else(|| request.session_id.as_ref().map(bare)),
            pinned_worker: steering.pinned_worker,
            sequence: Some(scratch.prompt.sequence().into()),
        })
    }
}

fn tokens(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
