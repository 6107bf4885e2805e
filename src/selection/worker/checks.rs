//! From what was sent to what is done: effective values, and the reasons a worker is not schedulable (spec http 4.3),
//! in the order and words of the reference.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use super::{MAX_DATA_PARALLEL_SIZE, WorkerRequest, WorkerRole, WorkerState};
use crate::selection::{endpoint::check_zmq_endpoint, load::WorkerFacts};

/// The reason of check 4.
pub(in crate::selection) const CAPACITY_REQUIRED: &str = "max_num_batched_tokens is required while queueing is enabled";

/// What a service asks of its workers beyond a place and a block size.
#[derive(Clone, Copy, Debug)]
pub(in crate::selection) struct Needs {
    /// Every rank has an event stream.
    pub(in crate::selection) events: bool,
    /// Requests of the model may have to wait, for which the capacity must be known.
    pub(in crate::selection) capacity: bool,
}

/// Event stream of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankSource {
    /// ZMQ endpoint of the publisher.
    pub endpoint: String,
    /// ZMQ endpoint of the replay socket.
    pub replay_endpoint: Option<String>,
}

/// A worker whose metadata is complete, with effective values.
#[derive(Clone, Debug)]
pub struct WorkerPlan {
    /// Tokens a block, at least 1.
    pub block_size: u32,
    /// Blocks are hashed with one look-ahead token.
    pub is_eagle: bool,
    /// Its role.
    pub role: WorkerRole,
    /// Event stream by rank; empty when the core uses no events.
    pub sources: BTreeMap<u32, RankSource>,
    /// What a pick reads.
    pub facts: Arc<WorkerFacts>,
    /// Its cache is indexed and nothing else: the load tracker never hears of it.
    pub indexed_only: bool,
}

impl WorkerPlan {
    /// Global ranks, at least one.
    pub fn ranks(&self) -> Range<u32> {
        self.facts.ranks.clone()
    }
}

impl WorkerRequest {
    /// What is answered with an error instead of a reason.
    ///
    /// # Errors
    /// The text of the 400.
    pub fn check_limits(&self) -> Result<(), String> {
        if let Some(size) = self.fields.data_parallel_size.filter(|&size| size > MAX_DATA_PARALLEL_SIZE) {
            return Err(format!("data_parallel_size {size} exceeds the maximum {MAX_DATA_PARALLEL_SIZE}"));
        }
        if self.fields.kv_transfer_preferred_weight.is_some_and(|weight| !weight.is_finite()) {
            return Err("kv_transfer_preferred_weight must be finite".to_owned());
        }
        Ok(())
    }

    /// Checks 1 to 6 of spec http 4.3.
    ///
    /// # Errors
    /// All reasons that apply.
    pub(in crate::selection) fn plan(&self, state: WorkerState, needs: Needs) -> Result<WorkerPlan, Vec<String>> {
        let fields = &self.fields;
        let mut reasons = Vec::new();
        let indexed_only = state == WorkerState::Indexed;
        let endpoint = fields.endpoint.as_deref().unwrap_or_default();
        if endpoint.is_empty() && !indexed_only {
            reasons.push("endpoint is required".to_owned());
        }
        let block_size = fields.block_size.unwrap_or(0);
        if block_size == 0 {
            reasons.push("block_size must be greater than 0".to_owned());
        }
        let ranks = self.ranks().unwrap_or_else(|reason| {
            reasons.push(reason);
            0..0
        });
        if needs.capacity && fields.max_num_batched_tokens.is_none() && !indexed_only {
            reasons.push(CAPACITY_REQUIRED.to_owned());
        }
        let mut missing = Vec::new();
        let sources = if needs.events { self.sources(&ranks, &mut missing) } else { BTreeMap::default() };
        // Ranks between those that were registered may have no stream.
        if !indexed_only {
            reasons.append(&mut missing);
        }
        if !reasons.is_empty() {
            return Err(reasons);
        }
        let facts = WorkerFacts {
            worker_id: self.worker_id,
            ranks,
            taints: fields.taints.clone(),
            max_num_batched_tokens: fields.max_num_batched_tokens,
            total_kv_blocks: fields.total_kv_blocks,
            endpoint: endpoint.into(),
            draining: state != WorkerState::Active,
            hint_worker_type: fields.router_hint_worker_type.as_deref().unwrap_or_default().into(),
            hint_source: fields.kv_event_source_mode.as_deref() != Some("state_agent_v2"),
            hint_control_endpoints: fields.router_hint_source_control_endpoints.clone(),
        };
        Ok(WorkerPlan {
            block_size,
            is_eagle: fields.is_eagle.unwrap_or(false),
            role: fields.worker_role.unwrap_or_default(),
            sources,
            facts: Arc::new(facts),
            indexed_only,
        })
    }

