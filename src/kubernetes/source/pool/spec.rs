//! A ModelPool as it is followed: checked once, defaults filled in.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::jiff::Timestamp;
use kube::core::Selector;

use super::super::objects::ObjectKey;
use crate::{
    kubernetes::api::{
        ModelPool,
        common::PortReference,
        model_pool::{Capacity, DataParallel, Enforcement, KvEventSource, Role, RouterHint, Scheme},
    },
    selection::worker::{KvTransferEnforcement, MAX_DATA_PARALLEL_SIZE, WorkerRole},
};

/// Where a pool's workers are.
#[derive(Clone, Debug)]
pub enum Finder {
    /// Endpoints of a Service.
    Service(Arc<str>),
    /// Pods by label.
    Pods(Selector),
}

/// Where a pool's engines publish.
#[derive(Clone, Copy, Debug)]
pub struct EventPorts {
    /// The engine is asked for what is missing here.
    pub ask: bool,
    /// Port of rank 0.
    pub port: Option<u16>,
    /// Distance of two ranks.
    pub stride: u16,
    /// Replay port of rank 0.
    pub replay: Option<u16>,
}

/// A ModelPool that can be followed.
#[derive(Clone, Debug)]
pub struct PoolSpec {
    /// Its namespace and name.
    pub key: ObjectKey,
    /// Older pools win: creation, then name.
    pub age: (Option<Timestamp>, Arc<str>),
    /// Name of its SelectorSet.
    pub set: String,
    /// Model.
    pub model: String,
    /// Routing group, its default filled in.
    pub group: String,
    /// Role.
    pub role: Role,
    /// Where its workers are.
    pub finder: Finder,
    /// Port of the endpoint.
    pub endpoint_port: PortReference,
    /// Scheme of the endpoint.
    pub scheme: Scheme,
    /// What follows host and port.
    pub path: String,
    /// Tokens a block.
    pub block_size: Option<u32>,
    /// Ranks.
    pub data_parallel: Option<DataParallel>,
    /// Where engines publish; none: nowhere.
    pub events: Option<EventPorts>,
    /// Capacity.
    pub capacity: Capacity,
    /// Taints.
    pub taints: BTreeSet<String>,
    /// Domain to label of a node.
    pub topology: BTreeMap<String, String>,
    /// Domain of KV transfers.
    pub transfer_domain: Option<String>,
    /// Whether it is law.
    pub transfer_enforcement: Option<KvTransferEnforcement>,
    /// Weight of a preferred domain.
    pub transfer_weight: Option<f32>,
    /// Router hints.
    pub hint: RouterHint,
    /// One look-ahead token.
    pub eagle: Option<bool>,
    /// Seconds a worker that is not ready drains.
    pub not_ready_grace: i64,
}

impl PoolSpec {
    /// Checks `pool`. The CRD refuses most of this already; a file of settings, or an apiserver with older rules, does not.
    ///
    /// # Errors
    /// What a person has to change.
    pub fn new(pool: &ModelPool) -> Result<Self, String> {
        let spec = &pool.spec;
        let key = ObjectKey::new(
            pool.metadata.namespace.as_deref().unwrap_or_default(),
            pool.metadata.name.as_deref().unwrap_or_default(),
        );
        let group = spec.routing_group.clone().unwrap_or_else(|| default_group(spec.role).to_owned());
        for (field, value) in [("modelName", &spec.model_name), ("routingGroup", &group)] {
            if value.is_empty() || value.contains('\0') {
                return Err(format!("{field} must not be empty and must not contain NUL"));
            }
        }
        let finder = match (&spec.workers.service, &spec.workers.pod_selector) {
            (Some(service), None) => Finder::Service(service.name.as_str().into()),
            (None, Some(selector)) => {
                let selector = Selector::try_from(selector.clone());
                Finder::Pods(selector.map_err(|error| format!("workers.podSelector: {error}"))?)
            }
            _ => return Err("workers: set exactly one of service and podSelector".to_owned()),
        };
        if let PortReference::Number(0) = spec.endpoint.port {
            return Err("endpoint.port must be from 1 to 65535".to_owned());
        }
        if let Some(ranks) = &spec.data_parallel {
            check_ranks(ranks).map_err(|reason| format!("dataParallel: {reason}"))?;
        }
        let events = spec.kv_events.as_ref().map(|events| EventPorts {
            ask: events.source == KvEventSource::Engine,
            port: events.port,
            stride: events.stride.unwrap_or(1),
            replay: events.replay_port,
        });
        let asks = events.is_some_and(|e| e.ask);
        if !asks && spec.block_size.is_none_or(|size| size == 0) {
            return Err("blockSize is required unless kvEvents.source is Engine".to_owned());
        }
        if events.is_some_and(|e| !e.ask && e.port.is_none()) {
            return Err("kvEvents.port is required unless kvEvents.source is Engine".to_owned());
        }
        if !spec.endpoint.path.is_empty() && !spec.endpoint.path.starts_with('/') {
            return Err("endpoint.path must begin with a slash".to_owned());
        }
        let transfer = spec.kv_transfer.clone().unwrap_or_default();
        if transfer.preferred_weight.is_some_and(|weight| !weight.is_finite()) {
            return Err("kvTransfer.preferredWeight must be finite".to_owned());
        }
        Ok(Self {
            age: (pool.metadata.creation_timestamp.as_ref().map(|t| t.0), key.name.clone()),
            key,
            set: spec.selector_ref.name.clone(),
            model: spec.model_name.clone(),
            group,
            role: spec.role,
            finder,
            endpoint_port: spec.endpoint.port.clone(),
            scheme: spec.endpoint.scheme,
            path: spec.endpoint.path.clone(),
            block_size: spec.block_size,
            data_parallel: spec.data_parallel.clone(),
            events,
            capacity: spec.capacity.clone().unwrap_or_default(),
            taints: spec.taints.iter().cloned().collect(),
            topology: spec.topology.clone(),
            transfer_domain: transfer.domain,
            transfer_enforcement: transfer.enforcement.map(|enforcement| match enforcement {
                Enforcement::Required => KvTransferEnforcement::Required,
                Enforcement::Preferred => KvTransferEnforcement::Preferred,
            }),
            transfer_weight: transfer.preferred_weight,
            hint: spec.router_hint.clone().unwrap_or_default(),
            eagle: spec.eagle,
            not_ready_grace: i64::from(spec.drain.not_ready_grace_seconds),
        })
    }

    /// The role as records have it; aggregated is the default and not sent.
    pub fn worker_role(&self) -> Option<WorkerRole> {
        match self.role {
            Role::Aggregated => None,
            Role::Prefill => Some(WorkerRole::Prefill),
            Role::Decode => Some(WorkerRole::Decode),
            Role::Encode => Some(WorkerRole::Encode),
        }
    }
}

/// The group of a pool that names none.
fn default_group(role: Role) -> &'static str {
    match role {
        Role::Aggregated => "default",
        Role::Prefill => "prefill",
        Role::Decode => "decode",
        Role::Encode => "encode",
    }
}

/// Whether ranks can be counted.
///
/// # Errors
/// Why not.
pub fn check_ranks(ranks: &DataParallel) -> Result<(), String> {
    if ranks.size == 0 || ranks.size > MAX_DATA_PARALLEL_SIZE {
        return Err(format!("size {} is not from 1 to {MAX_DATA_PARALLEL_SIZE}", ranks.size));
    }
    if ranks.start_rank.checked_add(ranks.size).is_none() {
        return Err(format!("ranks {} and {} more do not fit in 32 bits", ranks.start_rank, ranks.size));
    }
    Ok(())
}
