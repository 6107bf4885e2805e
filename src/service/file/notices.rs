//! Which directories tell about a path, and the notices they give.
//!
//! A file is replaced by a rename, a link on the way to it is swapped, a directory is removed and made again: what is
//! watched is never the file but every directory whose entries decide what the path means now.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    ffi::{OsStr, OsString},
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    time::{Duration, Instant},
};

use notify::{
    EventKind, RecommendedWatcher, RecursiveMode, Watcher,
    event::{AccessKind, AccessMode, ModifyKind, RemoveKind, RenameMode},
};
use parking_lot::Mutex;

/// Links followed before a path is given up, as the kernel does.
const MAX_LINKS: usize = 40;
/// A burst of notices is waited out no longer than this many quiet periods.
const MAX_QUIET_PERIODS: u32 = 10;

/// A directory as it was when it was looked at; one that is made again is another, unless its number is used again.
type DirectoryId = (u64, u64);

/// What decides the meaning of a path.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// Directories to watch.
    pub directories: BTreeMap<PathBuf, DirectoryId>,
    /// Entries in them that are on the way.
    pub names: HashSet<OsString>,
}

/// Follows `path` link by link. What is missing is represented by the nearest directory that exists.
pub fn route(path: &Path) -> Route {
    let mut route = Route::default();
    let Ok(absolute) = std::path::absolute(path) else { return route };
    let mut pending: VecDeque<OsString> = parts(&absolute);
    let mut here = PathBuf::from("/");
    let mut links = 0;
    while let Some(name) = pending.pop_front() {
        if name == ".." {
            here.pop();
            continue;
        }
        let next = here.join(&name);
        let target = match std::fs::symlink_metadata(&next) {
            Ok(entry) if entry.is_symlink() => std::fs::read_link(&next).ok(),
            Ok(_) if pending.is_empty() => {
                route.add(&here, &name);
                break;
            }
            Ok(_) => {
                here = next;
                continue;
            }
            Err(_) => None,
        };
        route.add(&here, &name);
        links += 1;
        let Some(target) = target.filter(|_| links <= MAX_LINKS) else { break };
        if target.is_absolute() {
            here = PathBuf::from("/");
        }
        for part in parts(&target).into_iter().rev() {
            pending.push_front(part);
        }
    }
    route
}

fn parts(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some(OsString::from("..")),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        })
        .collect()
}

impl Route {
    fn add(&mut self, directory: &Path, name: &OsStr) {
        self.names.insert(name.to_owned());
        if let Ok(metadata) = std::fs::metadata(directory) {
            self.directories.insert(directory.to_owned(), (metadata.dev(), metadata.ino()));
        }
    }
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// An entry on the route changed.
    Named,
    /// Something else in a watched directory changed.
    Other,
    /// Nothing was heard in time.
    Timeout,
    /// The owner is gone.
    Stop,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    named: AtomicBool,
    /// An entry on the route was put there by a rename: what it leads to is whole.
    renamed: AtomicBool,
    names: Mutex<HashSet<OsString>>,
    /// Removed directories whose watch is gone with them.
    removed: Mutex<HashSet<PathBuf>>,
}

/// Ends the wait of a [`Notices`] for good when dropped.
#[derive(Debug)]
pub struct StopHandle {
    shared: Arc<Shared>,
    wake: SyncSender<()>,
}

impl Drop for StopHandle {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        // A full channel means that the thread is about to wake anyway.
        self.wake.try_send(()).ok();
    }
}

/// Notices about the current route.
pub struct Notices {
    shared: Arc<Shared>,
    woken: Receiver<()>,
    watcher: Option<RecommendedWatcher>,
    directories: BTreeMap<PathBuf, DirectoryId>,
    /// When the last wait ended.
    ended: Option<Instant>,
}

