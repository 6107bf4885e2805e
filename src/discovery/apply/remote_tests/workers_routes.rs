//! The `/workers` routes of a selector that has no `/catalog`: what is sent, sent again, and removed.

use super::*;

const NEEDED: Check = Check::Differs("workers are missing or changed");

/// A selector without `/catalog`, and a first target for it.
async fn reached() -> (Shared, SocketAddr, RemoteTarget) {
    let memory = Shared::default();
    let (address, _server) = serve(reference(&memory), &memory).await;
    (memory, address, target(address, |_| {}))
}

fn ids(memory: &Shared) -> Vec<u64> {
    memory.lock().workers.keys().copied().collect()
}

/// Somebody else registers a worker.
fn register_by_hand(memory: &Shared, id: u64, endpoint: &str) {
    let mut record = serde_json::to_value(worker(id, endpoint).request).unwrap();
    record["lifecycle"] = json!("schedulable");
    memory.lock().workers.insert(id, record);
}

/// Calls whose line begins so, since the log was last taken.
fn calls(memory: &Shared, beginning: &str) -> usize {
    memory.lock().log.iter().filter(|line| line.starts_with(beginning)).count()
}

/// A snapshot of one worker.
fn one(generation: u64, endpoint: &str) -> Snapshot {
    Snapshot::new(SnapshotVersion { epoch: 1, generation }, vec![worker(1, endpoint)]).unwrap()
}

/// Lets time pass without any call under way.
async fn pass_time(secs: u64) {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(secs)).await;
    tokio::time::resume();
}

#[tokio::test]
async fn a_preview_names_what_a_pass_would_do_and_does_nothing() {
    let (memory, address, _) = reached().await;
    let state = tempfile::tempdir().unwrap();
    target_with_state(address, &state).apply(&snapshot(1, [1, 2, 3])).await.unwrap();
    register_by_hand(&memory, 2, "http://elsewhere");
    register_by_hand(&memory, 100, "http://stranger");
    taken(&memory);
    let before = memory.lock().workers.clone();
    let preview = target_with_state(address, &state).preview(&snapshot(2, [1, 2, 4])).await.unwrap();
    assert_eq!(preview, Preview { added: vec![4], changed: vec![2], removed: vec![3], foreign: Vec::new() });
    assert_eq!(taken(&memory), ["GET /catalog", "GET /workers"]);
    assert_eq!(memory.lock().workers, before);
}

#[tokio::test]
async fn a_record_that_is_shown_otherwise_than_sent_is_sent_once() {
    let (memory, _, mut target) = reached().await;
    memory.lock().reworded.insert(1);
    target.apply(&one(1, "http://a")).await.unwrap();
    assert_eq!(memory.lock().workers[&1]["endpoint"], "http://a/");
    assert_eq!(target.check(&one(1, "http://a")).await.unwrap(), Check::Same);
    taken(&memory);
    target.apply(&one(2, "http://a")).await.unwrap();
    assert_eq!(taken(&memory), ["GET /workers"]);
    // Another record is wanted, or another one is shown.
    assert_eq!(target.check(&one(3, "http://b")).await.unwrap(), NEEDED);
    target.apply(&one(3, "http://a")).await.unwrap();
    register_by_hand(&memory, 1, "http://c/");
    assert_eq!(target.check(&one(3, "http://a")).await.unwrap(), NEEDED);
    target.apply(&one(3, "http://a")).await.unwrap();
    assert_eq!(target.check(&one(3, "http://a")).await.unwrap(), Check::Same);
    // A selector that no longer changes what it is told, and somebody who does.
    memory.lock().reworded.clear();
    memory.lock().workers.clear();
    target.apply(&one(4, "http://a")).await.unwrap();
    assert_eq!(target.check(&one(4, "http://a")).await.unwrap(), Check::Same);
    register_by_hand(&memory, 1, "http://a/");
    assert_eq!(target.check(&one(4, "http://a")).await.unwrap(), NEEDED);
}

