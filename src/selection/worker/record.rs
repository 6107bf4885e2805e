//! The record as answers show it, and patches.

use serde::ser::{Serialize, SerializeStruct, Serializer};

use super::{Lifecycle, WorkerFields, WorkerPatch, WorkerRecord};

impl Serialize for WorkerRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let request = &*self.request;
        let fields = &request.fields;
        // The number of fields is a hint that JSON writers ignore.
        let mut out = serializer.serialize_struct("WorkerRecord", 24)?;
        out.serialize_field("worker_id", &request.worker_id)?;
        out.serialize_field("model_name", &request.model_name)?;
        out.serialize_field("routing_group", &request.routing_group)?;
        out.serialize_field("lifecycle", &self.lifecycle)?;
        out.serialize_field("endpoint", &fields.endpoint)?;
        out.serialize_field("kv_events_endpoint", &fields.kv_events_endpoint)?;
        if !fields.kv_events_endpoints.is_empty() {
            out.serialize_field("kv_events_endpoints", &fields.kv_events_endpoints)?;
        }
        out.serialize_field("replay_endpoint", &fields.replay_endpoint)?;
        out.serialize_field("block_size", &fields.block_size)?;
        out.serialize_field("data_parallel_start_rank", &fields.data_parallel_start_rank)?;
        out.serialize_field("data_parallel_size", &fields.data_parallel_size)?;
        out.serialize_field("max_num_batched_tokens", &fields.max_num_batched_tokens)?;
        out.serialize_field("total_kv_blocks", &fields.total_kv_blocks)?;
        out.serialize_field("stable_routing_id", &fields.stable_routing_id)?;
        out.serialize_field("is_eagle", &fields.is_eagle)?;
        out.serialize_field("taints", &fields.taints)?;
        out.serialize_field("topology_domains", &fields.topology_domains)?;
        out.serialize_field("kv_transfer_domain", &fields.kv_transfer_domain)?;
        out.serialize_field("kv_transfer_enforcement", &fields.kv_transfer_enforcement)?;
        out.serialize_field("kv_transfer_preferred_weight", &fields.kv_transfer_preferred_weight)?;
        if let Some(worker_type) = &fields.router_hint_worker_type {
            out.serialize_field("router_hint_worker_type", worker_type)?;
        }
        if !fields.router_hint_source_control_endpoints.is_empty() {
            let endpoints = &fields.router_hint_source_control_endpoints;
            out.serialize_field("router_hint_source_control_endpoints", endpoints)?;
        }
        if let Some(mode) = &fields.kv_event_source_mode {
            out.serialize_field("kv_event_source_mode", mode)?;
        }
        if !fields.replay_endpoints.is_empty() {
            out.serialize_field("replay_endpoints", &fields.replay_endpoints)?;
        }
        if let Some(role) = &fields.worker_role {
            out.serialize_field("worker_role", role)?;
        }
        if !self.not_schedulable_reasons.is_empty() {
            out.serialize_field("not_schedulable_reasons", &self.not_schedulable_reasons)?;
        }
        out.end()
    }
}

impl WorkerRecord {
    /// Whether new bookings may go to the worker.
    pub fn is_schedulable(&self) -> bool {
        self.lifecycle == Lifecycle::Schedulable
    }
}

