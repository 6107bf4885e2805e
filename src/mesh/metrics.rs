//! The mesh's part of `GET /metrics`. Labels are reasons and states: their number does not depend on peers.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Weak},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};

use super::{
    outlet::Outlet,
    peers::Peers,
    status::{self, PeerState},
};
use crate::telemetry::metrics::Metrics;

pub(super) fn register(metrics: &Metrics, outlet: &Arc<Outlet>, peers: &Arc<Peers>) {
    let collector = MeshCollector { outlet: Arc::downgrade(outlet), peers: Arc::downgrade(peers) };
    metrics.register_named(|registry| registry.register_collector(Box::new(collector)));
}

struct MeshCollector {
    outlet: Weak<Outlet>,
    peers: Weak<Peers>,
}

impl fmt::Debug for MeshCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MeshCollector")
    }
}

fn counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let name = format!("pointsman_mesh_{name}");
    let metric = encoder.encode_descriptor(&name, help, None, MetricType::Counter)?;
    ConstCounter::new(value).encode(metric)
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: f64) -> fmt::Result {
    let name = format!("pointsman_mesh_{name}");
    let metric = encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?;
    ConstGauge::new(value).encode(metric)
}

impl Collector for MeshCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (Some(outlet), Some(peers)) = (self.outlet.upgrade(), self.peers.upgrade()) else { return Ok(()) };
        let status = status::of(&outlet, &peers, &peers.config);
        let encoder = &mut encoder;
        let help = "Booking messages published.";
        counter(encoder, "published_bookings", help, status.sequence)?;
        counter(encoder, "published_sessions", "Session messages published.", outlet.sequences().sessions)?;
        counter(encoder, "beacons", "Beacons published.", outlet.beacons())?;
        gauge(encoder, "subscribers", "Replicas that subscribe.", status.subscribers as f64)?;
        let help = "Messages subscribers lost because they did not keep up.";
        counter(encoder, "dropped_for_subscribers", help, status.dropped_for_subscribers)?;
        let help = "Messages that waited for subscribers whose connection ended.";
        counter(encoder, "lost_at_disconnect", help, status.lost_at_disconnect)?;
        let help = "Connections to the publisher that broke the protocol or failed in their handshake.";
        counter(encoder, "refused_subscribers", help, status.refused_subscribers)?;
        let mut states = BTreeMap::from([("connecting", 0u32), ("connected", 0), ("silent", 0)]);
        let mut dropped: BTreeMap<&str, u64> = BTreeMap::new();
        let (mut lag, mut diverged) = (0f64, 0usize);
        for peer in &status.peers {
            let name = match peer.state {
                PeerState::Connecting => "connecting",
                PeerState::Connected => "connected",
                PeerState::Silent => "silent",
            };
            *states.entry(name).or_default() += 1;
            lag = lag.max(peer.lag_ms.unwrap_or(0.0));
            diverged += peer.diverged.len();
            for (reason, count) in &peer.dropped {
                *dropped.entry(reason).or_default() += count;
            }
        }
        let mut metric = encoder.encode_descriptor(
            "pointsman_mesh_peers",
            "Followed publishers by state.",
            None,
            MetricType::Gauge,
        )?;
        for (state, count) in states {
            ConstGauge::new(count).encode(metric.encode_family(&[("state", state)])?)?;
        }
        let help = "Messages of peers that were not applied, by reason.";
        let mut metric = encoder.encode_descriptor("pointsman_mesh_dropped", help, None, MetricType::Counter)?;
        for (reason, count) in dropped {
            ConstCounter::new(count).encode(metric.encode_family(&[("reason", reason)])?)?;
        }
        let sum = |of: fn(&status::PeerStatus) -> u64| status.peers.iter().map(of).sum::<u64>();
        counter(encoder, "applied", "Messages of peers that changed something.", sum(|peer| peer.applied))?;
        counter(encoder, "lost", "Messages of peers that did not arrive.", sum(|peer| peer.gaps))?;
        counter(encoder, "disconnects", "Connections to peers that ended.", sum(|peer| peer.disconnects))?;
        counter(encoder, "late", "Beacons that came 100 ms late or more.", sum(|peer| peer.late))?;
        counter(encoder, "repairs", "Answers of peers that brought what was missed.", sum(|peer| peer.repairs))?;
        counter(encoder, "failed_repairs", "Peers that could not be asked.", sum(|peer| peer.failed_repairs))?;
        gauge(encoder, "lag_seconds", "Largest lag of a peer's last beacon.", lag / 1e3)?;
        gauge(encoder, "diverged_partitions", "Partitions that differ from a peer's, over all peers.", diverged as f64)
    }
}
