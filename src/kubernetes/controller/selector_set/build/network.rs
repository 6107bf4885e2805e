//! Services, and who may reach the selectors.

use k8s_openapi::{
    api::{
        core::v1::{Service, ServicePort, ServiceSpec},
        networking::v1::{
            NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
        },
    },
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, OwnerReference},
        util::intstr::IntOrString,
    },
};
use kube::ResourceExt;

use super::{
    COMPONENT_LABEL, Inputs, NAME, NAME_LABEL, PEERS_ROLE, SERVICE_ROLE_LABEL, metadata, peers_name, pod::merged,
    pods_of, selector_labels,
};
use crate::kubernetes::api::{
    SelectorSet,
    constants::{HTTP_PORT, HTTP_PORT_NAME, REPLICA_SYNC_PORT_NAME},
};

/// Label that every namespace has, with its own name.
const NAMESPACE_LABEL: &str = "kubernetes.io/metadata.name";

/// Service `NAME`: the ready selectors, for clients.
pub fn client_service(set: &SelectorSet, owner: &OwnerReference) -> Service {
    let given = set.spec.service.clone().unwrap_or_default();
    let mut metadata = metadata(owner, set, set.name_any());
    metadata.labels = Some(merged(&given.labels, &set.name_any()));
    metadata.annotations = Some(given.annotations).filter(|annotations| !annotations.is_empty());
    let spec = ServiceSpec {
        type_: Some(given.type_.as_str().to_owned()),
        selector: Some(selector_labels(&set.name_any())),
        ports: Some(vec![port(HTTP_PORT_NAME, given.port.unwrap_or(HTTP_PORT))]),
        ..ServiceSpec::default()
    };
    Service { metadata, spec: Some(spec), status: None }
}

/// Headless Service `NAME-peers`: every selector, ready or not, for the others.
pub fn peers_service(set: &SelectorSet, owner: &OwnerReference) -> Service {
    let mut ports = vec![port(HTTP_PORT_NAME, set.spec.ports.http)];
    if publishes(set) {
        ports.push(port(REPLICA_SYNC_PORT_NAME, set.spec.ports.replica_sync));
    }
    let spec = ServiceSpec {
        cluster_ip: Some("None".to_owned()),
        publish_not_ready_addresses: Some(true),
        selector: Some(selector_labels(&set.name_any())),
        ports: Some(ports),
        ..ServiceSpec::default()
    };
    let mut metadata = metadata(owner, set, peers_name(&set.name_any()));
    metadata.labels.get_or_insert_default().insert(SERVICE_ROLE_LABEL.to_owned(), PEERS_ROLE.to_owned());
    Service { metadata, spec: Some(spec), status: None }
}

fn publishes(set: &SelectorSet) -> bool {
    set.spec.replica_sync.as_ref().is_none_or(|sync| sync.enabled)
}

/// To the pod's port of the same name.
fn port(name: &str, number: u16) -> ServicePort {
    ServicePort {
        name: Some(name.to_owned()),
        port: number.into(),
        target_port: Some(IntOrString::String(name.to_owned())),
        protocol: Some("TCP".to_owned()),
        ..ServicePort::default()
    }
}

/// NetworkPolicy `NAME`: HTTP from clients, the operator and the set's own pods, the publisher's port from these alone.
pub fn network_policy(inputs: &Inputs<'_>) -> Option<NetworkPolicy> {
    let set = inputs.set;
    set.spec.network_policy.as_ref().filter(|policy| policy.enabled)?;
    let all = NetworkPolicyPeer { pod_selector: Some(LabelSelector::default()), ..NetworkPolicyPeer::default() };
    let mut clients = inputs.validated.clients.clone();
    if clients.is_empty() {
        clients.push(all);
    }
    clients.push(operator(inputs));
    let own = NetworkPolicyPeer { pod_selector: Some(pods_of(set)), ..NetworkPolicyPeer::default() };
    let http = NetworkPolicyIngressRule { from: Some(clients), ports: Some(vec![tcp(set.spec.ports.http)]) };
    let mut mesh = vec![tcp(set.spec.ports.http)];
    if publishes(set) {
        mesh.push(tcp(set.spec.ports.replica_sync));
    }
    let mesh = NetworkPolicyIngressRule { from: Some(vec![own]), ports: Some(mesh) };
    let spec = NetworkPolicySpec {
        ingress: Some(vec![http, mesh]),
        pod_selector: Some(pods_of(set)),
        policy_types: Some(vec!["Ingress".to_owned()]),
        ..NetworkPolicySpec::default()
    };
    Some(NetworkPolicy { metadata: metadata(inputs.owner, set, set.name_any()), spec: Some(spec) })
}

/// The operator's pods, by the labels that the chart gives them.
fn operator(inputs: &Inputs<'_>) -> NetworkPolicyPeer {
    let labels = [(NAME_LABEL, NAME), (COMPONENT_LABEL, "controller")];
    let pods = labels.map(|(label, value)| (label.to_owned(), value.to_owned())).into();
    let namespace = inputs.controller_namespace.map(|namespace| LabelSelector {
        match_labels: Some([(NAMESPACE_LABEL.to_owned(), namespace.to_owned())].into()),
        ..LabelSelector::default()
    });
    NetworkPolicyPeer {
        pod_selector: Some(LabelSelector { match_labels: Some(pods), ..LabelSelector::default() }),
        namespace_selector: namespace,
        ..NetworkPolicyPeer::default()
    }
}

fn tcp(number: u16) -> NetworkPolicyPort {
    NetworkPolicyPort {
        port: Some(IntOrString::Int(number.into())),
        protocol: Some("TCP".to_owned()),
        ..NetworkPolicyPort::default()
    }
}
