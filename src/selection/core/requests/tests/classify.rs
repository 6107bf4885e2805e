//! Request classifiers at work in a core, with standing time and events that are delivered when a test says so.

/// A future polled once, which must wait.
macro_rules! pending {
    ($future:expr) => {
        assert!($future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(), "it must wait")
    };
}

macro_rules! now {
    ($future:expr) => {
        match $future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("it must not wait"),
        }
    };
}

mod answers;
mod contract;
mod faults;
mod lifecycles;

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::{Bed, approximate, named, prompt, request};
use crate::selection::{
    core::{ClassifierSetup, LifecycleOwner},
    error::SelectionError,
    identity::{PartitionKey, WorkerWithDpRank},
    policy::classifier::{
        ClassifierLimits, ClassifyEvent, ClassifyRequest,
        config::{RequestClassifierConfig, RequestClassifierParameters},
        counts::{ClassifyOutcome, EventOutcome},
        lifecycle::RequestLifecycle,
        testing::{Drivers, Probe},
    },
    policy::{builtin::register_classifiers, registry::RouterPluginRegistry},
    queue::profile::{PolicyProfile, PolicyProfiles},
    replication::{BookingChange, BookingEvent},
    request::{SelectRequest, SelectResponse, SessionContext},
    testing::{CountingWaker, Lines},
};

/// A bed with two workers whose requests a probe classifies.
struct Classified {
    bed: Bed,
    probe: Probe,
    drivers: Arc<Drivers>,
}

impl Classified {
    fn new(owner: LifecycleOwner, probe: Probe) -> Self {
        Self::limited(owner, probe, ClassifierLimits::default())
    }

    fn limited(owner: LifecycleOwner, probe: Probe, limits: ClassifierLimits) -> Self {
        let bed = Bed::with_workers(approximate(|_| {}), 2);
        let drivers = Arc::new(Drivers::default());
        let setup = ClassifierSetup { factory: probe.factory(), runtime: drivers.clone(), limits, owner };
        assert!(bed.core.install_request_classifier(setup));
        Self { bed, probe, drivers }
    }

    fn bookings(probe: Probe) -> Self {
        Self::new(LifecycleOwner::Booking, probe)
    }

    fn begin(&self, id: &str) -> RequestLifecycle {
        self.bed.core.begin_request_lifecycle("m", "default", id).expect("accepted").expect("classified")
    }

    fn reserve(&self, request: SelectRequest) -> Result<SelectResponse, SelectionError> {
        self.bed.reserve(request)
    }

    /// Events are delivered; then what was noted.
    fn notes(&self) -> Vec<String> {
        self.drivers.run();
        self.probe.notes()
    }

    fn counted(&self, outcome: ClassifyOutcome) -> u64 {
        self.bed.core.classifier_counts().expect("installed").classifications(outcome)
    }

    fn events(&self, outcome: EventOutcome) -> u64 {
        self.bed.core.classifier_counts().expect("installed").events(outcome)
    }
}

/// A booking of three blocks of four.
fn booking(id: &str) -> SelectRequest {
    super::booking(id, prompt(1, 3))
}
