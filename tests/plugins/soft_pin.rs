//! Soft affinity with policies that leave a busy worker: A, B, B. The example's own source, and the policy that ships.

use std::time::Duration;

use pointsman::{
    KvRouterConfig,
    selection::{config::SessionAffinityMode, core::Plugins, policy::document, worker::WorkerRole},
};
use serde_json::json;

use super::support::*;

#[path = "../../examples/routing-policy/soft-pin/src/lib.rs"]
mod example;

fn fleet(kind: &str, parameters: &str) -> Fleet {
    let mut registry = pointsman::plugins::router_plugin_registry();
    example::register(&mut registry).unwrap();
    let text = format!(
        "worker_selection: {{aggregated: pin, instances: [{{name: pin, type: {kind}, parameters: {parameters}}}]}}"
    );
    let mut config = KvRouterConfig {
        session_affinity_ttl: Some(Duration::from_secs(60)),
        session_affinity_mode: SessionAffinityMode::Soft,
        ..KvRouterConfig::default()
    };
    document::apply(&document::PolicyDocument::parse(&text, "p.yaml").unwrap(), &mut config);
    let fleet = Fleet::with(config, Plugins::Registry { registry: &registry, role: WorkerRole::Aggregated });
    fleet.worker(1, json!({}));
    fleet.worker(2, json!({}));
    fleet
}

/// One turn of the session; its booking stays.
fn turn(fleet: &Fleet, id: &str) -> u64 {
    let mut turn = request(1);
    turn.session_id = Some("s".into());
    turn.selection_id = Some(id.into());
    fleet.reserve(turn).unwrap().worker_id
}

fn a_b_b(fleet: &Fleet) {
    fleet.book("other", 2, 0..1, 0);
    assert_eq!(turn(fleet, "t1"), 1, "A: the idle one");
    fleet.core.free_reservation("t1").unwrap();
    for at in 0..4 {
        fleet.book(&format!("load{at}"), 1, 100 + at..101 + at, 0);
    }
    let mut query = request(1);
    query.session_id = Some("s".into());
    assert_eq!(fleet.select(query).unwrap().worker_id, 2, "a query sees B already, and moves nothing");
    assert_eq!(turn(fleet, "t2"), 2, "B: A has too much to do");
    for at in 0..4 {
        fleet.core.free_reservation(&format!("load{at}")).unwrap();
    }
    assert_eq!(turn(fleet, "t3"), 2, "B: the session is bound there now, though A is idle again");
    assert_eq!(fleet.bookings(), [(1, 0, 0), (2, 0, 3)]);
}

#[test]
fn the_example_goes_a_b_b() {
    a_b_b(&fleet(example::TYPE, "{max_active_requests: 4}"));
}

#[test]
fn the_policy_that_ships_goes_a_b_b() {
    a_b_b(&fleet("soft-affinity-load-guard", "{max_active_requests: 3, move_margin: 2}"));
}

#[test]
fn the_example_refuses_a_limit_of_nothing() {
    let mut registry = pointsman::plugins::router_plugin_registry();
    example::register(&mut registry).unwrap();
    let text = "worker_selection: {aggregated: p, instances: [{name: p, type: soft-pin, parameters: {max_active_requests: 0}}]}";
    let mut config = KvRouterConfig::default();
    document::apply(&document::PolicyDocument::parse(text, "p.yaml").unwrap(), &mut config);
    let refused = registry.resolve_for_worker_type(&config, WorkerRole::Aggregated).err().unwrap().to_string();
    assert!(refused.contains("max_active_requests must be at least 1"), "{refused}");
}
