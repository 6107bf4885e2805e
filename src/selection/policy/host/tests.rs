//! Cases of the plugin contract that need a host with a cache that all workers share, or with estimates alone.

use std::sync::{Arc, Mutex};

use super::*;
use crate::selection::{
    config::SelectionConfig,
    index::{Lane, LaneSet, MatchClass, Matches, TierBlocks},
    load::{LoadConfig, WorkerFacts},
    moment::Moment,
    policy::{
        LaneMap,
        context::RequestFacts,
        inputs::SharedCacheHits,
        stages::{Kind, WorkerPicker, WorkerSelectionPolicy},
        table::CacheRow,
    },
    request::RoutingConstraints,
};

/// Lane = slot.
#[derive(Debug)]
struct Lanes;

impl LaneMap for Lanes {
    fn slot_of(&self, lane: Lane) -> Option<Slot> {
        Some(Slot::from(lane.0))
    }

    fn lane_of_slot(&self, slot: Slot) -> Option<Lane> {
        Some(Lane(u16::try_from(slot).ok()?))
    }
}

/// What one row showed: estimate, tiers, whether anybody matches, shared hits in all and from block 2 on.
type Shown = ((f64, usize), [f64; 3], bool, Option<(u32, u32)>);

/// Writes down what it is shown and takes the first row.
struct Look(Arc<Mutex<Vec<Shown>>>);

impl WorkerPicker for Look {
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::CACHE
    }

    fn pick(
        &mut self,
        _: &WorkerSelectionContext<'_>,
        input: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError> {
        for cache in input.cache().into_iter().flat_map(|caches| caches.iter()) {
            self.0.lock().unwrap().push((
                cache.accounting_cache_estimate(),
                [cache.device_overlap_blocks(), cache.host_overlap_blocks(), cache.disk_overlap_blocks()],
                cache.has_tier_matches(),
                cache.shared_hits().map(|hits| (hits.total_hits, hits.hits_beyond(2))),
            ));
        }
        Ok(0)
    }
}

fn look(matches: &Matches, shared: Option<&SharedCacheHits>, change: impl FnOnce(&mut Table)) -> Vec<Shown> {
    let mut load = LoadTracker::new(LoadConfig { block_size: 16, expiry: None });
    for worker_id in [1, 2] {
        let facts = WorkerFacts { worker_id, ..WorkerFacts::default() };
        load.upsert_rank(WorkerWithDpRank::new(worker_id, 0), Arc::new(facts));
    }
    let shown = Arc::default();
    let picker = Box::new(Look(Arc::clone(&shown)));
    let policy = WorkerSelectionPolicy::new(SelectionConfig::default(), "aggregated", Vec::new(), picker);
    let Kind::Components(stages) = policy.kind else { unreachable!("it has a picker") };
    let accounting = CacheWeights { host: 0.75, disk: 0.25 };
    let mut host = Host::new(stages, Terms { accounting, block_size: 16, exclusive_affinity: false });
    let constraints = RoutingConstraints::default();
    let request = PickRequest {
        prompt_tokens: 128,
        sequence: &[],
        track_prefill_tokens: true,
        matches,
        index: &Lanes,
        pinned_worker: None,
        allowed_worker_ids: None,
        affinity_target: None,
        target_is_binding: false,
        constraints: &constraints,
        overrides: None,
        explain: false,
        facts: RequestFacts { shared_hits: shared, ..RequestFacts::default() },
        now: Moment(0),
    };
    host.copy(&request, &load).unwrap();
    host.table.fill_caches(&request, accounting, 16);
    change(&mut host.table);
    host.pick_of_test(&request);
    std::mem::take(&mut shown.lock().unwrap())
}

impl Host {
    /// Scores and picks, without looking caches up.
    fn pick_of_test(&mut self, request: &PickRequest<'_>) {
        self.score(request).unwrap();
        self.pick(request).unwrap();
    }
}

#[test]
fn estimates_are_not_device_overlap() {
    let shown = look(&Matches::default(), None, |table| {
        table.columns.caches[0] = CacheRow { weighted_blocks: 3.5, tokens: 56, ..CacheRow::default() };
    });
    assert_eq!(shown, [((3.5, 56), [0.0; 3], false, None), ((0.0, 0), [0.0; 3], false, None)]);
}

#[test]
fn shared_hits() {
    let hits = SharedCacheHits::from_ranges(std::iter::once(1..3).collect());
    let mut matches = Matches::default();
    let blocks = TierBlocks { device: 1, host: 2, disk: 3, external: 4 };
    matches.classes.push(MatchClass { blocks, lanes: LaneSet::List(vec![1]) });
    let shown = look(&matches, Some(&hits), |_| {});
    let row = ((1.0 + 1.5 + 1.75, 68), [1.0, 2.0, 7.0], true, Some((2, 1)));
    assert_eq!(shown, [((0.0, 0), [0.0; 3], true, Some((2, 1))), row]);
}
