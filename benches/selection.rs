//! Load tracking and the pick, without the index and the verbs around them, at 8 to 10,000 ranks.
//!
//! `cargo bench --bench selection`; `cargo bench --bench core` has the whole of a request.

#![allow(missing_docs, reason = "the group that criterion's macro makes has none")]

use std::{cell::RefCell, collections::VecDeque, hint::black_box, sync::Arc, time::Duration};

use criterion::{
    BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main,
    measurement::{Measurement, ValueFormatter, WallTime},
};
use nix::time::{ClockId, clock_gettime};
use pointsman::selection::{
    identity::WorkerWithDpRank,
    index::{Lane, LaneSet, MatchClass, Matches, TierBlocks},
    load::{BookingId, LoadConfig, LoadTracker, NewBooking, Slot, WorkerFacts},
    moment::Moment,
    policy::{
        CacheWeights, LaneMap, PickRequest, Picked, SelectionPolicy,
        builtin::default_cost::{DefaultCost, DefaultCostParameters},
        context::RequestFacts,
    },
    request::{RouterConfigOverride, RoutingConstraints},
};

const RANKS: [u64; 4] = [8, 64, 512, 10_000];
const BLOCK_SIZE: u32 = 16;
const PROMPT_BLOCKS: u64 = 128;

/// Blocks of the system prompt that all share.
const SHARED_BLOCKS: u64 = 64;

/// CPU time of this thread: other work on the machine does not count.
struct CpuTime;

