//! What tests of classifiers share: one that does as told and notes what it hears, and drivers that run when told.

use std::{
    sync::Arc,
    task::{Context, Waker},
};

use parking_lot::Mutex;

use super::{
    ClassifierDriver, ClassifierRuntime, ClassifyEvent, ClassifyFuture, ClassifyRequest, RequestClassifier,
    async_trait, config::RequestClassifierFactory,
};

type Classify = dyn Fn(ClassifyRequest) -> ClassifyFuture + Send + Sync;
type Hear = dyn Fn(&ClassifyEvent) -> bool + Send + Sync;

/// Notes calls and events, in order, as short texts.
#[derive(Clone)]
pub(crate) struct Probe {
    pub(crate) notes: Arc<Mutex<Vec<String>>>,
    classify: Arc<Classify>,
    /// Whether to get stuck over an event; may panic.
    stuck: Arc<Hear>,
}

impl Probe {
    /// Passes everything.
    pub(crate) fn passing() -> Self {
        Self::with(|request| Box::pin(async { Ok(request) }))
    }

    /// Does `classify` to each request.
    pub(crate) fn with(classify: impl Fn(ClassifyRequest) -> ClassifyFuture + Send + Sync + 'static) -> Self {
        Self { notes: Arc::default(), classify: Arc::new(classify), stuck: Arc::new(|_| false) }
    }

    /// Changes each request at once.
    pub(crate) fn changing(change: impl Fn(&mut ClassifyRequest) + Send + Sync + 'static) -> Self {
        Self::with(move |mut request| {
            change(&mut request);
            Box::pin(async { Ok(request) })
        })
    }

    pub(crate) fn stuck_over(mut self, stuck: impl Fn(&ClassifyEvent) -> bool + Send + Sync + 'static) -> Self {
        self.stuck = Arc::new(stuck);
        self
    }

    pub(crate) fn factory(&self) -> RequestClassifierFactory {
        let probe = self.clone();
        Arc::new(move |_| Box::new(probe.clone()))
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        self.notes.lock().clone()
    }
}

pub(crate) fn note(event: &ClassifyEvent) -> String {
    let at = |worker: &crate::selection::WorkerWithDpRank| format!("{}.{}", worker.worker_id, worker.dp_rank);
    match event {
        ClassifyEvent::Sent { request_id, worker } => format!("sent {request_id} {}", at(worker)),
        ClassifyEvent::Responding { request_id, worker } => format!("responding {request_id} {}", at(worker)),
        ClassifyEvent::Completed { request_id, worker, context_tokens } => {
            let tokens = context_tokens.map_or_else(|| "?".to_owned(), |tokens| tokens.to_string());
            format!("completed {request_id} {} {tokens}", at(worker))
        }
        ClassifyEvent::Aborted { request_id, worker, error } => {
            let worker = worker.as_ref().map_or_else(|| "-".to_owned(), at);
            let error = error.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
            format!("aborted {request_id} {worker} {error}")
        }
    }
}

#[async_trait]
impl RequestClassifier for Probe {
    fn classify(&mut self, request: ClassifyRequest) -> ClassifyFuture {
        self.notes.lock().push(format!("classify {}", request.request_id().unwrap_or("?")));
        (self.classify)(request)
    }

    async fn on_event(&mut self, event: ClassifyEvent) {
        self.notes.lock().push(note(&event));
        if (self.stuck)(&event) {
            std::future::pending::<()>().await;
        }
    }
}

/// Keeps drivers until they are run.
#[derive(Default)]
pub(crate) struct Drivers(Mutex<Vec<ClassifierDriver>>);

impl Drivers {
    /// Polls every driver once; each does all it can. How many go on.
    pub(crate) fn run(&self) -> usize {
        let mut drivers = self.0.lock();
        drivers.retain_mut(|driver| driver.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drivers.len()
    }
}

impl ClassifierRuntime for Drivers {
    fn drive(&self, driver: ClassifierDriver) {
        self.0.lock().push(driver);
    }
}
