//! A policy of components allocates nothing in steady state: a selection by one takes no more allocations than one by
//! the default policy, which has none of its own.
#![allow(unsafe_code, reason = "a counting allocator")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
};

use pointsman::{
    KvRouterConfig, WorkerCandidate, WorkerCandidates, WorkerFilter, WorkerInputView, WorkerInputs, WorkerPicker,
    WorkerScorer, WorkerSelectionContext, WorkerSelectionPolicy, WorkerSelectionPolicyError,
    selection::{SelectionCore, core::Plugins, ingest::NoEventSources, moment::SystemClock, request::SelectRequest},
};
use serde_json::json;

struct Counting;

static CALLS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise is `System`'s.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        CALLS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise is `System`'s.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is `System`'s.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Reads everything, as all three kinds of components.
struct Everything;

impl WorkerFilter for Everything {
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::ALL
    }

    fn keep(
        &mut self,
        _: &WorkerSelectionContext<'_>,
        candidate: WorkerCandidate<'_>,
    ) -> Result<bool, WorkerSelectionPolicyError> {
        Ok(!candidate.worker().worker_id.is_multiple_of(7))
    }
}

impl WorkerScorer for Everything {
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::ALL
    }

    fn score(
        &mut self,
        _: &WorkerSelectionContext<'_>,
        candidates: WorkerCandidates<'_>,
        costs: &mut [f64],
    ) -> Result<(), WorkerSelectionPolicyError> {
        for (candidate, cost) in candidates.iter().zip(costs) {
            let cached = candidate.cache().map_or(0.0, |cache| cache.device_overlap_blocks());
            *cost = candidate.load().map_or(0.0, |load| load.decode_cost_blocks()) - cached;
        }
        Ok(())
    }
}

impl WorkerPicker for Everything {
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::ALL
    }

    fn pick(
        &mut self,
        _: &WorkerSelectionContext<'_>,
        input: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError> {
        let rows = input.candidates().iter().enumerate();
        Ok(rows.min_by(|a, b| a.1.cost().total_cmp(&b.1.cost())).map_or(0, |(row, _)| row))
    }
}

fn ready<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the selection waits"),
    }
}

/// Allocations of one selection in steady state.
fn allocations(plugins: Plugins<'_>) -> usize {
    let config = KvRouterConfig { use_kv_events: false, ..KvRouterConfig::default() };
    let clock = Arc::new(SystemClock::default());
    let core = SelectionCore::try_new_with_plugins(config, clock, Arc::new(NoEventSources), plugins).unwrap();
    for worker_id in 1..=512 {
        let worker = json!({"worker_id": worker_id, "endpoint": "http://w:1", "block_size": 16});
        core.upsert_worker(serde_json::from_value(worker).unwrap()).unwrap();
    }
    let request = || {
        let mut request =
            SelectRequest { model_name: "default".into(), routing_group: "default".into(), ..SelectRequest::default() };
        request.prompt.token_ids = Some((0..512).collect());
        request
    };
    for _ in 0..200 {
        ready(core.select_and_reserve(request())).unwrap();
    }
    (0..5).for_each(|_| _ = ready(core.select(request())).unwrap());
    let ask = request();
    let before = CALLS.load(Relaxed);
    ready(core.select(ask)).unwrap();
    CALLS.load(Relaxed) - before
}

// One test: the allocator counts for the whole process.
#[test]
fn a_selection_by_components_allocates_nothing_of_its_own() {
    let registry = pointsman::plugins::router_plugin_registry();
    let default = allocations(Plugins::Registry { registry: &registry, role: Default::default() });
    let components = allocations(Plugins::Factory(Arc::new(|config, _, _| {
        let filters: Vec<Box<dyn WorkerFilter>> = vec![Box::new(Everything)];
        let scorers: Vec<Box<dyn WorkerScorer>> = vec![Box::new(Everything), Box::new(Everything)];
        WorkerSelectionPolicy::new_with_filters(config.clone(), "decode", filters, scorers, Box::new(Everything))
    })));
    assert!(components <= default, "{components} allocations, {default} by the default policy");
}
