//! Our core, driven through its public interface.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use pointsman::{
    plugins::worker_selection::WorkerSelectionPolicyFactory,
    selection::{
        SelectionConfig, SelectionCore,
        core::Plugins,
        ingest::NoEventSources,
        moment::SystemClock,
        request::{PromptInput, SelectRequest},
        worker::{WorkerFields, WorkerRequest},
    },
};

use crate::{BACKGROUND, BLOCK_SIZE, BLOCKS, Policy, hashes};

mod policy {
    use pointsman::{
        KvRouterConfig,
        plugins::worker_selection::{
            WorkerCandidates, WorkerInputView, WorkerInputs, WorkerPicker, WorkerScorer, WorkerSelectionContext,
            WorkerSelectionPolicy, WorkerSelectionPolicyError,
        },
    };

    include!("scorers.rs");
}

pub struct Core(Arc<SelectionCore>);

/// The core never waits here: nothing queues and no session is bound.
pub fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("nothing to wait for"),
    }
}

impl Core {
    pub fn new(workers: u64, policy: Policy) -> Self {
        let config = SelectionConfig::default();
        let core = match policy {
            Policy::Default => SelectionCore::try_new_local(config),
            Policy::ThreeScorers => {
                let factory: WorkerSelectionPolicyFactory =
                    Arc::new(|config, _role, _partition| policy::three_scorers(config.clone()));
                let (clock, sources) = (Arc::new(SystemClock::default()), Arc::new(NoEventSources));
                SelectionCore::try_new_with_plugins(config, clock, sources, Plugins::Factory(factory))
            }
        }
        .expect("default settings are valid");
        for worker_id in 1..=workers {
            let fields = WorkerFields {
                endpoint: Some(format!("http://10.0.0.{worker_id}:8000")),
                kv_events_endpoint: Some(format!("tcp://10.0.0.{worker_id}:5557")),
                block_size: Some(BLOCK_SIZE),
                ..WorkerFields::default()
            };
            let request =
                WorkerRequest { worker_id, model_name: "default".into(), routing_group: "default".into(), fields };
            core.upsert_worker(request).expect("accepted");
        }
        for booking in 0..(workers * BACKGROUND).cast_signed() {
            now(core.select_and_reserve(request(booking))).expect("booked");
        }
        Self(core)
    }

    pub fn cycle(&self, tail: i64) {
        let request = request(tail);
        let id = request.selection_id.clone().expect("given");
        now(self.0.select_and_reserve(request)).expect("booked");
        self.0.free_reservation(&id).expect("booked");
    }
}

fn request(tail: i64) -> SelectRequest {
    let hashes = hashes(tail);
    SelectRequest {
        model_name: "default".to_owned(),
        routing_group: "default".to_owned(),
        selection_id: Some(format!("r{tail}")),
        prompt: PromptInput {
            block_hashes: Some(hashes.clone()),
            sequence_hashes: Some(hashes),
            isl_tokens: Some(BLOCKS.unsigned_abs() * u64::from(BLOCK_SIZE)),
            ..PromptInput::default()
        },
        ..SelectRequest::default()
    }
}
