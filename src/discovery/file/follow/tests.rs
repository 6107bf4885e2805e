//! What real writers do to a workers file, and what its follower makes of it.

use std::{
    fs,
    io::Write,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
};

use std::time::Instant;

use super::*;

const THREE: &str = "version: 1\nworkers:\n- {worker_id: 1, endpoint: a}\n- {worker_id: 2, endpoint: b}\n- {worker_id: 3, endpoint: c}\n";
const TWO: &str = "version: 1\nworkers:\n- {worker_id: 1, endpoint: a}\n- {worker_id: 2, endpoint: b}\n";

/// A directory of its own with a followed file in it, and the state as last seen.
struct Fixture {
    directory: tempfile::TempDir,
    path: PathBuf,
    file: WorkersFile,
    status: SourceStatus,
}

impl Fixture {
    fn with(content: Option<&str>) -> Self {
        Self::at("workers.yaml", content, |_| {})
    }

    /// Follows `name` below a new directory, after `prepare` has laid it out.
    fn at(name: &str, content: Option<&str>, prepare: impl FnOnce(&Path)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        prepare(directory.path());
        let path = directory.path().join(name);
        if let Some(content) = content {
            fs::write(&path, content).unwrap();
        }
        // Longer than any test waits: what is noticed is noticed through notices, unless a test says otherwise.
        let options = FollowOptions { poll: Duration::from_secs(3600), epoch: 7, ..FollowOptions::default() };
        Self::follow(directory, path, options)
    }

    fn follow(directory: tempfile::TempDir, path: PathBuf, options: FollowOptions) -> Self {
        let file = WorkersFile::follow(path.clone(), options).unwrap();
        let status = file.status();
        Self { directory, path, file, status }
    }

    fn root(&self) -> &Path {
        self.directory.path()
    }

    /// Waits until the state is as wanted; says what it was instead.
    fn until(&mut self, what: &str, wanted: impl Fn(&SourceState) -> bool) -> SourceState {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let state = self.status.borrow_and_update().clone();
            if wanted(&state) {
                return state;
            }
            assert!(Instant::now() < deadline, "not {what}: {state:?}");
            std::thread::park_timeout(Duration::from_millis(2));
        }
    }

    fn until_workers(&mut self, count: usize) -> SourceState {
        self.until(&format!("{count} workers and no error"), |state| {
            state.error.is_none() && state.snapshot.as_ref().is_some_and(|s| s.workers().len() == count)
        })
    }

    fn until_error(&mut self, part: &str) -> SourceState {
        self.until(&format!("error with {part:?}"), |state| state.error.as_deref().is_some_and(|e| e.contains(part)))
    }

    fn replace(&self, content: &str) {
        let other = self.path.with_extension("tmp");
        fs::write(&other, content).unwrap();
        fs::rename(&other, &self.path).unwrap();
    }
}

fn workers(state: &SourceState) -> usize {
    state.snapshot.as_ref().map_or(0, |s| s.workers().len())
}

#[test]
fn every_replacement_by_rename_is_seen() {
    let mut fixture = Fixture::with(Some(THREE));
    fixture.until_workers(3);
    for round in 0..10 {
        fixture.replace(if round % 2 == 0 { TWO } else { THREE });
        fixture.until_workers(if round % 2 == 0 { 2 } else { 3 });
    }
    let last = fixture.until_workers(3).snapshot.unwrap();
    assert_eq!(last.version, SnapshotVersion { epoch: 7, generation: 11 });
}

#[test]
fn an_editor_that_renames_the_old_file_away_never_empties_the_catalog() {
    let mut fixture = Fixture::with(Some(THREE));
    fixture.until_workers(3);
    for round in 0..10 {
        let backup = fixture.path.with_extension("yaml~");
        fs::rename(&fixture.path, &backup).unwrap();
        fs::write(&fixture.path, if round % 2 == 0 { TWO } else { THREE }).unwrap();
        fs::remove_file(&backup).unwrap();
        let state = fixture.until_workers(if round % 2 == 0 { 2 } else { 3 });
        assert!(workers(&state) > 0);
    }
}