impl WorkerFields {
    /// Replaces what `patch` carries and keeps the rest.
    pub fn apply(&mut self, patch: WorkerPatch) {
        fn set<T>(field: &mut Option<T>, value: Option<T>) {
            if value.is_some() {
                *field = value;
            }
        }
        fn replace<T>(field: &mut T, value: Option<T>) {
            if let Some(value) = value {
                *field = value;
            }
        }
        set(&mut self.endpoint, patch.endpoint);
        set(&mut self.kv_events_endpoint, patch.kv_events_endpoint);
        replace(&mut self.kv_events_endpoints, patch.kv_events_endpoints);
        set(&mut self.replay_endpoint, patch.replay_endpoint);
        set(&mut self.block_size, patch.block_size);
        set(&mut self.data_parallel_start_rank, patch.data_parallel_start_rank);
        set(&mut self.data_parallel_size, patch.data_parallel_size);
        set(&mut self.max_num_batched_tokens, patch.max_num_batched_tokens);
        set(&mut self.total_kv_blocks, patch.total_kv_blocks);
        set(&mut self.stable_routing_id, patch.stable_routing_id);
        set(&mut self.is_eagle, patch.is_eagle);
        replace(&mut self.taints, patch.taints);
        replace(&mut self.topology_domains, patch.topology_domains);
        set(&mut self.kv_transfer_domain, patch.kv_transfer_domain);
        set(&mut self.kv_transfer_enforcement, patch.kv_transfer_enforcement);
        set(&mut self.kv_transfer_preferred_weight, patch.kv_transfer_preferred_weight);
        set(&mut self.router_hint_worker_type, patch.router_hint_worker_type);
        replace(&mut self.router_hint_source_control_endpoints, patch.router_hint_source_control_endpoints);
        set(&mut self.kv_event_source_mode, patch.kv_event_source_mode);
        replace(&mut self.replay_endpoints, patch.replay_endpoints);
        set(&mut self.worker_role, patch.worker_role);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::super::{WorkerPatch, WorkerRequest, WorkerState};
    use super::*;

    fn record(request: serde_json::Value) -> WorkerRecord {
        WorkerRecord {
            request: Arc::new(serde_json::from_value(request).unwrap()),
            lifecycle: Lifecycle::Schedulable,
            not_schedulable_reasons: Vec::new(),
            owner: "api".into(),
            state: WorkerState::Active,
        }
    }

    #[test]
    fn absent_values_print_as_null_and_starred_fields_are_omitted() {
        let text = serde_json::to_string(&record(json!({"worker_id": u64::MAX}))).unwrap();
        assert_eq!(
            text,
            concat!(
                r#"{"worker_id":18446744073709551615,"model_name":"default","routing_group":"default","#,
                r#""lifecycle":"schedulable","endpoint":null,"kv_events_endpoint":null,"replay_endpoint":null,"#,
                r#""block_size":null,"data_parallel_start_rank":null,"data_parallel_size":null,"#,
                r#""max_num_batched_tokens":null,"total_kv_blocks":null,"stable_routing_id":null,"is_eagle":null,"#,
                r#""taints":[],"topology_domains":{},"kv_transfer_domain":null,"kv_transfer_enforcement":null,"#,
                r#""kv_transfer_preferred_weight":null}"#
            )
        );
    }

    #[test]
    fn present_values_keep_the_order_of_the_reference() {
        let mut record = record(json!({
            "worker_id": 1, "model_name": "m", "routing_group": "g", "endpoint": "http://w:1",
            "kv_events_endpoint": "tcp://h:1", "kv_events_endpoints": {"10": "tcp://h:3", "2": "tcp://h:2"},
            "replay_endpoint": "", "block_size": 4, "taints": ["b", "a"], "kv_transfer_enforcement": "required",
            "router_hint_worker_type": "", "router_hint_source_control_endpoints": {"0": "a"},
            "kv_event_source_mode": "x", "replay_endpoints": {"0": "tcp://h:4"}, "worker_role": "prefill",
        }));
        record.lifecycle = Lifecycle::Incomplete;
        record.not_schedulable_reasons = vec!["r".into()];
        assert_eq!(
            serde_json::to_string(&record).unwrap(),
            concat!(
                r#"{"worker_id":1,"model_name":"m","routing_group":"g","lifecycle":"incomplete","#,
                r#""endpoint":"http://w:1","kv_events_endpoint":"tcp://h:1","#,
                r#""kv_events_endpoints":{"2":"tcp://h:2","10":"tcp://h:3"},"replay_endpoint":"","block_size":4,"#,
                r#""data_parallel_start_rank":null,"data_parallel_size":null,"max_num_batched_tokens":null,"#,
                r#""total_kv_blocks":null,"stable_routing_id":null,"is_eagle":null,"taints":["a","b"],"#,
                r#""topology_domains":{},"kv_transfer_domain":null,"kv_transfer_enforcement":"required","#,
                r#""kv_transfer_preferred_weight":null,"router_hint_worker_type":"","#,
                r#""router_hint_source_control_endpoints":{"0":"a"},"kv_event_source_mode":"x","#,
                r#""replay_endpoints":{"0":"tcp://h:4"},"worker_role":"prefill","not_schedulable_reasons":["r"]}"#
            )
        );
    }

    #[test]
    fn a_patch_keeps_nulls_and_replaces_collections_whole() {
        let mut request: WorkerRequest = serde_json::from_value(json!({
            "worker_id": 1, "endpoint": "http://w:1", "total_kv_blocks": 5, "taints": ["x", "y"],
            "kv_events_endpoints": {"0": "tcp://h:1"}, "topology_domains": {"zone": "a"},
        }))
        .unwrap();
        let patch: WorkerPatch = serde_json::from_value(json!({
            "endpoint": null, "total_kv_blocks": 0, "taints": ["z"], "kv_events_endpoints": {},
            "replay_endpoint": "", "topology_domains": null,
        }))
        .unwrap();
        request.fields.apply(patch);
        let fields = &request.fields;
        assert_eq!(fields.endpoint.as_deref(), Some("http://w:1"));
        assert_eq!(fields.total_kv_blocks, Some(0));
        assert_eq!(fields.taints.iter().map(String::as_str).collect::<Vec<_>>(), ["z"]);
        assert!(fields.kv_events_endpoints.is_empty());
        assert_eq!(fields.replay_endpoint.as_deref(), Some(""));
        assert_eq!(fields.topology_domains.get("zone").map(String::as_str), Some("a"));
    }

    #[test]
    fn rank_keys_are_decimal_u32() {
        for bad in [
            r#"{"x": "a"}"#,
            r#"{"+1": "a"}"#,
            r#"{"": "a"}"#,
            r#"{"-1": "a"}"#,
            r#"{"4294967296": "a"}"#,
            r#"{"1.5": "a"}"#,
        ] {
            let text = format!(r#"{{"worker_id": 1, "kv_events_endpoints": {bad}}}"#);
            assert!(serde_json::from_str::<WorkerRequest>(&text).is_err(), "{bad}");
        }
    }
}
