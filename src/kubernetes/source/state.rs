//! What the source tells: one state a SelectorSet, and in it one outcome a ModelPool.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use crate::{
    discovery::Snapshot,
    kubernetes::api::{
        ModelPool, SelectorSet,
        model_pool::{Rejection, ValueSource},
    },
};

/// Most rejections that an outcome names; it counts them all.
pub const MAX_REJECTIONS: usize = 32;
/// Most warnings that an outcome tells.
pub const MAX_WARNINGS: usize = 32;

/// Every SelectorSet that there is or that a ModelPool names. A state that did not change keeps its `Arc`.
pub type Sets = BTreeMap<SetKey, Arc<SetState>>;

/// Names a SelectorSet.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SetKey {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl SetKey {
    /// A key.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// The owner of the set's workers in the catalogs of its selectors: `k8s.<namespace>.<name>`.
    pub fn owner(&self) -> String {
        format!("k8s.{}.{}", self.namespace, self.name)
    }
}

impl std::fmt::Display for SetKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A SelectorSet, its workers and its selectors.
#[derive(Clone, Debug, PartialEq)]
pub struct SetState {
    /// Which.
    pub key: SetKey,
    /// The object without managed fields; none where pools name a set that is not there, or one that cannot be read.
    pub object: Option<Arc<SelectorSet>>,
    /// Why the object as it is now cannot be read; `object` is then the last one that could.
    pub invalid: Option<String>,
    /// Its workers; none until every list that they depend on was read in full. Epoch 0, generations count up with
    /// digests: who applies it gives it an epoch. Empty for a set without pools.
    pub snapshot: Option<Snapshot>,
    /// Outcome by name of the ModelPool.
    pub pools: BTreeMap<String, Arc<PoolOutcome>>,
    /// Its selectors, by name; those that terminate stay until they are gone.
    pub selectors: Arc<[SelectorPod]>,
}

/// What became of a ModelPool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolOutcome {
    /// The object without managed fields. Where it cannot be read: its metadata, status and SelectorSet.
    pub object: Arc<ModelPool>,
    /// Generation of the spec that this is about.
    pub observed_generation: Option<i64>,
    /// Whether the spec can be followed: else a reason (see [`crate::kubernetes::api::constants::reason`]) and a message.
    pub accepted: Result<(), (&'static str, String)>,
    /// Some list was not read in full yet: counts are not to be believed.
    pub listing: bool,
    /// Pods or endpoints that were found.
    pub discovered: usize,
    /// Of those, workers that are ready.
    pub ready: usize,
    /// Of those, workers that drain.
    pub draining: usize,
    /// Of those, no workers.
    pub rejected: usize,
    /// Why; the first [`MAX_REJECTIONS`] by name.
    pub rejections: Vec<Rejection>,
    /// Where values come from, when the engine is asked; else empty.
    pub sources: Vec<ValueSource>,
    /// What was ignored, for a person: annotations that nobody reads.
    pub warnings: Vec<String>,
    /// Name of the pod, or address and port, by id of the worker.
    pub worker_ids: BTreeMap<u64, Arc<str>>,
}

/// A selector that runs as a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectorPod {
    /// Name of the pod.
    pub name: Arc<str>,
    /// UID of the pod.
    pub uid: Arc<str>,
    /// Its primary address; none yet.
    pub ip: Option<IpAddr>,
    /// The pod is ready.
    pub ready: bool,
    /// The pod was told to end.
    pub terminating: bool,
    /// The pod has ended, and its object is still there.
    pub finished: bool,
    /// Revision of the StatefulSet it is of.
    pub revision: Option<Arc<str>>,
    /// Why a container cannot run, as `CrashLoopBackOff: message`.
    pub failing: Option<String>,
}