#[test]
fn config_map_swaps_are_seen_through_relative_and_linked_paths() {
    let lay_out = |root: &Path, stamp: &str, content: &str| {
        let data = root.join("volume").join(stamp);
        fs::create_dir_all(&data).unwrap();
        fs::write(data.join("workers.yaml"), content).unwrap();
        let link = root.join("volume/..data_tmp");
        symlink(stamp, &link).unwrap();
        fs::rename(&link, root.join("volume/..data")).unwrap();
    };
    let mut fixture = Fixture::at("etc/../etc/workers.yaml", None, |root| {
        lay_out(root, "..0", THREE);
        symlink("..data/workers.yaml", root.join("volume/workers.yaml")).unwrap();
        symlink("volume", root.join("etc")).unwrap();
    });
    fixture.until_workers(3);
    for round in 1..6 {
        lay_out(fixture.root(), &format!("..{round}"), if round % 2 == 0 { THREE } else { TWO });
        fs::remove_dir_all(fixture.root().join(format!("volume/..{}", round - 1))).unwrap();
        fixture.until_workers(if round % 2 == 0 { 3 } else { 2 });
    }
    // The link to the directory itself is swapped.
    fs::create_dir(fixture.root().join("other")).unwrap();
    fs::write(fixture.root().join("other/workers.yaml"), THREE).unwrap();
    symlink("other", fixture.root().join("etc.new")).unwrap();
    fs::rename(fixture.root().join("etc.new"), fixture.root().join("etc")).unwrap();
    fixture.until_workers(3);
}

#[test]
fn empty_cut_off_and_unreadable_files_keep_the_last_good_catalog() {
    let mut fixture = Fixture::with(Some(THREE));
    fixture.until_workers(3);
    for (content, part) in [("", "empty"), (&THREE[..60], "unclosed bracket"), ("version: 1\n", "missing field")] {
        fs::write(&fixture.path, content).unwrap();
        let state = fixture.until_error(part);
        assert_eq!(workers(&state), 3, "{part}");
    }
    // Repaired with the very content it had: nothing is published anew.
    fs::write(&fixture.path, THREE).unwrap();
    let state = fixture.until_workers(3);
    assert_eq!(state.snapshot.unwrap().version.generation, 1);
    let refusals: u64 = fixture.file.counters().refusals().map(|(_, n)| n).sum();
    assert!((3..=5).contains(&refusals), "{refusals}");
    fixture.replace(TWO);
    assert_eq!(fixture.until_workers(2).snapshot.unwrap().version.generation, 2);
}

#[test]
fn a_file_written_in_small_pieces_is_taken_when_it_is_whole() {
    let mut fixture = Fixture::with(Some(THREE));
    fixture.until_workers(3);
    let mut writer = fs::File::create(&fixture.path).unwrap();
    for (index, piece) in TWO.as_bytes().chunks(16).enumerate() {
        writer.write_all(piece).unwrap();
        // A pause longer than the quiet time: every prefix is read.
        let seen = index;
        let deadline = Instant::now() + Duration::from_millis(80);
        while Instant::now() < deadline {
            let state = fixture.status.borrow_and_update().clone();
            let whole = (seen + 1) * 16 >= TWO.len();
            assert!(workers(&state) == 3 || whole, "a prefix was applied: {state:?}");
            std::thread::park_timeout(Duration::from_millis(2));
        }
    }
    drop(writer);
    fixture.until_workers(2);
}

#[test]
fn a_text_without_a_last_line_end_is_taken_after_a_while() {
    let mut fixture = Fixture::with(Some(THREE.trim_end()));
    fixture.until_workers(3);
}

#[test]
fn content_decides_not_time_stamps() {
    let mut fixture = Fixture::with(Some(THREE));
    fixture.until_workers(3);
    let modified = fs::metadata(&fixture.path).unwrap().modified().unwrap();
    let swapped = THREE.replace("endpoint: a", "endpoint: z");
    assert_eq!(swapped.len(), THREE.len());
    fs::write(&fixture.path, &swapped).unwrap();
    fs::File::options().write(true).open(&fixture.path).unwrap().set_modified(modified).unwrap();
    fixture.until("the other content", |state| {
        let first = state.snapshot.as_ref().and_then(|s| s.get(1));
        first.is_some_and(|w| w.request.fields.endpoint.as_deref() == Some("z"))
    });
    // Fifty times the same content, and a new stamp: nothing is published.
    for _ in 0..50 {
        fixture.replace(&swapped);
    }
    fs::File::options().write(true).open(&fixture.path).unwrap().set_modified(std::time::SystemTime::now()).unwrap();
    fixture.replace(&format!("# a comment\n{TWO}"));
    assert_eq!(fixture.until_workers(2).snapshot.unwrap().version.generation, 3);
    fixture.replace(TWO);
    fixture.replace(THREE);
    assert_eq!(fixture.until_workers(3).snapshot.unwrap().version.generation, 4, "equal records were published again");
}

