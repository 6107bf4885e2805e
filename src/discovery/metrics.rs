//! What a scrape shows of discovery: what the source read and refused, and how each target stands.
//!
//! Labels: targets are those of the command line, reasons a fixed list.

use std::{fmt, sync::Arc};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, metrics::MetricType};
use tokio::sync::watch;

use super::{SourceStatus, apply::TargetStatus, source::SourceCounters};
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

type Series<'a> = Vec<(Vec<(&'a str, &'a str)>, u64)>;

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
        for (name, status) in &self.targets {
            let (status, target) = (status.borrow(), ("target", name.as_str()));
            passes.push((vec![target, ("outcome", "applied")], status.passes));
            passes.push((vec![target, ("outcome", "failed")], status.failures));
            applied.push((vec![target], status.applied.as_ref().map_or(0, |(version, _)| version.generation)));
            failing.push((vec![target], u64::from(status.error.is_some())));
            idle.push((vec![target], status.report.not_schedulable.len() as u64));
        }
        counter(&mut encoder, "discovery_passes", "Attempts to apply a snapshot", passes)?;
        gauge(&mut encoder, "discovery_applied_generation", "Generation of the snapshot last applied", applied)?;
        gauge(&mut encoder, "discovery_target_failing", "Whether the last attempt failed", failing)?;
        gauge(&mut encoder, "discovery_not_schedulable", "Applied workers that take no bookings", idle)
    }
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, series: Series<'_>) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in series {
        metric.encode_family(&labels)?.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))?;
    }
    Ok(())
}

fn counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, series: Series<'_>) -> fmt::Result {
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
}
