//! Pointsman on Kubernetes: the API types, the source that reads workers from the cluster, and the operator.
//!
//! | module | owns |
//! |---|---|
//! | [`api`] | the `SelectorSet` and `ModelPool` types, their CRDs, every label, annotation and reason |
//! | [`connection`] | the way to the apiserver |
//! | [`controller`] | the operator |
//! | [`source`] | workers from EndpointSlices, Pods and Nodes, one snapshot a SelectorSet |
//! | [`standalone`] | a selector that discovers for itself, without operator |

pub mod api;
pub mod connection;
pub mod controller;
pub mod source;
pub mod standalone;