#[test]
fn a_missing_file_is_waited_for_and_a_deleted_one_keeps_its_workers() {
    let mut fixture = Fixture::at("not/there/yet/workers.yaml", None, |_| {});
    assert_eq!(workers(&fixture.until_error("cannot read")), 0);
    fs::create_dir_all(fixture.path.parent().unwrap()).unwrap();
    fs::write(&fixture.path, THREE).unwrap();
    fixture.until_workers(3);
    fs::remove_file(&fixture.path).unwrap();
    assert_eq!(workers(&fixture.until_error("cannot read")), 3);
    fs::remove_dir_all(fixture.root().join("not")).unwrap();
    fs::create_dir_all(fixture.path.parent().unwrap()).unwrap();
    fs::write(&fixture.path, TWO).unwrap();
    fixture.until_workers(2);
    // A directory that is made again is another one: its changes are seen as well.
    fixture.replace(THREE);
    fixture.until_workers(3);
}

#[test]
fn an_intended_empty_list_is_a_catalog() {
    let mut fixture = Fixture::with(Some("version: 1\nworkers: []\n"));
    fixture.until_workers(0);
    fixture.replace(TWO);
    fixture.until_workers(2);
    fixture.replace("version: 1\nworkers: []\n");
    fixture.until_workers(0);
}

#[test]
fn a_directory_in_place_of_the_file_is_unreadable() {
    let mut fixture = Fixture::with(Some(THREE));
    fixture.until_workers(3);
    fs::remove_file(&fixture.path).unwrap();
    fs::create_dir(&fixture.path).unwrap();
    assert_eq!(workers(&fixture.until_error("not a regular file")), 3);
    fs::remove_dir(&fixture.path).unwrap();
    fs::write(&fixture.path, TWO).unwrap();
    fixture.until_workers(2);
}

#[test]
fn permissions_taken_and_given_back_repair_without_a_change() {
    use nix::unistd::{Uid, setfsuid};

    let mut fixture = Fixture::at("workers.yaml", None, |root| {
        fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(root.join("workers.yaml"), THREE).unwrap();
        // The superuser reads everything, so the thread that follows is nobody's: it has the rights of the one that starts it.
        if Uid::effective().is_root() {
            setfsuid(Uid::from_raw(65_534));
        }
    });
    setfsuid(Uid::effective());
    fixture.until_workers(3);
    fs::set_permissions(&fixture.path, fs::Permissions::from_mode(0o000)).unwrap();
    assert_eq!(workers(&fixture.until_error("cannot read")), 3);
    fs::set_permissions(&fixture.path, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(fixture.until_workers(3).snapshot.unwrap().version.generation, 1);
}

#[test]
fn a_file_that_is_empty_at_the_start_is_no_catalog() {
    let mut fixture = Fixture::with(Some(""));
    assert!(fixture.until_error("empty").snapshot.is_none(), "not even an empty one");
    fs::write(&fixture.path, TWO).unwrap();
    fixture.until_workers(2);
}

#[test]
fn a_change_is_seen_without_any_notice() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("workers.yaml");
    fs::write(&path, THREE).unwrap();
    let (publish, status) = watch::channel(SourceState::default());
    let name = "workers.yaml".to_owned();
    let mut follower = Follower {
        name,
        epoch: 7,
        publish,
        counters: Arc::default(),
        generation: 0,
        refusal: None,
        reading: LastReading::default(),
    };
    let mut reader = Reader::new(path.clone(), Pace::default(), MAX_FILE_BYTES);
    let mut look = || reader.look(false).into_iter().for_each(|seen| follower.saw(seen));
    look();
    assert_eq!(workers(&status.borrow()), 3);
    fs::write(&path, TWO).unwrap();
    look();
    assert_eq!(workers(&status.borrow()), 2);
}

#[test]
fn the_thread_ends_with_its_owner() {
    let fixture = Fixture::with(Some(THREE));
    let mut status = fixture.file.status();
    drop(fixture);
    let deadline = Instant::now() + Duration::from_secs(20);
    while status.has_changed().is_ok() {
        status.mark_unchanged();
        assert!(Instant::now() < deadline, "still running");
        std::thread::park_timeout(Duration::from_millis(2));
    }
}
