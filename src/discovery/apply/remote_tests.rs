//! Remote targets against servers that speak the two faces of a selector over real sockets.

mod workers_routes;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::{HeaderMap, StatusCode, Uri},
    response::{IntoResponse, Response},
    routing::{delete, get, put},
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;
use crate::selection::{
    catalog::DesiredWorker,
    worker::{WorkerFields, WorkerRequest, WorkerState},
};

const OWNER: &str = "file.default";

/// A server's memory, and the requests it saw.
#[derive(Default)]
struct Memory {
    log: Vec<String>,
    instance: u32,
    version: (u64, u64),
    digest: String,
    workers: BTreeMap<u64, Value>,
    /// Ids whose calls fail with 500.
    broken: BTreeSet<u64>,
    /// Ids whose records are refused.
    refused: BTreeSet<u64>,
    /// Ids whose calls end without an answer.
    cut: BTreeSet<u64>,
    /// Ids that are gone when their removal arrives.
    fleeting: BTreeSet<u64>,
    /// Ids whose records are shown with another endpoint.
    reworded: BTreeSet<u64>,
    /// Ids that stay incomplete.
    incomplete: BTreeSet<u64>,
    /// Prefill tokens, blocks and requests by id.
    busy: BTreeMap<u64, [u64; 3]>,
    token: Option<String>,
}

type Shared = Arc<Mutex<Memory>>;

impl Memory {
    /// How a call about a single worker goes wrong, if it does.
    fn failure(&self, id: u64) -> Option<Response> {
        if self.cut.contains(&id) {
            // Takes the connection along, and says nothing.
            std::panic::resume_unwind(Box::new("cut"));
        }
        self.broken.contains(&id).then(|| fail(500, "broken"))
    }
}

fn fail(status: u16, text: &str) -> Response {
    (StatusCode::from_u16(status).unwrap(), Json(json!({"error": text}))).into_response()
}

async fn serve(router: Router, memory: &Shared) -> (SocketAddr, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let memory = Arc::clone(memory);
    let logged = router.layer(axum::middleware::from_fn(
        move |request: axum::extract::Request, next: axum::middleware::Next| {
            let line = format!("{} {}", request.method(), request.uri().path());
            memory.lock().log.push(line);
            next.run(request)
        },
    ));
    (address, tokio::spawn(async move { axum::serve(listener, logged).await.unwrap() }))
}

/// What ours answers, as far as a source needs it.
fn ours(memory: &Shared) -> Router {
    async fn show(State(memory): State<Shared>) -> Json<Value> {
        let memory = memory.lock();
        let owners = if memory.workers.is_empty() {
            json!([])
        } else {
            json!([{"owner": OWNER, "epoch": memory.version.0, "generation": memory.version.1, "digest": memory.digest,
                    "workers": memory.workers.len(), "schedulable": memory.workers.len()}])
        };
        Json(json!({"instance_id": memory.instance.to_string(), "owners": owners}))
    }
    async fn apply(
        State(memory): State<Shared>,
        Path(owner): Path<String>,
        headers: HeaderMap,
        body: axum::body::Bytes,
    ) -> Response {
        let mut memory = memory.lock();
        assert_eq!(owner, OWNER);
        if let Some(token) = &memory.token
            && headers.get("authorization").is_none_or(|h| h.as_bytes() != format!("Bearer {token}").as_bytes())
        {
            return fail(401, "unauthorized");
        }
        let compressed = headers.get("content-encoding").is_some_and(|e| e == "zstd");
        memory.log.push(format!(
            "{} bytes{}",
            if body.len() > 1000 { "many" } else { "few" },
            if compressed { ", zstd" } else { "" }
        ));
        if compressed {
            assert_eq!(&body[..4], [0x28, 0xb5, 0x2f, 0xfd]);
            return Json(json!({"epoch": 0, "generation": 0, "digest": "", "instance_id": "", "workers": []}))
                .into_response();
        }
        let sent: Value = serde_json::from_slice(&body).unwrap();
        let version = (sent["epoch"].as_u64().unwrap(), sent["generation"].as_u64().unwrap());
        if version < memory.version {
            let (epoch, generation) = memory.version;
            let current = json!({"epoch": epoch, "generation": generation, "digest": memory.digest});
            return (StatusCode::CONFLICT, Json(json!({"error": "older", "current": current}))).into_response();
        }
        let (records, whole) = match sent.get("workers") {
            Some(workers) => (workers.clone(), true),
            None if sent["base_digest"] != memory.digest.as_str() => return fail(409, "base"),
            None => (sent["upsert"].clone(), false),
        };
        memory.log.push(if whole { "whole".to_owned() } else { "delta".to_owned() });
        if whole {
            memory.workers.clear();
        }
        for id in sent.get("delete").and_then(Value::as_array).into_iter().flatten() {
            memory.workers.remove(&id.as_u64().unwrap());
        }
        for record in records.as_array().unwrap() {
            memory.workers.insert(record["worker_id"].as_u64().unwrap(), record.clone());
        }
        (memory.version, memory.digest) = (version, sent["digest"].as_str().unwrap().to_owned());
        let workers: Vec<_> = memory.workers.keys().map(|id| {
            let incomplete = memory.incomplete.contains(id);
            let lifecycle = if incomplete { "incomplete" } else { "schedulable" };
            json!({"worker_id": id, "lifecycle": lifecycle, "reasons": if incomplete { vec!["endpoint is required"] } else { vec![] }})
        }).collect();
        Json(json!({"epoch": version.0, "generation": version.1, "digest": memory.digest, "instance_id": memory.instance.to_string(), "workers": workers})).into_response()
    }
    Router::new()
        .route("/catalog", get(show))
        .route("/catalog/{owner}", put(apply))
        .layer(axum::extract::DefaultBodyLimit::disable())
        .with_state(Arc::clone(memory))
}

