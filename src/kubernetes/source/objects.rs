//! Views of cluster objects: what the source needs of them and nothing else, so that many fit in little memory and
//! changes of anything else are no changes.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use k8s_openapi::{
    api::{
        core::v1::{ContainerStatus, Pod},
        discovery::v1::{Endpoint, EndpointSlice},
    },
    jiff::Timestamp,
};

use crate::kubernetes::api::constants::ANNOTATION_PREFIX;

/// Label with the name of a slice's Service.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
/// Label with the revision of a StatefulSet that a pod is of.
const REVISION_LABEL: &str = "controller-revision-hash";
/// Waiting reasons of containers that are just starting.
const STARTING: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// Name of an object and its namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Namespace; empty for a node.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

impl ObjectKey {
    /// A key.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodView {
    /// Namespace and name.
    pub key: ObjectKey,
    /// UID.
    pub uid: Arc<str>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations of ours.
    pub annotations: BTreeMap<String, String>,
    /// Primary address.
    pub ip: Option<IpAddr>,
    /// It has ended: phase Succeeded or Failed.
    pub finished: Option<Arc<str>>,
    /// When it is to be gone at the latest, its grace included; none unless it was told to end.
    pub terminating: Option<Terminating>,
    /// The Ready condition.
    pub ready: bool,
    /// When the Ready condition last changed.
    pub ready_since: Option<Timestamp>,
    /// Name of its node.
    pub node: Option<Arc<str>>,
    /// Containers, then sidecars among the init containers, in their order.
    pub containers: Vec<ContainerView>,
    /// Why a container cannot run.
    pub failing: Option<String>,
}

/// The end of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminating {
    /// When its grace has passed.
    pub until: Timestamp,
    /// Its grace in seconds.
    pub grace_seconds: i64,
}

/// A container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerView {
    /// Name.
    pub name: Arc<str>,
    /// Ports it declares: number, and name where it has one.
    pub ports: Vec<(u16, Option<Arc<str>>)>,
    /// Where it stands.
    pub state: ContainerState,
}

/// Where a container stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerState {
    /// The pod has no word of it.
    Unknown,
    /// It runs.
    Running {
        /// Its id, which no other container ever has.
        id: Arc<str>,
        /// When it was started.
        started: Option<Timestamp>,
    },
    /// It does not run, for this reason.
    Stopped(Arc<str>),
}

impl PodView {
    /// The view of `pod`; none without a name or UID.
    pub fn new(pod: &Pod) -> Option<Self> {
        let meta = &pod.metadata;
        let status = pod.status.as_ref();
        let spec = pod.spec.as_ref();
        let statuses = status.and_then(|s| s.container_statuses.as_deref()).unwrap_or_default();
        let init_statuses = status.and_then(|s| s.init_container_statuses.as_deref()).unwrap_or_default();
        let all = spec.map(|s| s.containers.as_slice()).unwrap_or_default().iter().map(|c| (c, statuses));
        let init = spec.and_then(|s| s.init_containers.as_deref()).unwrap_or_default().iter();
        let sidecars = init.filter(|c| c.restart_policy.as_deref() == Some("Always")).map(|c| (c, init_statuses));
        let containers = all.chain(sidecars).map(|(container, statuses)| ContainerView {
            name: container.name.as_str().into(),
            ports: container
                .ports
                .iter()
                .flatten()
                .filter_map(|p| Some((u16::try_from(p.container_port).ok()?, p.name.as_deref().map(Into::into))))
                .collect(),
            state: statuses.iter().find(|s| s.name == container.name).map_or(ContainerState::Unknown, container_state),
        });
        let conditions = status.and_then(|s| s.conditions.as_deref()).unwrap_or_default();
        let ready = conditions.iter().find(|c| c.type_ == "Ready");
        let ours = |(key, _): &(&String, &String)| key.starts_with(ANNOTATION_PREFIX);
        let phase = status.and_then(|s| s.phase.as_deref()).filter(|p| matches!(*p, "Succeeded" | "Failed"));
        Some(Self {
            key: ObjectKey::new(meta.namespace.as_deref()?, meta.name.as_deref()?),
            uid: meta.uid.as_deref()?.into(),
            labels: meta.labels.clone().unwrap_or_default(),
            annotations: meta
                .annotations
                .iter()
                .flatten()
                .filter(ours)
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
            ip: status.and_then(|s| s.pod_ip.as_deref()).and_then(|ip| ip.parse().ok()),
            finished: phase.map(Into::into),
            terminating: meta
                .deletion_timestamp
                .as_ref()
                .map(|at| Terminating { until: at.0, grace_seconds: meta.deletion_grace_period_seconds.unwrap_or(0) }),
            ready: ready.is_some_and(|c| c.status == "True"),
            ready_since: ready.and_then(|c| c.last_transition_time.as_ref()).map(|t| t.0),
            node: spec.and_then(|s| s.node_name.as_deref()).map(Into::into),
            containers: containers.collect(),
            failing: init_statuses.iter().chain(statuses).find_map(failing),
        })
    }

