//! Request classifiers: plugins that see a request before the queue does, and what becomes of it (spec plugins 7).
//!
//! | file | owns |
//! |---|---|
//! | this one | the trait, its events and errors |
//! | `request` | a request as a classifier sees it, and what it may change |
//! | `context`, `progress` | workers and context lengths, read without I/O |
//! | `config` | parameters, providers, the section of the policy document |
//! | `host` | one classifier at work: live requests by id, events in order, limits |
//! | `classify` | one call of `classify`, until it answers or its time is over |
//! | `driver` | delivery of events, as a future that somebody spawns |
//! | `lifecycle` | a request from registration to its one last event |
//! | `counts` | what happened, counted |
//!
//! One instance a partition. Nothing here spawns, sleeps or reads a clock: the embedding host runs the driver, and the
//! core's periodic work wakes what is overdue. Plugin code runs under no lock but the plugin's own, which is awaited,
//! never blocked on.

mod classify;
pub mod config;
pub mod context;
pub mod counts;
mod driver;
mod host;
pub mod lifecycle;
pub mod parameters;
pub mod progress;
pub mod request;
mod slot;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::{error::Error, fmt, pin::Pin, sync::Arc, time::Duration};

pub use async_trait::async_trait;

pub use self::{
    classify::{Classified, Inquiry},
    driver::{ClassifierDriver, ClassifierRuntime},
    host::{ClassifierHost, ClassifierLimits, HostParts, LifecycleKey},
    request::ClassifyRequest,
    slot::ClassifierSlot,
};
use crate::selection::identity::WorkerWithDpRank;

/// What a classifier's own errors are.
pub type ClassifierError = dyn Error + Send + Sync + 'static;

/// Why a request was aborted, where that is known. It comes from the router or its host, never from the classifier.
pub type AbortCause = dyn Error + Send + Sync + 'static;

/// A call of [`RequestClassifier::classify`] under way.
pub type ClassifyFuture = Pin<Box<dyn Future<Output = Result<ClassifyRequest, Box<ClassifierError>>> + Send + 'static>>;

/// What happened to a request. Events of all requests come in the order in which they happened, one at a time; each
/// classified request gets exactly one of `Completed` and `Aborted`, as its last.
#[derive(Debug)]
#[non_exhaustive]
#[allow(missing_docs, reason = "fields say what they are")]
pub enum ClassifyEvent {
    /// A worker was booked for it. May be missing.
    Sent { request_id: String, worker: WorkerWithDpRank },
    /// Its first token is there. May be missing.
    Responding { request_id: String, worker: WorkerWithDpRank },
    /// It is done; `context_tokens` are those of prompt and output, as far as the host knows.
    Completed { request_id: String, worker: WorkerWithDpRank, context_tokens: Option<usize> },
    /// It failed, was given up, or ended without a worker.
    Aborted { request_id: String, worker: Option<WorkerWithDpRank>, error: Option<Arc<AbortCause>> },
}

/// A plugin that may set a request's policy class, due time, cost in the queue and soft target before it queues, and may
/// let it wait.
///
/// `classify` builds its future at once and waits inside it: the future owns what it needs, so a request that waits
/// holds up no other. While `on_event` runs, new calls of `classify` wait for it.
///
/// ```
/// use pointsman::plugins::request_classifier::{ClassifyEvent, ClassifyFuture, ClassifyRequest, RequestClassifier, async_trait};
///
/// struct LongPromptsLast;
///
/// #[async_trait]
/// impl RequestClassifier for LongPromptsLast {
///     fn classify(&mut self, mut request: ClassifyRequest) -> ClassifyFuture {
///         if request.input_tokens() > 32_768 {
///             request.set_policy_class("batch");
///         }
///         Box::pin(async move { Ok(request) })
///     }
///
///     async fn on_event(&mut self, event: ClassifyEvent) {
///         if let ClassifyEvent::Aborted { request_id, error: Some(error), .. } = event {
///             println!("{request_id}: {error}");
///         }
///     }
/// }
/// ```
#[async_trait]
pub trait RequestClassifier: Send + 'static {
    /// Looks at a request before it queues. The answer has to be the request that was handed in.
    fn classify(&mut self, request: ClassifyRequest) -> ClassifyFuture {
        Box::pin(async move { Ok(request) })
    }

    /// Hears of a request's way. May await; after [`ClassifierLimits::event_time`] it is dropped where it stands.
    async fn on_event(&mut self, _event: ClassifyEvent) {}

    /// Called about ten times a second, unless `on_event` is running. Ours; for classifiers that let requests wait.
    fn on_tick(&mut self) {}

    /// Longest time for one `classify`, instead of [`ClassifierLimits::classify_time`]. Ours; asked once, when made.
    fn classify_time_limit(&self) -> Option<Duration> {
        None
    }
}

impl fmt::Debug for dyn RequestClassifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestClassifier")
    }
}