/// What the reference answers.
fn reference(memory: &Shared) -> Router {
    async fn list(State(memory): State<Shared>) -> Json<Vec<Value>> {
        Json(memory.lock().workers.values().cloned().collect())
    }
    async fn post(State(memory): State<Shared>, Json(mut record): Json<Value>) -> Response {
        let mut memory = memory.lock();
        let id = record["worker_id"].as_u64().unwrap();
        if let Some(failure) = memory.failure(id) {
            return failure;
        }
        if memory.refused.contains(&id) {
            return fail(422, "no such model");
        }
        if memory.reworded.contains(&id) {
            record["endpoint"] = json!(format!("{}/", record["endpoint"].as_str().unwrap()));
        }
        let incomplete = memory.incomplete.contains(&id);
        record["lifecycle"] = json!(if incomplete { "incomplete" } else { "schedulable" });
        if incomplete {
            record["not_schedulable_reasons"] = json!(["block_size mismatch"]);
        }
        assert!(record.get("replay_endpoints").is_none(), "a field the reference does not know");
        memory.workers.insert(id, record.clone());
        memory.log.push(format!("post {id}"));
        (StatusCode::CREATED, Json(record)).into_response()
    }
    async fn remove(State(memory): State<Shared>, Path(id): Path<u64>) -> Response {
        let mut memory = memory.lock();
        if let Some(failure) = memory.failure(id) {
            return failure;
        }
        match memory.workers.remove(&id).filter(|_| !memory.fleeting.contains(&id)) {
            Some(record) => Json(record).into_response(),
            None => fail(404, "worker not found"),
        }
    }
    async fn loads(State(memory): State<Shared>) -> Json<Value> {
        let memory = memory.lock();
        let rows: Vec<_> = memory.workers.keys().map(|id| {
            let [tokens, blocks, requests] = memory.busy.get(id).copied().unwrap_or_default();
            json!({"worker_id": id, "dp_rank": 0, "potential_prefill_tokens": tokens, "potential_decode_blocks": blocks, "active_requests": requests})
        }).collect();
        Json(
            json!([{"model_name": "m", "routing_group": "g", "loads": rows, "pending_count": 0, "pending_isl_tokens": 0}]),
        )
    }
    Router::new()
        .route("/workers", get(list).post(post))
        .route("/workers/{id}", delete(remove))
        .route("/loads", get(loads))
        .fallback(|uri: Uri| async move { fail(404, &format!("route not found: {uri}")) })
        .with_state(Arc::clone(memory))
}

