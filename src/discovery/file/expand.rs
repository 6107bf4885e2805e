//! From a parsed file to worker records: defaults, ranks, derived ids, and the checks that need more than one field.

use std::collections::{BTreeMap, HashMap};

use serde_saphyr::{Location, Spanned};

use super::{
    error::{FileError, Place},
    schema::{Defaults, Entry, KvEvents, VERSION},
};
use crate::discovery::identity::derive_ids;
use crate::selection::{
    catalog::DesiredWorker,
    worker::{MAX_DATA_PARALLEL_SIZE, WorkerFields, WorkerRequest},
};

/// Where an entry is, for errors about it.
struct Spot<'a> {
    file: &'a str,
    index: usize,
    entry: Location,
}

impl Spot<'_> {
    fn place(&self, field: &str, at: Option<Location>) -> Place {
        let at = at.unwrap_or(self.entry);
        let dot = if field.is_empty() { "" } else { "." };
        Place { line_column: Some((at.line(), at.column())), field: format!("workers[{}]{dot}{field}", self.index) }
    }

    fn value(&self, field: &str, at: Option<Location>, reason: impl Into<String>) -> FileError {
        FileError::Value { file: self.file.to_owned(), place: self.place(field, at), reason: reason.into() }
    }

    fn duplicate(&self, field: &str, at: Location, what: String, first: Location) -> FileError {
        let place = self.place(field, Some(at));
        FileError::Duplicate { file: self.file.to_owned(), place, what, first_line: first.line() }
    }
}

/// One worker of a file: its record, and what decides its id.
#[derive(Debug)]
pub struct Expanded {
    /// With id 0 where it is to be derived.
    desired: DesiredWorker,
    name: Option<Spanned<String>>,
    /// Where the id was given; absent when it is to be derived.
    id_at: Option<Location>,
}

/// Refuses a version that is not this one.
pub fn check_version(version: &Spanned<u64>, file: &str) -> Result<(), FileError> {
    if version.value == VERSION {
        return Ok(());
    }
    let at = version.referenced;
    let place = Place { line_column: Some((at.line(), at.column())), field: "version".to_owned() };
    let reason = format!("{} is not a version this program reads; it reads {VERSION}", version.value);
    Err(FileError::Value { file: file.to_owned(), place, reason })
}

/// Expands each entry by itself.
///
/// # Errors
/// The first value that cannot be meant.
pub fn expand(entries: Vec<Spanned<Entry>>, defaults: &Defaults, file: &str) -> Result<Vec<Expanded>, FileError> {
    let with_spots = entries.into_iter().enumerate();
    with_spots
        .map(|(index, entry)| record(entry.value, defaults, &Spot { file, index, entry: entry.referenced }))
        .collect()
}

/// The workers of a whole file: nothing may be there twice, and names become ids.
///
/// # Errors
/// The first name or id that an earlier entry has, too.
pub fn assemble(entries: &[Expanded], file: &str) -> Result<Vec<DesiredWorker>, FileError> {
    let mut by_id: HashMap<u64, Location> = HashMap::new();
    let mut by_name: HashMap<[&str; 3], Location> = HashMap::with_capacity(entries.len());
    let mut named = Vec::with_capacity(entries.len());
    for (index, entry) in entries.iter().enumerate() {
        let request = &entry.desired.request;
        // Only errors about both places are told here, and they say where both are.
        let spot = |at| Spot { file, index, entry: at };
        if let Some(name) = &entry.name {
            let identity = [request.model_name.as_str(), request.routing_group.as_str(), name.value.as_str()];
            if let Some(first) = by_name.insert(identity, name.referenced) {
                let what = format!("name {:?} in model {:?}, group {:?}", identity[2], identity[0], identity[1]);
                return Err(spot(name.referenced).duplicate("name", name.referenced, what, first));
            }
            if entry.id_at.is_none() {
                named.push((identity, index));
            }
        }
        if let Some(at) = entry.id_at {
            let id = request.worker_id;
            if let Some(first) = by_id.insert(id, at) {
                return Err(spot(at).duplicate("worker_id", at, format!("worker_id {id}"), first));
            }
        }
    }
    let mut ids = vec![0; named.len()];
    let mut identities: Vec<_> = named.iter().zip(&mut ids).map(|((identity, _), id)| (*identity, id)).collect();
    derive_ids(&mut identities, &mut by_id.into_keys().collect());
    let mut workers: Vec<_> = entries.iter().map(|entry| entry.desired.clone()).collect();
    for ((_, index), id) in named.iter().zip(ids) {
        workers[*index].request.worker_id = id;
    }
    Ok(workers)
}

