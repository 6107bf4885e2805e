//! Lists that are read again and again cost the Kubernetes source no more memory than one: counted by the allocator.
#![allow(unsafe_code, reason = "a counting allocator")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../benches/index/allocator.rs"]
mod allocator;

use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::{Request, Response, StatusCode, Uri},
};
use futures_util::stream;
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, api::ObjectList, client::Body as KubeBody};
use parking_lot::Mutex;
use pointsman::kubernetes::source::{ClusterSource, SetKey, SourceOptions};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: allocator::Counting = allocator::Counting;

const NAMESPACE: &str = "demo";
const WORKERS: usize = 1500;
/// Endpoints a slice, as the cluster makes them.
const SLICE: usize = 100;
const PAGE: u32 = 500;
const RELISTS: usize = 50;
const ROLLOUTS: usize = 10;

/// What the apiserver holds, as it sends it: pages by plural.
type Pages = BTreeMap<&'static str, Vec<Bytes>>;

fn pages(plural: &'static str, objects: &[Value]) -> (&'static str, Vec<Bytes>) {
    let chunks: Vec<&[Value]> = objects.chunks(PAGE as usize).collect();
    let page = |(at, items): (usize, &&[Value])| {
        let next = if at + 1 < chunks.len() { (at + 1).to_string() } else { String::new() };
        let list = json!({"kind": "List", "apiVersion": "v1", "items": items,
            "metadata": {"resourceVersion": "1", "continue": next}});
        Bytes::from(list.to_string())
    };
    (plural, chunks.iter().enumerate().map(page).collect())
}

/// A pod with what pods carry besides what the source wants of them.
fn pod(name: &str, uid: &str, ip: &str) -> Value {
    let env: Vec<Value> =
        (0..12).map(|at| json!({"name": format!("VARIABLE_{at}"), "value": "x".repeat(40)})).collect();
    json!({
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": uid, "labels": {"app": "llm"},
            "annotations": {"example.com/note": "y".repeat(500)}},
        "spec": {"nodeName": "node-a", "containers": [{"name": "engine", "env": env,
            "ports": [{"name": "http", "containerPort": 8000}, {"name": "kv-events", "containerPort": 5557}]}]},
        "status": {"phase": "Running", "podIP": ip,
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:10Z"}],
            "containerStatuses": [{"name": "engine", "image": "i", "imageID": "i", "ready": true, "restartCount": 0,
                "containerID": format!("containerd://{uid}"),
                "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]},
    })
}

/// The cluster after so many roll-outs: each has new pods under new names at the same addresses.
fn cluster(rollout: usize) -> Pages {
    let set = json!({"apiVersion": "pointsman.dev/v1alpha1", "kind": "SelectorSet",
        "metadata": {"name": "fleet", "namespace": NAMESPACE}, "spec": {}});
    let pool = json!({"apiVersion": "pointsman.dev/v1alpha1", "kind": "ModelPool",
        "metadata": {"name": "llama", "namespace": NAMESPACE, "uid": "llama"},
        "spec": {"selectorRef": {"name": "fleet"}, "modelName": "m", "workers": {"service": {"name": "llm"}},
            "endpoint": {"port": "http"}, "blockSize": 16, "kvEvents": {"port": 5557}}});
    let names: Vec<(String, String)> =
        (0..WORKERS).map(|at| (format!("w-{rollout:03}-{at}"), format!("10.0.{}.{}", at / 250, at % 250))).collect();
    let endpoint = |(name, ip): &(String, String)| {
        json!({"addresses": [ip], "conditions": {"ready": true}, "nodeName": "node-a",
            "targetRef": {"kind": "Pod", "name": name, "namespace": NAMESPACE, "uid": name}})
    };
    let slice = |(at, part): (usize, &[(String, String)])| {
        json!({"metadata": {"name": format!("s-{at}"), "namespace": NAMESPACE,
                "labels": {"kubernetes.io/service-name": "llm"}},
            "addressType": "IPv4", "ports": [{"name": "http", "port": 8000}],
            "endpoints": part.iter().map(endpoint).collect::<Vec<_>>()})
    };
    let slices: Vec<Value> = names.chunks(SLICE).enumerate().map(slice).collect();
    let pods: Vec<Value> = names.iter().map(|(name, ip)| pod(name, name, ip)).collect();
    [
        pages("selectorsets", &[set]),
        pages("modelpools", &[pool]),
        pages("endpointslices", &slices),
        pages("pods", &pods),
    ]
    .into()
}

/// An apiserver whose answers are made beforehand, so that they do not count. Each word to list again ends every watch,
/// and the next one from before is 410 Gone.
struct Apiserver {
    pages: Mutex<Pages>,
    lists: Mutex<BTreeMap<&'static str, usize>>,
    /// Watches that are still to be refused.
    gone: Mutex<Vec<&'static str>>,
    round: watch::Sender<usize>,
}

impl Apiserver {
    fn answer(&self, uri: &Uri) -> Response<Body> {
        let plurals = ["selectorsets", "modelpools", "endpointslices", "pods"];
        let plural = plurals.into_iter().find(|plural| uri.path().ends_with(plural)).expect("a known kind");
        let query = uri.query().unwrap_or_default();
        let value = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        if value("watch") != Some("true") {
            let page: usize = value("continue").map_or(0, |at| at.parse().unwrap());
            *self.lists.lock().entry(plural).or_default() += usize::from(page == 0);
            return Response::new(Body::from(self.pages.lock()[plural][page].clone()));
        }
        let mut gone = self.gone.lock();
        if let Some(at) = gone.iter().position(|kind| *kind == plural) {
            gone.remove(at);
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410,
                "message": "too old resource version", "reason": "Expired", "metadata": {}});
            let mut response = Response::new(Body::from(status.to_string()));
            *response.status_mut() = StatusCode::GONE;
            return response;
        }
        // Nothing happens until the watch ends.
        let mut round = self.round.subscribe();
        let silence = stream::once(async move { round.changed().await.map(|()| Bytes::new()) });
        Response::new(Body::from_stream(silence))
    }

    fn client(self: &Arc<Self>) -> Client {
        let this = Arc::clone(self);
        let service = tower::service_fn(move |request: Request<KubeBody>| {
            let response = this.answer(request.uri());
            async move { Ok::<_, Infallible>(response) }
        });
        Client::new(service, NAMESPACE)
    }

    /// Every list is read again, of what is there now.
    async fn list_again(&self, pages: Option<Pages>) {
        if let Some(pages) = pages {
            *self.pages.lock() = pages;
        }
        let before = self.lists.lock().clone();
        self.gone.lock().extend(before.keys());
        self.round.send_modify(|round| *round += 1);
        // Time is the runtime's own and jumps: pauses of the source are over at once.
        tokio::time::sleep(Duration::from_secs(60)).await;
        let lists = self.lists.lock().clone();
        assert!(lists.iter().all(|(kind, count)| *count == before[kind] + 1), "{before:?} {lists:?}");
    }

    /// Bytes of the answers that are kept.
    fn bytes(&self) -> usize {
        self.pages.lock().values().flatten().map(Bytes::len).sum()
    }
}

