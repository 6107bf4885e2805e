//! A policy by an outside author: only warm enough workers, the one with fewest requests, ties to the deeper prefix.

use std::sync::Arc;

use pointsman::{
    KvRouterConfig, RoutingPartitionRef, WorkerType,
    plugins::{
        RouterPluginRegistry, WorkerSelectionPolicyParameters, WorkerSelectionPolicyProviderError,
        WorkerSelectionPolicyRegistryError,
        worker_selection::{
            WorkerCandidate, WorkerCandidates, WorkerFilter, WorkerInputView, WorkerInputs, WorkerPicker, WorkerScorer,
            WorkerSelectionContext, WorkerSelectionPolicy, WorkerSelectionPolicyError, WorkerSelectionPolicyFactory,
        },
    },
};

/// The name in `worker_selection` documents.
pub const POLICY_TYPE: &str = "warm-then-idle";

/// Parameters of an instance.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parameters {
    /// Device blocks a worker must have of the prompt.
    pub min_device_overlap_blocks: f64,
}

struct MinimumOverlap(f64);

impl WorkerFilter for MinimumOverlap {
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::CACHE
    }

    fn keep(
        &mut self,
        _context: &WorkerSelectionContext<'_>,
        candidate: WorkerCandidate<'_>,
    ) -> Result<bool, WorkerSelectionPolicyError> {
        let cache = candidate.cache().ok_or_else(|| WorkerSelectionPolicyError::failed("cache is required"))?;
        Ok(cache.device_overlap_blocks() >= self.0)
    }
}

struct ActiveRequests;

impl WorkerScorer for ActiveRequests {
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::LOAD
    }

    fn score(
        &mut self,
        _context: &WorkerSelectionContext<'_>,
        candidates: WorkerCandidates<'_>,
        costs: &mut [f64],
    ) -> Result<(), WorkerSelectionPolicyError> {
        for (candidate, cost) in candidates.iter().zip(costs.iter_mut()) {
            let load = candidate.load().ok_or_else(|| WorkerSelectionPolicyError::failed("load is required"))?;
            *cost = load.active_requests() as f64;
        }
        Ok(())
    }
}

struct LowestThenDeepest;

impl WorkerPicker for LowestThenDeepest {
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::CACHE
    }

    fn pick(
        &mut self,
        _context: &WorkerSelectionContext<'_>,
        input: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError> {
        let caches = input.cache().ok_or_else(|| WorkerSelectionPolicyError::failed("cache is required"))?;
        let rows = input.candidates().iter().zip(caches.iter()).enumerate();
        let best = rows.min_by(|(_, (a, a_cache)), (_, (b, b_cache))| {
            let depths = b_cache.device_overlap_blocks().total_cmp(&a_cache.device_overlap_blocks());
            a.cost().total_cmp(&b.cost()).then(depths)
        });
        best.map(|(row, _)| row).ok_or_else(|| WorkerSelectionPolicyError::failed("no candidates"))
    }
}

/// Registers the policy.
///
/// # Errors
/// The name is taken.
pub fn register(registry: &mut RouterPluginRegistry) -> Result<(), WorkerSelectionPolicyRegistryError> {
    registry.register_worker_selection(POLICY_TYPE, Arc::new(provide))
}

fn provide(
    parameters: &WorkerSelectionPolicyParameters,
) -> Result<WorkerSelectionPolicyFactory, WorkerSelectionPolicyProviderError> {
    let parameters: Parameters = parameters.deserialize()?;
    if parameters.min_device_overlap_blocks < 0.0 {
        return Err(WorkerSelectionPolicyProviderError::new("min_device_overlap_blocks must not be negative"));
    }
    Ok(Arc::new(move |config: &KvRouterConfig, worker_type: WorkerType, _partition: RoutingPartitionRef<'_>| {
        WorkerSelectionPolicy::new_with_filters(
            config.clone(),
            worker_type.as_str(),
            vec![Box::new(MinimumOverlap(parameters.min_device_overlap_blocks))],
            vec![Box::new(ActiveRequests)],
            Box::new(LowestThenDeepest),
        )
        .with_exclusive_affinity(false)
    }))
}

#[cfg(test)]
mod tests {
    use std::{
        future::Future,
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use pointsman::{
        plugins::worker_selection::{WorkerSelectionConfig, WorkerSelectionInstance},
        selection::{SelectionCore, core::Plugins, ingest::NoEventSources, moment::SystemClock, request::SelectRequest},
    };
    use serde_json::json;

    use super::*;

    fn ready<F: Future>(future: F) -> F::Output {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("a selection without a queue waits for nothing"),
        }
    }

    #[test]
    fn the_policy_chooses_in_a_core() {
        let mut registry = RouterPluginRegistry::default();
        register(&mut registry).unwrap();
        assert!(register(&mut registry).is_err());
        let value = serde_value::to_value(json!({"min_device_overlap_blocks": 0})).unwrap();
        let section = WorkerSelectionConfig {
            aggregated: Some("mine".into()),
            instances: vec![WorkerSelectionInstance {
                name: "mine".into(),
                policy_type: POLICY_TYPE.into(),
                parameters: WorkerSelectionPolicyParameters::from_value(value),
                location: None,
            }],
            ..WorkerSelectionConfig::default()
        };
        let config = KvRouterConfig {
            use_kv_events: false,
            worker_selection: Some(Arc::new(section)),
            ..KvRouterConfig::default()
        };
        let plugins = Plugins::Registry { registry: &registry, role: WorkerType::Aggregated };
        let clock = Arc::new(SystemClock::default());
        let core = SelectionCore::try_new_with_plugins(config, clock, Arc::new(NoEventSources), plugins).unwrap();
        for worker_id in [1, 2] {
            let worker = json!({"worker_id": worker_id, "endpoint": "http://w:1", "block_size": 16});
            core.upsert_worker(serde_json::from_value(worker).unwrap()).unwrap();
        }
        let request = || {
            let mut request =
                SelectRequest { model_name: "default".into(), routing_group: "default".into(), ..Default::default() };
            request.prompt.token_ids = Some((0..64).collect());
            request
        };
        let chosen = || ready(core.select_and_reserve(request())).unwrap().worker_id;
        assert_eq!([chosen(), chosen()], [1, 2], "requests first");
        assert_eq!([chosen(), chosen()], [1, 2]);
    }
}
