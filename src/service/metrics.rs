//! What a scrape shows of the service: sizes and loads, read when asked for.
//!
//! Label values are names that clients choose (models, groups, owners), so their number has a limit; what is beyond it
//! is summed under [`OTHERS`].

mod queue;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Weak, atomic::Ordering},
};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, metrics::MetricType};

use super::Shared;
use crate::{
    selection::{Tier, core::PartitionFilter, policy::failures::PluginComponent, worker::Lifecycle},
    telemetry::readiness::Condition,
};

/// Partitions, and owners, shown by name.
const MAX_NAMES: usize = 100;
/// Label of the rest.
const OTHERS: &str = "_others";

pub(super) fn register(shared: &Arc<Shared>) {
    let collector = Box::new(ServiceCollector(Arc::downgrade(shared)));
    shared.metrics.register(|registry| registry.register_collector(collector));
    shared.sources.register(&shared.metrics);
}

struct ServiceCollector(Weak<Shared>);

impl fmt::Debug for ServiceCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServiceCollector")
    }
}

/// Values by labels; values of equal labels add up.
pub(super) struct Family<const N: usize> {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    labels: [&'static str; N],
    values: BTreeMap<[String; N], f64>,
}

impl<const N: usize> Family<N> {
    pub(super) fn gauge(name: &'static str, help: &'static str, labels: [&'static str; N]) -> Self {
        Self { name, help, kind: MetricType::Gauge, labels, values: BTreeMap::new() }
    }

    pub(super) fn counter(name: &'static str, help: &'static str, labels: [&'static str; N]) -> Self {
        Self { kind: MetricType::Counter, ..Self::gauge(name, help, labels) }
    }

    /// Values without a type: their names have no suffix that OpenMetrics would want of a counter.
    pub(super) fn untyped(name: &'static str, help: &'static str, labels: [&'static str; N]) -> Self {
        Self { kind: MetricType::Unknown, ..Self::gauge(name, help, labels) }
    }

    pub(super) fn add(&mut self, labels: [&str; N], value: f64) {
        *self.values.entry(labels.map(str::to_owned)).or_default() += value;
    }

    fn max(&mut self, labels: [&str; N], value: f64) {
        let known = self.values.entry(labels.map(str::to_owned)).or_default();
        *known = known.max(value);
    }

    pub(super) fn encode(self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut metric = encoder.encode_descriptor(self.name, self.help, None, self.kind)?;
        for (values, number) in self.values {
            let labels: Vec<(&str, String)> = self.labels.into_iter().zip(values).collect();
            let mut series = metric.encode_family(&labels)?;
            match self.kind {
                MetricType::Counter => series.encode_counter::<Vec<(&str, String)>, _, f64>(&number, None)?,
                _ => series.encode_gauge(&number)?,
            }
        }
        Ok(())
    }
}

pub(super) fn count(value: u64) -> f64 {
    value as f64
}

fn flag(value: bool) -> f64 {
    f64::from(u8::from(value))
}

impl Collector for ServiceCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(shared) = self.0.upgrade() else { return Ok(()) };
        process(&shared, &mut encoder)?;
        catalog(&shared, &mut encoder)?;
        index(&shared, &mut encoder)?;
        load(&shared, &mut encoder)?;
        work(&shared, &mut encoder)?;
        shadows(&shared, &mut encoder)?;
        super::classifier::encode(&shared, &mut encoder)?;
        queue::encode(&shared, &mut encoder)?;
        shared.policies.encode(&mut encoder)
    }
}

/// Errors and panics of plugins.
fn plugins(shared: &Shared) -> Family<2> {
    let help = "Errors and panics of policy plugins, by component";
    let mut failures = Family::counter("plugin_failures", help, ["component", "kind"]);
    let counted = shared.core.plugin_failures();
    for component in PluginComponent::ALL {
        failures.add([component.as_str(), "error"], count(counted.errors(component)));
        failures.add([component.as_str(), "panic"], count(counted.panics(component)));
    }
    failures
}

/// What shadow policies have shown.
fn shadows(shared: &Shared, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "Requests decided beside a shadow policy, by what comparing the two came to";
    let mut decisions = Family::counter("shadow_decisions", help, ["instance", "outcome"]);
    let mut acted = Family::counter("shadow_acted", "Requests that the shadow policy decided", ["instance"]);
    let help = "Prefill tokens that one policy's choice had to compute before the first token beyond the other's";
    let mut regret = Family::counter("shadow_regret_tokens", help, ["instance", "of"]);
    for (instance, report) in shared.core.shadow_reports() {
        for (outcome, times) in [("same", report.same), ("different", report.different), ("failed", report.failed)] {
            decisions.add([&instance, outcome], count(times));
        }
        acted.add([&instance], count(report.acted));
        regret.add([&instance, "in_force"], count(report.in_force_regret_tokens));
        regret.add([&instance, "shadow"], count(report.shadow_regret_tokens));
    }
    decisions.encode(encoder)?;
    acted.encode(encoder)?;
    regret.encode(encoder)
}

fn process(shared: &Shared, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let mut conditions = Family::gauge("ready_condition", "Readiness conditions that hold", ["condition"]);
    for condition in Condition::ALL {
        conditions.add([condition.name()], flag(shared.readiness.is_set(condition)));
    }
    conditions.encode(encoder)?;
    let mut stopping = Family::gauge("shutting_down", "Whether the service is going down", []);
    stopping.add([], flag(shared.readiness.is_shutting_down()));
    stopping.encode(encoder)?;
    let mut tasks = Family::gauge("task_running", "Background tasks that run", ["task"]);
    for (name, running) in shared.tasks.running() {
        tasks.add([name], flag(running));
    }
    tasks.encode(encoder)?;
    let mut age = Family::gauge("tick_age_seconds", "Time since periodic work last completed", []);
    age.add([], shared.ticked.age().as_secs_f64());
    age.encode(encoder)?;
    let mut panics = Family::counter("panics", "Panics contained inside verbs", []);
    panics.add([], count(shared.panics.load(Ordering::Relaxed)));
    panics.encode(encoder)?;
    plugins(shared).encode(encoder)?;
    let help = "Index exports forgotten before their end because no peer went on with them";
    let mut forgotten = Family::counter("index_exports_forgotten", help, []);
    forgotten.add([], count(shared.exports.forgotten()));
    forgotten.encode(encoder)?;
    let mut recovery = Family::gauge("recovery_attempts", "Peers asked at start, by outcome", ["outcome"]);
    let mut recovered = Family::gauge("recovery_blocks", "Blocks recovered from a peer at start", []);
    if let Some(report) = shared.recovery.borrow().as_ref() {
        for attempt in &report.attempts {
            recovery.add([attempt.reason.unwrap_or("ok")], 1.0);
        }
        recovered.add([], count(report.blocks));
    }
    recovery.encode(encoder)?;
    recovered.encode(encoder)
}

fn catalog(shared: &Shared, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let mut workers = Family::gauge("workers", "Registered workers, by lifecycle", ["lifecycle"]);
    for lifecycle in [Lifecycle::Incomplete, Lifecycle::Schedulable, Lifecycle::Draining, Lifecycle::Unschedulable] {
        workers.add([lifecycle_word(lifecycle)], 0.0);
    }
    for record in shared.core.workers(&PartitionFilter::default()) {
        workers.add([lifecycle_word(record.lifecycle)], 1.0);
    }
    workers.encode(encoder)?;

    let mut owned = Family::gauge("catalog_workers", "Workers, by owner", ["owner"]);
    let mut epoch = Family::gauge("catalog_epoch", "Epoch of the owner's snapshot in force", ["owner"]);
    let mut generation = Family::gauge("catalog_generation", "Generation of the owner's snapshot in force", ["owner"]);
    let mut failing = Family::gauge("catalog_source_failing", "Owners whose source is behind", ["owner"]);
    for (position, owner) in shared.core.catalog().owners.into_iter().enumerate() {
        if position >= MAX_NAMES {
            owned.add([OTHERS], count(owner.workers));
            failing.add([OTHERS], flag(owner.source_error.is_some()));
            continue;
        }
        owned.add([&owner.owner], count(owner.workers));
        epoch.add([&owner.owner], count(owner.version.epoch));
        generation.add([&owner.owner], count(owner.version.generation));
        failing.add([&owner.owner], flag(owner.source_error.is_some()));
    }
    owned.encode(encoder)?;
    epoch.encode(encoder)?;
    generation.encode(encoder)?;
    failing.encode(encoder)
}

fn lifecycle_word(lifecycle: Lifecycle) -> &'static str {
    match lifecycle {
        Lifecycle::Incomplete => "incomplete",
        Lifecycle::Schedulable => "schedulable",
        Lifecycle::Draining => "draining",
        Lifecycle::Unschedulable => "unschedulable",
    }
}

fn tier_word(tier: Tier) -> &'static str {
    match tier {
        Tier::Device => "device",
        Tier::HostPinned => "host_pinned",
        Tier::Disk => "disk",
        Tier::External => "external",
    }
}

