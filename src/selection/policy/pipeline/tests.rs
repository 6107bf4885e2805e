//! Pipelines as users write them: what they choose, and what is refused.

mod choices;
mod refusals;

use std::sync::Arc;

use crate::selection::{
    config::SelectionConfig,
    identity::WorkerWithDpRank,
    index::{Lane, LaneSet, MatchClass, Matches, TierBlocks},
    load::{BookingId, LoadConfig, LoadTracker, NewBooking, Slot, WorkerFacts},
    moment::Moment,
    policy::{
        CacheWeights, LaneMap, PickRequest,
        context::{RequestFacts, WorkerSelectionContext},
        inputs::{ScoredWorkerCandidate, WorkerCandidate, WorkerCandidates, WorkerInputView, WorkerInputs},
        parameters::{WorkerSelectionPolicyParameters, WorkerSelectionPolicyProviderError},
        stages::{Kind, RoutingPartitionRef, Stages, WorkerSelectionPolicy, WorkerSelectionPolicyError},
        table::Table,
    },
    request::{AffinityTarget, RoutingConstraints, SessionContext},
    trust::Trust,
    worker::WorkerRole,
};

const BLOCK_SIZE: u32 = 16;

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

/// Filters, scores and picks, as the host does.
fn decide(
    stages: &mut Stages,
    table: &mut Table,
    request: &PickRequest<'_>,
) -> Result<u64, WorkerSelectionPolicyError> {
    let Table { columns, members, .. } = table;
    let context = WorkerSelectionContext::new(request, members, BLOCK_SIZE);
    let mut kept = 0;
    for row in 0..columns.len() {
        let mut keeps = true;
        for filter in &mut stages.filters {
            let candidate = WorkerCandidate::new(columns, row, filter.inputs);
            keeps = keeps && filter.part.keep(&context.with_inputs(filter.inputs), candidate)?;
        }
        if keeps {
            columns.keep(row, kept);
            kept += 1;
        }
    }
    columns.truncate(kept);
    if kept == 0 {
        return Err(WorkerSelectionPolicyError::failed("all were rejected"));
    }
    let mut sums = vec![0.0; kept];
    for scorer in &mut stages.scorers {
        let mut costs = vec![f64::NAN; kept];
        let candidates = WorkerCandidates::new(columns, scorer.inputs);
        scorer.part.score(&context.with_inputs(scorer.inputs), candidates, &mut costs)?;
        sums.iter_mut().zip(costs).for_each(|(sum, cost)| *sum += cost);
    }
    let scored = columns.workers.iter().zip(sums);
    let scored = scored.map(|(&worker, cost)| ScoredWorkerCandidate { worker, cost, multiplier: None });
    let scored: Vec<_> = scored.collect();
    let picker = &mut stages.picker;
    let view = WorkerInputView::new(&scored, columns, picker.inputs);
    let row = picker.part.pick(&context.with_inputs(picker.inputs), view)?;
    Ok(scored[row].worker().worker_id)
}

/// The policy of a document.
fn policy(yaml: &str) -> Result<WorkerSelectionPolicy, WorkerSelectionPolicyProviderError> {
    // As the document is read.
    let options = serde_saphyr::options! { non_finite_float_policy: serde_saphyr::NonFiniteFloatPolicy::PassThrough };
    let value: serde_value::Value =
        serde_saphyr::from_str_with_options(yaml, options).expect("the test's YAML is right");
    let factory = super::provider()(&WorkerSelectionPolicyParameters::from_value(value))?;
    let partition = RoutingPartitionRef::new("model", "default");
    Ok(factory(&SelectionConfig::default(), WorkerRole::Aggregated, partition))
}

/// Workers with one rank each, and what one request says.
struct Fleet {
    load: LoadTracker,
    matches: Matches,
    trust: Vec<(u64, Trust)>,
    constraints: RoutingConstraints,
    affinity: Option<AffinityTarget>,
    session: Option<SessionContext>,
    next: u64,
}

impl Fleet {
    fn new(workers: impl IntoIterator<Item = WorkerFacts>) -> Self {
        let mut load = LoadTracker::new(LoadConfig { block_size: BLOCK_SIZE, expiry: None });
        for facts in workers {
            load.upsert_rank(WorkerWithDpRank::new(facts.worker_id, 0), Arc::new(facts));
        }
        let constraints = RoutingConstraints::default();
        Self {
            load,
            matches: Matches::default(),
            trust: Vec::new(),
            constraints,
            affinity: None,
            session: None,
            next: 0,
        }
    }

    fn of(workers: u64) -> Self {
        Self::new((1..=workers).map(|worker_id| WorkerFacts { worker_id, ..WorkerFacts::default() }))
    }

    fn slot(&self, worker: u64) -> Slot {
        self.load.slot(WorkerWithDpRank::new(worker, 0)).expect("the worker is there")
    }

    fn cached(mut self, worker: u64, device: u32) -> Self {
        let lanes = LaneSet::List(vec![self.slot(worker) as u16]);
        self.matches.classes.push(MatchClass { blocks: TierBlocks { device, ..TierBlocks::default() }, lanes });
        self
    }

    /// Bookings of one block and `tokens` prefill tokens each.
    fn busy(mut self, worker: u64, bookings: u64, tokens: u64) -> Self {
        for _ in 0..bookings {
            self.next += 1;
            let booking = NewBooking {
                id: BookingId(self.next),
                slot: self.slot(worker),
                sequence: [1_000 + self.next].into(),
                prefill_tokens: tokens,
                prefill_duration: None,
                expected_output_tokens: None,
            };
            assert!(self.load.book(booking, Moment(0)).0);
        }
        self
    }

    /// Workers chosen by `count` selections of a prompt of 8 blocks.
    fn choose(&self, policy: WorkerSelectionPolicy, count: usize) -> Result<Vec<u64>, String> {
        let exclusive = policy.exclusive_affinity;
        let Kind::Components(mut stages) = policy.kind else { panic!("a pipeline has stages") };
        let request = PickRequest {
            prompt_tokens: 8 * u64::from(BLOCK_SIZE),
            sequence: &[1, 2, 3, 4, 5, 6, 7, 8],
            track_prefill_tokens: true,
            matches: &self.matches,
            index: &Same,
            pinned_worker: None,
            allowed_worker_ids: None,
            affinity_target: self.affinity,
            target_is_binding: false,
            constraints: &self.constraints,
            overrides: None,
            explain: false,
            facts: RequestFacts { session: self.session.as_ref(), ..RequestFacts::default() },
            now: Moment(0),
        };
        let mut table = Table::default();
        (0..count)
            .map(|_| {
                let inputs = stages.inputs();
                table.copy(&request, &self.load, inputs, exclusive).map_err(|error| error.to_string())?;
                if inputs.contains(WorkerInputs::CACHE) {
                    table.fill_caches(&request, CacheWeights { host: 0.75, disk: 0.25 }, BLOCK_SIZE);
                    let of = |rank: &WorkerWithDpRank| self.trust.iter().find(|(worker, _)| *worker == rank.worker_id);
                    let trusts =
                        table.columns.workers.iter().map(|rank| of(rank).map_or(Trust::Complete, |known| known.1));
                    table.columns.trusts = trusts.collect();
                }
                decide(&mut stages, &mut table, &request).map_err(|error| error.to_string())
            })
            .collect()
    }

    fn chosen(&self, yaml: &str) -> Result<u64, String> {
        let policy = policy(yaml).unwrap_or_else(|error| panic!("{yaml}: {error}"));
        self.choose(policy, 1).map(|chosen| chosen[0])
    }
}
