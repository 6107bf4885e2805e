//! The source: a thread that reads the file whenever it may have changed.
//!
//! Content decides. A notice or a new time stamp only leads to a reading; equal bytes and equal records publish nothing.
//! Notices make it quick, and a look at the file's time stamps every second makes it certain, where notices are lost or
//! the file system gives none. The file's disk may hang: nothing here runs on the async runtime.

use std::{
    os::unix::fs::MetadataExt,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use tokio::sync::watch;
use xxhash_rust::xxh3::xxh3_128;

use super::{
    FileError, MAX_FILE_BYTES, Place, parse_bytes, read_bounded,
    watch::{Notices, StopHandle, Wake, route},
};
use crate::{
    discovery::{Snapshot, SourceState, SourceStatus, source::SourceCounters},
    selection::catalog::SnapshotVersion,
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
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            debounce: Duration::from_millis(50),
            poll: Duration::from_secs(1),
            settle: Duration::from_secs(1),
            epoch: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
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
        let (notices, stop) = Notices::new();
        let follower = Follower {
            name: path.display().to_string(),
            path,
            options,
            publish,
            counters: Arc::clone(&counters),
            generation: 0,
            read: None,
            unfinished: None,
        };
        std::thread::Builder::new().name("workers-file".to_owned()).spawn(move || follower.run(notices))?;
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

/// What tells one version of a file from another without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &std::fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// The last reading.
#[derive(Clone, Debug)]
struct Reading {
    stamp: Stamp,
    content: u128,
    /// The stamp does not vouch for the content: another change may carry the same one.
    doubtful: bool,
    /// Why the content was refused.
    refusal: Option<FileError>,
}

impl Reading {
    fn new(stamp: Stamp, content: u128, refusal: Option<FileError>) -> Self {
        let changed = UNIX_EPOCH + Duration::from_secs(u64::try_from(stamp.changed.0).unwrap_or(0));
        let age = SystemTime::now().duration_since(changed).unwrap_or_default();
        Self { stamp, content, doubtful: age < STAMP_GRAIN, refusal }
    }
}

/// Time stamps are this coarse on some file systems: content read so soon after a change is read again.
const STAMP_GRAIN: Duration = Duration::from_secs(2);

struct Follower {
    path: PathBuf,
    name: String,
    options: FollowOptions,
    publish: watch::Sender<SourceState>,
    counters: Arc<SourceCounters>,
    generation: u64,
    read: Option<Reading>,
    /// Content that ends in the middle of a line, and since when it is like that.
    unfinished: Option<(u128, Instant)>,
}

impl Follower {
    fn run(mut self, mut notices: Notices) {
        let mut wake = Wake::Named;
        loop {
            let known = notices.follow(&route(&self.path));
            self.look(wake == Wake::Named || known);
            // The route may have changed while it was looked at; the next turn sees that.
            let pause =
                if self.unfinished.is_some() { self.options.settle.min(self.options.poll) } else { self.options.poll };
            wake = notices.wait(pause, self.options.debounce);
            if wake == Wake::Stop {
                return;
            }
        }
    }

    /// Reads the file if it may have changed.
    fn look(&mut self, told: bool) {
        match std::fs::metadata(&self.path) {
            Err(error) => self.lose(&error),
            // Opening a pipe would wait for its writer.
            Ok(metadata) if !metadata.is_file() => self.lose(&std::io::Error::other("not a regular file")),
            Ok(metadata) => {
                let stamp = Stamp::of(&metadata);
                let doubtful = self.read.as_ref().is_none_or(|last| last.stamp != stamp || last.doubtful);
                if told || doubtful || self.unfinished.is_some() {
                    self.read(stamp);
                }
            }
        }
    }

    fn read(&mut self, stamp: Stamp) {
        let bytes = match read_bounded(&self.path) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => {
                let error = FileError::TooLarge { file: self.name.clone(), limit: MAX_FILE_BYTES };
                self.read = Some(Reading::new(stamp, 0, Some(error.clone())));
                return self.refuse(&error);
            }
            Err(error) => return self.lose(&error),
        };
        let content = xxh3_128(&bytes);
        if let Some(last) = self.read.take_if(|last| last.content == content) {
            let again = Reading::new(stamp, content, last.refusal);
            // The same as ever; but something else may have been told in between.
            match &again.refusal {
                Some(error) => self.refuse(error),
                None => self.accept(None),
            }
            self.read = Some(again);
            return;
        }
        if ends_mid_line(&bytes) && !self.has_settled(content) {
            return;
        }
        self.unfinished = None;
        let refusal = match self.parse(bytes) {
            Ok(snapshot) => {
                self.accept(Some(snapshot));
                None
            }
            Err(error) => {
                self.refuse(&error);
                Some(error)
            }
        };
        self.read = Some(Reading::new(stamp, content, refusal));
    }

    /// Whether a text that ends in the middle of a line has been like that for long enough.
    fn has_settled(&mut self, content: u128) -> bool {
        let since = match self.unfinished {
            Some((same, since)) if same == content => since,
            _ => Instant::now(),
        };
        self.unfinished = Some((content, since));
        since.elapsed() >= self.options.settle
    }

    fn parse(&self, bytes: Vec<u8>) -> Result<Snapshot, FileError> {
        let workers = parse_bytes(bytes, &self.name)?;
        let version = SnapshotVersion { epoch: self.options.epoch, generation: self.generation + 1 };
        Snapshot::new(version, workers).map_err(|e| FileError::Value {
            file: self.name.clone(),
            place: Place::default(),
            reason: e.to_string(),
        })
    }

    /// Takes content that is good: `None` when it is what was read before.
    fn accept(&mut self, snapshot: Option<Snapshot>) {
        self.unfinished = None;
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

    /// The file is not there or not readable now.
    fn lose(&mut self, error: &std::io::Error) {
        self.unfinished = None;
        if let Some(last) = &mut self.read {
            last.doubtful = true;
        }
        self.refuse(&FileError::Unreadable { file: self.name.clone(), reason: error.to_string() });
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

/// Whether a writer may still be at it: block YAML ends a line, JSON a bracket (and where it does not, it cannot be
/// parsed). A cut-off `http://10.0.0.1:80` of `:8000` would otherwise be a good worker.
fn ends_mid_line(bytes: &[u8]) -> bool {
    !matches!(bytes.trim_ascii_start().first(), Some(b'{') | None) && !matches!(bytes.last(), Some(b'\n' | b'\r'))
}

#[cfg(test)]
mod tests;
