//! The endpoints of one Service, for who wants to know them all: peers of a selector that runs without operator.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::Arc,
};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{
    counters::SourceCounters,
    follow::{Followed, Input, follow},
    objects::{EndpointView, ObjectKey, SERVICE_NAME_LABEL, SliceView},
    watch::{PAGE, slice_view},
    world::{Kind, Object},
};

/// Changes that wait.
const WAITING_INPUTS: usize = 64;

/// An endpoint of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceEndpoint {
    /// Name of its pod, where it is one.
    pub pod: Option<Arc<str>>,
    /// Its address; IPv4 before IPv6.
    pub address: IpAddr,
    /// Number of the port that was asked for by name, where the Service has it.
    pub port: Option<u16>,
}

/// Every endpoint of `service` that serves or may come to serve, from the first complete list until `stop`. A pod that
/// terminates is one as long as it serves.
pub fn follow_service(
    client: Client,
    namespace: &str,
    service: &str,
    port_name: &'static str,
    stop: &CancellationToken,
) -> watch::Receiver<Option<Vec<ServiceEndpoint>>> {
    let (publish, endpoints) = watch::channel(None);
    let (to, mut inputs) = mpsc::channel(WAITING_INPUTS);
    let what = Followed {
        kind: Kind::Slices,
        labels: Some(format!("{SERVICE_NAME_LABEL}={service}")),
        page: PAGE,
        is_optional: false,
    };
    let api = Api::<EndpointSlice>::namespaced(client, namespace);
    let following = follow(api, what, slice_view, to, Arc::<SourceCounters>::default());
    let mut slices: HashMap<ObjectKey, SliceView> = HashMap::new();
    let taking = async move {
        while let Some(input) = inputs.recv().await {
            let put = |object, slices: &mut HashMap<ObjectKey, SliceView>| {
                if let Object::Slice(slice) = object {
                    slices.insert(slice.key.clone(), slice);
                }
            };
            match input {
                Input::Reset(_, objects) => {
                    slices.clear();
                    objects.into_iter().for_each(|object| put(object, &mut slices));
                }
                Input::Apply(object) => put(object, &mut slices),
                Input::Delete(_, key) => drop(slices.remove(&key)),
                Input::GiveUp(_) => {}
            }
            let mut now = endpoints_of(slices.values(), port_name);
            publish.send_if_modified(|before| {
                keep_ports(&mut now, before.as_deref().unwrap_or_default());
                let now = Some(now);
                let is_news = *before != now;
                *before = now;
                is_news
            });
        }
    };
    let stop = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            ((), ()) = async { tokio::join!(following, taking) } => {}
            () = stop.cancelled() => {}
        }
    });
    endpoints
}

/// A slice that is being rewritten may lack its ports for a moment; nobody listens elsewhere because of that.
fn keep_ports(now: &mut [ServiceEndpoint], before: &[ServiceEndpoint]) {
    for endpoint in now.iter_mut().filter(|e| e.port.is_none()) {
        let same = before.iter().find(|b| (&b.pod, b.address) == (&endpoint.pod, endpoint.address));
        endpoint.port = same.and_then(|b| b.port);
    }
}

