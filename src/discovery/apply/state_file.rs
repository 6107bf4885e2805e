//! What was put at a selector that does not remember who did it: workers where there is no `/catalog`, and peers.
//!
//! Written before the first call that puts something there, so that a crash leaves nothing behind that nobody would
//! ever remove. One file a selector, owner and kind.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    io::Write,
    marker::PhantomData,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::task::spawn_blocking;
use xxhash_rust::xxh3::xxh3_64;

use super::PassError;

/// A kind of thing that is remembered.
pub trait Remembered: Serialize + DeserializeOwned + Default {
    /// End of the file's name.
    const SUFFIX: &'static str;
}

/// Ids of workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerIds {
    /// Ids that were sent and not removed.
    pub worker_ids: BTreeSet<u64>,
}

impl Remembered for WorkerIds {
    const SUFFIX: &'static str = "json";
}

/// Peers of a selector.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WiredPeers {
    /// Publisher endpoints that were registered and not removed, as they were spelled, with the address of the selector
    /// each belongs to.
    pub peers: BTreeMap<String, String>,
}

impl Remembered for WiredPeers {
    const SUFFIX: &'static str = "peers.json";
}

/// What the file holds.
#[derive(Debug, Serialize, Deserialize)]
struct Content<T> {
    version: u32,
    selector: String,
    owner: String,
    #[serde(flatten)]
    remembered: T,
}

/// The state of one selector.
#[derive(Clone, Debug)]
pub struct StateFile<T> {
    path: PathBuf,
    selector: String,
    owner: String,
    kind: PhantomData<fn() -> T>,
}

impl<T: Remembered> StateFile<T> {
    /// The file for `selector` and `owner` in `directory`.
    pub fn new(directory: &Path, selector: &str, owner: &str) -> Self {
        let readable: String =
            selector.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).take(80).collect();
        let unique = xxh3_64(format!("{selector}\0{owner}").as_bytes());
        Self {
            path: directory.join(format!("{readable}.{unique:016x}.{}", T::SUFFIX)),
            selector: selector.to_owned(),
            owner: owner.to_owned(),
            kind: PhantomData,
        }
    }

    /// What the last run stored; nothing when there was none.
    ///
    /// # Errors
    /// A file that is there and cannot be used.
    pub fn load(&self) -> io::Result<T> {
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(T::default()),
            Err(error) => return Err(error),
        };
        let content: Content<T> = serde_json::from_slice(&text)?;
        if content.version != 1 || content.selector != self.selector || content.owner != self.owner {
            return Err(io::Error::other(format!("{} is of another selector, owner or version", self.path.display())));
        }
        Ok(content.remembered)
    }

    /// Replaces what is stored; the old file or the new one is there at any time.
    ///
    /// # Errors
    /// The directory cannot be made or written.
    pub fn store(&self, remembered: &T) -> io::Result<()> {
        let directory = self.path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(directory)?;
        let content = Content { version: 1, selector: self.selector.clone(), owner: self.owner.clone(), remembered };
        let temporary = self.path.with_extension(format!("tmp.{}", std::process::id()));
        let mut file = fs::File::create(&temporary)?;
        file.write_all(&serde_json::to_vec(&content)?)?;
        file.sync_all()?;
        fs::rename(&temporary, &self.path)?;
        fs::File::open(directory)?.sync_all()
    }
}

impl<T: Remembered + Send + 'static> StateFile<T> {
    /// [`StateFile::load`] on a thread that may wait for a disk.
    ///
    /// # Errors
    /// The thread ended; the inner one is that of `load`.
    pub(in crate::discovery) async fn load_apart(self) -> Result<io::Result<T>, PassError> {
        spawn_blocking(move || self.load()).await.map_err(|error| PassError::StateFile(error.to_string()))
    }

    /// [`StateFile::store`] on a thread that may wait for a disk.
    ///
    /// # Errors
    /// The file is not written.
    pub(in crate::discovery) async fn store_apart(self, remembered: T) -> Result<(), PassError> {
        let stored = spawn_blocking(move || self.store(&remembered)).await;
        stored.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(|e| PassError::StateFile(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ids: impl IntoIterator<Item = u64>) -> WorkerIds {
        WorkerIds { worker_ids: ids.into_iter().collect() }
    }

    #[test]
    fn ids_survive_and_selectors_do_not_mix() {
        let directory = tempfile::tempdir().unwrap();
        let below = directory.path().join("made/when/needed");
        let file = |selector, owner| StateFile::<WorkerIds>::new(&below, selector, owner);
        assert_eq!(file("http://a:8092", "file.default").load().unwrap(), WorkerIds::default());
        let known = ids([1, u64::MAX]);
        file("http://a:8092", "file.default").store(&known).unwrap();
        assert_eq!(file("http://a:8092", "file.default").load().unwrap(), known);
        assert_eq!(file("http://a-8092", "file.default").load().unwrap(), WorkerIds::default());
        assert_eq!(file("http://a:8092", "file.other").load().unwrap(), WorkerIds::default());
        assert_eq!(fs::read_dir(&below).unwrap().count(), 1, "a temporary file was left");
    }

    #[test]
    fn workers_and_peers_of_one_selector_have_a_file_each() {
        let directory = tempfile::tempdir().unwrap();
        let workers = StateFile::<WorkerIds>::new(directory.path(), "http://a:8092", "file.default");
        let peers = StateFile::<WiredPeers>::new(directory.path(), "http://a:8092", "file.default");
        let wired = WiredPeers { peers: [("tcp://b:9092".to_owned(), "http://b:8092".to_owned())].into() };
        workers.store(&ids([7])).unwrap();
        peers.store(&wired).unwrap();
        assert_eq!((workers.load().unwrap(), peers.load().unwrap()), (ids([7]), wired));
    }

    #[test]
    fn a_damaged_file_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let file = StateFile::new(directory.path(), "http://a:8092", "file.default");
        file.store(&ids([1])).unwrap();
        fs::write(&file.path, "{\"version\": 1").unwrap();
        assert!(file.load().is_err());
    }
}
