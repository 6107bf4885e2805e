//! Delivery of events: one at a time, in order, in a future that an embedding host spawns.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
};

use super::{
    ClassifyEvent,
    classify::Contained,
    counts::EventOutcome,
    host::{ClassifierHost, Happening, Phase, QueuedEvent},
};
use crate::selection::policy::failures::is_worth_a_line;

/// Delivers the events of one classifier; ends when its partition is gone or the service goes down.
pub type ClassifierDriver = Pin<Box<dyn Future<Output = ()> + Send + 'static>>;

/// Runs drivers.
pub trait ClassifierRuntime: Send + Sync + 'static {
    /// Runs `driver` to its end, beside everything else. Called from within requests; must not block.
    fn drive(&self, driver: ClassifierDriver);
}

impl ClassifierHost {
    /// The driver. Run one of a host.
    pub fn driver(self: Arc<Self>) -> ClassifierDriver {
        Box::pin(async move {
            while let Some((event, told)) = self.next().await {
                self.deliver(event).await;
                if told.what.is_last() {
                    let next = self.state.lock().forget(told.key);
                    next.into_iter().for_each(std::task::Waker::wake);
                }
            }
        })
    }

    /// The next event as the classifier sees it, and as it was told.
    async fn next(&self) -> Option<(ClassifyEvent, QueuedEvent)> {
        poll_fn(|cx| {
            let mut state = self.state.lock();
            if state.phase == Phase::Closed {
                return Poll::Ready(None);
            }
            while let Some(event) = state.next_event() {
                // Every event is told before its lifecycle is forgotten.
                let Some(tracked) = state.requests.get(&event.key) else { continue };
                return Poll::Ready(Some((shown(&tracked.id, &event.what), event)));
            }
            if state.phase == Phase::Retired && state.requests.is_empty() {
                return Poll::Ready(None);
            }
            state.driver = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    async fn deliver(&self, event: ClassifyEvent) {
        let mut plugin = self.plugin.lock().await;
        let until = self.clock.now().after(self.limits.event_time);
        self.state.lock().event_until = Some(until);
        let plugin = &mut **plugin;
        // Within the future, so that a panic before its first await is contained too.
        let call = Contained::new(Box::pin(async move { plugin.on_event(event).await }));
        let mut call = pin!(call);
        let mut panic = String::new();
        let outcome = poll_fn(|cx| {
            let mut state = self.state.lock();
            if state.phase == Phase::Closed {
                return Poll::Ready(EventOutcome::DroppedShutdown);
            }
            if self.clock.now() >= until {
                return Poll::Ready(EventOutcome::TimedOut);
            }
            state.driver = Some(cx.waker().clone());
            drop(state);
            call.as_mut().poll(cx).map(|heard| match heard {
                Ok(()) => EventOutcome::Delivered,
                Err(text) => {
                    panic = text;
                    EventOutcome::Panicked
                }
            })
        })
        .await;
        self.state.lock().event_until = None;
        let times = self.counts.count_event(outcome);
        match outcome {
            EventOutcome::Panicked if is_worth_a_line(times) => {
                tracing::error!(panic, times, "request classifier panicked over an event");
            }
            EventOutcome::TimedOut if is_worth_a_line(times) => {
                let seconds = self.limits.event_time.as_secs_f64();
                tracing::warn!(seconds, times, "request classifier was interrupted over an event");
            }
            _ => {}
        }
    }
}

fn shown(id: &Arc<str>, what: &Happening) -> ClassifyEvent {
    let request_id = id.as_ref().to_owned();
    match what {
        Happening::Sent(worker) => ClassifyEvent::Sent { request_id, worker: *worker },
        Happening::Responding(worker) => ClassifyEvent::Responding { request_id, worker: *worker },
        Happening::Completed(worker, context_tokens) => {
            ClassifyEvent::Completed { request_id, worker: *worker, context_tokens: *context_tokens }
        }
        Happening::Aborted(worker, error) => {
            ClassifyEvent::Aborted { request_id, worker: *worker, error: error.clone() }
        }
    }
}
