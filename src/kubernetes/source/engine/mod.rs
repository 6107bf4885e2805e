//! What engines say of themselves: where they publish, their block size, their ranks. An incarnation is asked until it
//! answers, and not again.
//!
//! Two engines tell: SGLang at `GET /server_info` under `kv_events`; vLLM at `GET /kv_event_sources` by rank, and its
//! block size and capacity in the `cache_config_info` line of `GET /metrics`.

mod ask;
mod parse;

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
    ops::Range,
    sync::Arc,
};

pub use ask::Askers;

use crate::kubernetes::api::model_pool::{DataParallel, Scheme};

/// Names one incarnation of an engine at one address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EngineKey(Arc<str>);

impl EngineKey {
    /// The engine of a worker.
    pub(super) fn new(identity: &str, container: &str, scheme: Scheme, address: IpAddr, port: u16) -> Self {
        Self(format!("{identity} {container} {scheme:?} {}", SocketAddr::new(address, port)).into())
    }
}

/// What came of asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It answered.
    Facts(EngineFacts),
    /// Why it did not, the last time.
    Failed(String),
}

/// Answers by engine.
pub type Answers = HashMap<EngineKey, Answer>;

/// What an engine says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineFacts {
    /// The route that told publishers and ranks, such as `GET /server_info`.
    pub route: &'static str,
    /// Tokens a block.
    pub block_size: Option<u32>,
    /// The route that told the block size.
    pub block_size_route: Option<&'static str>,
    /// KV capacity of a rank in blocks.
    pub total_kv_blocks: Option<u64>,
    /// Publishers by global rank; at least one.
    pub publishers: BTreeMap<u32, Publisher>,
}

/// Where a rank publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publisher {
    /// Its events.
    pub events: Socket,
    /// Its replay.
    pub replay: Option<Socket>,
}

/// A socket that an engine is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Host; none for all interfaces, which is the worker's own address.
    pub host: Option<String>,
    /// Port.
    pub port: u16,
}

impl Socket {
    fn endpoint(&self, address: IpAddr) -> String {
        match &self.host {
            None => format!("tcp://{}", SocketAddr::new(address, self.port)),
            Some(host) => format!("tcp://{host}:{}", self.port),
        }
    }
}

impl EngineFacts {
    /// Its ranks.
    ///
    /// # Errors
    /// They are not consecutive.
    pub fn ranks(&self) -> Result<DataParallel, String> {
        let (first, last) = match (self.publishers.keys().next(), self.publishers.keys().next_back()) {
            (Some(first), Some(last)) => (*first, *last),
            _ => return Err(format!("{} names no rank", self.route)),
        };
        let size = u32::try_from(self.publishers.len()).unwrap_or(u32::MAX);
        if last - first != size - 1 {
            return Err(format!("{} names ranks from {first} to {last} with gaps", self.route));
        }
        Ok(DataParallel { size, start_rank: first })
    }

    /// Endpoints of the events of `ranks`, for a worker at `address`.
    ///
    /// # Errors
    /// A rank is not published.
    pub fn endpoints(&self, ranks: Range<u32>, address: IpAddr) -> Result<BTreeMap<u32, String>, String> {
        let endpoint = |rank: u32| {
            let publisher = self.publishers.get(&rank);
            let publisher = publisher.ok_or_else(|| format!("{} names no publisher of rank {rank}", self.route))?;
            Ok((rank, publisher.events.endpoint(address)))
        };
        ranks.map(endpoint).collect()
    }

    /// Endpoints of the replay of `ranks`; empty where no rank has one.
    ///
    /// # Errors
    /// Some ranks have one and others do not.
    pub fn replays(&self, ranks: Range<u32>, address: IpAddr) -> Result<BTreeMap<u32, String>, String> {
        let wanted = ranks.len();
        let replay = |rank: u32| Some((rank, self.publishers.get(&rank)?.replay.as_ref()?.endpoint(address)));
        let replays: BTreeMap<u32, String> = ranks.filter_map(replay).collect();
        if replays.is_empty() || replays.len() == wanted {
            return Ok(replays);
        }
        Err(format!("{} names replay sockets for {} of {wanted} ranks", self.route, replays.len()))
    }
}
