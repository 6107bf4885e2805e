//! What a scrape shows of discovery: what the source read and refused, how each target stands, and its peers.
//!
//! Labels: targets are those of the command line, reasons a fixed list.

use std::{fmt, sync::Arc};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, metrics::MetricType};
use tokio::sync::watch;

use super::{SourceStatus, apply::TargetStatus, source::SourceCounters, wiring::WiringStatus};
use crate::telemetry::metrics::Metrics;

/// Shows a source and its targets, named, in `metrics`.
pub fn register(
    metrics: &Metrics,
    source: SourceStatus,
    counters: Arc<SourceCounters>,
    targets: Vec<(String, watch::Receiver<TargetStatus>)>,
) {
    let collector = Box::new(DiscoveryCollector { source, counters, targets });
    metrics.register(|registry| registry.register_collector(collector));
}

/// Shows the peers of targets, named, in `metrics`.
pub fn register_wiring(metrics: &Metrics, targets: Vec<(String, watch::Receiver<WiringStatus>)>) {
    let collector = Box::new(WiringCollector { targets });
    metrics.register(|registry| registry.register_collector(collector));
}

struct WiringCollector {
    targets: Vec<(String, watch::Receiver<WiringStatus>)>,
}

impl fmt::Debug for WiringCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WiringCollector")
    }
}

impl Collector for WiringCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (mut peers, mut changes, mut failures, mut settled) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (name, status) in &self.targets {
            let (status, target) = (status.borrow(), ("target", name.as_str()));
            let plan = &status.plan;
            for (state, count) in [
                ("wanted", plan.wanted.len()),
                ("registered", plan.registered.len()),
                ("missing", plan.register.len()),
                ("leaving", plan.deregister.len()),
                ("stranger", plan.strangers.len()),
            ] {
                peers.push((vec![target, ("state", state)], count as u64));
            }
            changes.push((vec![target, ("change", "registered")], status.registered));
            changes.push((vec![target, ("change", "removed")], status.deregistered));
            failures.push((vec![target], status.failures));
            settled.push((vec![target], u64::from(status.state().is_settled())));
        }
        gauge(&mut encoder, "discovery_peers", "Peers of a selector, by state", peers)?;
        counter(&mut encoder, "discovery_peer_changes", "Peers registered at a selector and removed", changes)?;
        counter(
            &mut encoder,
            "discovery_wiring_failures",
            "Looks at peers, and passes over them, that failed",
            failures,
        )?;
        gauge(
            &mut encoder,
            "discovery_wired",
            "Whether a selector has all peers it should have, or takes no part",
            settled,
        )
    }
}

struct DiscoveryCollector {
    source: SourceStatus,
    counters: Arc<SourceCounters>,
    targets: Vec<(String, watch::Receiver<TargetStatus>)>,
}

impl fmt::Debug for DiscoveryCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DiscoveryCollector")
    }
}

pub(crate) type Series<'a> = Vec<(Vec<(&'a str, &'a str)>, u64)>;

impl Collector for DiscoveryCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let source = self.source.borrow().clone();
        let failing = u64::from(source.error.is_some());
        gauge(
            &mut encoder,
            "source_failing",
            "Whether the source cannot read what is there now",
            vec![(vec![], failing)],
        )?;
        let workers = source.snapshot.as_ref().map_or(0, |s| s.workers().len() as u64);
        gauge(&mut encoder, "source_workers", "Workers in the source's last good snapshot", vec![(vec![], workers)])?;
        let refusals = self.counters.refusals().map(|(reason, count)| (vec![("reason", reason)], count));
        counter(&mut encoder, "source_refusals", "Contents the source refused", refusals.collect())?;
        let snapshots = vec![(vec![], self.counters.snapshots())];
        counter(&mut encoder, "source_snapshots", "Snapshots the source published", snapshots)?;

        let (mut passes, mut applied, mut failing, mut idle) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut away = Vec::new();
        for (name, status) in &self.targets {
            let (status, target) = (status.borrow(), ("target", name.as_str()));
            passes.push((vec![target, ("outcome", "applied")], status.passes));
            passes.push((vec![target, ("outcome", "failed")], status.failures));
            applied.push((vec![target], status.applied.as_ref().map_or(0, |(version, _)| version.generation)));
            failing.push((vec![target], u64::from(status.error.is_some())));
            away.push((vec![target], u64::from(status.away.is_some())));
            idle.push((vec![target], status.report.not_schedulable.len() as u64));
        }
        counter(&mut encoder, "discovery_passes", "Attempts to apply a snapshot", passes)?;
        gauge(&mut encoder, "discovery_applied_generation", "Generation of the snapshot last applied", applied)?;
        gauge(&mut encoder, "discovery_target_failing", "Whether the last attempt failed", failing)?;
        gauge(&mut encoder, "discovery_target_away", "Whether the target did not answer the last look", away)?;
        gauge(&mut encoder, "discovery_not_schedulable", "Applied workers that take no bookings", idle)
    }
}

/// Writes a gauge.
pub(crate) fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, series: Series<'_>) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in series {
        metric.encode_family(&labels)?.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))?;
    }
    Ok(())
}

/// Writes a counter.
pub(crate) fn counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, series: Series<'_>) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, value) in series {
        metric.encode_family(&labels)?.encode_counter::<Vec<(&str, &str)>, _, u64>(&value, None)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovery::SourceState;

    #[test]
    fn refusals_and_targets_show() {
        let metrics = Metrics::default();
        let counters = Arc::new(SourceCounters::default());
        counters.count_refusal("syntax");
        let (_publish, source) = watch::channel(SourceState { snapshot: None, error: Some("bad".into()) });
        let (_status, target) = watch::channel(TargetStatus { failures: 3, ..TargetStatus::default() });
        register(&metrics, source, counters, vec![("http://a".to_owned(), target)]);
        let text = metrics.encode().unwrap();
        for line in [
            "pointsman_source_failing 1",
            "pointsman_source_refusals_total{reason=\"syntax\"} 1",
            "pointsman_source_refusals_total{reason=\"empty\"} 0",
            "pointsman_discovery_passes_total{target=\"http://a\",outcome=\"failed\"} 3",
            "pointsman_discovery_target_failing{target=\"http://a\"} 0",
        ] {
            assert!(text.contains(line), "no {line} in\n{text}");
        }
    }

    #[test]
    fn peers_show_by_state() {
        let metrics = Metrics::default();
        let mut status = WiringStatus { registered: 2, away: true, ..WiringStatus::default() };
        status.plan.wanted = vec!["tcp://b:9092".to_owned(), "tcp://c:9092".to_owned()];
        status.plan.register = vec![("tcp://c:9092".to_owned(), "http://c".into())];
        let (_status, target) = watch::channel(status);
        register_wiring(&metrics, vec![("http://a".to_owned(), target)]);
        let text = metrics.encode().unwrap();
        for line in [
            "pointsman_discovery_peers{target=\"http://a\",state=\"wanted\"} 2",
            "pointsman_discovery_peers{target=\"http://a\",state=\"missing\"} 1",
            "pointsman_discovery_peer_changes_total{target=\"http://a\",change=\"registered\"} 2",
            "pointsman_discovery_wired{target=\"http://a\"} 0",
        ] {
            assert!(text.contains(line), "no {line} in\n{text}");
        }
    }
}