impl Notices {
    /// Watches nothing yet. Without notices from the system (its limit is reached, say) waits end by time alone.
    pub fn new() -> (Self, StopHandle) {
        let shared = Arc::new(Shared::default());
        // One pending wake-up stands for any number of notices.
        let (wake, woken) = sync_channel(1);
        let (for_events, wake_events) = (Arc::clone(&shared), wake.clone());
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            if let Ok(event) = &event
                && event.kind == EventKind::Remove(RemoveKind::Folder)
            {
                for_events.removed.lock().extend(event.paths.iter().cloned());
            }
            let Some(notice) = judge(event, &for_events.names.lock()) else { return };
            for_events.named.fetch_or(notice != Notice::Other, Ordering::AcqRel);
            for_events.renamed.fetch_or(notice == Notice::Renamed, Ordering::AcqRel);
            wake_events.try_send(()).ok();
        });
        let watcher = watcher
            .inspect_err(|error| tracing::warn!(%error, "no file notices from the system, looking at intervals"))
            .ok();
        let handle = StopHandle { shared: Arc::clone(&shared), wake };
        (Self { shared, woken, watcher, directories: BTreeMap::new(), ended: None }, handle)
    }

    /// Watches `route` from now on. Returns whether a directory was added: what happened in it before is unknown.
    pub fn follow(&mut self, route: &Route) -> bool {
        let Some(watcher) = &mut self.watcher else { return false };
        self.shared.names.lock().clone_from(&route.names);
        let removed = std::mem::take(&mut *self.shared.removed.lock());
        self.directories.retain(|path, id| {
            let keep = route.directories.get(path) == Some(id) && !removed.contains(path);
            if !keep {
                // It may be gone already, and its watch with it.
                watcher.unwatch(path).ok();
            }
            keep
        });
        let mut added = false;
        for (path, id) in &route.directories {
            if self.directories.contains_key(path) {
                continue;
            }
            match watcher.watch(path, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    self.directories.insert(path.clone(), *id);
                    added = true;
                }
                Err(error) => tracing::debug!(directory = %path.display(), %error, "cannot watch directory"),
            }
        }
        added
    }

    /// Waits for a notice, then until `quiet` has passed without one. A rename into place needs no quiet, unless the last
    /// wait ended less than `quiet` ago.
    pub fn wait(&mut self, timeout: Duration, quiet: Duration) -> Wake {
        let wake = self.wait_from(self.ended.map(|ended| ended + quiet), timeout, quiet);
        self.ended = Some(Instant::now());
        wake
    }

    fn wait_from(&self, rested: Option<Instant>, timeout: Duration, quiet: Duration) -> Wake {
        match self.woken.recv_timeout(timeout) {
            Err(RecvTimeoutError::Timeout) if !self.shared.stop.load(Ordering::Acquire) => return Wake::Timeout,
            Err(_) => return Wake::Stop,
            Ok(()) => {}
        }
        let end = Instant::now() + quiet * MAX_QUIET_PERIODS;
        while !self.shared.stop.load(Ordering::Acquire) && Instant::now() < end {
            if self.shared.renamed.load(Ordering::Acquire) && rested.is_none_or(|rested| rested <= Instant::now()) {
                break;
            }
            if self.woken.recv_timeout(quiet).is_err() {
                break;
            }
        }
        self.shared.renamed.store(false, Ordering::Release);
        if self.shared.stop.load(Ordering::Acquire) {
            Wake::Stop
        } else if self.shared.named.swap(false, Ordering::AcqRel) {
            Wake::Named
        } else {
            Wake::Other
        }
    }
}

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notice {
    /// An entry on the route was put in place by a rename.
    Renamed,
    /// An entry on the route.
    Named,
    /// Something else in a watched directory.
    Other,
}

/// What an event is about, if it matters at all.
fn judge(event: notify::Result<notify::Event>, names: &HashSet<OsString>) -> Option<Notice> {
    // An error may stand for lost notices: look again.
    let Ok(event) = event else { return Some(Notice::Named) };
    match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => {}
        // Reading the file raises these: reacting to them would never end.
        EventKind::Access(_) => return None,
        // Both ends of a rename have been told one by one.
        EventKind::Modify(ModifyKind::Name(RenameMode::Both)) => return None,
        _ => {}
    }
    let about_route = |path: &PathBuf| path.file_name().is_none_or(|name| names.contains(name));
    if event.kind == EventKind::Modify(ModifyKind::Name(RenameMode::To)) && event.paths.iter().any(about_route) {
        Some(Notice::Renamed)
    } else if event.need_rescan() || event.paths.iter().any(about_route) {
        Some(Notice::Named)
    } else {
        Some(Notice::Other)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn directories(path: &Path) -> Vec<PathBuf> {
        route(path).directories.into_keys().collect()
    }

    #[test]
    fn a_plain_file_is_told_by_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::write(root.join("w.yaml"), "").unwrap();
        assert_eq!(directories(&root.join("w.yaml")), std::slice::from_ref(&root));
        assert_eq!(directories(&root.join("missing.yaml")), std::slice::from_ref(&root));
        assert_eq!(directories(&root.join("no/such/dir/w.yaml")), std::slice::from_ref(&root));
        assert_eq!(directories(&root.join("x/../w.yaml")), [root]);
    }

    #[test]
    fn every_link_on_the_way_is_told_by_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("volume/..stamp")).unwrap();
        std::fs::write(root.join("volume/..stamp/w.yaml"), "").unwrap();
        symlink("..stamp", root.join("volume/..data")).unwrap();
        symlink("..data/w.yaml", root.join("volume/w.yaml")).unwrap();
        std::fs::create_dir(root.join("links")).unwrap();
        symlink(root.join("volume"), root.join("links/etc")).unwrap();
        let path = root.join("links/etc/w.yaml");
        assert_eq!(directories(&path), [root.join("links"), root.join("volume"), root.join("volume/..stamp")]);
        let names = route(&path).names;
        assert!(["etc", "w.yaml", "..data"].iter().all(|n| names.contains(OsStr::new(n))), "{names:?}");
    }

    #[test]
    fn a_rename_into_place_is_not_waited_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("w.yaml");
        let other = dir.path().join("w.yaml.new");
        std::fs::write(&other, "whole").unwrap();
        let (mut notices, _stop) = Notices::new();
        assert!(notices.follow(&route(&path)));
        std::fs::rename(&other, &path).unwrap();
        // Quiet for longer than the test may take.
        let hour = Duration::from_secs(3600);
        assert_eq!(notices.wait(hour, hour), Wake::Named);
    }

    #[test]
    fn links_in_a_circle_end() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        symlink("b", root.join("a")).unwrap();
        symlink("a", root.join("b")).unwrap();
        assert_eq!(directories(&root.join("a")), [root]);
    }
}
