//! The API group `pointsman.dev/v1alpha1`: `SelectorSet` (selectors that share a catalog and a mesh) and `ModelPool`
//! (the workers of one model). The CRDs are generated from these types; every doc comment here is what `kubectl explain`
//! shows.

#![allow(clippy::duplicated_attributes, reason = "two printer columns of one type are no repetition")]

pub mod common;
pub mod conditions;
pub mod constants;
pub mod model_pool;
pub mod selector_set;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::Value;

pub use model_pool::{ModelPool, ModelPoolSpec, ModelPoolStatus};
pub use selector_set::{SelectorSet, SelectorSetSpec, SelectorSetStatus};

/// The CRDs, in the order in which they are printed.
pub fn crds() -> [CustomResourceDefinition; 2] {
    [SelectorSet::crd(), ModelPool::crd()].map(unwrapped)
}

/// `crd` with descriptions that end lines where paragraphs end: doc comments end them where the source does.
fn unwrapped(crd: CustomResourceDefinition) -> CustomResourceDefinition {
    fn visit(value: &mut Value) {
        match value {
            Value::Object(fields) => fields.iter_mut().for_each(|(key, field)| match field {
                Value::String(text) if key == "description" => {
                    let paragraphs = text.split("\n\n").map(|paragraph| paragraph.replace('\n', " "));
                    *text = paragraphs.collect::<Vec<_>>().join("\n\n");
                }
                field => visit(field),
            }),
            Value::Array(items) => items.iter_mut().for_each(visit),
            _ => {}
        }
    }
    let mut value = serde_json::to_value(crd).expect("a CRD is plain data, which JSON can say");
    visit(&mut value);
    serde_json::from_value(value).expect("nothing changed but texts")
}

/// A CRD as the YAML document that `crds/` has.
pub fn crd_yaml(crd: &CustomResourceDefinition) -> String {
    serde_saphyr::to_string(crd).expect("a CRD is plain data, which YAML can say")
}