#[tokio::test]
async fn an_incomplete_record_is_sent_again_with_each_snapshot_and_once_a_minute() {
    let (memory, _, mut target) = reached().await;
    memory.lock().incomplete.insert(1);
    target.apply(&snapshot(1, [1, 2])).await.unwrap();
    taken(&memory);
    let report = target.apply(&snapshot(2, [1, 2])).await.unwrap();
    assert_eq!((report.upserted, &report.not_schedulable[..]), (1, &[(1, vec!["block_size mismatch".to_owned()])][..]));
    assert_eq!(taken(&memory), ["GET /workers", "POST /workers", "post 1"]);
    assert_eq!(target.check(&snapshot(2, [1, 2])).await.unwrap(), Check::Same);
    pass_time(50).await;
    assert_eq!(target.check(&snapshot(2, [1, 2])).await.unwrap(), Check::Same);
    pass_time(10).await;
    assert_eq!(target.check(&snapshot(2, [1, 2])).await.unwrap(), NEEDED);
    memory.lock().incomplete.clear();
    let report = target.apply(&snapshot(2, [1, 2])).await.unwrap();
    assert_eq!((report.upserted, report.not_schedulable), (1, Vec::new()));
    assert_eq!(target.check(&snapshot(2, [1, 2])).await.unwrap(), Check::Same);
}

#[tokio::test]
async fn a_refused_record_is_a_result_and_sent_again_as_an_incomplete_one_is() {
    let (memory, _, mut target) = reached().await;
    // One that is new, and the new shape of one that is there.
    register_by_hand(&memory, 3, "http://elsewhere");
    memory.lock().refused = [2, 3].into();
    let refused = [2, 3].map(|id| (id, vec!["no such model".to_owned()]));
    for generation in [1, 2] {
        let report = target.apply(&snapshot(generation, [1, 2, 3])).await.unwrap();
        assert_eq!(report.not_schedulable, refused, "{generation}");
    }
    assert_eq!(target.check(&snapshot(2, [1, 2, 3])).await.unwrap(), Check::Same);
    pass_time(60).await;
    assert_eq!(target.check(&snapshot(2, [1, 2, 3])).await.unwrap(), NEEDED);
    target.apply(&snapshot(2, [1, 2, 3])).await.unwrap();
    // A selector that lost its workers gets all of them at once.
    memory.lock().workers.clear();
    assert_eq!(target.check(&snapshot(2, [1, 2, 3])).await.unwrap(), NEEDED);
    memory.lock().refused.clear();
    let report = target.apply(&snapshot(2, [1, 2, 3])).await.unwrap();
    assert_eq!((report.upserted, report.not_schedulable, ids(&memory)), (3, Vec::new(), vec![1, 2, 3]));
}

#[tokio::test]
async fn a_pass_ends_when_nobody_answers_any_more() {
    let (memory, _, mut target) = reached().await;
    target.apply(&snapshot(1, 1..=400)).await.unwrap();
    taken(&memory);
    memory.lock().cut = (1..=800).collect();
    let error = target.apply(&snapshot(2, 401..=800)).await.unwrap_err();
    assert!(error.is_absence(), "{error}");
    assert!(calls(&memory, "POST") < 100, "{}", calls(&memory, "POST"));
    assert_eq!(calls(&memory, "DELETE"), 0);
    taken(&memory);
    let error = target.apply(&snapshot(3, [])).await.unwrap_err();
    assert!(error.is_absence(), "{error}");
    assert!(calls(&memory, "DELETE") < 100, "{}", calls(&memory, "DELETE"));
    memory.lock().cut.clear();
    assert_eq!(target.apply(&snapshot(3, [])).await.unwrap().deleted, 400);
    assert_eq!(ids(&memory), [0; 0]);
}

#[tokio::test]
async fn calls_that_fail_here_and_there_end_no_pass() {
    let (memory, _, mut target) = reached().await;
    let cut = || (1..=400).filter(|id| id % 4 == 0);
    memory.lock().cut = cut().collect();
    assert!(target.apply(&snapshot(1, 1..=400)).await.unwrap_err().is_absence());
    assert_eq!(memory.lock().workers.len(), 300);
    memory.lock().cut.clear();
    target.apply(&snapshot(1, 1..=400)).await.unwrap();
    memory.lock().cut = cut().collect();
    assert!(target.apply(&snapshot(2, [])).await.unwrap_err().is_absence());
    assert_eq!(ids(&memory), cut().collect::<Vec<_>>());
}