fn record(entry: Entry, defaults: &Defaults, spot: &Spot<'_>) -> Result<Expanded, FileError> {
    if entry.worker_id.is_none() && entry.name.is_none() {
        return Err(spot.value("", None, "a worker needs a name or a worker_id"));
    }
    let start = entry.data_parallel_start_rank.unwrap_or(0);
    let data_parallel_size = entry.data_parallel_size.or(defaults.data_parallel_size);
    let size = data_parallel_size.unwrap_or(1);
    if size > MAX_DATA_PARALLEL_SIZE {
        let reason = format!("{size} exceeds the maximum {MAX_DATA_PARALLEL_SIZE}");
        return Err(spot.value("data_parallel_size", None, reason));
    }
    if start.checked_add(size).is_none() {
        let reason = format!("ranks {start} to {start} + {size} do not fit in 32 bits");
        return Err(spot.value("data_parallel_start_rank", None, reason));
    }
    let own_endpoints = [
        ("kv_events_endpoint", entry.kv_events_endpoint.is_some()),
        ("kv_events_endpoints", entry.kv_events_endpoints.is_some()),
        ("replay_endpoint", entry.replay_endpoint.is_some()),
        ("replay_endpoints", entry.replay_endpoints.is_some()),
    ];
    let mut fields = WorkerFields {
        endpoint: entry.endpoint,
        kv_events_endpoint: entry.kv_events_endpoint,
        kv_events_endpoints: entry.kv_events_endpoints.unwrap_or_default(),
        replay_endpoint: entry.replay_endpoint,
        block_size: entry.block_size.or(defaults.block_size),
        data_parallel_start_rank: entry.data_parallel_start_rank,
        data_parallel_size,
        max_num_batched_tokens: entry.max_num_batched_tokens.or(defaults.max_num_batched_tokens),
        total_kv_blocks: entry.total_kv_blocks.or(defaults.total_kv_blocks),
        stable_routing_id: entry.stable_routing_id,
        is_eagle: entry.is_eagle.or(defaults.is_eagle),
        taints: entry.taints.or_else(|| defaults.taints.clone()).unwrap_or_default(),
        topology_domains: entry.topology_domains.or_else(|| defaults.topology_domains.clone()).unwrap_or_default(),
        kv_transfer_domain: entry.kv_transfer_domain.or_else(|| defaults.kv_transfer_domain.clone()),
        kv_transfer_enforcement: entry.kv_transfer_enforcement.or(defaults.kv_transfer_enforcement),
        kv_transfer_preferred_weight: finite(&entry.kv_transfer_preferred_weight, defaults, spot)?,
        router_hint_worker_type: entry.router_hint_worker_type.or_else(|| defaults.router_hint_worker_type.clone()),
        router_hint_source_control_endpoints: entry.router_hint_source_control_endpoints.unwrap_or_default(),
        kv_event_source_mode: entry.kv_event_source_mode.or_else(|| defaults.kv_event_source_mode.clone()),
        replay_endpoints: entry.replay_endpoints.unwrap_or_default(),
        worker_role: entry.worker_role.or(defaults.worker_role),
    };
    if let Some(events) = entry.kv_events {
        if let Some((field, _)) = own_endpoints.iter().find(|(_, given)| *given) {
            return Err(spot.value(field, None, "cannot stand beside kv_events, which says the same"));
        }
        apply_kv_events(&events, start, size, &mut fields, spot)?;
    }
    let default = || "default".to_owned();
    let model_name = entry.model_name.or_else(|| defaults.model_name.clone()).unwrap_or_else(default);
    let routing_group = entry.routing_group.or_else(|| defaults.routing_group.clone()).unwrap_or_else(default);
    if let Some(name) = &entry.name {
        if name.value.is_empty() {
            return Err(spot.value("name", Some(name.referenced), "must not be empty"));
        }
        // Parts are joined by NUL to derive an id, so none may hold one.
        if [&model_name, &routing_group, &name.value].iter().any(|part| part.contains('\0')) {
            return Err(spot.value("name", Some(name.referenced), "name, model and group must not contain NUL"));
        }
    }
    Ok(Expanded {
        name: entry.name,
        id_at: entry.worker_id.as_ref().map(|id| id.referenced),
        desired: DesiredWorker {
            state: entry.state.unwrap_or_default(),
            request: WorkerRequest {
                worker_id: entry.worker_id.map_or(0, |id| id.value),
                model_name,
                routing_group,
                fields,
            },
        },
    })
}

