//! What `GET /replica_sync/status` shows.

use std::{collections::BTreeMap, sync::atomic::Ordering, time::Duration};

use serde::Serialize;

use super::{MeshConfig, followed::Followed, outlet::Outlet, peers::Peers, wire::beacon::WIRE_VERSION};
use crate::selection::PartitionKey;

/// The mesh as this replica sees it.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct MeshStatus {
    /// Whether bookings are published and followed.
    pub enabled: bool,
    /// This process, as its messages name it.
    pub router_id: Option<u64>,
    /// Differs after a restart.
    pub instance_id: String,
    /// Where bookings are published; host `*` is whatever host this replica is reached under.
    pub endpoint: Option<String>,
    /// Where others reach this replica's HTTP API.
    pub url: Option<String>,
    /// Version of the messages only our replicas exchange.
    pub wire_version: u32,
    /// Booking messages published.
    pub sequence: u64,
    /// Replicas that subscribe.
    pub subscribers: usize,
    /// Messages a subscriber lost because it did not keep up.
    pub dropped_for_subscribers: u64,
    /// Messages that waited for subscribers whose connection ended.
    pub lost_at_disconnect: u64,
    /// Connections that broke the protocol or failed in their handshake.
    pub refused_subscribers: u64,
    /// Followed publishers.
    pub peers: Vec<PeerStatus>,
}

/// How a followed publisher is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub enum PeerState {
    /// There is no connection.
    Connecting,
    /// Connected; a replica of ours has been heard lately.
    Connected,
    /// Connected, and a replica of ours has not been heard for four beacons.
    Silent,
}

/// One followed publisher.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct PeerStatus {
    /// As it was registered.
    pub endpoint: String,
    /// Connection.
    pub state: PeerState,
    /// Its process; absent for the reference's, which says nothing of itself.
    pub router_id: Option<u64>,
    /// Differs after a restart.
    pub instance_id: Option<String>,
    /// Its HTTP API.
    pub url: Option<String>,
    /// Version of its own messages.
    pub wire_version: Option<u32>,
    /// It is this process.
    pub is_self: bool,
    /// It is going down.
    pub leaving: bool,
    /// Booking messages it has published.
    pub last_sequence: u64,
    /// Milliseconds its last beacon took longer than the fastest.
    pub lag_ms: Option<f64>,
    /// Beacons that took 100 ms longer than the fastest, or more.
    pub late: u64,
    /// Times its connection ended, or was ended because it broke the protocol.
    pub disconnects: u64,
    /// Its messages that did not arrive.
    pub gaps: u64,
    /// Times its state was asked for and something was missing.
    pub repairs: u64,
    /// Times it could not be asked.
    pub failed_repairs: u64,
    /// Messages that changed something here.
    pub applied: u64,
    /// Partitions whose live bookings or sessions differ from its.
    pub diverged: Vec<DivergedPartition>,
    /// Messages that were not applied, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// Last failure.
    pub last_error: Option<String>,
}

/// A partition by name.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct DivergedPartition {
    /// Model name.
    pub model_name: String,
    /// Routing group.
    pub routing_group: String,
}

impl From<PartitionKey> for DivergedPartition {
    fn from(key: PartitionKey) -> Self {
        Self { model_name: key.model_name.to_string(), routing_group: key.routing_group.to_string() }
    }
}

impl MeshStatus {
    /// The status of a service without a mesh.
    pub fn disabled(instance_id: &str) -> Self {
        Self {
            enabled: false,
            router_id: None,
            instance_id: instance_id.to_owned(),
            endpoint: None,
            url: None,
            wire_version: WIRE_VERSION,
            sequence: 0,
            subscribers: 0,
            dropped_for_subscribers: 0,
            lost_at_disconnect: 0,
            refused_subscribers: 0,
            peers: Vec::new(),
        }
    }
}

pub(super) fn of(outlet: &Outlet, peers: &Peers, config: &MeshConfig) -> MeshStatus {
    let stats = outlet.stats();
    let silent_after = config.beacon_interval * super::peers::MISSED_BEACONS;
    MeshStatus {
        enabled: true,
        router_id: Some(outlet.router_id()),
        instance_id: outlet.instance_id().to_owned(),
        endpoint: Some(outlet.known_endpoint()),
        url: outlet.advertise_url().map(str::to_owned),
        wire_version: WIRE_VERSION,
        sequence: outlet.sequences().bookings,
        subscribers: stats.subscribers,
        dropped_for_subscribers: stats.dropped,
        lost_at_disconnect: stats.lost_at_disconnect,
        refused_subscribers: stats.refused,
        peers: peers.followed().iter().map(|followed| peer(followed, silent_after)).collect(),
    }
}

fn peer(followed: &Followed, silent_after: Duration) -> PeerStatus {
    let state = followed.state.lock();
    let silent = state.heard.is_some_and(|heard| heard.elapsed() > silent_after);
    PeerStatus {
        endpoint: followed.endpoint.to_string(),
        state: match (state.connected, silent) {
            (false, _) => PeerState::Connecting,
            (true, true) => PeerState::Silent,
            (true, false) => PeerState::Connected,
        },
        router_id: state.router_id,
        instance_id: state.instance_id.clone(),
        url: state.url.clone(),
        wire_version: state.wire_version,
        is_self: state.is_self,
        leaving: state.leaving,
        last_sequence: state.last_sequence,
        lag_ms: state.lag.map(|lag| lag.as_secs_f64() * 1e3),
        late: state.late,
        disconnects: state.disconnects,
        gaps: state.gaps,
        repairs: followed.repairs.load(Ordering::Relaxed),
        failed_repairs: followed.failed_repairs.load(Ordering::Relaxed),
        applied: followed.applied.load(Ordering::Relaxed),
        diverged: state.comparison.diverged().into_iter().map(DivergedPartition::from).collect(),
        dropped: state.dropped.iter().map(|(drop, &count)| (drop.reason().to_owned(), count)).collect(),
        last_error: state.last_error.clone(),
    }
}
