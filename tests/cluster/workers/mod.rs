//! Workers come, go, fail and lie; every selector must know exactly those that are there, and the ModelPool's status must
//! say why the others are not.

mod endpoints;
mod pods;

use libtest_mimic::Trial;
use serde_json::{Value, json};

use super::harness::{alone, manifests, trial};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("workers::twenty_engines_come_and_go", pods::twenty_engines_come_and_go),
        trial("workers::what_is_not_ready_drains", pods::what_is_not_ready_drains),
        trial("workers::every_way_out", pods::every_way_out),
        trial("workers::endpoints_by_hand", endpoints::by_hand),
        trial("workers::an_address_used_again", endpoints::an_address_used_again),
        trial("workers::two_services_over_the_same_pods", endpoints::two_services_over_the_same_pods),
        alone("workers::a_node_is_drained", pods::a_node_is_drained),
    ]
}

/// Pods of small engines, as a Deployment with a Service.
fn engines(name: &str, replicas: u32, image: &str) -> [Value; 2] {
    let [mut deployment, service] = manifests::engines(name, replicas, image, &[]);
    let container = &mut deployment["spec"]["template"]["spec"]["containers"][0];
    container["resources"] = json!({"requests": {"cpu": "1m", "memory": "8Mi"}});
    [deployment, service]
}

/// `workers` of a pool over a Service.
fn service(name: &str) -> Value {
    json!({"service": {"name": name}})
}