    fn ranks(&self) -> Result<Range<u32>, String> {
        let start = self.fields.data_parallel_start_rank.unwrap_or(0);
        match self.fields.data_parallel_size.unwrap_or(1) {
            0 => Err("data_parallel_size must be greater than 0".to_owned()),
            // The end of the range is a u32 as well, so rank 4294967295 cannot be used.
            size => start.checked_add(size).map(|end| start..end).ok_or_else(|| {
                format!(
                    "data_parallel_start_rank {start} with data_parallel_size {size} exceeds the last usable rank {}",
                    u32::MAX - 1
                )
            }),
        }
    }

    fn sources(&self, ranks: &Range<u32>, reasons: &mut Vec<String>) -> BTreeMap<u32, RankSource> {
        let fields = &self.fields;
        let mut sources = BTreeMap::new();
        for rank in ranks.clone() {
            let endpoint = if fields.kv_events_endpoints.is_empty() {
                fields.kv_events_endpoint.as_ref().filter(|_| ranks.len() == 1)
            } else {
                fields.kv_events_endpoints.get(&rank)
            };
            match endpoint.filter(|endpoint| !endpoint.is_empty()) {
                Some(endpoint) => {
                    let replay_endpoint = if fields.replay_endpoints.is_empty() {
                        fields.replay_endpoint.clone()
                    } else {
                        fields.replay_endpoints.get(&rank).cloned()
                    };
                    sources.insert(rank, RankSource { endpoint: endpoint.clone(), replay_endpoint });
                }
                None => reasons.push(format!("kv_events endpoint is required for dp_rank {rank}")),
            }
        }
        // The replay protocol carries no rank: one scalar endpoint cannot serve several.
        if ranks.len() > 1 && fields.replay_endpoints.is_empty() && fields.replay_endpoint.is_some() {
            reasons.push("replay_endpoint is supported only for data_parallel_size 1".to_owned());
        }
        sources
    }

