//! Trials: functions of a namespace, run beside each other or alone.

use std::{
    cell::RefCell,
    fs::File,
    panic::{AssertUnwindSafe, catch_unwind},
};

use libtest_mimic::{Failed, Trial};

use super::{
    audit::{AuditLog, Request},
    cluster::Cluster,
    evidence,
    namespace::Namespace,
};

/// Kind of a trial that runs alone.
const ALONE: &str = "alone";

/// A trial that keeps to its namespace.
pub fn trial(name: &str, body: fn(&Namespace)) -> Trial {
    make(name, move |name| {
        let _peace = in_peace(File::lock_shared)?;
        in_namespace(name, body)
    })
}

/// A trial that disturbs others, such as one that ends the apiserver or drains the node: nothing else runs beside it, and
/// the next one starts when the cluster is itself again.
pub fn alone(name: &str, body: fn(&Namespace)) -> Trial {
    make(name, move |name| {
        let _peace = in_peace(File::lock)?;
        let outcome = in_namespace(name, body);
        let recovered = catch(|| Cluster::get().wait_until_recovered());
        outcome.and(recovered)
    })
    .with_kind(ALONE)
}

/// Those that run alone go last, so that the others do not wait for them.
pub fn in_order(mut trials: Vec<Trial>) -> Vec<Trial> {
    trials.sort_by_key(|trial| trial.kind() == ALONE);
    trials
}

/// Locks what leaves those of other runs on this cluster in peace too, until it is closed. Whoever wants to be alone keeps
/// the door while waiting for those inside to leave, so that nobody goes in before.
fn in_peace(lock: fn(&File) -> std::io::Result<()>) -> Result<File, String> {
    let folder = catch(|| Cluster::get().state().join("run"))?;
    let locked = |name: &str| {
        let path = folder.join(name);
        let open = File::options().create(true).append(true).open(&path);
        let file = open.and_then(|file| lock(&file).map(|()| file));
        file.map_err(|e| format!("{}: {e}", path.display()))
    };
    let _door = locked("door.lock")?;
    locked("peace.lock")
}

fn make(name: &str, run: impl FnOnce(&str) -> Result<(), String> + Send + 'static) -> Trial {
    let missing = Cluster::missing().is_some();
    let owned = name.to_owned();
    Trial::test(name, move || run(&owned).map_err(Failed::from)).with_ignored_flag(missing)
}

fn in_namespace(name: &str, body: fn(&Namespace)) -> Result<(), String> {
    let stem = name.rsplit("::").next().unwrap_or(name);
    let namespace = catch(|| Namespace::new(Cluster::get(), stem))?;
    let outcome = catch(|| {
        let audit = AuditLog::from_now(namespace.cluster());
        body(&namespace);
        assert_rights_suffice(&namespace, &audit);
    });
    let outcome = outcome
        .map_err(|message| format!("{message}\nlogs, events and objects: {}", evidence::keep(&namespace).display()));
    // A namespace that cannot be removed is a failure of its own.
    let removed = catch(move || drop(namespace));
    outcome.and(removed)
}

/// Whatever a trial does, an operator of its namespace is never told that it lacks a right while it has any: when a release
/// is uninstalled, its rights go before its pods.
#[track_caller]
fn assert_rights_suffice(namespace: &Namespace, audit: &AuditLog) {
    let refused = audit.requests().lacks_of_operators(namespace.name()).0;
    assert!(refused.is_empty(), "the operator lacks a right: {refused:#?}");
}

thread_local! {
    /// What the last panic of this thread said, and where; present while a trial runs on it.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A trial's panic is part of its failure, so that it is told once, with its place and without the harness's frames.
/// Panics of other threads are printed as ever.
pub fn tell_panics_once() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let kept = PANIC.with_borrow_mut(|panic| panic.as_mut().map(|text| *text = info.to_string()).is_some());
        if !kept {
            usual(info);
        }
    }));
}

/// A panic as an error.
fn catch<R>(run: impl FnOnce() -> R) -> Result<R, String> {
    PANIC.set(Some(String::new()));
    let outcome = catch_unwind(AssertUnwindSafe(run));
    let text = PANIC.take().unwrap_or_default();
    outcome.map_err(|_| text)
}