impl Measurement for CpuTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
    }

    fn end(&self, start: Duration) -> Duration {
        self.start().saturating_sub(start)
    }

    fn add(&self, a: &Duration, b: &Duration) -> Duration {
        *a + *b
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        value.as_nanos() as f64
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

/// Lanes are slots.
#[derive(Debug)]
struct Same;

impl LaneMap for Same {
    fn slot_of(&self, lane: Lane) -> Option<Slot> {
        Some(Slot::from(lane.0))
    }

    fn lane_of_slot(&self, slot: Slot) -> Option<Lane> {
        u16::try_from(slot).ok().map(Lane)
    }
}

/// A fleet at work; no live prompt is shorter than `shortest` blocks.
struct Fleet {
    load: LoadTracker,
    policy: DefaultCost,
    rng: fastrand::Rng,
    live: VecDeque<BookingId>,
    constraints: RoutingConstraints,
    next: u64,
}

impl Fleet {
    fn new(ranks: u64, parameters: DefaultCostParameters, bookings_a_rank: u64, shortest: u64) -> Self {
        let accounting = CacheWeights { host: 0.75, disk: 0.25 };
        let mut fleet = Self {
            load: LoadTracker::new(LoadConfig { block_size: BLOCK_SIZE, expiry: Some(Duration::from_secs(300)) }),
            policy: DefaultCost::new(parameters, accounting, BLOCK_SIZE, true),
            rng: fastrand::Rng::with_seed(1),
            live: VecDeque::new(),
            constraints: RoutingConstraints::default(),
            next: 0,
        };
        for worker_id in 0..ranks {
            let facts = Arc::new(WorkerFacts { worker_id, ..WorkerFacts::default() });
            fleet.load.upsert_rank(WorkerWithDpRank::new(worker_id, 0), facts);
        }
        for _ in 0..ranks * bookings_a_rank {
            let (slot, tokens) = (fleet.rng.u64(0..ranks) as Slot, fleet.rng.u64(0..2048));
            let blocks = fleet.rng.u64(shortest..=PROMPT_BLOCKS) as usize;
            let prompt = fleet.prompt();
            let id = fleet.book(slot, prompt[..blocks].into(), tokens);
            fleet.live.push_back(id);
        }
        fleet
    }

    fn prompt(&mut self) -> Arc<[u64]> {
        let own = self.rng.u64(..) | 1 << 63;
        (0..PROMPT_BLOCKS).map(|at| if at < SHARED_BLOCKS { at } else { own.wrapping_add(at) }).collect()
    }

    fn book(&mut self, slot: Slot, sequence: Arc<[u64]>, prefill_tokens: u64) -> BookingId {
        self.next += 1;
        let id = BookingId(self.next);
        let booking =
            NewBooking { id, slot, sequence, prefill_tokens, prefill_duration: None, expected_output_tokens: None };
        assert!(self.load.book(booking, Moment(0)).0);
        id
    }

    /// Frees the oldest booking in favour of a new one.
    fn retire(&mut self, new: BookingId) {
        self.live.push_back(new);
        let oldest = self.live.pop_front().expect("one was just added");
        self.load.free(oldest, Moment(0));
    }

    fn pick(&mut self, sequence: &[u64], matches: &Matches, overrides: Option<&RouterConfigOverride>) -> Picked {
        let request = PickRequest {
            prompt_tokens: PROMPT_BLOCKS * u64::from(BLOCK_SIZE),
            sequence,
            track_prefill_tokens: true,
            matches,
            index: &Same,
            pinned_worker: None,
            allowed_worker_ids: None,
            affinity_target: None,
            target_is_binding: false,
            constraints: &self.constraints,
            overrides,
            explain: false,
            facts: RequestFacts::default(),
            now: Moment(0),
        };
        self.policy.pick(&request, &mut self.load, &mut self.rng).expect("the fleet has eligible ranks")
    }
}

fn defaults() -> DefaultCostParameters {
    DefaultCostParameters {
        overlap_score_credit: 1.0,
        overlap_score_credit_decay: 0.0,
        prefill_load_scale: 1.0,
        decode_active_request_weight: 0.0,
        host_cache_hit_weight: 0.75,
        disk_cache_hit_weight: 0.25,
        router_temperature: 0.0,
        decode_label: true,
    }
}

fn class(device: u32, lanes: Vec<u16>, ranks: u64) -> MatchClass {
    let blocks = TierBlocks { device, ..TierBlocks::default() };
    if lanes.len() * 32 < ranks as usize {
        return MatchClass { blocks, lanes: LaneSet::List(lanes) };
    }
    let mut words = vec![0u64; ranks as usize / 64 + 1];
    lanes.iter().for_each(|lane| words[usize::from(*lane) / 64] |= 1 << (lane % 64));
    MatchClass { blocks, lanes: LaneSet::Bits(words) }
}

/// One rank has all of the prompt, some ranks half, and `share` of the rest a quarter of it.
fn three_classes(rng: &mut fastrand::Rng, ranks: u64, share: f64) -> Matches {
    let own = rng.u64(0..ranks) as u16;
    let some: Vec<u16> = (0..ranks.min(16) / 2).map(|_| rng.u64(0..ranks) as u16).filter(|lane| *lane != own).collect();
    let rest = (0..ranks as u16).filter(|lane| *lane != own && !some.contains(lane) && rng.f64() < share).collect();
    let sorted = |mut lanes: Vec<u16>| {
        lanes.sort_unstable();
        lanes.dedup();
        lanes
    };
    let classes = [(128, vec![own]), (64, sorted(some)), (32, rest)];
    let mut matches = Matches::default();
    matches.classes.extend(classes.into_iter().map(|(device, lanes)| class(device, lanes, ranks)));
    matches
}

/// Prompts are new at each iteration and made outside the measurement: a prompt that comes again while it is live is
/// another case than the usual one.
fn book_and_free(criterion: &mut Criterion<CpuTime>) {
    let shapes = [("book and free", SHARED_BLOCKS), ("book and free: the shared part is cut anywhere", 1)];
    for (name, shortest) in shapes {
        let mut group = criterion.benchmark_group(name);
        for ranks in RANKS {
            let fleet = RefCell::new(Fleet::new(ranks, defaults(), 6, shortest));
            let first = fleet.borrow_mut().prompt();
            fleet.borrow_mut().pick(&first, &Matches::default(), None);
            group.bench_function(BenchmarkId::from_parameter(ranks), |bench| {
                let prompt = || fleet.borrow_mut().prompt();
                let cycle = |prompt| {
                    let fleet = &mut *fleet.borrow_mut();
                    let slot = fleet.rng.u64(0..ranks) as Slot;
                    let id = fleet.book(slot, prompt, 1024);
                    fleet.load.prefill_complete(id, Moment(0));
                    fleet.retire(id);
                };
                bench.iter_batched(prompt, cycle, BatchSize::SmallInput);
            });
        }
        group.finish();
    }
}

/// Where a prompt's classes come from.
type Classes = fn(&mut fastrand::Rng, u64) -> Matches;

fn picks(criterion: &mut Criterion<CpuTime>) {
    let none: Classes = |_, _| Matches::default();
    let cases: [(&str, u64, Classes); 4] = [
        ("pick, book, free: nothing cached", 6, none),
        ("pick, book, free: idle fleet", 0, none),
        ("pick, book, free: all have some cached", 6, |rng, ranks| three_classes(rng, ranks, 1.0)),
        ("pick, book, free: most have some cached", 6, |rng, ranks| three_classes(rng, ranks, 0.9)),
    ];
    for (name, bookings, classes) in cases {
        let mut group = criterion.benchmark_group(name);
        for ranks in RANKS {
            let fleet = RefCell::new(Fleet::new(ranks, defaults(), bookings, SHARED_BLOCKS));
            let matches: Vec<Matches> = (0..256).map(|_| classes(&mut fleet.borrow_mut().rng, ranks)).collect();
            group.bench_function(BenchmarkId::from_parameter(ranks), |bench| {
                let request = || {
                    let fleet = &mut *fleet.borrow_mut();
                    (fleet.prompt(), &matches[fleet.rng.usize(0..matches.len())])
                };
                let cycle = |(prompt, matches): (Arc<[u64]>, &Matches)| {
                    let fleet = &mut *fleet.borrow_mut();
                    let picked = fleet.pick(&prompt, matches, None);
                    let id = fleet.book(picked.slot, prompt, 1024);
                    fleet.retire(id);
                };
                bench.iter_batched(request, cycle, BatchSize::SmallInput);
            });
        }
        group.finish();
    }
    let mut group = criterion.benchmark_group("pick alone");
    for ranks in RANKS {
        let mut fleet = Fleet::new(ranks, defaults(), 6, SHARED_BLOCKS);
        let prompt = fleet.prompt();
        let matches = three_classes(&mut fleet.rng, ranks, 1.0);
        let none = Matches::default();
        let hot = RouterConfigOverride { router_temperature: Some(0.5), ..RouterConfigOverride::default() };
        let decaying = DefaultCostParameters { overlap_score_credit_decay: 0.5, ..defaults() };
        group.bench_function(BenchmarkId::new("nothing cached", ranks), |bench| {
            bench.iter(|| black_box(fleet.pick(&prompt, &none, None)));
        });
        group.bench_function(BenchmarkId::new("all have some cached", ranks), |bench| {
            bench.iter(|| black_box(fleet.pick(&prompt, &matches, None)));
        });
        group.bench_function(BenchmarkId::new("temperature, the whole table", ranks), |bench| {
            bench.iter(|| black_box(fleet.pick(&prompt, &matches, Some(&hot))));
        });
        let mut fleet = Fleet::new(ranks, decaying, 6, SHARED_BLOCKS);
        group.bench_function(BenchmarkId::new("decaying credit", ranks), |bench| {
            bench.iter(|| black_box(fleet.pick(&prompt, &matches, None)));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .with_measurement(CpuTime)
        .sample_size(20)
        .measurement_time(Duration::from_secs(1))
        .warm_up_time(Duration::from_millis(300));
    targets = book_and_free, picks
}
criterion_main!(benches);
