//! Objects that trials put into a cluster by hand, as JSON: mock engines, plain selectors, and EndpointSlices and Pods that
//! nothing stands behind.

use serde_json::{Value, json};

/// Model that mock engines serve unless told otherwise.
pub const MODEL: &str = "mock-model";
/// Tokens of a block of theirs.
pub const BLOCK_SIZE: u32 = 16;
/// Ports of a mock engine pod: HTTP, events of rank 0, replay of rank 0.
pub const ENGINE_PORTS: [u16; 3] = [8000, 5557, 5657];

/// Several documents as one list, for `apply`.
pub fn list(items: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

/// Pod template of a mock engine with the label `app=NAME`; container `engine`.
pub fn engine_template(name: &str, image: &str, flags: &[&str]) -> Value {
    let [http, events, replay] = ENGINE_PORTS;
    let mut words = vec![
        "mock-engine".to_owned(),
        "--host=*".into(),
        format!("--model={MODEL}"),
        format!("--block-size={BLOCK_SIZE}"),
        format!("--replay-port={replay}"),
    ];
    words.extend(flags.iter().map(|&f| f.to_owned()));
    json!({
        "metadata": {"labels": {"app": name}},
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "engine",
                "image": image,
                "args": words,
                "ports": [
                    {"name": "http", "containerPort": http},
                    {"name": "kv-events", "containerPort": events},
                    {"name": "replay", "containerPort": replay},
                ],
                "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 1},
            }],
        },
    })
}

/// A Deployment of mock engines and a Service of the same name over them.
pub fn engines(name: &str, replicas: u32, image: &str, flags: &[&str]) -> [Value; 2] {
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": engine_template(name, image, flags),
        },
    });
    [deployment, service(name, &json!({"app": name}), &[("http", ENGINE_PORTS[0])], false)]
}

/// A StatefulSet of mock engines, and its headless Service: pods `NAME-0` and so on, with names in the DNS.
pub fn stateful_engines(name: &str, replicas: u32, image: &str, flags: &[&str]) -> [Value; 2] {
    let set = json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": {
            "serviceName": name,
            "replicas": replicas,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": name}},
            "template": engine_template(name, image, flags),
        },
    });
    [set, service(name, &json!({"app": name}), &[("http", ENGINE_PORTS[0])], true)]
}

/// Pod template whose container `program` runs a command of the machine itself, such as an engine in a Python environment.
/// The machine's programs and libraries are mounted, and `folders` (absolute paths) with them, all to be read only but
/// `/tmp`, which is the pod's own. `port` is named `http` and probed for connections.
pub fn host_template(name: &str, command: &[&str], folders: &[&str], port: u16) -> Value {
    let system = ["/usr", "/bin", "/lib", "/lib64", "/etc/ssl"];
    let paths: Vec<_> =
        system.iter().chain(folders).filter(|path| std::path::Path::new(path).exists()).enumerate().collect();
    let mut mounts: Vec<_> = paths
        .iter()
        .map(|(n, path)| json!({"name": format!("host-{n}"), "mountPath": path, "readOnly": true}))
        .collect();
    let mut volumes: Vec<_> =
        paths.iter().map(|(n, path)| json!({"name": format!("host-{n}"), "hostPath": {"path": path}})).collect();
    mounts.push(json!({"name": "tmp", "mountPath": "/tmp"}));
    volumes.push(json!({"name": "tmp", "emptyDir": {}}));
    json!({
        "metadata": {"labels": {"app": name}},
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "program",
                // Any image serves: everything that runs comes from the machine.
                "image": "pointsman.test/pause:1",
                "command": command,
                "env": [{"name": "HOME", "value": "/tmp"}],
                "ports": [{"name": "http", "containerPort": port}],
                "readinessProbe": {"tcpSocket": {"port": "http"}, "periodSeconds": 1},
                "volumeMounts": mounts,
            }],
            "volumes": volumes,
        },
    })
}

/// A Service over named ports of the pods that `labels` select.
pub fn service(name: &str, labels: &Value, ports: &[(&str, u16)], is_headless: bool) -> Value {
    let ports: Vec<_> = ports.iter().map(|(name, port)| json!({"name": name, "port": port})).collect();
    let mut service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": labels, "ports": ports},
    });
    if is_headless {
        service["spec"]["clusterIP"] = json!("None");
        service["spec"]["publishNotReadyAddresses"] = json!(true);
    }
    service
}