    /// Check 7: syntax of every listed endpoint, also for ranks the worker does not have.
    ///
    /// # Errors
    /// What follows `reconciliation failed: `.
    pub(in crate::selection) fn check_endpoints(&self, ranks: &Range<u32>) -> Result<(), String> {
        let (worker, fields) = (self.worker_id, &self.fields);
        let scalar = fields.kv_events_endpoint.as_ref().filter(|_| fields.kv_events_endpoints.is_empty());
        let scalar = scalar.filter(|_| ranks.len() == 1).map(|endpoint| (&ranks.start, endpoint));
        for (rank, endpoint) in fields.kv_events_endpoints.iter().chain(scalar) {
            check_zmq_endpoint(endpoint)
                .map_err(|error| format!("invalid kv_events endpoint for worker {worker} dp_rank {rank}: {error}"))?;
        }
        if !fields.replay_endpoints.is_empty() {
            for (rank, endpoint) in &fields.replay_endpoints {
                check_zmq_endpoint(endpoint)
                    .map_err(|error| format!("invalid replay endpoint for worker {worker} dp_rank {rank}: {error}"))?;
            }
        } else if let Some(endpoint) = &fields.replay_endpoint {
            check_zmq_endpoint(endpoint)
                .map_err(|error| format!("invalid replay endpoint for worker {worker}: {error}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::selection::config::SelectionConfig;

    fn reasons(request: serde_json::Value, config: &SelectionConfig) -> Vec<String> {
        let request: WorkerRequest = serde_json::from_value(request).unwrap();
        match request.plan(
            WorkerState::Active,
            Needs { events: config.use_kv_events, capacity: config.queue_threshold.is_some() },
        ) {
            Ok(plan) if config.use_kv_events => request.check_endpoints(&plan.ranks()).err().into_iter().collect(),
            Ok(_) => Vec::new(),
            Err(reasons) => reasons,
        }
    }

    #[test]
    fn a_minimal_record_lists_everything_that_is_missing() {
        let config = SelectionConfig { queue_threshold: Some(0.0), ..SelectionConfig::default() };
        assert_eq!(
            reasons(json!({"worker_id": 1}), &config),
            [
                "endpoint is required",
                "block_size must be greater than 0",
                "max_num_batched_tokens is required while queueing is enabled",
                "kv_events endpoint is required for dp_rank 0",
            ]
        );
        assert_eq!(
            reasons(
                json!({"worker_id": 1, "endpoint": "", "block_size": 0, "data_parallel_size": 0}),
                &SelectionConfig::default()
            ),
            ["endpoint is required", "block_size must be greater than 0", "data_parallel_size must be greater than 0"]
        );
    }

    #[test]
    fn zero_satisfies_the_capacity_requirement() {
        let config = SelectionConfig { queue_threshold: Some(1.0), use_kv_events: false, ..SelectionConfig::default() };
        let request = json!({"worker_id": 1, "endpoint": "e", "block_size": 4, "max_num_batched_tokens": 0});
        assert!(reasons(request, &config).is_empty());
    }

    #[test]
    fn rank_ranges_that_do_not_fit_are_named() {
        let config = SelectionConfig { use_kv_events: false, ..SelectionConfig::default() };
        let worker = |start: u32, size: u32| {
            json!({"worker_id": 1, "endpoint": "e", "block_size": 4,
                   "data_parallel_start_rank": start, "data_parallel_size": size})
        };
        assert!(reasons(worker(4_294_967_294, 1), &config).is_empty());
        assert_eq!(
            reasons(worker(4_294_967_295, 1), &config),
            ["data_parallel_start_rank 4294967295 with data_parallel_size 1 exceeds the last usable rank 4294967294"]
        );
        assert_eq!(
            reasons(worker(4_294_967_290, 10), &config),
            ["data_parallel_start_rank 4294967290 with data_parallel_size 10 exceeds the last usable rank 4294967294"]
        );
    }

    #[test]
    fn event_endpoints_are_wanted_for_every_rank() {
        let config = SelectionConfig::default();
        let worker = |extra: serde_json::Value| {
            let mut request = json!({"worker_id": 1, "endpoint": "e", "block_size": 4});
            request.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            request
        };
        // The ranks that miss an endpoint are named, not the stray one.
        assert_eq!(
            reasons(
                worker(json!({"data_parallel_start_rank": 2, "data_parallel_size": 2,
                              "kv_events_endpoints": {"0": "tcp://h:1"}})),
                &config
            ),
            ["kv_events endpoint is required for dp_rank 2", "kv_events endpoint is required for dp_rank 3"]
        );
        assert_eq!(
            reasons(worker(json!({"data_parallel_size": 2, "kv_events_endpoint": "tcp://h:1"})), &config),
            ["kv_events endpoint is required for dp_rank 0", "kv_events endpoint is required for dp_rank 1"]
        );
        assert!(reasons(worker(json!({"kv_events_endpoint": "tcp://h:1"})), &config).is_empty());
        assert_eq!(
            reasons(worker(json!({"kv_events_endpoints": {"0": "tcp://h:1", "9": "nope"}})), &config),
            ["invalid kv_events endpoint for worker 1 dp_rank 9: invalid ZMQ endpoint `nope`: missing scheme"]
        );
    }

    #[test]
    fn one_replay_endpoint_serves_one_rank_and_the_map_serves_many() {
        let config = SelectionConfig::default();
        let base = json!({"worker_id": 1, "endpoint": "e", "block_size": 4, "data_parallel_size": 2,
                          "kv_events_endpoints": {"0": "tcp://h:1", "1": "tcp://h:2"},
                          "replay_endpoint": "tcp://h:3"});
        assert_eq!(reasons(base.clone(), &config), ["replay_endpoint is supported only for data_parallel_size 1"]);
        let mut map = base;
        map["replay_endpoints"] = json!({"1": "tcp://h:4"});
        let request: WorkerRequest = serde_json::from_value(map.clone()).unwrap();
        let plan = request.plan(WorkerState::Active, Needs { events: config.use_kv_events, capacity: false }).unwrap();
        assert_eq!(plan.sources[&0].replay_endpoint, None);
        assert_eq!(plan.sources[&1].replay_endpoint.as_deref(), Some("tcp://h:4"));
        map["replay_endpoints"] = json!({"1": "zz"});
        assert_eq!(
            reasons(map, &config),
            ["invalid replay endpoint for worker 1 dp_rank 1: invalid ZMQ endpoint `zz`: missing scheme"]
        );
    }

    #[test]
    fn limits_are_errors() {
        let request = |value| serde_json::from_value::<WorkerRequest>(value).unwrap().check_limits();
        assert_eq!(request(json!({"worker_id": 1, "data_parallel_size": 4096})), Ok(()));
        assert_eq!(
            request(json!({"worker_id": 1, "data_parallel_size": 4097})),
            Err("data_parallel_size 4097 exceeds the maximum 4096".to_owned())
        );
        assert_eq!(
            request(json!({"worker_id": 1, "kv_transfer_preferred_weight": 1e39})),
            Err("kv_transfer_preferred_weight must be finite".to_owned())
        );
    }
}
