//! The reference's core, driven through its public interface.

use std::sync::Arc;

use dynamo_kv_router::{
    KvRouterConfig, WorkerSelectionPolicy,
    protocols::RoutingConstraints,
    services::selection::{PromptRequest, SelectAndReserveRequest, SelectionCacheConfig, SelectionCore, WorkerRequest},
};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::{BACKGROUND, BLOCK_SIZE, BLOCKS, Policy, hashes};

mod policy {
    use dynamo_kv_router::{
        KvRouterConfig,
        plugins::worker_selection::{
            WorkerCandidates, WorkerInputView, WorkerInputs, WorkerPicker, WorkerScorer, WorkerSelectionContext,
            WorkerSelectionPolicy, WorkerSelectionPolicyError,
        },
    };

    include!("scorers.rs");
}

pub struct Core(SelectionCore);

impl Core {
    pub fn new(runtime: &Runtime, workers: u64, policy: Policy) -> Self {
        let config = KvRouterConfig { router_queue_threshold: None, ..KvRouterConfig::default() };
        let core = SelectionCore::try_new_local(
            config,
            1,
            CancellationToken::new(),
            SelectionCacheConfig::default(),
            Arc::new(move |config, role, _partition| match policy {
                Policy::Default => WorkerSelectionPolicy::reference(config.clone(), role.default_selector_label()),
                Policy::ThreeScorers => policy::three_scorers(config.clone()),
            }),
        )
        .expect("default settings are valid");
        runtime.block_on(async {
            for worker_id in 1..=workers {
                let request = WorkerRequest {
                    worker_id,
                    endpoint: Some(format!("http://10.0.0.{worker_id}:8000")),
                    kv_events_endpoint: Some(format!("tcp://10.0.0.{worker_id}:5557")),
                    block_size: Some(BLOCK_SIZE),
                    ..WorkerRequest::default()
                };
                core.upsert_worker(request).await.expect("accepted");
            }
            for booking in 0..(workers * BACKGROUND).cast_signed() {
                core.select_and_reserve(request(booking)).await.expect("booked");
            }
        });
        Self(core)
    }

    pub fn cycle(&self, runtime: &Runtime, tail: i64) {
        runtime.block_on(async {
            let request = request(tail);
            let id = request.selection_id.clone().expect("given");
            self.0.select_and_reserve(request).await.expect("booked");
            self.0.free_reservation(&id).await.expect("booked");
        });
    }
}

fn request(tail: i64) -> SelectAndReserveRequest {
    let hashes = hashes(tail);
    SelectAndReserveRequest {
        model_name: "default".to_owned(),
        routing_group: "default".to_owned(),
        selection_id: Some(format!("r{tail}")),
        prompt: PromptRequest {
            block_hashes: Some(hashes.clone()),
            sequence_hashes: Some(hashes),
            isl_tokens: Some(BLOCKS as usize * BLOCK_SIZE as usize),
            ..PromptRequest::default()
        },
        router_config_override: None,
        expected_output_tokens: None,
        priority_jump: None,
        strict_priority: None,
        session_id: None,
        session_context: None,
        affinity_target: None,
        pinned_worker: None,
        allowed_worker_ids: None,
        routing_constraints: RoutingConstraints::default(),
    }
}
