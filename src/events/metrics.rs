//! The events' part of `GET /metrics`, collected when asked for.
//!
//! Invariant: labels are reasons and states; their number does not depend on workers.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};

use super::{
    counts::{Count, DropReason, Totals},
    status::ListenerState,
    supervisor::{ListenerSupervisor, Listeners},
};
use crate::selection::ingest::Trust;

impl ListenerSupervisor {
    /// Adds the events' metrics to `registry`, under `pointsman_events_`.
    pub fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(EventCollector {
            totals: Arc::clone(&self.totals),
            listeners: Arc::clone(&self.listeners),
        }));
    }
}

/// Reads totals and listeners at each scrape.
#[derive(Debug)]
struct EventCollector {
    totals: Arc<Totals>,
    listeners: Arc<Mutex<Listeners>>,
}

impl Collector for EventCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for count in Count::ALL {
            let name = format!("pointsman_events_{}", count.as_str());
            let metric = encoder.encode_descriptor(&name, count.help(), None, MetricType::Counter)?;
            ConstCounter::new(self.totals.count(count)).encode(metric)?;
        }
        let help = "Events, batches and messages that were not applied, by reason.";
        let mut dropped = encoder.encode_descriptor("pointsman_events_dropped", help, None, MetricType::Counter)?;
        for reason in DropReason::ALL {
            let labels = [("reason", reason.as_str())];
            ConstCounter::new(self.totals.dropped(reason)).encode(dropped.encode_family(&labels)?)?;
        }
        let (mut states, mut lag) = ([0i64; ListenerState::ALL.len()], 0i64);
        let mut trusts = [0i64; Trust::ALL.len()];
        for entry in self.listeners.lock().values() {
            states[entry.shared.state() as usize] += 1;
            trusts[entry.shared.trust().0 as usize] += 1;
            lag = lag.saturating_add_unsigned(entry.shared.lag());
        }
        let help = "Event listeners by state.";
        let mut gauge = encoder.encode_descriptor("pointsman_events_listeners", help, None, MetricType::Gauge)?;
        for state in ListenerState::ALL {
            let labels = [("state", state.as_str())];
            ConstGauge::new(states[state as usize]).encode(gauge.encode_family(&labels)?)?;
        }
        let help = "Ranks with a stream, by how far their part of the index can be believed.";
        let mut gauge = encoder.encode_descriptor("pointsman_events_ranks", help, None, MetricType::Gauge)?;
        for trust in Trust::ALL {
            let labels = [("trust", trust.as_str())];
            ConstGauge::new(trusts[trust as usize]).encode(gauge.encode_family(&labels)?)?;
        }
        let help = "Messages received and not applied yet, over all listeners.";
        let gauge = encoder.encode_descriptor("pointsman_events_lag_messages", help, None, MetricType::Gauge)?;
        ConstGauge::new(lag).encode(gauge)
    }
}