/// The endpoints in `slices`, each pod once, sorted.
fn endpoints_of<'a>(slices: impl Iterator<Item = &'a SliceView>, port_name: &str) -> Vec<ServiceEndpoint> {
    let key = |e: &EndpointView| e.pod.as_ref().map_or_else(|| e.address.to_string(), |(name, _)| name.to_string());
    let mut found: BTreeMap<String, ServiceEndpoint> = BTreeMap::new();
    for slice in slices {
        let port = slice.ports.iter().find(|(name, _)| **name == *port_name).map(|(_, port)| *port);
        for endpoint in slice.endpoints.iter().filter(|e| e.serving || !e.terminating) {
            let pod = endpoint.pod.as_ref().map(|(name, _)| name.clone());
            let this = ServiceEndpoint { pod, address: endpoint.address, port };
            let kept = found.entry(key(endpoint)).or_insert_with(|| this.clone());
            if (this.address.is_ipv6(), this.address) < (kept.address.is_ipv6(), kept.address) {
                kept.address = this.address;
            }
            kept.port = kept.port.or(port);
        }
    }
    found.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            testing::{NAMESPACE, slice, slices, with},
            tests::apiserver::Apiserver,
        },
        *,
    };

    #[test]
    fn peers_are_those_that_serve_and_those_that_may() {
        let text = include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/fixtures/endpointslices/02-conditions-matrix.yaml"
        ));
        let view = SliceView::new(&slices(text)[0]).unwrap();
        let found = endpoints_of([&view].into_iter(), "http");
        let names: Vec<&str> = found.iter().filter_map(|e| e.pod.as_deref()).collect();
        // All but c-4, which terminates and serves no more.
        assert_eq!(names, ["c-1", "c-2", "c-3", "c-5", "c-6", "c-7", "c-8", "c-9"]);
        assert!(found.iter().all(|e| e.port == Some(8000)));
    }

    #[test]
    fn slices_without_ports_name_peers_all_the_same() {
        let text =
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/endpointslices/06-odd-shapes.yaml"));
        let views: Vec<SliceView> = slices(text).iter().filter_map(SliceView::new).collect();
        let found = endpoints_of(views.iter(), "http");
        let addresses: Vec<String> = found.iter().map(|e| e.address.to_string()).collect();
        // The one of no Service is not among them.
        assert_eq!(addresses, ["10.0.5.2", "10.0.5.3", "10.0.5.1"]);
        assert!(found.iter().all(|e| e.port.is_none()), "the port is the configured one: {found:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_slice_that_lacks_its_ports_for_a_moment_moves_no_peer() {
        let server = Apiserver::default();
        let pods = |count: usize| [("p", "u", "10.0.0.1", true), ("q", "v", "10.0.0.2", true)][..count].to_vec();
        let stop = CancellationToken::new();
        let mut peers = follow_service(server.client(), NAMESPACE, "llm-workers", "http", &stop);
        peers.wait_for(|found| found.as_ref().is_some_and(Vec::is_empty)).await.unwrap();
        server.put("endpointslices", slice("a", &pods(1)));
        let mut ports = async |count: usize| -> Vec<Option<u16>> {
            let found = peers.wait_for(|found| found.as_ref().is_some_and(|all| all.len() == count)).await.unwrap();
            found.iter().flatten().map(|e| e.port).collect()
        };
        assert_eq!(ports(1).await, [Some(8000)]);
        server.put("endpointslices", with(slice("a", &pods(2)), "/ports", serde_json::Value::Null));
        assert_eq!(ports(2).await, [Some(8000), None], "where the second listens was never told");
        server.put("endpointslices", with(slice("a", &pods(0)), "/ports", serde_json::Value::Null));
        assert_eq!(ports(0).await, []);
        server.put("endpointslices", with(slice("a", &pods(1)), "/ports", serde_json::Value::Null));
        assert_eq!(ports(1).await, [None], "another pod may have the name by now");
        stop.cancel();
    }

    #[test]
    fn two_families_are_one_peer() {
        let mut six = slice("six", &[("p", "u", "fd00::1", true)]);
        six["ports"] = serde_json::Value::Null;
        let both = [six, slice("four", &[("p", "u", "10.0.0.1", true)])];
        let views: Vec<SliceView> =
            both.into_iter().map(|s| SliceView::new(&serde_json::from_value(s).unwrap()).unwrap()).collect();
        let one = ServiceEndpoint { pod: Some("p".into()), address: "10.0.0.1".parse().unwrap(), port: Some(8000) };
        assert_eq!(endpoints_of(views.iter(), "http"), [one]);
    }
}
