//! A selector without workers that tells and takes peers, of our kind or the reference's, so that only its peers matter.

use std::{collections::BTreeSet, net::TcpListener, sync::Arc};

use axum::{
    Json, Router,
    extract::{Request, State},
    http::{Method, StatusCode},
    response::{IntoResponse, Response},
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::program::wait_for;

/// What a fake selector is and remembers.
#[derive(Default)]
pub struct Memory {
    /// Changes of peers it was asked for.
    pub log: Vec<String>,
    pub peers: BTreeSet<String>,
    /// It answers `/replica_sync/status`, under this identity.
    pub instance: Option<&'static str>,
    /// Where it says it publishes.
    pub endpoint: Option<String>,
    pub disabled: bool,
    /// Everything is answered with 503.
    pub down: bool,
    /// Changes of peers are answered with this status.
    pub broken: Option<u16>,
    pub token: Option<&'static str>,
}

/// The selector.
pub struct Fake {
    pub memory: Arc<Mutex<Memory>>,
    pub port: u16,
    runtime: tokio::runtime::Runtime,
}

async fn answer(State(memory): State<Arc<Mutex<Memory>>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let mut memory = memory.lock();
    let fail = |status: u16, text: &str| {
        (StatusCode::from_u16(status).unwrap(), Json(json!({ "error": text }))).into_response()
    };
    if memory.down {
        return fail(503, "down");
    }
    let path = parts.uri.path();
    match (&parts.method, path) {
        (&Method::GET, "/workers") => Json(json!([])).into_response(),
        (&Method::GET, "/replica_sync/peers") => Json(memory.peers.clone()).into_response(),
        (&Method::GET, "/replica_sync/status") if memory.instance.is_some() => {
            let peers: Vec<_> = memory.peers.iter().map(|e| json!({"endpoint": e, "state": "connected"})).collect();
            Json(json!({"enabled": !memory.disabled, "router_id": 7, "instance_id": memory.instance,
                        "endpoint": memory.endpoint, "peers": peers}))
            .into_response()
        }
        (&Method::POST, "/replica_sync/register_peer" | "/replica_sync/deregister_peer") => {
            let wanted = memory.token.map(|t| format!("Bearer {t}"));
            let offered = parts.headers.get("authorization").and_then(|h| h.to_str().ok());
            if wanted.is_some() && wanted.as_deref() != offered {
                return fail(401, "unauthorized");
            }
            let body: Value = serde_json::from_slice(&body).unwrap();
            let endpoint = body["endpoint"].as_str().unwrap().to_owned();
            if memory.disabled {
                return fail(409, "replica sync is disabled");
            }
            if !endpoint.starts_with("tcp://") {
                return fail(400, "invalid ZMQ endpoint");
            }
            let verb = path.rsplit_once('/').unwrap().1.trim_end_matches("_peer");
            memory.log.push(format!("{verb} {endpoint}"));
            if let Some(status) = memory.broken {
                return fail(status, "broken");
            }
            let changed =
                if verb == "register" { memory.peers.insert(endpoint) } else { memory.peers.remove(&endpoint) };
            match (verb, changed) {
                ("register", true) => (StatusCode::CREATED, Json(json!({"status": "ok"}))).into_response(),
                ("deregister", false) => fail(404, "peer not found"),
                _ => Json(json!({"status": "ok"})).into_response(),
            }
        }
        _ => fail(404, "route not found"),
    }
}

impl Fake {
    pub fn start(memory: Memory) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut fake = Self { memory: Arc::new(Mutex::new(memory)), port: 0, runtime };
        fake.port = fake.serve(listener);
        fake
    }

    /// Of the reference's kind: lists peers, tells nothing of itself.
    pub fn plain() -> Self {
        Self::start(Memory::default())
    }

    /// Of our kind.
    pub fn telling(instance: &'static str, endpoint: &str) -> Self {
        Self::start(Memory { instance: Some(instance), endpoint: Some(endpoint.to_owned()), ..Memory::default() })
    }

    pub fn serve(&self, listener: TcpListener) -> u16 {
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let router = Router::new().fallback(answer).with_state(Arc::clone(&self.memory));
        self.runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, router).await.unwrap();
        });
        port
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// With its publisher, which a plain one does not tell.
    pub fn named(&self, publisher: &str) -> String {
        format!("{},{publisher}", self.url())
    }

    pub fn wait_for_peers(&self, peers: &[&str]) {
        let seen = || self.memory.lock().peers.clone();
        wait_for(&format!("peers {peers:?} at {}", self.url()), || {
            seen().iter().map(String::as_str).eq(peers.iter().copied()).then_some(())
        });
    }

    pub fn log(&self) -> Vec<String> {
        self.memory.lock().log.clone()
    }
}
