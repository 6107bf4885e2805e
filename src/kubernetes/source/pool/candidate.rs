//! Everything that may be a worker of a pool: pods by label, or the endpoints of all slices of a Service, each pod once.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use super::{
    super::objects::{EndpointView, PodView, SliceView},
    Finder, PoolSpec, Refusal, Surroundings,
};
use crate::kubernetes::api::{common::PortReference, constants::rejection};

/// A pod or an endpoint.
pub struct Candidate<'a> {
    /// Name of the pod, or the address.
    pub name: Arc<str>,
    /// UID of the pod (its name, where nobody tells the UID); none for an endpoint that is no pod.
    pub identity: Option<Arc<str>>,
    /// The pod, where pods can be read.
    pub pod: Option<&'a PodView>,
    /// Its address. Where the pod can be read, the pod's primary one, so that every reader has the same family; else
    /// IPv4 before IPv6.
    pub address: Option<IpAddr>,
    /// Where the slices have it: ready entries first, then by name of the slice.
    entries: Vec<(&'a SliceView, &'a EndpointView)>,
    /// It is found, and is nothing that could be a worker.
    pub refusal: Option<Refusal>,
}

impl Candidate<'_> {
    /// The slices call it ready; pods found by label have no slices.
    pub fn is_ready_in_slices(&self) -> bool {
        self.entries.is_empty() || self.entries.iter().any(|(_, e)| e.ready)
    }

    /// A slice calls it terminating. A pod never comes back from that; an address may be somebody else's.
    pub fn is_terminating_in_slices(&self) -> bool {
        let terminating = |(_, e): &(&SliceView, &EndpointView)| e.terminating;
        if self.identity.is_some() {
            self.entries.iter().any(terminating)
        } else {
            !self.entries.is_empty() && self.entries.iter().all(terminating)
        }
    }

    /// A slice calls it serving.
    pub fn is_serving_in_slices(&self) -> bool {
        self.entries.iter().any(|(_, e)| e.serving)
    }

    /// Its node.
    pub fn node(&self) -> Option<&Arc<str>> {
        let in_slices = || self.entries.iter().find_map(|(_, e)| e.node.as_ref());
        self.pod.and_then(|pod| pod.node.as_ref()).or_else(in_slices)
    }

    /// Its zone, as slices have it.
    pub fn zone(&self) -> Option<&Arc<str>> {
        self.entries.iter().find_map(|(_, e)| e.zone.as_ref())
    }

    /// The number of its port: `own`, or what `wanted` says.
    ///
    /// # Errors
    /// The name is neither in the slices nor in the pod.
    pub fn port(&self, own: Option<u16>, wanted: &PortReference) -> Result<u16, Refusal> {
        let name = match (own, wanted) {
            (Some(port), _) => return Ok(port),
            (None, PortReference::Number(port)) => return Ok(*port),
            (None, PortReference::Name(name)) => name,
        };
        let in_slices = self.entries.iter().flat_map(|(slice, _)| &slice.ports);
        let in_slice = in_slices.into_iter().find(|(of, _)| **of == **name).map(|(_, port)| *port);
        in_slice.or_else(|| self.pod.and_then(|pod| pod.port_named(name))).ok_or_else(|| {
            let message = format!("no port is called {name:?}, neither in the EndpointSlice nor in the pod");
            (rejection::PORT_NOT_FOUND, message)
        })
    }
}

/// What makes two entries one candidate.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Target<'a> {
    Uid(&'a str),
    Name(&'a str),
    Address(IpAddr),
}

/// All candidates of `spec`.
pub fn candidates<'a>(spec: &PoolSpec, around: &Surroundings<'a>) -> Vec<Candidate<'a>> {
    match &spec.finder {
        Finder::Service(_) => of_slices(around),
        Finder::Pods(selector) => {
            use kube::core::SelectorExt;
            let pods = around.pods.into_iter().flat_map(|pods| pods.values());
            let matching = pods.filter(|pod| selector.matches(&pod.labels));
            let mut found: Vec<_> = matching
                .map(|pod| Candidate {
                    name: pod.key.name.clone(),
                    identity: Some(pod.uid.clone()),
                    pod: Some(pod),
                    address: pod.ip,
                    entries: Vec::new(),
                    refusal: None,
                })
                .collect();
            found.sort_by(|a, b| a.name.cmp(&b.name));
            found
        }
    }
}

fn of_slices<'a>(around: &Surroundings<'a>) -> Vec<Candidate<'a>> {
    let mut targets: BTreeMap<Target<'a>, Vec<(&'a SliceView, &'a EndpointView)>> = BTreeMap::new();
    for slice in &around.slices {
        for endpoint in &slice.endpoints {
            let target = match &endpoint.pod {
                Some((_, Some(uid))) => Target::Uid(uid),
                Some((name, None)) => {
                    let uid = around.pods.and_then(|_| around.pod_names.get(name));
                    uid.map_or(Target::Name(name), |uid| Target::Uid(uid))
                }
                None => Target::Address(endpoint.address),
            };
            targets.entry(target).or_default().push((*slice, endpoint));
        }
    }
    targets.into_iter().map(|(target, entries)| of_entries(&target, entries, around)).collect()
}

fn of_entries<'a>(
    target: &Target<'a>,
    mut entries: Vec<(&'a SliceView, &'a EndpointView)>,
    around: &Surroundings<'a>,
) -> Candidate<'a> {
    entries.sort_by(|(a, x), (b, y)| (y.ready, &a.key.name).cmp(&(x.ready, &b.key.name)));
    let listed = entries.iter().map(|(_, e)| e.address).min_by_key(|address| address.is_ipv6());
    let pod_name = entries.iter().find_map(|(_, e)| e.pod.as_ref().map(|(name, _)| name.clone()));
    let name = pod_name.unwrap_or_else(|| listed.map(|a| a.to_string()).unwrap_or_default().into());
    let (identity, pod) = match target {
        Target::Uid(uid) => {
            let found = around.pods.and_then(|pods| pods.get_key_value(*uid));
            (Some(found.map_or_else(|| (*uid).into(), |(uid, _)| uid.clone())), found.map(|(_, pod)| &**pod))
        }
        Target::Name(name) => (Some((*name).into()), None),
        Target::Address(_) => (None, None),
    };
    let gone = around.pods.is_some() && identity.is_some() && pod.is_none();
    let refusal = gone.then(|| {
        let replaced = around.pod_names.contains_key(&name);
        let message = if replaced { "another pod has this name now" } else { "there is no such pod" };
        (rejection::POD_GONE, message.to_owned())
    });
    Candidate { name, identity, pod, address: pod.map_or(listed, |pod| pod.ip), entries, refusal }
}
