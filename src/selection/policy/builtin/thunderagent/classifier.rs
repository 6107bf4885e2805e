//! `thunderagent`, its request classifier: whole programs wait while their workers are full (spec plugins 8.1).
//!
//! A program is a session. It is *reasoning* while a request of it runs and *acting* between two. This file is the
//! plugin around `programs`, which decides; what waits here is a future that its program's gate opens.

mod parameters;
mod programs;

#[cfg(test)]
mod tests;

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Poll, Waker},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use self::{
    parameters::Parameters,
    programs::{Admission, Programs, Ticket, Turn},
};
use crate::selection::{
    identity::WorkerWithDpRank,
    policy::classifier::{
        ClassifyEvent, ClassifyFuture, ClassifyRequest, RequestClassifier, async_trait,
        config::RequestClassifierProvider,
        context::{RequestClassifierContext, RequestClassifierWorker},
    },
};

/// Beyond the time after which a program goes on anyway.
const GRACE: Duration = Duration::from_secs(60);

/// Makes classifiers from the parameters of a document.
pub(in crate::selection::policy) fn provider() -> RequestClassifierProvider {
    Arc::new(|parameters| {
        let parameters: Parameters = parameters.deserialize()?;
        let parameters = Arc::new(parameters.checked()?);
        Ok(Arc::new(move |context| Box::new(ThunderAgent::new(&parameters, context)) as _))
    })
}

struct ThunderAgent {
    context: RequestClassifierContext,
    programs: Arc<Mutex<Programs>>,
    time_limit: Duration,
}

impl ThunderAgent {
    fn new(parameters: &Arc<Parameters>, context: RequestClassifierContext) -> Self {
        let programs = Programs::new(Arc::clone(parameters), context.block_size(), context.now());
        let time_limit = parameters.resume_timeout().saturating_add(GRACE);
        Self { context, programs: Arc::new(Mutex::new(programs)), time_limit }
    }

    /// Lets programs go that may, once the workers are looked at.
    fn reconcile(&self, now: Instant) {
        let workers = self.context.workers();
        wake(self.programs.lock().reconcile(&workers, now));
    }

    /// Ranks, where the sizes known of them are too old.
    fn workers_if_stale(&self, now: Instant) -> Option<Vec<RequestClassifierWorker>> {
        let stale = self.programs.lock().is_stale(now);
        stale.then(|| self.context.workers())
    }
}

fn wake(wakers: Vec<Waker>) {
    wakers.into_iter().for_each(Waker::wake);
}

#[async_trait]
impl RequestClassifier for ThunderAgent {
    fn classify(&mut self, mut request: ClassifyRequest) -> ClassifyFuture {
        let Some(turn) = turn_of(&request) else { return Box::pin(async { Ok(request) }) };
        let now = self.context.now();
        let workers = self.workers_if_stale(now);
        let mut programs = self.programs.lock();
        if let Some(workers) = workers {
            programs.measure(&workers, now);
        }
        match programs.arrive(turn, now) {
            Admission::Now(target) => {
                steer(&mut request, target);
                Box::pin(async { Ok(request) })
            }
            Admission::Waits(ticket) => {
                drop(programs);
                let place = Place { programs: Arc::clone(&self.programs), ticket };
                Box::pin(async move {
                    let target = place.go().await;
                    steer(&mut request, target);
                    Ok(request)
                })
            }
        }
    }

    async fn on_event(&mut self, event: ClassifyEvent) {
        let now = self.context.now();
        let mut programs = self.programs.lock();
        match event {
            ClassifyEvent::Sent { request_id, worker } => programs.sent(&request_id, worker),
            ClassifyEvent::Completed { request_id, context_tokens, .. } => {
                programs.ended(&request_id, context_tokens, now);
            }
            ClassifyEvent::Aborted { request_id, .. } => programs.ended(&request_id, None, now),
            ClassifyEvent::Responding { .. } => {}
        }
    }

    fn on_tick(&mut self) {
        let now = self.context.now();
        let due = self.programs.lock().is_due(now);
        if due {
            self.reconcile(now);
        }
    }

    fn classify_time_limit(&self) -> Option<Duration> {
        Some(self.time_limit)
    }
}

/// What a request is to its program; `None` for one without a session.
fn turn_of(request: &ClassifyRequest) -> Option<Turn> {
    let session = request.session_context()?;
    Some(Turn {
        program: session.session_id().into(),
        request_id: request.request_id()?.to_owned(),
        progress: request.progress().clone(),
        input_tokens: request.input_tokens(),
        is_last: session.session_final() == Some(true),
        pinned: request.pinned_worker(),
    })
}

fn steer(request: &mut ClassifyRequest, target: Option<WorkerWithDpRank>) {
    if let Some(target) = target {
        request.set_worker_selection_target(target);
    }
}

/// A request that waits. Dropped, it leaves.
struct Place {
    programs: Arc<Mutex<Programs>>,
    ticket: Ticket,
}

impl Place {
    /// Waits until its program may go on, and says where.
    async fn go(self) -> Option<WorkerWithDpRank> {
        poll_fn(|cx| match self.programs.lock().poll(self.ticket, cx.waker()) {
            Some(target) => Poll::Ready(target),
            None => Poll::Pending,
        })
        .await
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.programs.lock().leave(self.ticket);
    }
}
