//! Request classifiers in the service: their events delivered by tasks, and what a scrape shows of them.

use std::{fmt, panic::AssertUnwindSafe, sync::Arc};

use futures_util::FutureExt;
use prometheus_client::encoding::DescriptorEncoder;
use tokio::runtime::Handle;

use super::{
    SelectionService, Shared,
    metrics::{Family, count},
    tasks::{Tasks, panic_text},
};
use crate::{
    plugins::request_classifier::{ClassifierLimits, RequestClassifierFactory, RequestLifecycle},
    selection::{
        SelectionError,
        core::{ClassifierSetup, LifecycleOwner},
        policy::classifier::{
            ClassifierDriver, ClassifierRuntime,
            counts::{ClassifyOutcome, EventOutcome},
        },
    },
};

/// How the service classifies requests.
#[derive(Clone)]
pub(super) struct ClassifierChoice {
    pub(super) factory: Option<RequestClassifierFactory>,
    pub(super) limits: ClassifierLimits,
    pub(super) owner: LifecycleOwner,
}

impl ClassifierChoice {
    /// What the core is to be told, if there is a classifier.
    pub(super) fn setup(self, tasks: &Arc<Tasks>, runtime: Handle) -> Option<ClassifierSetup> {
        let Self { factory, limits, owner } = self;
        let runtime = Arc::new(EventTasks { tasks: Arc::clone(tasks), runtime });
        factory.map(|factory| ClassifierSetup { factory, runtime, limits, owner })
    }
}

/// A task for each classifier.
struct EventTasks {
    tasks: Arc<Tasks>,
    runtime: Handle,
}

impl ClassifierRuntime for EventTasks {
    fn drive(&self, driver: ClassifierDriver) {
        let tasks = Arc::clone(&self.tasks);
        self.runtime.spawn(async move {
            let stopped = tasks.stopped();
            let ended = tokio::select! {
                () = stopped.cancelled() => return,
                ended = AssertUnwindSafe(driver).catch_unwind() => ended,
            };
            // Panics of the plugin stay inside the driver.
            if let Err(panic) = ended {
                tasks.died("request_classifier", panic_text(&*panic));
            }
        });
    }
}

impl SelectionService {
    /// Tracks a request of the host's, so that it is classified and its classifier hears of its way. Its id is the
    /// `selection_id` of the booking that follows. `None` without a classifier, or unless the service was built with
    /// [`super::SelectionServiceBuilder::host_manages_request_lifecycle`].
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
        self.require_recovered()?;
        let core = &self.shared.core;
        self.shared.contain("begin_request_lifecycle", || {
            core.begin_request_lifecycle(model_name, routing_group, request_id)
        })?
    }
}

pub(super) fn encode(shared: &Shared, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let Some(counts) = shared.core.classifier_counts() else { return Ok(()) };
    let mut calls =
        Family::counter("request_classifier_classifications", "Requests classified, or not, by outcome", ["outcome"]);
    ClassifyOutcome::ALL
        .iter()
        .for_each(|&outcome| calls.add([outcome.as_str()], count(counts.classifications(outcome))));
    calls.encode(encoder)?;
    let mut events = Family::counter("request_classifier_events", "Events for classifiers, by outcome", ["outcome"]);
    EventOutcome::ALL.iter().for_each(|&outcome| events.add([outcome.as_str()], count(counts.events(outcome))));
    events.encode(encoder)?;
    let mut panics = Family::counter("request_classifier_tick_panics", "Panics in classifiers' periodic work", []);
    panics.add([], count(counts.tick_panics()));
    panics.encode(encoder)?;
    let (requests, waiting) = shared.core.classifier_backlog();
    let mut tracked = Family::gauge("request_classifier_requests", "Requests that classifiers track", []);
    tracked.add([], requests as f64);
    tracked.encode(encoder)?;
    let mut backlog = Family::gauge("request_classifier_waiting_events", "Events that wait for classifiers", []);
    backlog.add([], waiting as f64);
    backlog.encode(encoder)
}
