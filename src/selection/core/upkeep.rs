//! Periodic work. Every part keeps its own period; one partition's panic stops no other's upkeep.

use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::{BookingEnd, PartitionFilter, SelectionCore, reconcile::RECORDS_AT_ONCE};
use crate::selection::{catalog::Entry, identity::WorkerWithDpRank, moment::Moment, partition::PartitionRef};

/// Expiry of bookings, as in the reference.
const EXPIRY_PERIOD: Duration = Duration::from_secs(60);
/// Workers that other workers keep out are tried again.
const BLOCKED_PERIOD: Duration = Duration::from_secs(60);
/// Draining workers are looked at.
const DRAIN_PERIOD: Duration = Duration::from_millis(500);
/// Partitions whose last selection panicked are tried.
const PROBE_PERIOD: Duration = Duration::from_secs(1);
/// Longest period of the session reaper.
const REAP_PERIOD: Duration = Duration::from_secs(30);
/// Chunks an index sweep visits in one hold of the writer's lock, and holds a tick.
const SWEEP_CHUNKS: usize = 4096;
const SWEEPS_A_TICK: usize = 8;

/// When each part is due next.
#[derive(Debug)]
pub(super) struct Upkeep(Mutex<Due>);

#[derive(Debug)]
struct Due {
    expiry: Moment,
    blocked: Moment,
    drain: Moment,
    probe: Moment,
    reap: Moment,
}

impl Upkeep {
    pub(super) fn new(now: Moment) -> Self {
        Self(Mutex::new(Due {
            expiry: now.after(EXPIRY_PERIOD),
            blocked: now.after(BLOCKED_PERIOD),
            drain: now,
            probe: now,
            reap: now.after(REAP_PERIOD),
        }))
    }
}

/// Whether a part is due; if so, when it is next.
fn take_turn(due: &mut Moment, period: Duration, now: Moment) -> bool {
    let turn = now >= *due;
    if turn {
        *due = now.after(period);
    }
    turn
}

impl SelectionCore {
    /// Periodic work: expiry of bookings, waiting requests, sessions and approximate blocks, index sweeps, owned workers that others
    /// changed, incomplete and drained workers. Call it about every 100 ms; each part keeps its own period. A call
    /// while another runs does nothing.
    pub fn tick(&self) {
        let Some(mut due) = self.upkeep.0.try_lock() else { return };
        let now = self.clock.now();
        let reap_period = self.config.session_affinity_ttl.unwrap_or(REAP_PERIOD).min(REAP_PERIOD);
        let expire = take_turn(&mut due.expiry, EXPIRY_PERIOD, now);
        let reap = take_turn(&mut due.reap, reap_period, now);
        let probe = take_turn(&mut due.probe, PROBE_PERIOD, now);
        for partition in self.partitions(&PartitionFilter::default()) {
            partition.health().contain(|| self.tend(&partition, now, expire, reap));
            if probe {
                partition.probe(now);
            }
        }
        if expire {
            self.expire_mirrored(now);
            self.sweep_bookings(now);
        }
        self.reconcile_dirty();
        if take_turn(&mut due.drain, DRAIN_PERIOD, now) {
            self.retire_drained();
        }
        if take_turn(&mut due.blocked, BLOCKED_PERIOD, now) {
            self.reconcile_blocked();
        }
    }

    fn tend(&self, partition: &PartitionRef, now: Moment, expire: bool, reap: bool) {
        if let Some(approximate) = partition.index.approximate() {
            approximate.expire(now);
        }
        for index in partition.index.all() {
            for _ in 0..SWEEPS_A_TICK {
                if !index.sweep(SWEEP_CHUNKS) {
                    break;
                }
            }
        }
        if reap {
            partition.sessions.reap(now);
        }
        partition.sessions.wake_overdue(now);
        partition.classifier.tick(now);
        let (lost, expired) = partition
            .with_state(|state| {
                state.queue.tick(&mut state.load, now);
                (state.take_lost(), if expire { state.load.expire(now) } else { Vec::new() })
            })
            .unwrap_or_default();
        self.bookings.ended(&lost, BookingEnd::Rebuilt, now);
        self.bookings.ended(&expired, BookingEnd::Expired, now);
    }

    /// Removes draining workers without bookings; what their owners want stays as it is.
    fn retire_drained(&self) {
        let Some(mut catalog) = self.catalog.try_lock() else { return };
        let drained: Vec<u64> = catalog
            .draining
            .iter()
            .copied()
            .filter(|id| catalog.workers.get(id).is_some_and(|entry| !has_bookings(entry)))
            .collect();
        for ids in drained.chunks(RECORDS_AT_ONCE) {
            for &id in ids {
                // Another verb may have put it back meanwhile.
                if catalog.draining.contains(&id) && catalog.workers.get(&id).is_some_and(|e| !has_bookings(e)) {
                    self.remove(&mut catalog, id);
                }
            }
            MutexGuard::bump(&mut catalog);
        }
        self.retry_freed(&mut catalog);
    }
}

fn has_bookings(entry: &Entry) -> bool {
    let Some(attached) = &entry.attached else { return false };
    let worker_id = entry.record.request.worker_id;
    let busy = attached.partition.with_state(|state| {
        let mut ranks = attached.ranks.registered();
        ranks.any(|dp_rank| state.load.bookings_of(WorkerWithDpRank::new(worker_id, dp_rank)) > 0)
    });
    // After a panic: asked again in a moment.
    busy.unwrap_or(true)
}
