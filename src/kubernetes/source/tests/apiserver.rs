//! An apiserver in memory that fails as it is told to.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    io,
    sync::Arc,
};

use axum::{
    body::{Body, Bytes},
    http::{HeaderValue, Request, Response, StatusCode, Uri},
};
use futures_util::stream;
use kube::{Client, client::Body as KubeBody};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::super::testing::{NAMESPACE, POOL, model_pool, pod, slice};

/// What goes wrong, once, with the next request of a kind.
#[derive(Clone)]
pub(in crate::kubernetes) enum Fault {
    /// The list is answered with this status.
    List(u16),
    /// The second page of the list is.
    SecondPage(u16),
    /// The watch is answered with this status.
    Watch(u16),
    /// The watch sends this line and ends.
    Line(String),
    /// The watch ends at once.
    End,
    /// No answer at all.
    Silence,
    /// The connection is reset before an answer, as TLS does too.
    Reset,
    /// The watch is reset in the middle of this line.
    ResetIn(String),
}

#[derive(Default)]
pub(super) struct Inner {
    /// By plural and name.
    objects: BTreeMap<&'static str, BTreeMap<String, Value>>,
    version: u64,
    /// The newest version of a kind, deletions included.
    newest: HashMap<&'static str, u64>,
    pub(super) faults: HashMap<&'static str, VecDeque<Fault>>,
    /// Every watch of the kind ends at once.
    pub(super) closed: Option<&'static str>,
    watchers: Vec<(&'static str, mpsc::UnboundedSender<io::Result<Bytes>>)>,
    requests: Vec<String>,
}

/// An apiserver in memory. It remembers no history: a watch from another version than the newest is 410 Gone.
#[derive(Clone, Default)]
pub(in crate::kubernetes) struct Apiserver(pub(super) Arc<Mutex<Inner>>);

const PLURALS: [&str; 5] = ["selectorsets", "modelpools", "endpointslices", "pods", "nodes"];

impl Apiserver {
    pub(in crate::kubernetes) fn client(&self) -> Client {
        let this = self.clone();
        let service = tower::service_fn(move |request: Request<KubeBody>| {
            let this = this.clone();
            let uri = request.into_parts().0.uri;
            async move { this.answer(uri).await }
        });
        Client::new(service, NAMESPACE)
    }

    /// Stores an object and tells watchers of it.
    pub(in crate::kubernetes) fn put(&self, plural: &'static str, object: Value) {
        self.change(plural, object, "MODIFIED");
    }

    pub(in crate::kubernetes) fn delete(&self, plural: &'static str, object: Value) {
        self.change(plural, object, "DELETED");
    }

    fn change(&self, plural: &'static str, mut object: Value, what: &str) {
        let mut inner = self.0.lock();
        inner.version += 1;
        object["metadata"]["resourceVersion"] = json!(inner.version.to_string());
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let version = inner.version;
        inner.newest.insert(plural, version);
        let objects = inner.objects.entry(plural).or_default();
        if what == "DELETED" {
            objects.remove(&name);
        } else {
            objects.insert(name, object.clone());
        }
        let line = Bytes::from(json!({"type": what, "object": object}).to_string() + "\n");
        inner.watchers.retain(|(of, watcher)| *of != plural || watcher.send(Ok(line.clone())).is_ok());
    }

    pub(in crate::kubernetes) fn fault(&self, plural: &'static str, fault: Fault) {
        self.0.lock().faults.entry(plural).or_default().push_back(fault);
    }

    /// Nothing fails any more.
    pub(super) fn heal(&self) {
        let mut inner = self.0.lock();
        inner.faults.clear();
        inner.closed = None;
    }

    /// Ends the watches of a kind.
    pub(in crate::kubernetes) fn cut(&self, plural: &str) {
        self.0.lock().watchers.retain(|(of, _)| *of != plural);
    }

    pub(in crate::kubernetes) fn requests(&self, of: &str) -> Vec<String> {
        self.0.lock().requests.iter().filter(|r| r.contains(of)).cloned().collect()
    }