/// A weight that JSON can carry to a selector.
fn finite(own: &Option<Spanned<f32>>, defaults: &Defaults, spot: &Spot<'_>) -> Result<Option<f32>, FileError> {
    let Some(weight) = own.as_ref().or(defaults.kv_transfer_preferred_weight.as_ref()) else { return Ok(None) };
    if weight.value.is_finite() {
        return Ok(Some(weight.value));
    }
    Err(spot.value("kv_transfer_preferred_weight", Some(weight.referenced), "must be finite"))
}

fn apply_kv_events(
    events: &Spanned<KvEvents>,
    start: u32,
    size: u32,
    fields: &mut WorkerFields,
    spot: &Spot<'_>,
) -> Result<(), FileError> {
    let KvEvents { endpoint, replay, stride } = &events.value;
    let stride = stride.unwrap_or(1);
    let by_rank = |field: &str, base: &str| {
        let ranks = (start..start + size).map(|rank| Ok((rank, rank_endpoint(base, rank, size, stride)?)));
        ranks
            .collect::<Result<BTreeMap<u32, String>, String>>()
            .map_err(|reason| spot.value(field, Some(events.referenced), reason))
    };
    fields.kv_events_endpoints = by_rank("kv_events.endpoint", endpoint)?;
    if let Some(base) = replay {
        let mut replays = by_rank("kv_events.replay", base)?;
        // One rank: the scalar, which the reference's selectors know too.
        if size == 1 {
            fields.replay_endpoint = replays.pop_first().map(|(_, endpoint)| endpoint);
        } else {
            fields.replay_endpoints = replays;
        }
    }
    Ok(())
}

/// The endpoint of global rank `rank`: the port of `base` plus `rank * stride`.
fn rank_endpoint(base: &str, rank: u32, size: u32, stride: u16) -> Result<String, String> {
    let Some(address) = base.strip_prefix("tcp://") else {
        return match size {
            1 if base.contains("://") => Ok(base.to_owned()),
            1 => Err(format!("{base:?} has no scheme; write tcp://HOST:PORT")),
            _ => Err(format!("{base:?} has no port to count ranks from; write tcp://HOST:PORT")),
        };
    };
    let parsed = address.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
    let Some((host, port)) = parsed.filter(|(host, _)| !host.is_empty()) else {
        return Err(format!("{base:?} is not of the form tcp://HOST:PORT"));
    };
    if host == "*" {
        return Err(format!("{base:?} is an address to bind; write the host to connect to"));
    }
    let port = u64::from(port) + u64::from(rank) * u64::from(stride);
    if port > u64::from(u16::MAX) {
        return Err(format!("rank {rank} would be on port {port}, past 65535"));
    }
    Ok(format!("tcp://{host}:{port}"))
}
