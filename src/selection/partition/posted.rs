//! What of a partition's policy is read without its lock.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU8, Ordering},
};

use parking_lot::RwLock;

use super::{
    own::{PartitionPolicies, PartitionPolicy},
    shadow::Shadow,
};
use crate::selection::policy::inputs::WorkerInputs;

/// Inputs of the policy in force and its shadow, and that shadow.
#[derive(Debug)]
pub(super) struct PostedPolicy {
    inputs: AtomicU8,
    is_shadowed: AtomicBool,
    shadow: RwLock<Option<Arc<Shadow>>>,
}

impl Default for PostedPolicy {
    /// Nothing is left out before a policy is there.
    fn default() -> Self {
        Self {
            inputs: AtomicU8::new(WorkerInputs::ALL.bits()),
            is_shadowed: AtomicBool::new(false),
            shadow: RwLock::default(),
        }
    }
}

impl PostedPolicy {
    /// Posts a new policy; returns what is in force, without its shadow.
    pub(super) fn post(&self, made: PartitionPolicies) -> PartitionPolicy {
        self.inputs.store(made.required_inputs().bits(), Ordering::Relaxed);
        let PartitionPolicies { in_force, shadow } = made;
        self.is_shadowed.store(shadow.is_some(), Ordering::Relaxed);
        *self.shadow.write() = shadow;
        in_force
    }

    /// What both read.
    pub(super) fn inputs(&self) -> WorkerInputs {
        WorkerInputs::from_bits(self.inputs.load(Ordering::Relaxed))
    }

    /// The shadow; one load where there is none.
    #[inline]
    pub(super) fn shadow(&self) -> Option<Arc<Shadow>> {
        if !self.is_shadowed.load(Ordering::Relaxed) {
            return None;
        }
        self.shadow.read().clone()
    }
}
