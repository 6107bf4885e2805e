//! One call of `classify`: its turn, its time, and what its answer may say.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
};

use super::{
    ClassifierError, ClassifyRequest,
    counts::ClassifyOutcome,
    host::{Classification, ClassifierHost, LifecycleKey, Phase, Tracked, shut_down},
    request::{Overrides, RequestFacts},
};
use crate::selection::{
    error::SelectionError,
    moment::Moment,
    policy::failures::{contained, is_worth_a_line},
};

/// What the queue is to go by.
pub type Classified = Overrides;

/// What is asked.
#[allow(missing_docs, reason = "fields say what they are")]
#[derive(Debug)]
pub struct Inquiry {
    pub key: LifecycleKey,
    pub facts: RequestFacts,
    /// The request's own.
    pub deadline: Option<Moment>,
}

/// Why there is no answer.
#[derive(Debug)]
enum Failure {
    Error(Box<ClassifierError>),
    Panic(String),
    Replaced,
    Invalid(String),
    TimedOut,
    Deadline,
    Ended,
    Shutdown,
}

impl Failure {
    fn outcome(&self) -> ClassifyOutcome {
        match self {
            Self::Error(_) => ClassifyOutcome::Error,
            Self::Panic(_) => ClassifyOutcome::Panic,
            Self::Replaced => ClassifyOutcome::Replaced,
            Self::Invalid(_) => ClassifyOutcome::Invalid,
            Self::TimedOut => ClassifyOutcome::TimedOut,
            Self::Deadline => ClassifyOutcome::Deadline,
            Self::Ended => ClassifyOutcome::Ended,
            Self::Shutdown => ClassifyOutcome::Shutdown,
        }
    }
}

impl ClassifierHost {
    /// Asks the classifier about a request. An answer serves the whole lifecycle: a retry does not ask again.
    /// `is_known` says whether a policy class exists.
    ///
    /// # Errors
    /// What the classifier says, does or sets wrongly (500); 409 when the request ended meanwhile; 429 when its deadline
    /// passed; 503 when the time of the call did, or the service goes down.
    pub async fn classify(
        &self,
        inquiry: Inquiry,
        is_known: impl FnOnce(&str) -> bool,
    ) -> Result<Classified, SelectionError> {
        let Inquiry { key, facts, deadline } = inquiry;
        let mut call = match self.begin(key)? {
            Begun::Known(overrides) => {
                self.counts.count(ClassifyOutcome::Reused);
                return Ok(overrides);
            }
            Begun::New(call) => call,
        };
        call.progress.update_context_tokens(facts.input_tokens);
        let request = ClassifyRequest::new(key.0, Arc::clone(&call.id), facts, call.progress.reader());
        let until = self.clock.now().after(self.classify_time);
        let own = deadline.filter(|deadline| *deadline <= until);
        let answer = self.while_it_may(key, own.unwrap_or(until), self.ask(key, request)).await;
        let answer = answer.map_err(|failure| match failure {
            Failure::TimedOut if own.is_some() => Failure::Deadline,
            failure => failure,
        });
        let checked =
            answer.and_then(|answer| checked(key, answer, is_known)).and_then(|overrides| call.done(overrides));
        match checked {
            Ok(overrides) => {
                self.counts.count(ClassifyOutcome::Classified);
                Ok(overrides)
            }
            Err(failure) => {
                call.settled = true;
                let times = self.counts.count(failure.outcome());
                Err(self.error(&call.id, failure, times))
            }
        }
    }