fn worker(id: u64, endpoint: &str) -> DesiredWorker {
    let fields = WorkerFields { endpoint: Some(endpoint.to_owned()), ..WorkerFields::default() };
    let request = WorkerRequest { worker_id: id, model_name: "m".to_owned(), routing_group: "g".to_owned(), fields };
    DesiredWorker { state: WorkerState::Active, request }
}

fn snapshot(generation: u64, ids: impl IntoIterator<Item = u64>) -> Snapshot {
    let workers = ids.into_iter().map(|id| worker(id, "http://w")).collect();
    Snapshot::new(SnapshotVersion { epoch: 1, generation }, workers).unwrap()
}

fn target(address: SocketAddr, change: impl FnOnce(&mut RemoteOptions)) -> RemoteTarget {
    let mut options = RemoteOptions { owner: OWNER.to_owned(), ..RemoteOptions::default() };
    change(&mut options);
    RemoteTarget::new(&format!("http://{address}"), options).unwrap()
}

/// The same, keeping its state in a directory.
fn target_with_state(address: SocketAddr, state: &tempfile::TempDir) -> RemoteTarget {
    target(address, |o| o.state_dir = Some(state.path().to_owned()))
}

/// What was logged since the last call.
fn taken(memory: &Shared) -> Vec<String> {
    std::mem::take(&mut memory.lock().log)
}

#[tokio::test]
async fn a_small_change_goes_as_a_delta_and_a_lost_base_as_the_whole() {
    let memory = Shared::default();
    let (address, _server) = serve(ours(&memory), &memory).await;
    let mut target = target(address, |_| {});
    target.apply(&snapshot(1, 0..10)).await.unwrap();
    assert_eq!(taken(&memory), ["GET /catalog", "PUT /catalog/file.default", "many bytes", "whole"]);
    let report = target.apply(&snapshot(2, 1..11)).await.unwrap();
    assert_eq!((report.upserted, report.deleted), (1, 1));
    assert!(taken(&memory).contains(&"delta".to_owned()));
    assert_eq!(memory.lock().workers.keys().copied().collect::<Vec<_>>(), (1..11).collect::<Vec<_>>());
    assert_eq!(target.check(&snapshot(2, 1..11)).await.unwrap(), Check::Same);
    // The selector was restarted: its next look says so, and a delta would be refused.
    *memory.lock() = Memory { instance: 1, ..Memory::default() };
    assert_eq!(target.check(&snapshot(2, 1..11)).await.unwrap(), Check::Differs("the selector was restarted"));
    target.apply(&snapshot(2, 1..11)).await.unwrap();
    assert!(taken(&memory).contains(&"whole".to_owned()));
    assert_eq!(target.check(&snapshot(2, 1..11)).await.unwrap(), Check::Same);
    memory.lock().digest = "of somebody else".to_owned();
    assert_eq!(target.check(&snapshot(2, 1..11)).await.unwrap(), Check::Differs("another snapshot is in force"));
}

#[tokio::test]
async fn an_older_epoch_is_raised_above_the_one_in_force() {
    let memory = Shared::default();
    memory.lock().workers.insert(7, json!({}));
    let far = 99_999_999_999_999;
    memory.lock().version = (far, 4);
    let (address, _server) = serve(ours(&memory), &memory).await;
    let mut target = target(address, |_| {});
    target.apply(&snapshot(1, [1])).await.unwrap();
    assert_eq!(memory.lock().version, (far + 1, 1));
    target.apply(&snapshot(2, [1, 2])).await.unwrap();
    assert_eq!(memory.lock().version, (far + 1, 2), "the epoch was not kept");
}

#[tokio::test]
async fn the_version_of_an_owner_without_workers_is_overtaken_and_told() {
    let memory = Shared::default();
    let far = 99_999_999_999_999;
    memory.lock().version = (far, 4);
    let (address, _server) = serve(ours(&memory), &memory).await;
    let mut first = target(address, |_| {});
    first.apply(&snapshot(1, [1])).await.unwrap();
    assert_eq!(memory.lock().version, (far + 1, 1));

    let last = SnapshotVersion { epoch: SnapshotVersion::MAX_PART, generation: SnapshotVersion::MAX_PART };
    memory.lock().workers.clear();
    memory.lock().version = (last.epoch, last.generation);
    let mut second = target(address, |_| {});
    assert_eq!(second.apply(&snapshot(1, [1])).await, Err(PassError::Superseded(last)));
}

