//! The source: a thread that reads the file whenever it may have changed.
//!
//! Equal bytes and equal records publish nothing. [`file`] says when there is something to read.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::sync::watch;

use super::{FileError, MAX_FILE_BYTES, Place, reread::LastReading, text};
use crate::{
    discovery::{Snapshot, SourceState, SourceStatus, epoch_now, source::SourceCounters},
    selection::catalog::SnapshotVersion,
    service::file::{self, Pace, Reader, Seen, StopHandle},
};

/// How closely a file is followed.
#[derive(Clone, Copy, Debug)]
pub struct FollowOptions {
    /// Quiet time after a notice before the file is read.
    pub debounce: Duration,
    /// Time between two looks at the time stamps.
    pub poll: Duration,
    /// How long a text that ends in the middle of a line must stay as it is before it is taken for whole.
    pub settle: Duration,
    /// Epoch of the snapshots, milliseconds since 1970; a later start has a larger one.
    pub epoch: u64,
}

impl Default for FollowOptions {
    fn default() -> Self {
        Self {
            debounce: Duration::from_millis(50),
            poll: Duration::from_secs(1),
            settle: Duration::from_secs(1),
            epoch: epoch_now(),
        }
    }
}

/// A followed workers file. Dropping it ends the thread; the last state stays readable.
#[derive(Debug)]
pub struct WorkersFile {
    status: SourceStatus,
    counters: Arc<SourceCounters>,
    _stop: StopHandle,
}

impl WorkersFile {
    /// Starts to follow `path`, which need not exist yet.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn follow(path: PathBuf, options: FollowOptions) -> std::io::Result<Self> {
        let (publish, status) = watch::channel(SourceState::default());
        let counters = Arc::new(SourceCounters::default());
        let mut follower = Follower {
            name: path.display().to_string(),
            epoch: options.epoch,
            publish,
            counters: Arc::clone(&counters),
            generation: 0,
            refusal: None,
            reading: LastReading::default(),
        };
        let FollowOptions { debounce, poll, settle, .. } = options;
        let reader = Reader::new(path, Pace { debounce, poll, settle }, MAX_FILE_BYTES);
        let stop = file::follow("workers-file", reader, move |seen| follower.saw(seen))?;
        Ok(Self { status, counters, _stop: stop })
    }

    /// The newest state, and every later one.
    pub fn status(&self) -> SourceStatus {
        self.status.clone()
    }

    /// What was counted so far.
    pub fn counters(&self) -> Arc<SourceCounters> {
        Arc::clone(&self.counters)
    }
}

struct Follower {
    name: String,
    epoch: u64,
    publish: watch::Sender<SourceState>,
    counters: Arc<SourceCounters>,
    generation: u64,
    /// Why the content of the last reading was refused.
    refusal: Option<FileError>,
    reading: LastReading,
}

impl Follower {
    fn saw(&mut self, seen: Seen) {
        match seen {
            Seen::Changed(bytes) => match self.parse(bytes) {
                Ok(snapshot) => {
                    self.refusal = None;
                    self.accept(Some(snapshot));
                }
                Err(error) => self.refuse_content(error),
            },
            // The same as ever; but something else may have been told in between.
            Seen::Same => match &self.refusal {
                Some(error) => self.refuse(error),
                None => self.accept(None),
            },
            Seen::TooLarge => {
                self.refuse_content(FileError::TooLarge { file: self.name.clone(), limit: MAX_FILE_BYTES });
            }
            Seen::Lost(error) => {
                self.refuse(&FileError::Unreadable { file: self.name.clone(), reason: error.to_string() });
            }
        }
    }

    fn refuse_content(&mut self, error: FileError) {
        self.refuse(&error);
        self.refusal = Some(error);
    }

    fn parse(&mut self, bytes: Vec<u8>) -> Result<Snapshot, FileError> {
        let workers = self.reading.read(text(bytes, &self.name)?, &self.name)?;
        let version = SnapshotVersion { epoch: self.epoch, generation: self.generation + 1 };
        Snapshot::new(version, workers).map_err(|e| FileError::Value {
            file: self.name.clone(),
            place: Place::default(),
            reason: e.to_string(),
        })
    }

    /// Takes content that is good: `None` when it is what was read before.
    fn accept(&mut self, snapshot: Option<Snapshot>) {
        let mut published = None;
        self.publish.send_if_modified(|state| {
            let recovered = state.error.take().is_some();
            let known = state.snapshot.as_ref().map(Snapshot::digest);
            // Other bytes can hold equal records: a comment, a default written out.
            let Some(snapshot) = snapshot.filter(|s| known != Some(s.digest())) else { return recovered };
            published = Some(snapshot.clone());
            state.snapshot = Some(snapshot);
            true
        });
        if let Some(snapshot) = published {
            self.generation = snapshot.version.generation;
            self.counters.count_snapshot();
            tracing::info!(
                file = %self.name,
                workers = snapshot.workers().len(),
                digest = snapshot.digest(),
                generation = self.generation,
                "workers file read"
            );
        }
    }

    /// Keeps the last good snapshot and says why.
    fn refuse(&self, error: &FileError) {
        let text: Arc<str> = error.to_string().into();
        let news = self.publish.send_if_modified(|state| {
            let news = state.error.as_deref() != Some(&*text);
            state.error = Some(Arc::clone(&text));
            news
        });
        if news {
            self.counters.count_refusal(error.reason());
            let kept = self.publish.borrow().snapshot.as_ref().map_or(0, |s| s.workers().len());
            tracing::warn!(error = %text, reason = error.reason(), workers_kept = kept, "workers file refused");
        }
    }
}

#[cfg(test)]
mod tests;
