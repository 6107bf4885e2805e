//! How a waiting request learns what became of it. The queue tells under the partition's lock and wakes after it.

use std::{
    sync::Arc,
    task::{Poll, Waker},
};

use parking_lot::Mutex;

use super::counters::ClassCounters;
use crate::selection::error::SelectionError;

/// What the queue says of a waiting request.
#[derive(Clone, Debug)]
pub(in crate::selection) enum Word {
    /// It is its turn: it may decide, and nobody else of the queue does until it has.
    Granted(Arc<ClassCounters>),
    /// It left the queue.
    Failed(SelectionError),
}

#[derive(Debug, Default)]
struct Inner {
    word: Option<Word>,
    waker: Option<Waker>,
}

/// The place of a waiting request where it is told.
#[derive(Debug, Default)]
pub(in crate::selection) struct Signal(Mutex<Inner>);

impl Signal {
    /// Says it once; whoever waits is to be woken afterwards by [`Self::wake`].
    pub(super) fn tell(&self, word: Word) {
        self.0.lock().word.get_or_insert(word);
    }

    /// Wakes whoever waits.
    pub(in crate::selection) fn wake(&self) {
        let waker = self.0.lock().waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// What was said, or a wake-up once it is.
    pub(in crate::selection) fn poll(&self, waker: &Waker) -> Poll<Word> {
        let mut inner = self.0.lock();
        match &inner.word {
            Some(word) => Poll::Ready(word.clone()),
            None => {
                match &mut inner.waker {
                    Some(known) => known.clone_from(waker),
                    place => *place = Some(waker.clone()),
                }
                Poll::Pending
            }
        }
    }
}
