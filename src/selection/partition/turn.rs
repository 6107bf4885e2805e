//! The turn of a waiting request: its wait, its grant, and what happens when it leaves instead.
//!
//! Every hold of the partition's lock ends with a look at the queue (`Partition::go_on`), and whoever was told something
//! is woken after the lock is free. A turn that is dropped gives its place or its grant back.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Poll, Waker},
};

use parking_lot::MutexGuard;

use super::{Partition, PartitionState};
use crate::selection::{
    error::SelectionError,
    moment::{Clock, Moment},
    queue::{AdmissionQueue, Departure, Ticket, Word, counters::ClassCounters},
};

/// The right to decide now, or the place of whoever waits for it.
#[derive(Debug)]
pub(in crate::selection) struct Turn<'a> {
    partition: &'a Partition,
    ticket: Ticket,
    /// Counters of the class it was granted in.
    granted: Option<Arc<ClassCounters>>,
    open: bool,
}

impl Partition {
    /// Waits until it is the turn of the request that got `ticket`.
    ///
    /// # Errors
    /// 429 when `deadline` passes; what the queue says when it refuses everybody.
    pub(in crate::selection) async fn turn(
        &self,
        ticket: Ticket,
        deadline: Option<Moment>,
        clock: &dyn Clock,
    ) -> Result<Turn<'_>, SelectionError> {
        let mut turn = Turn { partition: self, ticket, granted: None, open: true };
        let word = poll_fn(|cx| match turn.ticket.signal.poll(cx.waker()) {
            Poll::Pending if deadline.is_some_and(|deadline| clock.now() >= deadline) => Poll::Ready(None),
            told => told.map(Some),
        });
        match word.await {
            Some(Word::Granted(counters)) => {
                turn.granted = Some(counters);
                Ok(turn)
            }
            Some(Word::Failed(error)) => {
                turn.open = false;
                Err(error)
            }
            None => Err(turn.expire()),
        }
    }

    /// Lets the next request of the queue go, as the last thing of a hold of the lock.
    #[cold]
    pub(super) fn go_on<'a>(&'a self, mut state: MutexGuard<'a, PartitionState>) {
        loop {
            state.advance();
            let told = state.queue.take_told();
            let more = state.queue.is_unfinished();
            drop(state);
            told.iter().for_each(|signal| signal.wake());
            if !more {
                return;
            }
            state = self.state.lock();
        }
    }
}

impl Turn<'_> {
    /// How the request came.
    pub(in crate::selection) fn arrived(&self) -> Moment {
        self.ticket.arrived
    }

    /// The request decides now, in this hold of the lock; the next one of the queue is judged after it.
    pub(in crate::selection) fn redeem(&mut self, queue: &mut AdmissionQueue, now: Moment) {
        self.open = false;
        queue.redeem(&self.ticket);
        if let Some(counters) = &self.granted {
            counters.went(now.since(self.ticket.arrived));
        }
    }

    /// Its time is over.
    pub(in crate::selection) fn expire(mut self) -> SelectionError {
        self.leave(Departure::Expired);
        SelectionError::DeadlineExceeded
    }

    fn leave(&mut self, why: Departure) {
        self.open = false;
        // After a panic in there the queue goes on with the next hold of the lock.
        let _left = self.partition.with_state(|state| state.queue.cancel(&self.ticket, why));
        // What waited is counted by the queue. It may have been granted and not have heard of it.
        if self.granted.is_none()
            && let Poll::Ready(Word::Granted(counters)) = self.ticket.signal.poll(Waker::noop())
        {
            self.granted = Some(counters);
        }
        if let Some(counters) = &self.granted {
            counters.left(why);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.open {
            self.leave(Departure::Cancelled);
        }
    }
}
