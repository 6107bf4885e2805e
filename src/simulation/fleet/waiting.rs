//! Selections that wait in a core's queue, and who has been woken.
//!
//! There is no runtime: a selection is polled when it is made and whenever its waker was called, in the order of the
//! calls. One thread does everything, so that order is the core's.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::selection::{SelectionError, request::SelectResponse};

/// A selection under way.
pub(super) type Selection = Pin<Box<dyn Future<Output = Result<SelectResponse, SelectionError>>>>;

/// Requests whose waker was called.
#[derive(Debug, Default)]
struct Woken(Mutex<Vec<u32>>);

struct RequestWaker {
    request: u32,
    woken: Arc<Woken>,
}

impl Wake for RequestWaker {
    fn wake(self: Arc<Self>) {
        self.woken.0.lock().push(self.request);
    }
}

/// Selections that were not ready.
#[derive(Default)]
pub(super) struct Waiting {
    woken: Arc<Woken>,
    selections: HashMap<u32, Selection>,
}

impl Waiting {
    /// Polls a selection; one that is not ready is kept.
    pub(super) fn poll(
        &mut self,
        request: u32,
        mut selection: Selection,
    ) -> Option<Result<SelectResponse, SelectionError>> {
        let waker = Waker::from(Arc::new(RequestWaker { request, woken: Arc::clone(&self.woken) }));
        match selection.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => {
                self.selections.insert(request, selection);
                None
            }
        }
    }

    /// A selection that was woken, in order of waking.
    pub(super) fn next_woken(&mut self) -> Option<(u32, Selection)> {
        if self.selections.is_empty() {
            return None;
        }
        loop {
            let request = {
                let mut woken = self.woken.0.lock();
                if woken.is_empty() {
                    return None;
                }
                woken.remove(0)
            };
            if let Some(selection) = self.selections.remove(&request) {
                return Some((request, selection));
            }
        }
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.selections.len()
    }
}
