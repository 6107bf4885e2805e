//! From a wanted record to a live worker: the one place where partitions, slots, listeners and bookings of a worker
//! change, under the catalog's lock and in this order:
//!
//! 1. the load tracker loses ranks that go, and takes those that come (no pick sees a rank without its listener);
//! 2. sinks of listeners that go are closed and their blocks removed, then the listeners are detached;
//! 3. new listeners are attached;
//! 4. the record is published.
//!
//! A record is put in place in one synchronous call: a caller that goes away leaves nothing half done.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::MutexGuard;

use super::{BookingEnd, SelectionCore};
use crate::selection::{
    catalog::{Attached, Catalog, Entry, Stream},
    identity::WorkerWithDpRank,
    ingest::{EventSink, EventSource, WorkerRanks},
    partition::{JoinError, Partition, PartitionRef, PartitionTraits},
    policy::inputs::WorkerInputs,
    trust::Trust,
    worker::{Lifecycle, Needs, RankSource, WorkerPlan, WorkerRecord, WorkerRequest, WorkerState},
};

/// Records put in place before the catalog's lock is offered to others.
pub(super) const RECORDS_AT_ONCE: usize = 64;

/// Why a worker that is only indexed takes no bookings.
const INDEXED_ONLY: &str = "only its cache is indexed";

/// Why a worker with complete metadata has no place.
enum Refusal {
    /// Its own doing: trying again gives the same answer.
    Worker(String),
    /// Other workers' doing.
    Partition(String),
}

impl SelectionCore {
    /// Puts `request` in place of whatever is live under its id.
    pub(super) fn put(
        &self,
        catalog: &mut Catalog,
        request: Arc<WorkerRequest>,
        state: WorkerState,
        owner: Arc<str>,
    ) -> Arc<WorkerRecord> {
        let worker_id = request.worker_id;
        let (previous, mut attached) = match catalog.workers.remove(&worker_id) {
            Some(entry) => (Some(entry.record), entry.attached),
            None => (None, None),
        };
        let mut counted = previous.as_ref().is_some_and(|record| record.is_schedulable());
        let capacity = self.profile_of(&request.model_name).queues();
        let placed = match request.plan(state, Needs { events: self.config.use_kv_events, capacity }) {
            Ok(plan) => self.place(catalog, &mut attached, &mut counted, &request, &plan),
            Err(reasons) => {
                self.detach(catalog, worker_id, &mut attached, &mut counted);
                Err((reasons, false))
            }
        };
        let (lifecycle, not_schedulable_reasons, blocked) = match (placed, state) {
            (Ok(()), WorkerState::Active) => (Lifecycle::Schedulable, Vec::new(), false),
            (Ok(()), WorkerState::Draining) => (Lifecycle::Draining, Vec::new(), false),
            (Ok(()), WorkerState::Indexed) => (Lifecycle::Unschedulable, vec![INDEXED_ONLY.to_owned()], false),
            (Err((reasons, blocked)), _) => (Lifecycle::Incomplete, reasons, blocked),
        };
        if let Some(attached) = &attached {
            self.count(&attached.partition, &mut counted, lifecycle == Lifecycle::Schedulable);
        }
        catalog.blocked.set(worker_id, blocked.then(|| request.partition()));
        mark(&mut catalog.draining, worker_id, state == WorkerState::Draining);
        let record = Arc::new(WorkerRecord { request, lifecycle, not_schedulable_reasons, owner, state });
        catalog.workers.insert(worker_id, Entry { record: Arc::clone(&record), attached });
        self.publish(previous.as_deref(), Some(&record));
        record
    }

    /// Removes a live worker; `None` when there is none.
    pub(super) fn remove(&self, catalog: &mut Catalog, worker_id: u64) -> Option<Arc<WorkerRecord>> {
        let mut entry = catalog.workers.remove(&worker_id)?;
        catalog.blocked.set(worker_id, None);
        mark(&mut catalog.draining, worker_id, false);
        let mut counted = entry.record.is_schedulable();
        self.detach(catalog, worker_id, &mut entry.attached, &mut counted);
        self.publish(Some(&entry.record), None);
        catalog.mark_wanted(worker_id);
        Some(entry.record)
    }

    /// Tries workers again that partitions which are gone kept out. Call it at the end of every verb. The lock is
    /// offered to others in between.
    pub(super) fn retry_freed(&self, catalog: &mut MutexGuard<'_, Catalog>) {
        let mut tried = 0;
        while let Some(key) = catalog.freed.pop_first() {
            let ids = catalog.blocked.of(&key);
            tried += ids.len().max(1);
            self.retry_blocked(catalog, &ids, |record| record.request.partition() == key);
            if tried >= RECORDS_AT_ONCE {
                tried = 0;
                MutexGuard::bump(catalog);
            }
        }
    }

