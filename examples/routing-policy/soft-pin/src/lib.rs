//! `soft-pin`: a session stays with its worker until that one has too much to do, then moves and stays there.
//!
//! For `--router-session-affinity-mode soft`, where a session is bound anew to the worker its booking went to: bound to A,
//! with A busy the next turn goes to B, and the turn after it to B too, though A may be idle again.

use std::sync::Arc;

use pointsman::plugins::{
    RouterPluginRegistry, WorkerSelectionPolicyProviderError, WorkerSelectionPolicyRegistryError,
    worker_selection::{
        WorkerInputView, WorkerInputs, WorkerPicker, WorkerSelectionContext, WorkerSelectionPolicy,
        WorkerSelectionPolicyError, WorkerSelectionPolicyFactory,
    },
};
use serde::Deserialize;

/// The name that a policy file uses as `type`.
pub const TYPE: &str = "soft-pin";

/// What a policy file may set under `parameters`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Parameters {
    /// A worker with this many requests in progress takes no further turn of a session.
    pub max_active_requests: u64,
}

impl Default for Parameters {
    fn default() -> Self {
        Self { max_active_requests: 32 }
    }
}

struct SoftPin {
    max_active_requests: u64,
}

impl WorkerPicker for SoftPin {
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::LOAD
    }

    fn pick(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        input: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError> {
        let loads = input.load().ok_or_else(|| WorkerSelectionPolicyError::failed("load input is missing"))?;
        let requests = |row: &usize| loads[*row].active_requests() as u64;
        let rows = 0..input.candidates().len();
        // The target may be absent: its worker may have left, or a constraint may exclude it.
        let pinned = context.affinity_target().and_then(|target| {
            rows.clone().find(|&row| {
                let worker = input.candidates()[row].worker();
                worker.worker_id == target.worker_id && target.dp_rank.is_none_or(|rank| rank == worker.dp_rank)
            })
        });
        match pinned.filter(|row| requests(row) < self.max_active_requests) {
            Some(row) => Ok(row),
            None => rows.min_by_key(requests).ok_or_else(|| WorkerSelectionPolicyError::failed("no candidate")),
        }
    }
}

/// Makes the policy known under [`TYPE`].
///
/// # Errors
/// Another policy has that name.
pub fn register(registry: &mut RouterPluginRegistry) -> Result<(), WorkerSelectionPolicyRegistryError> {
    registry.register_worker_selection(
        TYPE,
        Arc::new(|parameters| {
            let Parameters { max_active_requests } = parameters.deserialize()?;
            if max_active_requests == 0 {
                return Err(WorkerSelectionPolicyProviderError::new("max_active_requests must be at least 1"));
            }
            let factory: WorkerSelectionPolicyFactory = Arc::new(move |config, role, _partition| {
                let picker = Box::new(SoftPin { max_active_requests });
                WorkerSelectionPolicy::new(config.clone(), role.as_str(), Vec::new(), picker)
            });
            Ok(factory)
        }),
    )
}
