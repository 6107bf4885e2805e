//! The apiserver's audit log: every request of a service account outside kube-system, and everybody's writes.

use std::{
    collections::HashSet,
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::PathBuf,
};

use serde_json::Value;

use super::cluster::Cluster;

/// The log from some point on.
#[derive(Clone, Debug)]
pub struct AuditLog {
    path: PathBuf,
    from: u64,
}

/// One request that the apiserver answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// `system:serviceaccount:NAMESPACE:NAME` for a pod, `admin` for a trial.
    pub user: String,
    /// Pod whose token it carried; empty for others.
    pub pod: String,
    /// get, list, watch, create, update, patch, delete, deletecollection.
    pub verb: String,
    /// With its subresource: `statefulsets`, `modelpools/status`.
    pub resource: String,
    pub namespace: String,
    pub name: String,
    /// HTTP status.
    pub code: u64,
    /// When it came, RFC 3339.
    pub at: String,
}

impl Request {
    fn parse(line: &str) -> Option<Self> {
        let event: Value = serde_json::from_str(line).ok()?;
        let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut resource = text("/objectRef/resource");
        let subresource = text("/objectRef/subresource");
        if !subresource.is_empty() {
            resource = format!("{resource}/{subresource}");
        }
        Some(Self {
            user: text("/user/username"),
            pod: text("/user/extra/authentication.kubernetes.io~1pod-name/0"),
            verb: text("/verb"),
            resource,
            namespace: text("/objectRef/namespace"),
            name: text("/objectRef/name"),
            code: event.pointer("/responseStatus/code").and_then(Value::as_u64).unwrap_or_default(),
            at: text("/requestReceivedTimestamp"),
        })
    }

    /// Whether it asked for a change.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch")
    }
}

impl AuditLog {
    /// The log from now on.
    #[track_caller]
    pub fn from_now(cluster: &Cluster) -> Self {
        let path = cluster.state().join("log/audit.log");
        let from = std::fs::metadata(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())).len();
        Self { path, from }
    }

    /// Requests since then, in the order in which they were answered.
    #[track_caller]
    pub fn requests(&self) -> Requests {
        let mut text = String::new();
        let mut file = File::open(&self.path).unwrap_or_else(|e| panic!("{}: {e}", self.path.display()));
        file.seek(SeekFrom::Start(self.from)).expect("a file can be sought in");
        file.read_to_string(&mut text).unwrap_or_else(|e| panic!("{}: {e}", self.path.display()));
        // A line without its end is still being written.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        Requests(text[..whole].lines().filter_map(Request::parse).collect())
    }
}

/// Requests, and ways to pick from them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests(pub Vec<Request>);

impl Requests {
    fn keep(self, condition: impl Fn(&Request) -> bool) -> Self {
        Self(self.0.into_iter().filter(condition).collect())
    }

    /// Those of a user.
    pub fn by(self, user: &str) -> Self {
        self.keep(|r| r.user == user)
    }

    /// Those of the service account of a pod.
    pub fn by_service_account(self, namespace: &str, name: &str) -> Self {
        self.by(&format!("system:serviceaccount:{namespace}:{name}"))
    }

    /// Those about objects of a namespace.
    pub fn in_namespace(self, namespace: &str) -> Self {
        self.keep(|r| r.namespace == namespace)
    }

    /// Those that asked for a change.
    pub fn writes(self) -> Self {
        self.keep(Request::is_write)
    }

    /// Those about a resource, its subresources not included: `leases`, `modelpools/status`.
    pub fn of(self, resource: &str) -> Self {
        self.keep(|r| r.resource == resource)
    }

    /// Those about anything but a resource.
    pub fn but(self, resource: &str) -> Self {
        self.keep(|r| r.resource != resource)
    }

    /// Those answered with a status.
    pub fn answered(self, code: u64) -> Self {
        self.keep(|r| r.code == code)
    }

    /// Refusals that show that an operator of the namespace lacks a right. Those after its roles were taken away do not: it
    /// still tries to give its Lease back while it is uninstalled. Nor does one of a right that it was seen to have: an
    /// apiserver that has only just started refuses for a moment what it has not read the roles of yet.
    pub fn lacks_of_operators(self, namespace: &str) -> Self {
        let ends = |r: &&Request| r.namespace == namespace && r.verb == "delete" && r.resource == "rolebindings";
        let end = self.0.iter().filter(ends).map(|r| r.at.clone()).min();
        let account = format!("system:serviceaccount:{namespace}:");
        let right =
            |r: &Request| (r.user.clone(), r.verb.clone(), r.resource.clone(), r.namespace.clone(), r.name.clone());
        let granted: HashSet<_> = self.0.iter().filter(|r| (200..300).contains(&r.code)).map(right).collect();
        self.answered(403).keep(|r| {
            let is_operator = r.user.starts_with(&account) && r.user.ends_with("-controller");
            is_operator && end.as_ref().is_none_or(|end| r.at < *end) && !granted.contains(&right(r))
        })
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
