//! What a world is told of.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::{core::PartialObjectMeta, runtime::reflector::Lookup};

use crate::kubernetes::{
    api::{ModelPool, SelectorSet},
    source::{
        counters::WATCHED,
        objects::{NodeView, ObjectKey, PodView, SliceView},
    },
};

/// What is listed and watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// SelectorSets.
    Sets,
    /// ModelPools.
    Pools,
    /// EndpointSlices.
    Slices,
    /// Pods.
    Pods,
    /// Nodes.
    Nodes,
}

impl Kind {
    /// All of them, in the order of [`WATCHED`].
    pub const ALL: [Self; 5] = [Self::Sets, Self::Pools, Self::Slices, Self::Pods, Self::Nodes];

    /// Its place in counters.
    pub fn index(self) -> usize {
        self as usize
    }

    /// Its name.
    pub fn as_str(self) -> &'static str {
        WATCHED[self.index()]
    }
}

/// An object as it is now.
#[derive(Clone, Debug)]
pub enum Object {
    /// A pod.
    Pod(Arc<PodView>),
    /// A slice.
    Slice(SliceView),
    /// A node.
    Node(NodeView),
    /// A ModelPool, and why it cannot be read where it cannot.
    Pool(Arc<ModelPool>, Option<String>),
    /// A SelectorSet, or why it cannot be read.
    Set(ObjectKey, Result<Arc<SelectorSet>, String>),
}

impl Object {
    /// A node of which only the metadata was read.
    pub fn node(node: &PartialObjectMeta<Node>) -> Option<Self> {
        let name = node.name()?.as_ref().into();
        Some(Self::Node(NodeView { name, labels: node.metadata.labels.clone().unwrap_or_default() }))
    }

    /// Names it.
    pub fn key(&self) -> ObjectKey {
        match self {
            Self::Pod(pod) => pod.key.clone(),
            Self::Slice(slice) => slice.key.clone(),
            Self::Node(node) => ObjectKey { namespace: "".into(), name: node.name.clone() },
            Self::Pool(pool, _) => ObjectKey::new(
                pool.metadata.namespace.as_deref().unwrap_or_default(),
                pool.metadata.name.as_deref().unwrap_or_default(),
            ),
            Self::Set(key, _) => key.clone(),
        }
    }
}

/// What can be read at all.
#[derive(Clone, Copy, Debug)]
pub struct Reads {
    /// Pods.
    pub pods: bool,
    /// Nodes.
    pub nodes: bool,
}
