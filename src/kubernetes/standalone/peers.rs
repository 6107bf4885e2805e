//! The mesh of selectors that run without operator: each follows the publishers of all others behind one Service.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
};

use kube::Client;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{
    kubernetes::{
        api::constants::REPLICA_SYNC_PORT_NAME,
        source::service::{ServiceEndpoint, follow_service},
    },
    service::SelectionService,
};

/// Keeps the publishers behind `peer_service` registered at `service` until `stop`: this selector's own is left out, those
/// that left are removed, and peers that others registered are left alone. `port` is where a peer publishes whose Service
/// does not name the port `replica-sync`.
pub fn wire_peers(
    client: Client,
    namespace: &str,
    peer_service: &str,
    port: u16,
    service: SelectionService,
    stop: &CancellationToken,
) -> JoinHandle<()> {
    let mut endpoints = follow_service(client, namespace, peer_service, REPLICA_SYNC_PORT_NAME, stop);
    // The kubelet gives a pod its own name.
    let own_name = std::env::var("HOSTNAME").ok();
    let stop = stop.clone();
    tokio::spawn(async move {
        let mut ours = BTreeSet::new();
        loop {
            let found = endpoints.borrow_and_update().clone();
            if let Some(found) = found {
                let others = found.iter().filter(|e| !is_own(e, own_name.as_deref()));
                let wanted: BTreeSet<String> = others.map(|e| publisher(e, port)).collect();
                register(&service, &wanted, &mut ours);
            }
            tokio::select! {
                changed = endpoints.changed() => if changed.is_err() { return },
                () = stop.cancelled() => return,
            }
        }
    })
}

fn publisher(endpoint: &ServiceEndpoint, port: u16) -> String {
    format!("tcp://{}", SocketAddr::new(endpoint.address, endpoint.port.unwrap_or(port)))
}

/// Registers `wanted` and removes what of `ours` is not in it.
fn register(service: &SelectionService, wanted: &BTreeSet<String>, ours: &mut BTreeSet<String>) {
    let Some(mesh) = service.mesh() else { return };
    for endpoint in wanted.difference(&ours.clone()) {
        match mesh.register_peer(endpoint) {
            Ok(is_new) => {
                tracing::info!(endpoint, is_new, "peer found");
                ours.insert(endpoint.clone());
            }
            Err(error) => tracing::warn!(endpoint, %error, "peer cannot be followed"),
        }
    }
    for endpoint in ours.clone().difference(wanted) {
        match mesh.deregister_peer(endpoint) {
            Ok(_) => tracing::info!(endpoint, "peer left"),
            Err(error) => tracing::warn!(endpoint, %error, "peer cannot be removed"),
        }
        ours.remove(endpoint);
    }
}

/// Whether an endpoint is this process: by the name of its pod, or because the way to its address begins there.
fn is_own(endpoint: &ServiceEndpoint, own_name: Option<&str>) -> bool {
    (endpoint.pod.is_some() && endpoint.pod.as_deref() == own_name) || is_local(endpoint.address)
}

/// The system sends to an address of its own from that very address. Nothing is sent to find out.
fn is_local(address: IpAddr) -> bool {
    let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // Any port will do.
    let from = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    from.is_ok_and(|from| from.ip() == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(pod: Option<&str>, address: &str, port: Option<u16>) -> ServiceEndpoint {
        ServiceEndpoint { pod: pod.map(Into::into), address: address.parse().unwrap(), port }
    }

    #[test]
    fn own_endpoints_are_known_by_name_or_address() {
        assert!(is_own(&endpoint(Some("me"), "192.0.2.1", None), Some("me")));
        assert!(is_own(&endpoint(Some("other"), "127.0.0.1", None), Some("me")));
        assert!(!is_own(&endpoint(Some("other"), "192.0.2.1", None), Some("me")));
        assert!(!is_own(&endpoint(None, "192.0.2.1", None), None));
    }

    #[test]
    fn publishers_are_where_the_service_says_or_where_all_are() {
        assert_eq!(publisher(&endpoint(None, "10.0.0.1", None), 9092), "tcp://10.0.0.1:9092");
        assert_eq!(publisher(&endpoint(None, "fd00::1", Some(7)), 9092), "tcp://[fd00::1]:7");
    }
}