    /// Revision of the StatefulSet the pod is of.
    pub fn revision(&self) -> Option<Arc<str>> {
        self.labels.get(REVISION_LABEL).map(|revision| revision.as_str().into())
    }

    /// The container that owns `port`: the one that declares it, else the first.
    pub fn container_of(&self, port: u16) -> Option<&ContainerView> {
        let declares = |c: &&ContainerView| c.ports.iter().any(|(number, _)| *number == port);
        self.containers.iter().find(declares).or(self.containers.first())
    }

    /// The number of the port called `name`.
    pub fn port_named(&self, name: &str) -> Option<u16> {
        let ports = self.containers.iter().flat_map(|c| &c.ports);
        ports.into_iter().find(|(_, of)| of.as_deref() == Some(name)).map(|(number, _)| *number)
    }
}

fn container_state(status: &ContainerStatus) -> ContainerState {
    let Some(state) = &status.state else { return ContainerState::Unknown };
    match (&state.running, &status.container_id) {
        (Some(running), Some(id)) if !id.is_empty() => {
            ContainerState::Running { id: id.as_str().into(), started: running.started_at.as_ref().map(|t| t.0) }
        }
        _ => {
            let terminated = state.terminated.as_ref().map(|t| t.reason.as_deref().unwrap_or("Terminated"));
            let waiting = state.waiting.as_ref().and_then(|w| w.reason.as_deref());
            ContainerState::Stopped(terminated.or(waiting).unwrap_or("Waiting").into())
        }
    }
}

fn failing(status: &ContainerStatus) -> Option<String> {
    let waiting = status.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref().filter(|reason| !STARTING.contains(reason))?;
    Some(match waiting.message.as_deref() {
        Some(message) => format!("{reason}: {message}"),
        None => reason.to_owned(),
    })
}

/// A slice of a Service's endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceView {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Name of the Service.
    pub service: Arc<str>,
    /// Ports by name; a nameless one has the empty name.
    pub ports: Vec<(Arc<str>, u16)>,
    /// Endpoints.
    pub endpoints: Vec<EndpointView>,
}

/// An endpoint in a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointView {
    /// Its address; endpoints are alike by whichever of their addresses, so the first serves.
    pub address: IpAddr,
    /// Ready as the slice has it: an absent condition is ready, one that does not serve is not, whatever
    /// publishNotReadyAddresses makes of it.
    pub ready: bool,
    /// It was told to end.
    pub terminating: bool,
    /// It serves still.
    pub serving: bool,
    /// Name and UID of the pod it is.
    pub pod: Option<(Arc<str>, Option<Arc<str>>)>,
    /// Its zone.
    pub zone: Option<Arc<str>>,
    /// Its node.
    pub node: Option<Arc<str>>,
}

impl SliceView {
    /// The view of `slice`; none without the name of a Service. Slices of host names (FQDN) have no endpoints here.
    pub fn new(slice: &EndpointSlice) -> Option<Self> {
        let meta = &slice.metadata;
        let service = meta.labels.as_ref()?.get(SERVICE_NAME_LABEL)?;
        let ports = slice
            .ports
            .iter()
            .flatten()
            .filter_map(|p| Some((p.name.as_deref().unwrap_or_default().into(), u16::try_from(p.port?).ok()?)));
        Some(Self {
            key: ObjectKey::new(meta.namespace.as_deref()?, meta.name.as_deref()?),
            service: service.as_str().into(),
            ports: ports.collect(),
            endpoints: slice.endpoints.iter().filter_map(EndpointView::new).collect(),
        })
    }
}

impl EndpointView {
    fn new(endpoint: &Endpoint) -> Option<Self> {
        let conditions = endpoint.conditions.as_ref();
        let ready = conditions.and_then(|c| c.ready).unwrap_or(true);
        let serving = conditions.and_then(|c| c.serving);
        let target = endpoint.target_ref.as_ref().filter(|t| t.kind.as_deref().unwrap_or("Pod") == "Pod");
        Some(Self {
            address: endpoint.addresses.first()?.parse().ok()?,
            ready: ready && serving.unwrap_or(true),
            terminating: conditions.and_then(|c| c.terminating).unwrap_or(false),
            serving: serving.unwrap_or(ready),
            pod: target.and_then(|t| {
                let uid = t.uid.as_deref().filter(|uid| !uid.is_empty());
                Some((t.name.as_deref()?.into(), uid.map(Into::into)))
            }),
            zone: endpoint.zone.as_deref().map(Into::into),
            node: endpoint.node_name.as_deref().map(Into::into),
        })
    }
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// Name.
    pub name: Arc<str>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
}