#[tokio::test]
async fn what_was_sent_by_a_pass_that_failed_is_known_to_the_next_process() {
    let (memory, address, _) = reached().await;
    let state = tempfile::tempdir().unwrap();
    memory.lock().cut = (101..=400).collect();
    target_with_state(address, &state).apply(&snapshot(1, 1..=400)).await.unwrap_err();
    assert!(memory.lock().workers.len() > 1);
    memory.lock().cut.clear();
    target_with_state(address, &state).apply(&snapshot(2, [1])).await.unwrap();
    assert_eq!(ids(&memory), [1]);
}

#[tokio::test]
async fn only_what_is_gone_is_forgotten() {
    let (memory, address, _) = reached().await;
    let state = tempfile::tempdir().unwrap();
    let mut first = target_with_state(address, &state);
    // One that is there as it is wanted is taken over.
    register_by_hand(&memory, 4, "http://w");
    first.apply(&snapshot(1, [1, 2, 3, 4, 5])).await.unwrap();
    memory.lock().fleeting.insert(2);
    assert_eq!(first.check(&snapshot(2, [1, 3, 5])).await.unwrap(), Check::Differs("workers are there that left"));
    assert_eq!(first.apply(&snapshot(2, [1, 3, 5])).await.unwrap().deleted, 1, "somebody else removed 2");
    assert_eq!(ids(&memory), [1, 3, 5]);
    memory.lock().broken.insert(3);
    assert_eq!(first.apply(&snapshot(3, [1])).await.unwrap_err().reason(), "server_error");
    assert_eq!(ids(&memory), [1, 3]);
    // What comes back by other hands is theirs, for this process and the next.
    [2, 5].iter().for_each(|&id| register_by_hand(&memory, id, "http://w"));
    memory.lock().broken.clear();
    first.apply(&snapshot(3, [1])).await.unwrap();
    assert_eq!(ids(&memory), [1, 2, 5]);
    target_with_state(address, &state).apply(&snapshot(4, [1])).await.unwrap();
    assert_eq!(ids(&memory), [1, 2, 5]);
}

#[tokio::test]
async fn a_draining_worker_stays_while_any_load_of_it_is_left() {
    let (memory, address, _) = reached().await;
    let state = tempfile::tempdir().unwrap();
    let mut first = target_with_state(address, &state);
    let with_draining = |generation, ids: [u64; 2]| {
        let mut workers = vec![worker(1, "http://w")];
        workers.extend(ids.map(|id| DesiredWorker { state: WorkerState::Draining, ..worker(id, "http://w") }));
        Snapshot::new(SnapshotVersion { epoch: 1, generation }, workers).unwrap()
    };
    first.apply(&snapshot(1, [1, 2, 3])).await.unwrap();
    let next = with_draining(2, [2, 9]);
    for load in [[1, 0, 0], [0, 1, 0], [0, 0, 1]] {
        memory.lock().busy.insert(2, load);
        first.apply(&next).await.unwrap();
        assert_eq!(first.check(&next).await.unwrap(), Check::Same, "{load:?}");
        assert_eq!(ids(&memory), [1, 2], "{load:?}");
    }
    memory.lock().busy.clear();
    taken(&memory);
    assert_eq!(first.check(&next).await.unwrap(), Check::Same);
    assert_eq!(taken(&memory), ["GET /catalog", "GET /workers", "GET /loads", "DELETE /workers/2"]);
    assert_eq!(ids(&memory), [1]);
    // The next process knows that it went.
    register_by_hand(&memory, 2, "http://w");
    target_with_state(address, &state).apply(&snapshot(3, [1])).await.unwrap();
    assert_eq!(ids(&memory), [1, 2]);
    // A pass removes an idle one as well, and a look says when it cannot.
    let next = with_draining(4, [2, 9]);
    assert_eq!(first.apply(&next).await.unwrap().deleted, 1);
    assert_eq!(ids(&memory), [1]);
    register_by_hand(&memory, 2, "http://w");
    memory.lock().broken.insert(2);
    assert_eq!(first.check(&next).await.unwrap_err().reason(), "server_error");
}