/// Labels of the partition at `position` of the sorted list.
fn partition_labels<'a>(position: usize, model_name: &'a str, routing_group: &'a str) -> [&'a str; 2] {
    if position < MAX_NAMES { [model_name, routing_group] } else { [OTHERS, OTHERS] }
}

fn index(shared: &Shared, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    const LABELS: [&str; 2] = ["model", "group"];
    let mut schedulable = Family::gauge("partition_schedulable_workers", "Workers that take bookings", LABELS);
    let mut held = Family::gauge("index_blocks", "Held blocks, counted once a holder", ["model", "group", "tier"]);
    let mut chunks = Family::gauge("index_chunks", "Chunks of content", LABELS);
    let mut names = Family::gauge("index_names", "Distinct blocks with a name", LABELS);
    let mut lanes = Family::gauge("index_lanes", "Rank incarnations that hold or held blocks", LABELS);
    let mut orphans = Family::gauge("index_waiting_events", "Store events that wait for their parent", LABELS);
    let mut bytes = Family::gauge("index_bytes", "Estimated heap of the index", LABELS);
    for (position, partition) in shared.core.partitions(&PartitionFilter::default()).into_iter().enumerate() {
        let labels = partition_labels(position, &partition.key.model_name, &partition.key.routing_group);
        let stats = partition.index.primary().stats();
        for tier in Tier::ALL {
            held.add([labels[0], labels[1], tier_word(tier)], count(stats.held[tier as usize]));
        }
        schedulable.add(labels, count(partition.schedulable_workers()));
        chunks.add(labels, count(stats.chunks));
        names.add(labels, count(stats.names));
        lanes.add(labels, count(stats.lanes));
        orphans.add(labels, count(stats.orphans));
        bytes.add(labels, count(stats.bytes));
    }
    schedulable.encode(encoder)?;
    held.encode(encoder)?;
    chunks.encode(encoder)?;
    names.encode(encoder)?;
    lanes.encode(encoder)?;
    orphans.encode(encoder)?;
    bytes.encode(encoder)
}