    fn begin(&self, key: LifecycleKey) -> Result<Begun<'_>, SelectionError> {
        let mut state = self.state.lock();
        let Some(tracked) = state.requests.get_mut(&key).filter(|tracked| tracked.live) else {
            drop(state);
            self.counts.count(ClassifyOutcome::Ended);
            return Err(SelectionError::Conflict("request lifecycle ended before its classification began".to_owned()));
        };
        let Tracked { id, progress, classification, .. } = tracked;
        match classification {
            Classification::Done(overrides) => Ok(Begun::Known(overrides.clone())),
            Classification::Running => {
                Err(SelectionError::Conflict(format!("request ID {id:?} is being classified already")))
            }
            Classification::None => {
                *classification = Classification::Running;
                let (id, progress) = (Arc::clone(id), progress.clone());
                Ok(Begun::New(Call { host: self, key, id, progress, settled: false }))
            }
        }
    }

    /// Waits for the lifecycles before it, then for the classifier's lock, then for its answer.
    async fn ask(&self, key: LifecycleKey, request: ClassifyRequest) -> Result<ClassifyRequest, Failure> {
        // `while_it_may` has left the waker where the end of the lifecycle before finds it.
        let is_first = || if self.state.lock().is_first(key) { Poll::Ready(()) } else { Poll::Pending };
        poll_fn(|_| is_first()).await;
        let mut plugin = self.plugin.lock().await;
        if !self.is_live(key) {
            return Err(Failure::Ended);
        }
        let future = contained(|| plugin.classify(request)).map_err(Failure::Panic)?;
        drop(plugin);
        Contained::new(future).await.map_err(Failure::Panic)?.map_err(Failure::Error)
    }

    fn is_live(&self, key: LifecycleKey) -> bool {
        self.state.lock().requests.get(&key).is_some_and(|tracked| tracked.live)
    }

    /// Polls `ask` as long as the request lives, the service runs, and the time is not over.
    async fn while_it_may<T>(
        &self,
        key: LifecycleKey,
        until: Moment,
        ask: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let mut ask = pin!(ask);
        poll_fn(|cx| {
            let mut state = self.state.lock();
            if state.phase == Phase::Closed {
                return Poll::Ready(Err(Failure::Shutdown));
            }
            if !state.requests.get(&key).is_some_and(|tracked| tracked.live) {
                return Poll::Ready(Err(Failure::Ended));
            }
            if self.clock.now() >= until {
                return Poll::Ready(Err(Failure::TimedOut));
            }
            // Before the call, so that nothing that happens during it goes unheard.
            let (_, waker) = state.waiting.entry(key).or_insert_with(|| (until, cx.waker().clone()));
            waker.clone_from(cx.waker());
            let nobody_waits = state.nobody_waits;
            drop(state);
            match ask.as_mut().poll(cx) {
                Poll::Pending if nobody_waits => Poll::Ready(Err(Failure::Shutdown)),
                polled => polled,
            }
        })
        .await
    }

    /// What the caller is told of a failure, the `times`th of its kind.
    fn error(&self, id: &str, failure: Failure, times: u64) -> SelectionError {
        let text = match failure {
            Failure::Error(error) => format!("request classifier failed: {error}"),
            Failure::Panic(text) => format!("request classifier panicked: {text}"),
            Failure::Replaced => "classifier replaced the logical request".to_owned(),
            Failure::Invalid(text) => format!("invalid request classification metadata: {text}"),
            Failure::TimedOut => {
                let seconds = self.classify_time.as_secs_f64();
                return SelectionError::Unavailable(format!("request classifier did not answer within {seconds} s"));
            }
            Failure::Deadline => return SelectionError::DeadlineExceeded,
            Failure::Ended => {
                return SelectionError::Conflict(format!(
                    "request lifecycle for request ID {id:?} ended before classification completed"
                ));
            }
            Failure::Shutdown => return shut_down(),
        };
        if is_worth_a_line(times) {
            tracing::warn!(request_id = id, error = %text, times, "request classifier failed a request");
        }
        SelectionError::Classifier(text)
    }
}

/// What an answer sets, if it may.
fn checked(
    key: LifecycleKey,
    answer: ClassifyRequest,
    is_known: impl FnOnce(&str) -> bool,
) -> Result<Overrides, Failure> {
    if !answer.is(key.0) {
        return Err(Failure::Replaced);
    }
    let overrides = answer.into_overrides();
    if let Some(class) = &overrides.policy_class
        && !is_known(class)
    {
        return Err(Failure::Invalid(format!("unknown policy class {class:?}")));
    }
    if overrides.scheduling_cost_tokens == Some(0) {
        return Err(Failure::Invalid("scheduling cost must be greater than zero".to_owned()));
    }
    Ok(overrides)
}

enum Begun<'a> {
    Known(Overrides),
    New(Call<'a>),
}

/// A classification under way. Dropped unsettled, its caller has left; without an answer, a retry may ask again.
struct Call<'a> {
    host: &'a ClassifierHost,
    key: LifecycleKey,
    id: Arc<str>,
    progress: super::progress::RequestProgressUpdater,
    settled: bool,
}

impl Call<'_> {
    /// Keeps the answer for the lifecycle.
    fn done(&mut self, overrides: Overrides) -> Result<Overrides, Failure> {
        let mut state = self.host.state.lock();
        let Some(tracked) = state.requests.get_mut(&self.key).filter(|tracked| tracked.live) else {
            return Err(Failure::Ended);
        };
        tracked.classification = Classification::Done(overrides.clone());
        drop(state);
        self.settled = true;
        Ok(overrides)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut state = self.host.state.lock();
        state.waiting.remove(&self.key);
        if let Some(tracked) = state.requests.get_mut(&self.key)
            && matches!(tracked.classification, Classification::Running)
        {
            tracked.classification = Classification::None;
        }
        drop(state);
        if !self.settled {
            self.host.counts.count(ClassifyOutcome::Cancelled);
        }
    }
}

/// A plugin's future whose panics, when polled or dropped, stay inside. The error is the panic's text.
pub(super) struct Contained<'a, T>(Option<Pin<Box<dyn Future<Output = T> + Send + 'a>>>);

impl<'a, T> Contained<'a, T> {
    pub(super) fn new(future: Pin<Box<dyn Future<Output = T> + Send + 'a>>) -> Self {
        Self(Some(future))
    }
}

impl<T> Future for Contained<'_, T> {
    type Output = Result<T, String>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(future) = &mut self.0 else { return Poll::Ready(Err("polled after its end".to_owned())) };
        let polled = contained(|| future.as_mut().poll(cx));
        match polled {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
            Err(text) => Poll::Ready(Err(text)),
        }
    }
}

impl<T> Drop for Contained<'_, T> {
    fn drop(&mut self) {
        let future = self.0.take();
        if let Err(text) = contained(|| drop(future)) {
            tracing::error!(panic = text, "request classifier panicked as its work was dropped");
        }
    }
}