/// A page as it is while it is read: its text and its objects.
fn bytes_of_a_page(text: &Bytes) -> usize {
    let before = allocator::live();
    let page: ObjectList<Pod> = serde_json::from_slice(text).unwrap();
    assert_eq!(page.items.len(), PAGE as usize);
    allocator::live() - before + text.len()
}

// One test: the allocator counts for the whole process.
#[tokio::test(start_paused = true)]
async fn lists_that_are_read_again_take_no_more_memory() {
    let server = Arc::new(Apiserver {
        pages: Mutex::new(cluster(0)),
        lists: Mutex::default(),
        gone: Mutex::default(),
        round: watch::Sender::new(0),
    });
    let page = bytes_of_a_page(&server.pages.lock()["pods"][0]);
    let empty = allocator::live() - server.bytes();
    allocator::peak();
    let options = SourceOptions { page: PAGE, ..SourceOptions::new(Some(NAMESPACE.to_owned()), false) };
    let source = ClusterSource::start(server.client(), options, &CancellationToken::new());
    let sets = source.sets();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let held = || {
        let workers = sets.borrow()[&SetKey::new(NAMESPACE, "fleet")].snapshot.as_ref().unwrap().workers().len();
        assert_eq!(workers, WORKERS);
        allocator::live() - server.bytes() - empty
    };
    let steady = held();
    let first = allocator::peak() - server.bytes() - empty;
    println!("{steady} bytes for {WORKERS} workers, {first} at most while they were read in pages of {page}");
    assert!(first < steady + page + page / 2, "more than a page is held in full: {first}");

    // The same again.
    for _ in 0..RELISTS {
        server.list_again(None).await;
    }
    let (after, peak) = (held(), allocator::peak() - server.bytes() - empty);
    println!("{after} bytes after {RELISTS} lists of the same, {peak} at most");
    assert!(after < steady + steady / 50, "{after} bytes, {steady} before");
    // What is held, the views of a list, which are a part of that, and a page in full.
    let most = 2 * steady + page + page / 2;
    assert!(peak < most, "a list that is read again takes {peak}, which is more than {most}");

    // And every worker replaced by another, each time. A hash table may double once: it had room for few more.
    for rollout in 1..=ROLLOUTS {
        let pages = cluster(rollout);
        allocator::peak();
        server.list_again(Some(pages)).await;
        let peak = allocator::peak() - server.bytes() - empty;
        assert!(peak < most, "a list of other pods takes {peak}, which is more than {most}");
    }
    let after = held();
    println!("{after} bytes after {ROLLOUTS} roll-outs of everything");
    assert!(after < steady + steady / 5, "{after} bytes, {steady} before");
}
