//! The queues: what waits, how long it waited, who was refused.

use std::{collections::BTreeMap, fmt};

use prometheus_client::{encoding::DescriptorEncoder, metrics::MetricType};

use super::{Family, OTHERS, Shared, count, partition_labels};
use crate::selection::{
    core::PartitionFilter,
    queue::{
        counters::{ClassCounts, WAIT_BOUNDS},
        report::limit_words,
    },
};

/// Series of classes shown by name, over all partitions; the rest are summed.
const MAX_CLASS_SERIES: usize = 500;

const LABELS: [&str; 3] = ["model", "group", "policy_class"];

type Labels = [String; 3];

/// Labels of a class, or of the rest once there are many.
fn labels(known: usize, model: &str, group: &str, class: &str) -> Labels {
    let names = if known < MAX_CLASS_SERIES { [model, group, class] } else { [OTHERS; 3] };
    names.map(str::to_owned)
}

pub(super) fn encode(shared: &Shared, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    depths(shared, encoder)?;
    let mut classes: BTreeMap<Labels, ClassCounts> = BTreeMap::new();
    for (position, partition) in shared.core.queue_counts().into_iter().enumerate() {
        let [model, group] = partition_labels(position, &partition.model_name, &partition.routing_group);
        for (class, counts) in partition.classes {
            let labels = labels(classes.len(), model, group, &class);
            classes.entry(labels).or_default().add(&counts);
        }
    }
    let mut rejected = Family::counter(
        "queue_rejected_requests",
        "Requests refused by a limit of the queue",
        ["model", "group", "policy_class", "limit_kind"],
    );
    let mut expired = Family::counter("queue_expired_requests", "Requests whose deadline passed in the queue", LABELS);
    let mut cancelled = Family::counter("queue_cancelled_requests", "Waiting requests whose client left", LABELS);
    for ([model, group, class], counts) in &classes {
        for (kind, number) in limit_words().into_iter().zip(counts.rejected).filter(|(_, number)| *number > 0) {
            rejected.add([model, group, class, kind], count(number));
        }
        expired.add([model, group, class], count(counts.expired));
        cancelled.add([model, group, class], count(counts.cancelled));
    }
    rejected.encode(encoder)?;
    expired.encode(encoder)?;
    cancelled.encode(encoder)?;
    waits(&classes, encoder)
}

fn depths(shared: &Shared, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let mut waiting = Family::gauge("queue_waiting_requests", "Requests that wait, by policy class", LABELS);
    let mut tokens = Family::gauge("queue_waiting_tokens", "Prompt tokens that wait, by policy class", LABELS);
    let mut oldest = Family::gauge("queue_oldest_seconds", "Time since the longest waiting request came", LABELS);
    let mut busy = Family::gauge("queue_busy_ranks", "Ranks that are busy for the policy class", LABELS);
    let mut known = 0;
    for (position, partition) in shared.core.queues(&PartitionFilter::default()).into_iter().enumerate() {
        let [model, group] = partition_labels(position, &partition.model_name, &partition.routing_group);
        for class in partition.classes.iter().filter(|_| partition.enabled) {
            let labels = labels(known, model, group, &class.policy_class);
            let labels = [&*labels[0], &*labels[1], &*labels[2]];
            known += 1;
            waiting.add(labels, count(class.waiting));
            tokens.add(labels, count(class.isl_tokens));
            oldest.max(labels, class.oldest_age_seconds.unwrap_or(0.0));
            busy.add(labels, count(class.busy_ranks));
        }
    }
    waiting.encode(encoder)?;
    tokens.encode(encoder)?;
    oldest.encode(encoder)?;
    busy.encode(encoder)
}

fn waits(classes: &BTreeMap<Labels, ClassCounts>, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "Time from a request's arrival at the queue to its turn";
    let mut metric = encoder.encode_descriptor("queue_wait_seconds", help, None, MetricType::Histogram)?;
    for (values, counts) in classes {
        let labels: Vec<(&str, &str)> = LABELS.into_iter().zip(values.iter().map(String::as_str)).collect();
        let bounds = WAIT_BOUNDS.into_iter().chain([f64::MAX]);
        let buckets: Vec<(f64, u64)> = bounds.zip(counts.waits).collect();
        let total = counts.waits.iter().sum();
        let mut series = metric.encode_family(&labels)?;
        series.encode_histogram::<Vec<(&str, &str)>>(counts.waited_seconds, total, &buckets, None)?;
    }
    Ok(())
}
