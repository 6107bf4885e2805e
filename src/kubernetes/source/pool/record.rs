//! The record of a worker: what its pod says wins over what the pool says, and that over what its engine says.

use std::{collections::BTreeMap, net::IpAddr};

use super::{
    super::engine::{Answer, Answers, EngineFacts, EngineKey},
    PoolSpec, PoolWorkers, Refusal,
    annotations::Overrides,
    spec::{EventPorts, check_ranks},
};
use crate::{
    kubernetes::api::{
        constants::rejection,
        model_pool::{DataParallel, Scheme, ValueSource},
    },
    selection::worker::{WorkerFields, WorkerRequest},
};

/// What engines answered.
pub type EngineAnswers<'a> = &'a Answers;

/// Where a worker is.
pub struct Place {
    /// Address.
    pub address: IpAddr,
    /// Port of the HTTP endpoint.
    pub port: u16,
    /// Topology by domain.
    pub topology: BTreeMap<String, String>,
    /// Names its engine.
    pub engine: EngineKey,
}

/// `host:port`, IPv6 in brackets.
fn authority(address: IpAddr, port: u16) -> String {
    std::net::SocketAddr::new(address, port).to_string()
}

/// The record, without id, and the first rank.
///
/// # Errors
/// Why it is no worker.
pub fn build(
    spec: &PoolSpec,
    own: &Overrides,
    place: Place,
    answers: &Answers,
    out: &mut PoolWorkers,
) -> Result<(u32, WorkerRequest), Refusal> {
    let engine = match spec.events {
        Some(events) if events.ask && wants_engine(spec, own, events) => Some(ask(spec, &place, answers, out)?),
        _ => None,
    };
    let block_size = own.block_size.or(spec.block_size).or(engine.and_then(|e| e.block_size));
    let block_size = block_size.ok_or_else(|| {
        let message = "the engine does not say its block size: set blockSize";
        (rejection::ENGINE_MISMATCH, message.to_owned())
    })?;
    let ranks = ranks(spec, own, engine)?;
    let rank_range = || ranks.start_rank..ranks.start_rank + ranks.size;
    let stride = spec.events.map_or(1, |e| e.stride);
    let by_port = |what: &str, base: u16| -> Result<BTreeMap<u32, String>, Refusal> {
        rank_range().map(|rank| Ok((rank, by_rank(what, place.address, base, rank, stride)?))).collect()
    };
    let mut events = BTreeMap::new();
    let mut replays = BTreeMap::new();
    if let Some(ports) = spec.events {
        let base = own.events_port.or(ports.port);
        events = match (base, engine) {
            (Some(base), _) => by_port("kvEvents.port", base)?,
            (None, Some(engine)) => engine.endpoints(rank_range(), place.address).map_err(mismatch)?,
            (None, None) => BTreeMap::new(),
        };
        replays = match (own.replay_port.or(ports.replay), engine) {
            (Some(base), _) => by_port("kvEvents.replayPort", base)?,
            // The replay socket of a publisher that is told by hand is told by hand, too.
            (None, Some(engine)) if base.is_none() => engine.replays(rank_range(), place.address).map_err(mismatch)?,
            (None, _) => BTreeMap::new(),
        };
        if ports.ask && out.sources.is_empty() {
            out.sources = sources(spec, own, engine, block_size, &ranks, &events, &replays);
        }
    }
    let control = match spec.hint.source_control_port {
        Some(base) => by_port("routerHint.sourceControlPort", base)?,
        None => BTreeMap::new(),
    };
    // One rank: the scalar, which the reference's selectors know too.
    let replay_endpoint = if ranks.size == 1 { replays.pop_first().map(|(_, endpoint)| endpoint) } else { None };
    let scheme = match spec.scheme {
        Scheme::Http => "http",
        Scheme::Https => "https",
    };
    let fields = WorkerFields {
        endpoint: Some(format!("{scheme}://{}{}", authority(place.address, place.port), spec.path)),
        kv_events_endpoint: None,
        kv_events_endpoints: events,
        replay_endpoint,
        block_size: Some(block_size),
        data_parallel_start_rank: Some(ranks.start_rank).filter(|rank| *rank > 0),
        data_parallel_size: Some(ranks.size).filter(|size| *size > 1),
        max_num_batched_tokens: own.max_num_batched_tokens.or(spec.capacity.max_num_batched_tokens),
        total_kv_blocks: own
            .total_kv_blocks
            .or(spec.capacity.total_kv_blocks)
            .or(engine.and_then(|e| e.total_kv_blocks)),
        stable_routing_id: own.stable_routing_id.clone(),
        is_eagle: spec.eagle,
        taints: own.taints.clone().unwrap_or_else(|| spec.taints.clone()),
        topology_domains: place.topology,
        kv_transfer_domain: spec.transfer_domain.clone(),
        kv_transfer_enforcement: spec.transfer_enforcement,
        kv_transfer_preferred_weight: spec.transfer_weight,
        router_hint_worker_type: spec.hint.worker_type.clone(),
        router_hint_source_control_endpoints: control,
        kv_event_source_mode: None,
        replay_endpoints: replays,
        worker_role: spec.worker_role(),
    };
    let request =
        WorkerRequest { worker_id: 0, model_name: spec.model.clone(), routing_group: spec.group.clone(), fields };
    Ok((ranks.start_rank, request))
}