    /// Tries those of `ids` again that are still blocked and that `wanted` picks. The lock is offered to others in
    /// between.
    pub(super) fn retry_blocked(
        &self,
        catalog: &mut MutexGuard<'_, Catalog>,
        ids: &[u64],
        wanted: impl Fn(&WorkerRecord) -> bool,
    ) {
        for (count, &id) in ids.iter().enumerate() {
            if count > 0 && count % RECORDS_AT_ONCE == 0 {
                MutexGuard::bump(catalog);
            }
            let Some(entry) = catalog.workers.get(&id).filter(|_| catalog.blocked.contains(id)) else { continue };
            let record = Arc::clone(&entry.record);
            if wanted(&record) {
                self.put(catalog, Arc::clone(&record.request), record.state, Arc::clone(&record.owner));
            }
        }
    }

    /// Finds the worker's partition, makes it if need be, and moves the worker in or updates it there. On an error the
    /// worker is attached nowhere; the flag says whether other workers are the cause.
    fn place(
        &self,
        catalog: &mut Catalog,
        attached: &mut Option<Attached>,
        counted: &mut bool,
        request: &WorkerRequest,
        plan: &WorkerPlan,
    ) -> Result<(), (Vec<String>, bool)> {
        let worker_id = request.worker_id;
        let placed = self
            .find_place(catalog, attached, counted, request, plan)
            .and_then(|partition| self.join(catalog, attached, counted, worker_id, &partition, plan));
        placed.map_err(|refusal| {
            self.detach(catalog, worker_id, attached, counted);
            match refusal {
                Refusal::Worker(reason) => (vec![reason], false),
                Refusal::Partition(reason) => (vec![reason], true),
            }
        })
    }

    fn find_place(
        &self,
        catalog: &mut Catalog,
        attached: &mut Option<Attached>,
        counted: &mut bool,
        request: &WorkerRequest,
        plan: &WorkerPlan,
    ) -> Result<PartitionRef, Refusal> {
        let worker_id = request.worker_id;
        let mut existing = self.partition(&request.model_name, &request.routing_group);
        if let Some(partition) = &existing
            && let Err(reason) = check_traits(partition, plan)
        {
            // Its only worker may change what it alone fixed: the partition goes and a new one comes.
            if !attached.as_ref().is_some_and(|attached| Arc::ptr_eq(&attached.partition, partition))
                || !partition.is_only_worker(worker_id)
            {
                return Err(Refusal::Partition(format!("reconciliation failed: {reason}")));
            }
            self.detach(catalog, worker_id, attached, counted);
            existing = None;
        }
        if self.config.use_kv_events {
            request
                .check_endpoints(&plan.ranks())
                .map_err(|reason| Refusal::Worker(format!("reconciliation failed: {reason}")))?;
        }
        let partition = existing.unwrap_or_else(|| self.create_partition(request.partition(), plan.block_size, None));
        // What is only indexed says neither.
        if !plan.indexed_only {
            partition.settle(PartitionTraits { is_eagle: plan.is_eagle, role: plan.role });
        }
        if attached.as_ref().is_some_and(|attached| !Arc::ptr_eq(&attached.partition, &partition)) {
            self.detach(catalog, worker_id, attached, counted);
        }
        Ok(partition)
    }

    fn join(
        &self,
        catalog: &mut Catalog,
        attached: &mut Option<Attached>,
        counted: &mut bool,
        worker_id: u64,
        partition: &PartitionRef,
        plan: &WorkerPlan,
    ) -> Result<(), Refusal> {
        let ranks = plan.ranks();
        let known = attached.as_ref().map_or(0..0, |attached| attached.ranks.registered());
        // A worker that drains from now on must not count as schedulable while it does.
        if plan.facts.draining {
            self.count(partition, counted, false);
        }
        let (ended, joined) =
            if plan.indexed_only { (partition.leave(worker_id), Ok(())) } else { partition.join(&plan.facts) };
        self.bookings.ended(&ended, BookingEnd::RankLeft, self.clock.now());
        partition.set_indexed_only(worker_id, plan.indexed_only && joined.is_ok());
        if let Err(error) = joined {
            if attached.is_none() {
                partition.forget(worker_id, ranks);
                self.drop_if_empty(partition);
            }
            return Err(Refusal::Partition(match error {
                JoinError::Full => "partition full".to_owned(),
                JoinError::Failed(error) => format!("reconciliation failed: {error}"),
            }));
        }
        let attached = attached.get_or_insert_with(|| Attached {
            partition: Arc::clone(partition),
            ranks: WorkerRanks::new(ranks.clone()),
            streams: BTreeMap::new(),
        });
        attached.ranks.set_registered(ranks.clone());
        // A policy that reads no cache needs no events.
        let listens = plan.indexed_only || partition.required_inputs().contains(WorkerInputs::CACHE);
        let none = BTreeMap::new();
        let sources = if listens { &plan.sources } else { &none };
        let kept = |rank: &u32, stream: &Stream| sources.get(rank) == Some(&stream.source);
        for (rank, stream) in attached.streams.extract_if(.., |rank, stream| !kept(rank, stream)) {
            stream.sink.close_and_clear();
            catalog.remove_stream(&stream.source.endpoint);
            partition.health().contain(|| self.sources.detach(worker_id, rank));
        }
        partition.health().contain(|| {
            for rank in known.filter(|rank| !ranks.contains(rank)) {
                partition.index.remove_rank(WorkerWithDpRank::new(worker_id, rank));
            }
        });
        for (&rank, source) in sources {
            if !attached.streams.contains_key(&rank) {
                let stream = self.attach(catalog, attached, worker_id, rank, source.clone());
                attached.streams.insert(rank, stream);
            }
        }
        Ok(())
    }

