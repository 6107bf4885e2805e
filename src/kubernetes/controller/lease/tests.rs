//! Elections against an apiserver that holds one Lease, with the rules of `resourceVersion`.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use kube::Config;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};

use super::*;

/// An apiserver with one Lease: creations and replacements with the rules of `resourceVersion`.
#[derive(Clone, Default)]
struct Server {
    lease: Arc<Mutex<Option<Value>>>,
    version: Arc<Mutex<u64>>,
    down: Arc<Mutex<bool>>,
}

fn failure(code: StatusCode, reason: &str) -> Response {
    let body = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason,
                       "message": reason, "code": code.as_u16() });
    (code, Json(body)).into_response()
}

impl Server {
    fn store(&self, mut lease: Value) -> Response {
        let mut version = self.version.lock();
        *version += 1;
        lease["metadata"]["resourceVersion"] = json!(version.to_string());
        lease["apiVersion"] = json!("coordination.k8s.io/v1");
        lease["kind"] = json!("Lease");
        *self.lease.lock() = Some(lease.clone());
        Json(lease).into_response()
    }

    async fn start(&self) -> Client {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let read = async |State(server): State<Self>, Path(_): Path<String>| {
            if *server.down.lock() {
                return failure(StatusCode::INTERNAL_SERVER_ERROR, "InternalError");
            }
            let lease = server.lease.lock().clone();
            lease.map_or_else(|| failure(StatusCode::NOT_FOUND, "NotFound"), |lease| Json(lease).into_response())
        };
        let replace = async |State(server): State<Self>, Path(_): Path<String>, Json(lease): Json<Value>| {
            if *server.down.lock() {
                return failure(StatusCode::INTERNAL_SERVER_ERROR, "InternalError");
            }
            let now = server.lease.lock().as_ref().map(|l| l["metadata"]["resourceVersion"].clone());
            match now {
                None => failure(StatusCode::NOT_FOUND, "NotFound"),
                Some(now) if now != lease["metadata"]["resourceVersion"] => failure(StatusCode::CONFLICT, "Conflict"),
                Some(_) => server.store(lease),
            }
        };
        let create = async |State(server): State<Self>, Json(lease): Json<Value>| {
            if server.lease.lock().is_some() {
                return failure(StatusCode::CONFLICT, "AlreadyExists");
            }
            server.store(lease)
        };
        let base = "/apis/coordination.k8s.io/v1/namespaces/ns/leases";
        let routes = Router::new()
            .route(base, post(create))
            .route(&format!("{base}/{{name}}"), get(read).put(replace))
            .with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        let mut config = Config::new(format!("http://{address}").parse().unwrap());
        config.default_retry = false;
        Client::try_from(config).unwrap()
    }

    fn holder(&self) -> Option<String> {
        self.lease.lock().as_ref()?["spec"]["holderIdentity"].as_str().map(str::to_owned)
    }
}

struct Candidate {
    leadership: watch::Receiver<Leadership>,
    raise: Raise,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Candidate {
    fn stand(client: &Client, identity: &str) -> Self {
        let options = LeaseOptions {
            namespace: "ns".to_owned(),
            name: "lease".to_owned(),
            identity: identity.to_owned(),
            duration: Duration::from_secs(1),
        };
        let (election, leadership, raise) = Election::new(client.clone(), options);
        let stop = CancellationToken::new();
        let task = tokio::spawn(election.run(stop.clone()));
        Self { leadership, raise, stop, task }
    }

    async fn epoch(&mut self, wanted: impl Fn(Option<u64>) -> bool) -> Option<u64> {
        let found = self.leadership.wait_for(|state| wanted(state.epoch));
        timeout(Duration::from_secs(60), found).await.expect("in time").unwrap().epoch
    }
}

#[tokio::test]
async fn one_leads_and_the_next_has_a_later_epoch() {
    let server = Server::default();
    let client = server.start().await;
    let mut one = Candidate::stand(&client, "one");
    let first = one.epoch(|e| e.is_some()).await.unwrap();
    let mut two = Candidate::stand(&client, "two");
    // A lease that was given back is taken without waiting for it to run out.
    one.stop.cancel();
    let second = two.epoch(|e| e.is_some()).await.unwrap();
    assert!(second > first, "{second} after {first}");
    assert_eq!(server.holder().as_deref(), Some("two"));
    assert_eq!(one.leadership.borrow().epoch, None);
    one.task.await.unwrap();
}

#[tokio::test]
async fn a_dead_leader_is_replaced_and_one_that_is_cut_off_stops_first() {
    let server = Server::default();
    let client = server.start().await;
    let mut one = Candidate::stand(&client, "one");
    let first = one.epoch(|e| e.is_some()).await.unwrap();
    // Cut off: it stops by its own clock, whatever the apiserver thinks.
    *server.down.lock() = true;
    one.epoch(|e| e.is_none()).await;
    assert_eq!(server.holder().as_deref(), Some("one"));
    one.task.abort();
    *server.down.lock() = false;
    let mut two = Candidate::stand(&client, "two");
    let second = two.epoch(|e| e.is_some()).await.unwrap();
    assert!(second > first, "{second} after {first}");
}

#[tokio::test]
async fn who_finds_another_holder_stops() {
    let server = Server::default();
    let client = server.start().await;
    let mut one = Candidate::stand(&client, "one");
    one.epoch(|e| e.is_some()).await;
    let mut stolen = server.lease.lock().clone().unwrap();
    stolen["spec"]["holderIdentity"] = json!("thief");
    stolen["spec"]["leaseDurationSeconds"] = json!(3600);
    server.store(stolen);
    one.epoch(|e| e.is_none()).await;
    assert_eq!(server.holder().as_deref(), Some("thief"));
}

#[tokio::test]
async fn an_epoch_goes_above_what_a_selector_has_seen_however_large() {
    let server = Server::default();
    let client = server.start().await;
    let mut one = Candidate::stand(&client, "one");
    let first = one.epoch(|e| e.is_some()).await.unwrap();
    one.raise.above(first + 40);
    assert_eq!(one.epoch(|e| e.is_some_and(|e| e != first)).await, Some(first + 41));
    let millis = 1_790_000_000_000;
    one.raise.above(millis);
    assert_eq!(one.epoch(|e| e.is_some_and(|e| e > millis)).await, Some(millis + 1));
    // What was reached is not forgotten with the holder.
    one.stop.cancel();
    one.task.await.unwrap();
    let mut two = Candidate::stand(&client, "two");
    assert_eq!(two.epoch(|e| e.is_some()).await, Some(millis + 2));
    // One that is above already stays.
    two.raise.above(5);
    two.raise.above(millis + 2);
    assert_eq!(two.epoch(|e| e.is_some_and(|e| e > millis + 2)).await, Some(millis + 3));
}
