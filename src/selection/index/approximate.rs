//! An index of the router's own decisions, for engines without events and for predict-on-route: each booking records
//! its prompt for the chosen rank, and each block goes at its deadline unless booked again.
//!
//! Deadlines are ticks of 100 ms since the start. A block's deadline is kept once by (rank, block); what an older
//! booking queued for it is skipped when its own tick comes. A tick's queue holds only what was booked for it, so
//! memory is bounded by what was booked within one TTL.

use std::{collections::BTreeMap, time::Duration};

use hashbrown::HashMap;
use parking_lot::Mutex;

use super::{PrefixIndex, StoredBlock};
use crate::selection::{
    identity::{Tier, WorkerWithDpRank},
    moment::Moment,
};

/// Length of a tick of the expiry clock.
const TICK: Duration = Duration::from_millis(100);

/// Prefix index whose blocks expire `ttl` after they were last booked, rounded up to 100 ms.
#[derive(Debug)]
pub struct ApproximateIndex {
    index: PrefixIndex,
    ttl: Duration,
    start: Moment,
    expiry: Mutex<Expiry>,
}

/// The blocks one booking recorded for a rank.
type Booked = (WorkerWithDpRank, Box<[u64]>);

/// When what goes.
#[derive(Debug, Default)]
struct Expiry {
    /// Tick at which a block of a rank goes.
    deadlines: HashMap<(WorkerWithDpRank, u64), u64>,
    /// What may have to go at a tick: blocks of one booking each.
    due: BTreeMap<u64, Vec<Booked>>,
}

impl ApproximateIndex {
    /// An empty index whose deadlines are multiples of 100 ms counted from `start`.
    pub fn new(ttl: Duration, start: Moment) -> Self {
        Self { index: PrefixIndex::new(), ttl, start, expiry: Mutex::default() }
    }

    /// The index itself, for slots, lookups, removal of workers and dumps.
    pub fn index(&self) -> &PrefixIndex {
        &self.index
    }

    /// `rank` was sent this prompt: its blocks (named by their seqs) count until the new deadline.
    pub fn record(&self, rank: WorkerWithDpRank, locals: &[u64], seqs: &[u64], now: Moment) {
        if locals.is_empty() {
            return;
        }
        let after = now.after(self.ttl).since(self.start);
        let tick = u64::try_from(after.as_nanos().div_ceil(TICK.as_nanos())).unwrap_or(u64::MAX);
        let blocks: Vec<StoredBlock> =
            locals.iter().zip(seqs).map(|(&local, &name)| StoredBlock { name, local }).collect();
        let mut expiry = self.expiry.lock();
        self.index.store(rank, Tier::Device, None, &blocks);
        for block in &blocks {
            expiry.deadlines.insert((rank, block.name), tick);
        }
        expiry.due.entry(tick).or_default().push((rank, seqs.into()));
    }

    /// Removes what is past its deadline; returns how many blocks went.
    pub fn expire(&self, now: Moment) -> usize {
        let tick = u64::try_from(now.since(self.start).as_nanos() / TICK.as_nanos()).unwrap_or(u64::MAX);
        let mut expiry = self.expiry.lock();
        let mut gone = 0;
        while let Some(entry) = expiry.due.first_entry().filter(|entry| *entry.key() <= tick) {
            let due = *entry.key();
            for (rank, seqs) in entry.remove() {
                let names: Vec<u64> = seqs
                    .iter()
                    .copied()
                    .filter(|&seq| match expiry.deadlines.entry((rank, seq)) {
                        hashbrown::hash_map::Entry::Occupied(held) if *held.get() <= due => {
                            held.remove();
                            true
                        }
                        _ => false,
                    })
                    .collect();
                gone += self.index.remove(rank, Tier::Device, &names).removed;
            }
        }
        gone
    }
}