/// A StatefulSet of plain selectors, meshed by their names in the DNS, as somebody without the operator runs them; its
/// headless Service `NAME-peers`, and the clients' Service `NAME`. Each follows `workers.yaml` of the ConfigMap
/// `NAME-workers`.
pub fn selectors(name: &str, replicas: u32, image: &str, flags: &[&str]) -> [Value; 3] {
    let peers: Vec<_> = (0..replicas).map(|n| format!("tcp://{name}-{n}.{name}-peers:9092")).collect();
    let mut words = vec![
        "selector".to_owned(),
        "--workers-file=/etc/pointsman/workers.yaml".into(),
        "--shutdown-delay=5".into(),
        "--replica-sync-port=9092".into(),
        format!("--replica-sync-peers={}", peers.join(",")),
    ];
    words.extend(flags.iter().map(|&f| f.to_owned()));
    let set = json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": {
            "serviceName": format!("{name}-peers"),
            "replicas": replicas,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "terminationGracePeriodSeconds": 45,
                    "automountServiceAccountToken": false,
                    "securityContext": {"runAsNonRoot": true},
                    "containers": [{
                        "name": "selector",
                        "image": image,
                        "args": words,
                        "ports": [{"name": "http", "containerPort": 8092}, {"name": "mesh", "containerPort": 9092}],
                        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "http"}, "periodSeconds": 1},
                        "livenessProbe": {"httpGet": {"path": "/livez", "port": "http"}},
                        "securityContext": {"readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false},
                        "volumeMounts": [{"name": "workers", "mountPath": "/etc/pointsman"}],
                    }],
                    "volumes": [{"name": "workers", "configMap": {"name": format!("{name}-workers")}}],
                },
            },
        },
    });
    let labels = json!({"app": name});
    [
        set,
        service(&format!("{name}-peers"), &labels, &[("mesh", 9092)], true),
        service(name, &labels, &[("http", 8092)], false),
    ]
}

/// The ConfigMap that [`selectors`] read, with a worker for each `(name, host)`; a host is an address or a DNS name.
pub fn workers(selectors: &str, hosts: &[(String, String)]) -> Value {
    let [http, events, replay] = ENGINE_PORTS;
    let workers: Vec<_> = hosts
        .iter()
        .map(|(name, host)| {
            json!({
                "name": name,
                "endpoint": format!("http://{host}:{http}"),
                "kv_events": {"endpoint": format!("tcp://{host}:{events}"), "replay": format!("tcp://{host}:{replay}")},
            })
        })
        .collect();
    let defaults = json!({"model_name": MODEL, "block_size": BLOCK_SIZE});
    let file = json!({"version": 1, "defaults": defaults, "workers": workers});
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": format!("{selectors}-workers")},
        "data": {"workers.yaml": file.to_string()},
    })
}

/// One endpoint of a hand-made EndpointSlice.
#[derive(Clone, Debug, Default)]
pub struct Endpoint {
    pub address: String,
    /// Absent counts as ready.
    pub ready: Option<bool>,
    pub serving: Option<bool>,
    pub terminating: Option<bool>,
    /// Name and UID of the pod it belongs to, if it belongs to one.
    pub pod: Option<(String, String)>,
}

/// An EndpointSlice of `service` that no controller owns. `kind` is `IPv4` or `IPv6`.
pub fn endpoint_slice(
    name: &str,
    service: &str,
    namespace: &str,
    kind: &str,
    ports: &[(&str, u16)],
    endpoints: &[Endpoint],
) -> Value {
    let ports: Vec<_> =
        ports.iter().map(|(name, port)| json!({"name": name, "port": port, "protocol": "TCP"})).collect();
    let endpoints: Vec<_> = endpoints
        .iter()
        .map(|endpoint| {
            let Endpoint { address, ready, serving, terminating, pod } = endpoint;
            let mut conditions = serde_json::Map::new();
            for (word, value) in [("ready", ready), ("serving", serving), ("terminating", terminating)] {
                if let Some(value) = value {
                    conditions.insert(word.to_owned(), json!(value));
                }
            }
            let mut object = json!({"addresses": [address], "conditions": conditions, "nodeName": "node-0"});
            if let Some((name, uid)) = pod {
                object["targetRef"] = json!({"kind": "Pod", "namespace": namespace, "name": name, "uid": uid});
            }
            object
        })
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {
                "kubernetes.io/service-name": service,
                "endpointslice.kubernetes.io/managed-by": "trial",
            },
        },
        "addressType": kind,
        "ports": ports,
        "endpoints": endpoints,
    })
}

/// A Pod that no kubelet runs: its node does not exist. What the API then keeps as its status is [`unbacked_status`].
pub fn unbacked_pod(name: &str, labels: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "nodeName": "nowhere",
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 0,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{
                "name": "engine",
                "image": "pointsman.test/none:1",
                "ports": [{"name": "http", "containerPort": ENGINE_PORTS[0]}],
            }],
        },
    })
}

/// The status of a running pod at `address`, whose container has run `container_id` since its last start; for
/// `PATCH .../status`.
pub fn unbacked_status(address: &str, container_id: &str, is_ready: bool) -> Value {
    let word = if is_ready { "True" } else { "False" };
    let since = "2026-01-01T00:00:00Z";
    json!({
        "status": {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": word, "lastTransitionTime": since}],
            "containerStatuses": [{
                "name": "engine",
                "image": "pointsman.test/none:1",
                "imageID": "",
                "containerID": format!("containerd://{container_id}"),
                "ready": is_ready,
                "restartCount": 0,
                "state": {"running": {"startedAt": since}},
            }],
        },
    })
}
