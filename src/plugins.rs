//! The plugin API under the names of the reference, so that a plugin written for it compiles with the crate's name
//! changed. Everything here is defined in [`crate::selection::policy`].

pub use crate::selection::policy::{
    failures::{PluginComponent, PluginFailures},
    instances::{
        DYN_ROUTER_DECODE_POLICY, DYN_ROUTER_PREFILL_POLICY, DYN_ROUTER_WORKER_SELECTION_POLICY,
        WorkerSelectionOverrides,
    },
    parameters::{WorkerSelectionPolicyParameters, WorkerSelectionPolicyProvider, WorkerSelectionPolicyProviderError},
    registry::{
        RouterPluginRegistry, RouterPluginRegistryError, RouterPlugins, WorkerSelectionPolicyRegistry,
        WorkerSelectionPolicyRegistryError,
    },
};

/// Filters, scorers and pickers.
pub mod worker_selection {
    pub use crate::selection::{
        ingest::Trust,
        policy::{
            context::{RequestCacheInput, WorkerCapacity, WorkerSelectionContext},
            inputs::{
                ScoredWorkerCandidate, SharedCacheHits, WorkerCacheInput, WorkerCacheInputs, WorkerCandidate,
                WorkerCandidates, WorkerInputView, WorkerInputs, WorkerLoadInput,
            },
            instances::{WorkerSelectionConfig, WorkerSelectionInstance},
            parameters::{
                WorkerSelectionPolicyParameters, WorkerSelectionPolicyProvider, WorkerSelectionPolicyProviderError,
            },
            registry::WorkerSelectionPolicyRegistryError,
            stages::{
                PolicyComponent, WorkerFilter, WorkerPicker, WorkerScorer, WorkerSelectionPolicy,
                WorkerSelectionPolicyError, WorkerSelectionPolicyFactory,
            },
        },
        request::{InputTrigger as WorkerSelectionInputTrigger, SessionContext},
    };
}
