//! Random fleets in the middle of their work, and what is asked of them.

use std::time::Duration;

use super::*;

pub(in crate::selection::policy::builtin) fn seeds(default: u64) -> std::ops::Range<u64> {
    0..std::env::var("POINTSMAN_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(default)
}

pub(in crate::selection::policy::builtin) fn one_of<T: Copy>(rng: &mut fastrand::Rng, values: &[T]) -> T {
    values[rng.usize(0..values.len())]
}

const TAINTS: [&str; 4] = ["a", "b", "c", "d"];

fn random_taints(rng: &mut fastrand::Rng, variety: usize) -> BTreeSet<String> {
    TAINTS[..variety].iter().filter(|_| rng.u32(0..3) == 0).map(|taint| (*taint).to_owned()).collect()
}

/// One of a few chains, cut anywhere: prompts share prefixes.
fn chain(rng: &mut fastrand::Rng, longest: u64) -> Vec<u64> {
    let chain = rng.u64(0..4) << 32;
    (0..rng.u64(0..=longest)).map(|block| chain + block).collect()
}

/// A fleet in the middle of its work.
pub(in crate::selection::policy::builtin) struct World<P> {
    pub(in crate::selection::policy::builtin) fleet: Fleet<P>,
    pub(in crate::selection::policy::builtin) workers: u64,
    pub(in crate::selection::policy::builtin) longest: u64,
    pub(in crate::selection::policy::builtin) live: Vec<BookingId>,
    pub(in crate::selection::policy::builtin) now: Moment,
    /// Share of ranks that get all the bookings, so that the rest stays idle.
    pub(in crate::selection::policy::builtin) busy: u64,
    /// Loads differ little, so that costs tie or nearly do.
    pub(in crate::selection::policy::builtin) close: bool,
}

impl<P: SelectionPolicy> World<P> {
    /// A random fleet under a policy for blocks of as many tokens as it is told.
    pub(in crate::selection::policy::builtin) fn new(
        rng: &mut fastrand::Rng,
        policy: impl FnOnce(&mut fastrand::Rng, u32) -> P,
    ) -> Self {
        let workers = one_of(rng, &[1, 2, 3, 8, 20, 60, 150]);
        let block_size = one_of(rng, &[10, 16, 16, 24, 64]);
        let mut fleet = Fleet::with_policy(policy(rng, block_size), block_size);
        let variety = one_of(rng, &[0, 0, 1, 2, 4]);
        for worker_id in 1..=workers {
            let taints = random_taints(rng, variety);
            let facts =
                Arc::new(WorkerFacts { worker_id, taints, draining: rng.u32(0..12) == 0, ..Default::default() });
            for dp_rank in 0..one_of(rng, &[1, 1, 1, 2]) {
                fleet.load.upsert_rank(WorkerWithDpRank::new(worker_id, dp_rank), facts.clone());
            }
        }
        let (busy, close) = (rng.u64(1..=workers), rng.bool());
        Self { fleet, workers, longest: one_of(rng, &[4, 12, 60]), live: vec![], now: Moment(0), busy, close }
    }

    pub(in crate::selection::policy::builtin) fn work(&mut self, rng: &mut fastrand::Rng) {
        self.now = Moment(self.now.0 + rng.u64(0..2_000_000_000));
        let load = &mut self.fleet.load;
        match rng.u32(0..10) {
            0..=5 => {
                let worker = rng.u64(1..=self.busy);
                let slots: Vec<Slot> = load.slots_of(worker).collect();
                let booking = NewBooking {
                    id: BookingId(self.fleet.next),
                    slot: one_of(rng, &slots),
                    sequence: chain(rng, self.longest).into(),
                    prefill_tokens: if self.close {
                        10 * rng.u64(0..6)
                    } else {
                        one_of(rng, &[0, 1, 16, 500, 2000, u64::MAX])
                    },
                    prefill_duration: (rng.u32(0..8) == 0).then(|| Duration::from_millis(rng.u64(0..9000))),
                    expected_output_tokens: None,
                };
                self.live.push(booking.id);
                self.fleet.next += 1;
                assert!(load.book(booking, self.now).0);
            }
            kind if !self.live.is_empty() => {
                let at = rng.usize(0..self.live.len());
                match kind {
                    6 => assert!(load.prefill_complete(self.live[at], self.now)),
                    7 => assert!(load.output_block(self.live[at], rng.bool().then(|| rng.f64()), self.now)),
                    _ => assert!(load.free(self.live.swap_remove(at), self.now)),
                }
            }
            _ => {
                let worker_id = rng.u64(1..=self.workers);
                let facts = WorkerFacts { worker_id, draining: rng.bool(), ..Default::default() };
                load.upsert_rank(WorkerWithDpRank::new(worker_id, 0), Arc::new(facts));
            }
        }
    }

    /// Disjoint classes over the lanes, some of which are bound to no slot.
    pub(in crate::selection::policy::builtin) fn random_matches(&mut self, rng: &mut fastrand::Rng, blocks: u32) {
        let mut lanes: Vec<u16> = (0..self.fleet.load.rows().len() as u16 + 8).collect();
        rng.shuffle(&mut lanes);
        self.fleet.matches.classes.clear();
        for _ in 0..rng.u32(0..4) {
            let take = one_of(rng, &[1, 2, lanes.len() / 3, lanes.len() / 2, lanes.len() * 9 / 10]).min(lanes.len());
            let mut some: Vec<u16> = lanes.drain(..take).collect();
            some.sort_unstable();
            if some.is_empty() {
                continue;
            }
            let mut part = |most: u32| rng.u32(0..=most);
            let device = part(blocks);
            let host = if part(2) == 0 { part(blocks - device) } else { 0 };
            let disk = if part(2) == 0 { part(blocks - device - host) } else { 0 };
            let external = if part(3) == 0 { part(blocks - device - host - disk) } else { 0 };
            let bits = || {
                let mut words = vec![0u64; usize::from(*some.last().unwrap()) / 64 + 1];
                some.iter().for_each(|lane| words[usize::from(*lane) / 64] |= 1 << (lane % 64));
                LaneSet::Bits(words)
            };
            let lanes = if rng.bool() { bits() } else { LaneSet::List(some) };
            self.fleet.matches.classes.push(MatchClass { blocks: TierBlocks { device, host, disk, external }, lanes });
        }
    }

    pub(in crate::selection::policy::builtin) fn random_ask(&mut self, rng: &mut fastrand::Rng) -> Ask {
        let sequence = chain(rng, self.longest);
        let block_size = u64::from(self.fleet.load.block_size());
        let tokens = sequence.len() as u64 * block_size + one_of(rng, &[0, 0, 1, block_size - 1]);
        let tokens = if rng.u32(0..20) == 0 { one_of(rng, &[0, 1, u64::MAX]) } else { tokens };
        let subset =
            |rng: &mut fastrand::Rng, most: u64| (0..rng.u64(0..=most)).map(|_| rng.u64(0..=self.workers)).collect();
        Ask {
            tokens,
            sequence,
            untracked: rng.u32(0..4) == 0,
            allowed: match rng.u32(0..6) {
                0 => Some(subset(rng, 3)),
                1 => Some(subset(rng, 2 * self.workers)),
                _ => None,
            },
            pin: (rng.u32(0..12) == 0).then(|| WorkerWithDpRank::new(rng.u64(0..=self.workers), rng.u32(0..2))),
            affinity: (rng.u32(0..12) == 0).then(|| AffinityTarget {
                worker_id: rng.u64(0..=self.workers),
                dp_rank: rng.bool().then(|| rng.u32(0..2)),
            }),
            constraints: RoutingConstraints {
                required_taints: if rng.u32(0..4) == 0 { random_taints(rng, 3) } else { BTreeSet::new() },
                preferred_taints: if rng.u32(0..3) == 0 {
                    random_taints(rng, 4).into_iter().map(|taint| (taint, rng.f32() * 4.0 - 2.0)).collect()
                } else {
                    Default::default()
                },
            },
            overrides: (rng.u32(0..6) == 0).then(|| RouterConfigOverride {
                overlap_score_credit: rng.bool().then(|| one_of(rng, &[0.0, 0.5, 2.0])),
                prefill_load_scale: rng.bool().then(|| one_of(rng, &[0.0, 1.0, 3.0])),
                ..Default::default()
            }),
            explain: false,
        }
    }
}
