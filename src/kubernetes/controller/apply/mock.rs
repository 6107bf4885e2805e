//! An apiserver in memory, for tests: GET, apply and DELETE of objects by path, discovery of one group. What it stores
//! has defaults, and quantities in its own spelling, as a real one's.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use axum::http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use parking_lot::Mutex;
use serde_json::{Value, json};

/// The cluster.
#[derive(Debug, Default)]
pub struct Cluster {
    objects: Mutex<BTreeMap<String, Value>>,
    log: Mutex<Vec<String>>,
    failures: Mutex<Vec<(String, u16, String)>>,
    versions: AtomicU64,
    /// Kinds of `monitoring.coreos.com/v1`, as (plural, kind).
    pub monitors: Mutex<Vec<(&'static str, &'static str)>>,
}

impl Cluster {
    /// An empty cluster and its client.
    pub fn start() -> (Arc<Self>, Client) {
        let cluster = Arc::new(Self::default());
        let served = Arc::clone(&cluster);
        let service = tower::service_fn(move |request: Request<Body>| {
            let cluster = Arc::clone(&served);
            async move { Ok::<_, Infallible>(cluster.serve(request).await) }
        });
        (cluster, Client::new(service, "ns"))
    }

    /// Puts an object; `path` as in a URL, from the namespace on, such as `services/fleet`.
    pub fn put(&self, path: &str, object: Value) {
        let mut object = object;
        self.stamp(&mut object);
        self.objects.lock().insert(path.to_owned(), object);
    }

    /// Changes an object as somebody else would.
    pub fn edit(&self, path: &str, edit: impl FnOnce(&mut Value)) {
        let mut objects = self.objects.lock();
        let object = objects.get_mut(path).expect("the object is there");
        edit(object);
        self.stamp(object);
    }

    /// Takes an object away.
    pub fn take(&self, path: &str) -> Option<Value> {
        self.objects.lock().remove(path)
    }

    /// An object as it is stored.
    pub fn get(&self, path: &str) -> Option<Value> {
        self.objects.lock().get(path).cloned()
    }

    /// Paths of all objects.
    pub fn paths(&self) -> Vec<String> {
        self.objects.lock().keys().cloned().collect()
    }

    /// Answers `VERB path` with an error until [`Self::heal`].
    pub fn fail(&self, request: &str, code: u16, message: &str) {
        self.failures.lock().push((request.to_owned(), code, message.to_owned()));
    }

    /// Ends all failures.
    pub fn heal(&self) {
        self.failures.lock().clear();
    }

    /// The writes since the last call, as `VERB path`.
    pub fn writes(&self) -> Vec<String> {
        let log = std::mem::take(&mut *self.log.lock());
        log.into_iter().filter(|request| !request.starts_with("GET")).collect()
    }

    fn stamp(&self, object: &mut Value) {
        let version = self.versions.fetch_add(1, Ordering::Relaxed) + 1;
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!(format!("uid-{version}"));
        }
    }

    async fn serve(&self, request: Request<Body>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let path = head.uri.path().rsplit_once("/namespaces/ns/").map_or(head.uri.path(), |(_, path)| path).to_owned();
        let said = format!("{} {path}", head.method);
        self.log.lock().push(said.clone());
        let failure = self.failures.lock().iter().find(|(request, ..)| *request == said).cloned();
        if let Some((_, code, message)) = failure {
            return status(code, &message);
        }
        let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        if path == "/apis/monitoring.coreos.com/v1" {
            return self.discover();
        }
        match head.method {
            Method::GET => self.get(&path).map_or_else(|| status(404, "not found"), |object| answer(200, &object)),
            Method::PATCH => self.patch(&path, head.uri.query().unwrap_or_default(), &body),
            Method::DELETE => self.delete(&path, &body),
            _ => status(405, "no such verb"),
        }
    }

    fn discover(&self) -> Response<Body> {
        let kinds = self.monitors.lock().clone();
        if kinds.is_empty() {
            let body = Body::from(b"404 page not found\n".to_vec());
            return Response::builder().status(404).body(body).expect("a good answer");
        }
        let resource = |(plural, kind): &(&str, &str)| json!({"name": plural, "singularName": "", "namespaced": true, "kind": kind, "verbs": ["get", "patch"]});
        let resources: Vec<_> = kinds.iter().map(resource).collect();
        let list =
            json!({"kind": "APIResourceList", "groupVersion": "monitoring.coreos.com/v1", "resources": resources});
        answer(200, &list)
    }

    fn patch(&self, path: &str, query: &str, desired: &Value) -> Response<Body> {
        assert!(query.contains("force=true") && query.contains("fieldManager=pointsman-controller"), "{query}");
        let mut objects = self.objects.lock();
        let before = objects.get(path).cloned();
        let mut object = before.clone().unwrap_or_else(|| json!({}));
        merge(&mut object, desired);
        if let Some(cpu) = object.pointer_mut("/spec/template/spec/containers/0/resources/requests/cpu")
            && cpu == "1000m"
        {
            *cpu = json!("1");
        }
        if object["kind"] == "StatefulSet" {
            object["spec"]["template"]["spec"]["dnsPolicy"] = json!("ClusterFirst");
            object["status"]["replicas"] = object["spec"]["replicas"].clone();
        }
        if before.as_ref() != Some(&object) {
            self.stamp(&mut object);
        }
        objects.insert(path.to_owned(), object.clone());
        answer(200, &object)
    }

    fn delete(&self, path: &str, options: &Value) -> Response<Body> {
        let mut objects = self.objects.lock();
        let Some(object) = objects.get(path) else { return status(404, "not found") };
        let wanted = &options["preconditions"]["uid"];
        if !wanted.is_null() && *wanted != object["metadata"]["uid"] {
            return status(409, "the UID in the precondition does not match");
        }
        objects.remove(path);
        answer(200, &json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 200}))
    }
}

/// Fields of `desired` over those of `live`; lists are replaced.
fn merge(live: &mut Value, desired: &Value) {
    match (live, desired) {
        (Value::Object(live), Value::Object(desired)) => {
            for (name, value) in desired {
                merge(live.entry(name).or_insert(Value::Null), value);
            }
        }
        (live, desired) => *live = desired.clone(),
    }
}

fn answer(code: u16, body: &Value) -> Response<Body> {
    let body = Body::from(body.to_string().into_bytes());
    Response::builder().status(code).header("content-type", "application/json").body(body).expect("a good answer")
}

fn status(code: u16, message: &str) -> Response<Body> {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        422 => "Invalid",
        _ => "InternalError",
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason, "code": code,
    });
    answer(code, &status)
}