#[tokio::test]
async fn a_wrong_token_is_a_failure_and_a_right_one_is_not() {
    let memory = Shared::default();
    memory.lock().token = Some("s3cret".to_owned());
    let (address, _server) = serve(ours(&memory), &memory).await;
    let error = target(address, |_| {}).apply(&snapshot(1, [1])).await.unwrap_err();
    assert!(error.to_string().ends_with("401 unauthorized"), "{error}");
    target(address, |o| o.token = Some("s3cret".to_owned().into())).apply(&snapshot(1, [1])).await.unwrap();
}

#[tokio::test]
async fn a_large_catalog_is_compressed() {
    let memory = Shared::default();
    let (address, _server) = serve(ours(&memory), &memory).await;
    target(address, |_| {}).apply(&snapshot(1, 0..2_000)).await.unwrap();
    assert!(taken(&memory).iter().any(|l| l.ends_with("zstd")));
}

#[tokio::test]
async fn workers_that_take_no_bookings_are_reported() {
    let memory = Shared::default();
    memory.lock().incomplete.insert(2);
    for router in [ours(&memory), reference(&memory)] {
        let (address, _server) = serve(router, &memory).await;
        let report = target(address, |_| {}).apply(&snapshot(1, [1, 2])).await.unwrap();
        assert_eq!(report.not_schedulable.len(), 1);
        assert_eq!(report.not_schedulable[0].0, 2);
        memory.lock().workers.clear();
    }
}

#[tokio::test]
async fn the_reference_gets_what_differs_and_loses_what_left() {
    let memory = Shared::default();
    let (address, _server) = serve(reference(&memory), &memory).await;
    let mut target = target(address, |_| {});
    target.apply(&snapshot(1, [1, 2, 3])).await.unwrap();
    taken(&memory);
    // The same again: one look, nothing sent.
    target.apply(&snapshot(2, [1, 2, 3])).await.unwrap();
    assert_eq!(taken(&memory), ["GET /workers"]);
    let report = target.apply(&snapshot(3, [1, 2, 4])).await.unwrap();
    assert_eq!((report.upserted, report.deleted), (1, 1));
    let log = taken(&memory);
    assert!(log.contains(&"post 4".to_owned()) && log.contains(&"DELETE /workers/3".to_owned()), "{log:?}");
    // Somebody removes a worker, or the selector was restarted: the next look says so.
    assert_eq!(target.check(&snapshot(3, [1, 2, 4])).await.unwrap(), Check::Same);
    memory.lock().workers.clear();
    assert!(matches!(target.check(&snapshot(3, [1, 2, 4])).await.unwrap(), Check::Differs(_)));
    target.apply(&snapshot(3, [1, 2, 4])).await.unwrap();
    assert_eq!(memory.lock().workers.len(), 3);
}

#[tokio::test]
async fn one_broken_record_stops_neither_the_others_nor_the_removals() {
    let memory = Shared::default();
    let (address, _server) = serve(reference(&memory), &memory).await;
    let mut target = target(address, |_| {});
    target.apply(&snapshot(1, [1, 2])).await.unwrap();
    memory.lock().broken.insert(3);
    let error = target.apply(&snapshot(2, [2, 3, 4])).await.unwrap_err();
    assert_eq!(error.reason(), "server_error");
    assert_eq!(memory.lock().workers.keys().copied().collect::<Vec<_>>(), [2, 4]);
    memory.lock().broken.clear();
    target.apply(&snapshot(2, [2, 3, 4])).await.unwrap();
    assert_eq!(memory.lock().workers.len(), 3);
}

