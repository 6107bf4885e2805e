//! The API group `pointsman.dev/v1alpha1`: `SelectorSet` (selectors that share a catalog and a mesh) and `ModelPool`
//! (the workers of one model). The CRDs are generated from these types; every doc comment here is what `kubectl explain`
//! shows.

pub mod common;
pub mod conditions;
pub mod constants;
pub mod model_pool;
pub mod selector_set;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

pub use model_pool::{ModelPool, ModelPoolSpec, ModelPoolStatus};
pub use selector_set::{SelectorSet, SelectorSetSpec, SelectorSetStatus};

/// The CRDs, in the order in which they are printed.
pub fn crds() -> [CustomResourceDefinition; 2] {
    [SelectorSet::crd(), ModelPool::crd()]
}
