//! Context length of a request as it grows: a high-water mark that is read and raised without a lock.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Reads a request's context length.
#[derive(Clone, Debug)]
pub struct RequestProgress(Arc<AtomicUsize>);

/// Raises it. It never falls, whatever comes late.
#[derive(Clone, Debug)]
pub struct RequestProgressUpdater(Arc<AtomicUsize>);

impl RequestProgress {
    /// A context of `initial_context_tokens`, and the right to raise it.
    pub fn new(initial_context_tokens: usize) -> (Self, RequestProgressUpdater) {
        let tokens = Arc::new(AtomicUsize::new(initial_context_tokens));
        (Self(Arc::clone(&tokens)), RequestProgressUpdater(tokens))
    }

    /// Whether both are of one request.
    pub(in crate::selection) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Tokens of prompt and output known so far.
    pub fn context_tokens(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl RequestProgressUpdater {
    /// The context has at least `context_tokens`.
    pub fn update_context_tokens(&self, context_tokens: usize) {
        self.0.fetch_max(context_tokens, Ordering::Relaxed);
    }

    /// `tokens` more than are known; saturates.
    pub(super) fn add(&self, tokens: usize) {
        let more = |known: usize| Some(known.saturating_add(tokens));
        let _previous = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    pub(super) fn reader(&self) -> RequestProgress {
        RequestProgress(Arc::clone(&self.0))
    }
}
