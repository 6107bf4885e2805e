//! Which ids were sent to a selector that does not remember who registered a worker.
//!
//! Written before the first record of a pass goes out, so that a crash leaves no worker behind that nobody would ever
//! remove. One file a selector and owner.

use std::{
    collections::BTreeSet,
    fs, io,
    io::Write,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

/// What the file holds.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    version: u32,
    selector: String,
    owner: String,
    worker_ids: BTreeSet<u64>,
}

/// The state of one selector.
#[derive(Clone, Debug)]
pub struct StateFile {
    path: PathBuf,
    selector: String,
    owner: String,
}

impl StateFile {
    /// The file for `selector` and `owner` in `directory`.
    pub fn new(directory: &Path, selector: &str, owner: &str) -> Self {
        let readable: String =
            selector.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).take(80).collect();
        let unique = xxh3_64(format!("{selector}\0{owner}").as_bytes());
        Self {
            path: directory.join(format!("{readable}.{unique:016x}.json")),
            selector: selector.to_owned(),
            owner: owner.to_owned(),
        }
    }

    /// The ids of the last run; none when there was none.
    ///
    /// # Errors
    /// A file that is there and cannot be used.
    pub fn load(&self) -> io::Result<BTreeSet<u64>> {
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
            Err(error) => return Err(error),
        };
        let content: Content = serde_json::from_slice(&text)?;
        if content.version != 1 || content.selector != self.selector || content.owner != self.owner {
            return Err(io::Error::other(format!("{} is of another selector, owner or version", self.path.display())));
        }
        Ok(content.worker_ids)
    }

    /// Replaces the ids; the old file or the new one is there at any time.
    ///
    /// # Errors
    /// The directory cannot be made or written.
    pub fn store(&self, worker_ids: &BTreeSet<u64>) -> io::Result<()> {
        let directory = self.path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(directory)?;
        let content = Content {
            version: 1,
            selector: self.selector.clone(),
            owner: self.owner.clone(),
            worker_ids: worker_ids.clone(),
        };
        let temporary = self.path.with_extension(format!("tmp.{}", std::process::id()));
        let mut file = fs::File::create(&temporary)?;
        file.write_all(&serde_json::to_vec(&content)?)?;
        file.sync_all()?;
        fs::rename(&temporary, &self.path)?;
        fs::File::open(directory)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_and_selectors_do_not_mix() {
        let directory = tempfile::tempdir().unwrap();
        let below = directory.path().join("made/when/needed");
        let file = StateFile::new(&below, "http://a:8092", "file.default");
        assert_eq!(file.load().unwrap(), BTreeSet::new());
        let ids = BTreeSet::from([1, u64::MAX]);
        file.store(&ids).unwrap();
        assert_eq!(StateFile::new(&below, "http://a:8092", "file.default").load().unwrap(), ids);
        assert!(StateFile::new(&below, "http://a-8092", "file.default").load().unwrap().is_empty());
        assert!(StateFile::new(&below, "http://a:8092", "file.other").load().unwrap().is_empty());
        assert_eq!(fs::read_dir(&below).unwrap().count(), 1, "a temporary file was left");
    }

    #[test]
    fn a_damaged_file_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let file = StateFile::new(directory.path(), "http://a:8092", "file.default");
        file.store(&BTreeSet::from([1])).unwrap();
        fs::write(&file.path, "{\"version\": 1").unwrap();
        assert!(file.load().is_err());
    }
}