fn mismatch(message: String) -> Refusal {
    (rejection::ENGINE_MISMATCH, message)
}

/// Whether anything is left for the engine to say.
fn wants_engine(spec: &PoolSpec, own: &Overrides, events: EventPorts) -> bool {
    let has_ports = own.events_port.or(events.port).is_some();
    let has_block_size = own.block_size.or(spec.block_size).is_some();
    let has_ranks = own.size.or(spec.data_parallel.as_ref().map(|ranks| ranks.size)).is_some();
    !(has_ports && has_block_size && has_ranks)
}

fn ask<'a>(
    spec: &PoolSpec,
    place: &Place,
    answers: &'a Answers,
    out: &mut PoolWorkers,
) -> Result<&'a EngineFacts, Refusal> {
    let scheme = match spec.scheme {
        Scheme::Http => "http",
        Scheme::Https => "https",
    };
    out.asks.insert(place.engine.clone(), format!("{scheme}://{}", authority(place.address, place.port)));
    match answers.get(&place.engine) {
        Some(Answer::Facts(facts)) => Ok(facts),
        Some(Answer::Failed(error)) => Err((rejection::ENGINE_UNREACHABLE, error.clone())),
        None => Err((rejection::ENGINE_UNREACHABLE, "the engine has not been asked yet".to_owned())),
    }
}

/// Ranks in force.
fn ranks(spec: &PoolSpec, own: &Overrides, engine: Option<&EngineFacts>) -> Result<DataParallel, Refusal> {
    let told = engine.map(EngineFacts::ranks).transpose().map_err(mismatch)?;
    let pool = spec.data_parallel.clone().or(told).unwrap_or_default();
    let ranks =
        DataParallel { size: own.size.unwrap_or(pool.size), start_rank: own.start_rank.unwrap_or(pool.start_rank) };
    check_ranks(&ranks).map_err(|reason| (rejection::BAD_ANNOTATION, reason))?;
    Ok(ranks)
}

/// The endpoint of global rank `rank`: `base` and `rank` times `stride`.
fn by_rank(what: &str, address: IpAddr, base: u16, rank: u32, stride: u16) -> Result<String, Refusal> {
    let port = u64::from(base) + u64::from(rank) * u64::from(stride);
    let port = u16::try_from(port).map_err(|_| {
        (rejection::PORT_OUT_OF_RANGE, format!("{what}: rank {rank} would be on port {port}, past 65535"))
    })?;
    Ok(format!("tcp://{}", authority(address, port)))
}

/// Where the values of a worker come from.
fn sources(
    spec: &PoolSpec,
    own: &Overrides,
    engine: Option<&EngineFacts>,
    block_size: u32,
    ranks: &DataParallel,
    events: &BTreeMap<u32, String>,
    replays: &BTreeMap<u32, String>,
) -> Vec<ValueSource> {
    let from = |annotation: bool, spec: bool, route: Option<&str>| {
        if annotation {
            "Annotation".to_owned()
        } else if spec {
            "Spec".to_owned()
        } else {
            route.unwrap_or("Default").to_owned()
        }
    };
    let source = |field: &str, value: String, source: String| ValueSource { field: field.to_owned(), value, source };
    let port = |endpoints: &BTreeMap<u32, String>| {
        let first = endpoints.values().next()?;
        first.rsplit_once(':').map(|(_, port)| port.to_owned())
    };
    let route = engine.map(|e| e.route);
    let ports = spec.events;
    let mut told = vec![
        source(
            "blockSize",
            block_size.to_string(),
            from(own.block_size.is_some(), spec.block_size.is_some(), engine.and_then(|e| e.block_size_route)),
        ),
        source(
            "dataParallel.size",
            ranks.size.to_string(),
            from(own.size.is_some(), spec.data_parallel.is_some(), route),
        ),
    ];
    if let Some(value) = port(events) {
        let in_spec = ports.is_some_and(|p| p.port.is_some());
        told.push(source("kvEvents.port", value, from(own.events_port.is_some(), in_spec, route)));
    }
    if let Some(value) = port(replays) {
        let in_spec = ports.is_some_and(|p| p.replay.is_some());
        told.push(source("kvEvents.replayPort", value, from(own.replay_port.is_some(), in_spec, route)));
    }
    told
}