#[tokio::test]
async fn strangers_stay_unless_the_state_file_or_prune_says_otherwise() {
    let memory = Shared::default();
    let (address, _server) = serve(reference(&memory), &memory).await;
    let state = tempfile::tempdir().unwrap();
    memory.lock().workers.insert(100, serde_json::to_value(worker(100, "by hand").request).unwrap());
    memory.lock().workers.get_mut(&100).unwrap()["lifecycle"] = json!("schedulable");
    target_with_state(address, &state).apply(&snapshot(1, [1, 2])).await.unwrap();
    assert_eq!(memory.lock().workers.keys().copied().collect::<Vec<_>>(), [1, 2, 100]);
    // A new process without state knows nobody; one with state removes what its predecessor sent.
    target(address, |_| {}).apply(&snapshot(1, [1])).await.unwrap();
    assert_eq!(memory.lock().workers.keys().copied().collect::<Vec<_>>(), [1, 2, 100]);
    target_with_state(address, &state).apply(&snapshot(1, [1])).await.unwrap();
    assert_eq!(memory.lock().workers.keys().copied().collect::<Vec<_>>(), [1, 100]);
    target(address, |o| o.prune = true).apply(&snapshot(1, [1])).await.unwrap();
    assert_eq!(memory.lock().workers.keys().copied().collect::<Vec<_>>(), [1]);
}

#[tokio::test]
async fn a_draining_worker_leaves_the_reference_when_its_last_booking_ends() {
    let memory = Shared::default();
    let (address, _server) = serve(reference(&memory), &memory).await;
    let mut target = target(address, |_| {});
    target.apply(&snapshot(1, [1, 2])).await.unwrap();
    memory.lock().busy.insert(2, [9, 1, 1]);
    let mut draining = worker(2, "http://w");
    draining.state = WorkerState::Draining;
    let mut never_there = worker(3, "http://w");
    never_there.state = WorkerState::Draining;
    let next = SnapshotVersion { epoch: 1, generation: 2 };
    let next = Snapshot::new(next, vec![worker(1, "http://w"), draining, never_there]).unwrap();
    target.apply(&next).await.unwrap();
    assert_eq!(target.check(&next).await.unwrap(), Check::Same);
    assert_eq!(memory.lock().workers.len(), 2);
    memory.lock().busy.clear();
    assert_eq!(target.check(&next).await.unwrap(), Check::Same);
    assert_eq!(memory.lock().workers.keys().copied().collect::<Vec<_>>(), [1]);
}

#[tokio::test]
async fn a_selector_that_offers_a_catalog_now_gets_one_though_its_workers_are_right() {
    async fn gate(
        State(memory): State<Shared>,
        request: axum::extract::Request,
        next: axum::middleware::Next,
    ) -> Response {
        if request.uri().path().starts_with("/catalog") && memory.lock().instance == 0 {
            return fail(404, "route not found");
        }
        next.run(request).await
    }
    let memory = Shared::default();
    let both = reference(&memory).merge(ours(&memory));
    let both = both.layer(axum::middleware::from_fn_with_state(Arc::clone(&memory), gate));
    let (address, _server) = serve(both, &memory).await;
    let (mut target, snapshot) = (target(address, |_| {}), snapshot(1, [1, 2]));
    target.apply(&snapshot).await.unwrap();
    assert_eq!(target.check(&snapshot).await.unwrap(), Check::Same);
    // Replaced by one that took the workers from a peer.
    memory.lock().instance = 1;
    assert!(matches!(target.check(&snapshot).await.unwrap(), Check::Differs(_)));
    target.apply(&snapshot).await.unwrap();
    assert_eq!(memory.lock().digest, snapshot.digest());
    assert_eq!(target.check(&snapshot).await.unwrap(), Check::Same);
}

#[tokio::test]
async fn ten_thousand_records_reach_the_reference_in_parallel() {
    let memory = Shared::default();
    let (address, _server) = serve(reference(&memory), &memory).await;
    target(address, |_| {}).apply(&snapshot(1, 1..=10_000)).await.unwrap();
    assert_eq!(memory.lock().workers.len(), 10_000);
}

#[tokio::test]
async fn a_selector_that_is_not_there_fails_at_once_and_says_why() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = target(address, |_| {}).apply(&snapshot(1, 1..100_000)).await.unwrap_err();
    assert!(error.is_absence(), "{error}");
    assert_eq!(error.reason(), "transport");
    assert!(error.to_string().contains("refused"), "{error}");
}

#[test]
fn addresses_are_checked() {
    for bad in ["", "a:8092", "tcp://a:8092", "http://"] {
        assert!(RemoteClient::new(bad, None).is_err(), "{bad}");
    }
    assert_eq!(RemoteClient::new("http://a:8092/", None).unwrap().address(), "http://a:8092");
    assert_eq!(RemoteClient::new("https://a/base", None).unwrap().address(), "https://a/base");
}