fn work(shared: &Shared, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    const LABELS: [&str; 2] = ["model", "group"];
    let help = "Ranks by how their prefill work ahead is known";
    let mut forms = Family::gauge("work_ahead_ranks", help, ["model", "group", "form"]);
    let help = "Prefill tokens booked and not computed yet, as the work-ahead policy sees it";
    let mut tokens = Family::gauge("work_ahead_tokens", help, LABELS);
    let help = "Prefill tokens a second of one rank, as learned from first tokens";
    let mut rate = Family::gauge("work_ahead_prefill_rate", help, LABELS);
    let help = "Ranks whose events are late, broken or absent, so that own bookings count as cached there";
    let mut unheard = Family::gauge("work_ahead_unheard_ranks", help, LABELS);
    for (position, report) in shared.core.work_reports(&PartitionFilter::default()).into_iter().enumerate() {
        let labels = partition_labels(position, &report.model_name, &report.routing_group);
        for (form, ranks) in report.ranks {
            forms.add([labels[0], labels[1], form], count(ranks));
        }
        tokens.add(labels, count(report.tokens));
        rate.max(labels, report.rate);
        unheard.add(labels, count(report.unheard_ranks));
    }
    forms.encode(encoder)?;
    tokens.encode(encoder)?;
    rate.encode(encoder)?;
    unheard.encode(encoder)
}

fn load(shared: &Shared, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    const LABELS: [&str; 2] = ["model", "group"];
    let mut ranks = Family::gauge("load_ranks", "Ranks that can be selected", LABELS);
    let mut requests = Family::gauge("load_active_requests", "Live bookings", LABELS);
    let mut tokens = Family::gauge("load_prefill_tokens", "Prefill tokens in progress", LABELS);
    let mut blocks = Family::gauge("load_active_blocks", "Active blocks", LABELS);
    let mut pending = Family::gauge("queue_pending_requests", "Requests that wait", LABELS);
    let mut pending_tokens = Family::gauge("queue_pending_tokens", "Prompt tokens that wait", LABELS);
    for (position, partition) in shared.core.loads(&PartitionFilter::default()).into_iter().enumerate() {
        let labels = partition_labels(position, &partition.model_name, &partition.routing_group);
        for row in &partition.loads {
            requests.add(labels, count(row.active_requests));
            tokens.add(labels, count(row.potential_prefill_tokens));
            blocks.add(labels, count(row.potential_decode_blocks));
        }
        ranks.add(labels, partition.loads.len() as f64);
        pending.add(labels, count(partition.pending_count));
        pending_tokens.add(labels, count(partition.pending_isl_tokens));
    }
    ranks.encode(encoder)?;
    requests.encode(encoder)?;
    tokens.encode(encoder)?;
    blocks.encode(encoder)?;
    pending.encode(encoder)?;
    pending_tokens.encode(encoder)
}
