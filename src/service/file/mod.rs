//! Follows a file: when to look at it, and what was seen.
//!
//! Content decides. A notice or a new time stamp only leads to a reading; equal bytes are told as the same. Notices make
//! it quick, and a look at the file's time stamps at intervals makes it certain, where notices are lost or the file
//! system gives none. The file's disk may hang: nothing here runs on the async runtime.

mod notices;

use std::{
    fmt,
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use xxhash_rust::xxh3::xxh3_128;

pub(crate) use self::notices::StopHandle;
use self::notices::{Notices, Wake, route};

/// Time stamps are this coarse on some file systems: content read so soon after a change is read again.
const STAMP_GRAIN: Duration = Duration::from_secs(2);

/// How closely a file is followed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Quiet time after a notice before the file is read.
    pub(crate) debounce: Duration,
    /// Time between two looks at the time stamps.
    pub(crate) poll: Duration,
    /// How long a text that ends in the middle of a line must stay as it is before it is taken for whole.
    pub(crate) settle: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { debounce: Duration::from_millis(50), poll: Duration::from_secs(1), settle: Duration::from_secs(1) }
    }
}

/// What a look found.
pub(crate) enum Seen {
    /// Other bytes than the last time.
    Changed(Vec<u8>),
    /// The same bytes; something else may have been seen in between.
    Same,
    /// More bytes than the limit.
    TooLarge,
    /// It is not there, or not readable now.
    Lost(std::io::Error),
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed(bytes) => write!(f, "Changed({} bytes)", bytes.len()),
            Self::Same => f.write_str("Same"),
            Self::TooLarge => f.write_str("TooLarge"),
            Self::Lost(error) => write!(f, "Lost({error})"),
        }
    }
}

/// Tells `see` what is seen at `path`, which need not exist yet, on a thread called `name`, until the handle is dropped.
///
/// # Errors
/// The system gives no thread.
pub(crate) fn follow(
    name: &str,
    mut reader: Reader,
    mut see: impl FnMut(Seen) + Send + 'static,
) -> std::io::Result<StopHandle> {
    let (mut notices, stop) = Notices::new();
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let mut wake = Wake::Named;
        loop {
            let known = notices.follow(&route(&reader.path));
            if let Some(seen) = reader.look(wake == Wake::Named || known) {
                see(seen);
            }
            // The route may have changed while it was looked at; the next turn sees that.
            wake = notices.wait(reader.pause(), reader.pace.debounce);
            if wake == Wake::Stop {
                return;
            }
        }
    })?;
    Ok(stop)
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
#[derive(Clone, Copy, Debug)]
struct Reading {
    stamp: Stamp,
    /// Nothing when it was too large.
    content: Option<u128>,
    /// The stamp does not vouch for the content: another change may carry the same one.
    doubtful: bool,
}

impl Reading {
    fn new(stamp: Stamp, content: Option<u128>) -> Self {
        let changed = UNIX_EPOCH + Duration::from_secs(u64::try_from(stamp.changed.0).unwrap_or(0));
        let age = SystemTime::now().duration_since(changed).unwrap_or_default();
        Self { stamp, content, doubtful: age < STAMP_GRAIN }
    }
}

/// Reads a file when it may have changed, whole and settled.
#[derive(Debug)]
pub(crate) struct Reader {
    path: PathBuf,
    pace: Pace,
    max_bytes: u64,
    read: Option<Reading>,
    /// Content that ends in the middle of a line, and since when it is like that.
    unfinished: Option<(u128, Instant)>,
}

impl Reader {
    pub(crate) fn new(path: PathBuf, pace: Pace, max_bytes: u64) -> Self {
        Self { path, pace, max_bytes, read: None, unfinished: None }
    }

    /// Takes `bytes` for read already: only others are news.
    pub(crate) fn knows(mut self, bytes: &[u8]) -> Self {
        if let Ok(metadata) = std::fs::metadata(&self.path) {
            let reading = Reading::new(Stamp::of(&metadata), Some(xxh3_128(bytes)));
            // It may have changed since those bytes were read.
            self.read = Some(Reading { doubtful: true, ..reading });
        }
        self
    }

    /// Time until the next look.
    fn pause(&self) -> Duration {
        if self.unfinished.is_some() { self.pace.settle.min(self.pace.poll) } else { self.pace.poll }
    }

    /// Looks, and reads if something may have changed; `None` when there is nothing to tell.
    pub(crate) fn look(&mut self, told: bool) -> Option<Seen> {
        match std::fs::metadata(&self.path) {
            Err(error) => Some(self.lose(error)),
            // Opening a pipe would wait for its writer.
            Ok(metadata) if !metadata.is_file() => Some(self.lose(std::io::Error::other("not a regular file"))),
            Ok(metadata) => {
                let stamp = Stamp::of(&metadata);
                let doubtful = self.read.as_ref().is_none_or(|last| last.stamp != stamp || last.doubtful);
                if told || doubtful || self.unfinished.is_some() { self.read(stamp) } else { None }
            }
        }
    }

    fn read(&mut self, stamp: Stamp) -> Option<Seen> {
        let bytes = match read_bounded(&self.path, self.max_bytes) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => {
                self.read = Some(Reading::new(stamp, None));
                return Some(Seen::TooLarge);
            }
            Err(error) => return Some(self.lose(error)),
        };
        let content = xxh3_128(&bytes);
        if self.read.is_some_and(|last| last.content == Some(content)) {
            self.unfinished = None;
            self.read = Some(Reading::new(stamp, Some(content)));
            return Some(Seen::Same);
        }
        if ends_mid_line(&bytes) && !self.has_settled(content) {
            return None;
        }
        self.unfinished = None;
        self.read = Some(Reading::new(stamp, Some(content)));
        Some(Seen::Changed(bytes))
    }

    /// Whether a text that ends in the middle of a line has been like that for long enough.
    fn has_settled(&mut self, content: u128) -> bool {
        let since = match self.unfinished {
            Some((same, since)) if same == content => since,
            _ => Instant::now(),
        };
        self.unfinished = Some((content, since));
        since.elapsed() >= self.pace.settle
    }

    fn lose(&mut self, error: std::io::Error) -> Seen {
        self.unfinished = None;
        if let Some(last) = &mut self.read {
            last.doubtful = true;
        }
        Seen::Lost(error)
    }
}

/// The file's content, or nothing when it is longer than the limit.
pub(crate) fn read_bounded(path: &Path, max_bytes: u64) -> std::io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(max_bytes + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= max_bytes).then_some(bytes))
}

/// Whether a writer may still be at it: block YAML ends a line, JSON a bracket (and where it does not, it cannot be
/// parsed). A cut-off `http://10.0.0.1:80` of `:8000` would otherwise be good.
fn ends_mid_line(bytes: &[u8]) -> bool {
    !matches!(bytes.trim_ascii_start().first(), Some(b'{') | None) && !matches!(bytes.last(), Some(b'\n' | b'\r'))
}
