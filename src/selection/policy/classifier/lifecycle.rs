//! A request from its registration to its one last event.

use std::{fmt, sync::Arc};

use super::{
    AbortCause,
    host::{ClassifierHost, Happening, LifecycleKey},
    progress::RequestProgressUpdater,
};
use crate::selection::identity::WorkerWithDpRank;

/// A tracked request. Whoever holds it tells what happens to the request; dropped, it says that the request was aborted.
pub struct RequestLifecycle {
    host: Arc<ClassifierHost>,
    key: LifecycleKey,
    progress: RequestProgressUpdater,
    worker: Option<WorkerWithDpRank>,
    sent: bool,
    responding: bool,
    open: bool,
}

impl fmt::Debug for RequestLifecycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestLifecycle")
            .field("worker", &self.worker)
            .field("open", &self.open)
            .finish_non_exhaustive()
    }
}

impl RequestLifecycle {
    pub(super) fn new(host: Arc<ClassifierHost>, key: LifecycleKey, progress: RequestProgressUpdater) -> Self {
        Self { host, key, progress, worker: None, sent: false, responding: false, open: true }
    }

    /// Which lifecycle it is.
    pub fn key(&self) -> LifecycleKey {
        self.key
    }

    /// The classifier that hears of it.
    pub fn host(&self) -> &Arc<ClassifierHost> {
        &self.host
    }

    /// A worker was chosen. No event.
    pub fn selected(&mut self, worker: WorkerWithDpRank) {
        self.worker = Some(worker);
    }

    /// The request goes to `worker`.
    pub fn sent(&mut self, worker: WorkerWithDpRank) {
        self.worker = Some(worker);
        if self.open && !self.sent {
            self.sent = true;
            self.host.tell(self.key, Happening::Sent(worker));
        }
    }

    /// The first token is there. Only the first call counts, and only after [`Self::sent`].
    pub fn responding(&mut self) {
        if let (true, true, false, Some(worker)) = (self.open, self.sent, self.responding, self.worker) {
            self.responding = true;
            self.host.tell(self.key, Happening::Responding(worker));
        }
    }

    /// So many tokens of output more, on top of the context known so far.
    pub fn observe_output_tokens(&mut self, output_tokens: usize) {
        self.progress.add(output_tokens);
    }

    /// The context has at least so many tokens.
    pub fn observe_context_tokens(&mut self, context_tokens: usize) {
        self.progress.update_context_tokens(context_tokens);
    }

    /// The request goes to a worker once more: what was said of the first one is over, what the classifier said stays.
    pub fn prepare_retry(&mut self) {
        self.worker = None;
        self.sent = false;
        self.responding = false;
    }

    /// The request is done. Without a worker that is an abort.
    pub fn complete(&mut self) {
        let last = match self.worker {
            Some(worker) => {
                let tokens = self.progress.reader().context_tokens();
                Happening::Completed(worker, (tokens > 0).then_some(tokens))
            }
            None => Happening::Aborted(None, None),
        };
        self.end(last);
    }

    /// The request failed or was given up.
    pub fn abort(&mut self, error: Option<Arc<AbortCause>>) {
        self.end(Happening::Aborted(self.worker, error));
    }

    fn end(&mut self, last: Happening) {
        if std::mem::take(&mut self.open) {
            self.host.tell(self.key, last);
        }
    }
}

impl Drop for RequestLifecycle {
    fn drop(&mut self) {
        self.abort(None);
    }
}