    fn attach(
        &self,
        catalog: &mut Catalog,
        attached: &Attached,
        worker_id: u64,
        dp_rank: u32,
        source: RankSource,
    ) -> Stream {
        if catalog.add_stream(&source.endpoint) {
            tracing::warn!(
                worker_id,
                dp_rank,
                endpoint = source.endpoint,
                "event endpoint serves another rank already"
            );
        }
        let sink = EventSink::new(Arc::clone(&attached.partition), worker_id, dp_rank, Arc::clone(&attached.ranks));
        let RankSource { endpoint, replay_endpoint } = source.clone();
        let wanted = EventSource { worker_id, dp_rank, endpoint, replay_endpoint };
        // A host that panics here loses this listener, not the catalog's order.
        attached.partition.health().contain(|| self.sources.attach(wanted, sink.clone()));
        Stream { source, sink }
    }

    /// Takes a worker out of its partition: selection first, then listeners and blocks. Bookings end.
    fn detach(&self, catalog: &mut Catalog, worker_id: u64, attached: &mut Option<Attached>, counted: &mut bool) {
        let Some(Attached { partition, ranks, streams }) = attached.take() else { return };
        self.count(&partition, counted, false);
        let ended = partition.leave(worker_id);
        partition.set_indexed_only(worker_id, false);
        self.bookings.ended(&ended, BookingEnd::RankLeft, self.clock.now());
        streams.values().for_each(|stream| stream.sink.close());
        partition.forget(worker_id, ranks.all());
        for rank in ranks.registered() {
            partition.set_trust(WorkerWithDpRank::new(worker_id, rank), Trust::Unknown);
        }
        for (rank, stream) in streams {
            catalog.remove_stream(&stream.source.endpoint);
            partition.health().contain(|| self.sources.detach(worker_id, rank));
        }
        if self.drop_if_empty(&partition) {
            catalog.freed.insert(partition.key.clone());
        }
    }

    /// Removes a partition without workers; its memory goes with the last request that still looks at it.
    pub(super) fn drop_if_empty(&self, partition: &PartitionRef) -> bool {
        let empty = partition.has_no_worker();
        if empty {
            let mut partitions = self.partitions.write();
            if partitions.get(&partition.key).is_some_and(|current| Arc::ptr_eq(current, partition)) {
                partitions.remove(&partition.key);
            }
        }
        empty
    }

    /// Keeps the numbers of schedulable workers: `counted` says whether this one is in them.
    fn count(&self, partition: &Partition, counted: &mut bool, schedulable: bool) {
        use std::sync::atomic::Ordering::Relaxed;
        match (*counted, schedulable) {
            (false, true) => {
                partition.add_schedulable();
                self.schedulable.fetch_add(1, Relaxed);
            }
            (true, false) => {
                self.schedulable.fetch_sub(1, Relaxed);
                partition.remove_schedulable();
            }
            _ => {}
        }
        *counted = schedulable;
    }

    /// Shows readers the new record in place of the old one.
    pub(super) fn publish(&self, old: Option<&WorkerRecord>, new: Option<&Arc<WorkerRecord>>) {
        let mut records = self.records.write();
        if let Some(old) = old {
            let key = old.request.partition();
            let moved = new.is_none_or(|new| new.request.partition() != key);
            if moved && let Some(group) = records.get_mut(&key) {
                group.remove(&old.request.worker_id);
                if group.is_empty() {
                    records.remove(&key);
                }
            }
        }
        if let Some(new) = new {
            let group = records.entry(new.request.partition()).or_default();
            group.insert(new.request.worker_id, Arc::clone(new));
        }
    }
}

fn mark(set: &mut BTreeSet<u64>, worker_id: u64, present: bool) {
    if present {
        set.insert(worker_id);
    } else {
        set.remove(&worker_id);
    }
}

/// Whether the worker fits what the partition's first worker fixed.
fn check_traits(partition: &Partition, plan: &WorkerPlan) -> Result<(), String> {
    let key = &partition.key;
    let traits = partition.traits();
    if partition.block_size != plan.block_size {
        // The reference words it differently while only a recovered dump has fixed the size.
        let comma = if traits.is_some() { "" } else { "," };
        let (existing, requested) = (partition.block_size, plan.block_size);
        return Err(format!("block_size mismatch for {key}: existing={existing}{comma} requested={requested}"));
    }
    let Some(traits) = traits.filter(|_| !plan.indexed_only) else { return Ok(()) };
    if traits.is_eagle != plan.is_eagle {
        return Err(format!("is_eagle mismatch for {key}: existing={} requested={}", traits.is_eagle, plan.is_eagle));
    }
    if traits.role != plan.role {
        return Err(format!("worker_role mismatch for {key}: existing={} requested={}", traits.role, plan.role));
    }
    Ok(())
}