    async fn answer(&self, uri: Uri) -> io::Result<Response<Body>> {
        let path = uri.path().to_owned();
        let query: HashMap<String, String> = uri
            .query()
            .unwrap_or_default()
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        let plural = PLURALS.into_iter().find(|plural| path.ends_with(plural)).expect("a known kind");
        let is_watch = query.get("watch").is_some_and(|watch| watch == "true");
        let second = query.contains_key("continue");
        let fault = {
            let mut inner = self.0.lock();
            inner.requests.push(uri.to_string());
            let faults = inner.faults.entry(plural).or_default();
            let fits = faults.front().is_some_and(|fault| match fault {
                Fault::List(_) => !is_watch,
                Fault::SecondPage(_) => second,
                Fault::Watch(_) | Fault::Line(_) | Fault::End | Fault::ResetIn(_) => is_watch,
                Fault::Silence | Fault::Reset => true,
            });
            if fits { faults.pop_front() } else { None }
        };
        let reset = || io::Error::from(io::ErrorKind::ConnectionReset);
        Ok(match fault {
            Some(Fault::List(code) | Fault::SecondPage(code) | Fault::Watch(code)) => status(code),
            Some(Fault::Line(line)) => Response::new(Body::from(line + "\n")),
            Some(Fault::End) => Response::new(Body::empty()),
            Some(Fault::Silence) => std::future::pending().await,
            Some(Fault::Reset) => return Err(reset()),
            Some(Fault::ResetIn(line)) => {
                Response::new(Body::from_stream(stream::iter([Ok(Bytes::from(line)), Err(reset())])))
            }
            None if is_watch => self.watch(plural, &query),
            None => self.list(plural, &query),
        })
    }

    fn list(&self, plural: &'static str, query: &HashMap<String, String>) -> Response<Body> {
        let mut inner = self.0.lock();
        let version = inner.version.to_string();
        let all: Vec<Value> = inner.objects.entry(plural).or_default().values().cloned().collect();
        let from: usize = query.get("continue").map_or(0, |at| at.parse().unwrap());
        let limit: usize = query["limit"].parse().unwrap();
        let page: Vec<Value> = all.iter().skip(from).take(limit).cloned().collect();
        let next = if from + limit < all.len() { (from + limit).to_string() } else { String::new() };
        let list = json!({"kind": "List", "apiVersion": "v1", "items": page,
            "metadata": {"resourceVersion": version, "continue": next}});
        Response::new(Body::from(list.to_string()))
    }

    fn watch(&self, plural: &'static str, query: &HashMap<String, String>) -> Response<Body> {
        let mut inner = self.0.lock();
        if inner.closed == Some(plural) {
            return Response::new(Body::empty());
        }
        let from: u64 = query["resourceVersion"].parse().unwrap();
        if inner.newest.get(plural).is_some_and(|newest| from < *newest) {
            return status(410);
        }
        let (to, lines) = mpsc::unbounded_channel();
        inner.watchers.push((plural, to));
        let lines = stream::unfold(lines, |mut lines| async move { lines.recv().await.map(|line| (line, lines)) });
        Response::new(Body::from_stream(lines))
    }
}

fn status(code: u16) -> Response<Body> {
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "message": "as the test wants it", "reason": "Test", "metadata": {}});
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    if code == 429 {
        response.headers_mut().insert("retry-after", HeaderValue::from_static("1"));
    }
    response
}

/// A cluster of five workers; every object there before the source starts.
pub(in crate::kubernetes) fn cluster() -> Apiserver {
    let server = Apiserver::default();
    server.put(
        "selectorsets",
        json!({"apiVersion": "pointsman.dev/v1alpha1", "kind": "SelectorSet",
        "metadata": {"name": "fleet", "namespace": NAMESPACE}, "spec": {}}),
    );
    let pool = model_pool("llama", 0, POOL);
    server.put("modelpools", serde_json::to_value(pool).unwrap());
    let workers: Vec<(String, String)> = (0..5).map(|i| (format!("w-{i}"), format!("10.0.0.{i}"))).collect();
    let endpoints: Vec<(&str, &str, &str, bool)> =
        workers.iter().map(|(name, ip)| (name.as_str(), name.as_str(), ip.as_str(), true)).collect();
    // Three slices, so that pages of two are two.
    for (at, part) in endpoints.chunks(2).enumerate() {
        server.put("endpointslices", slice(&format!("s-{at}"), part));
    }
    workers.iter().for_each(|(name, ip)| server.put("pods", pod(name, name, ip)));
    server
}
