//! The plugin API under the names of the reference, so that a plugin written for it compiles with the crate's name
//! changed. Everything here is defined in [`crate::selection::policy`].

pub use crate::selection::policy::{
    builtin::router_plugin_registry,
    failures::{PluginComponent, PluginFailures},
    instances::{
        DYN_ROUTER_DECODE_POLICY, DYN_ROUTER_PREFILL_POLICY, DYN_ROUTER_WORKER_SELECTION_POLICY,
        WorkerSelectionOverrides,
    },
    parameters::{WorkerSelectionPolicyParameters, WorkerSelectionPolicyProviderError},
    registry::{
        RouterPluginRegistry, RouterPluginRegistryError, RouterPlugins, WorkerSelectionPolicyRegistry,
        WorkerSelectionPolicyRegistryError,
    },
    stages::WorkerSelectionPolicyProvider,
};

/// Request classifiers.
pub mod request_classifier {
    pub use crate::selection::{
        identity::WorkerWithDpRank,
        policy::classifier::{
            AbortCause, ClassifierError, ClassifierLimits, ClassifyEvent, ClassifyFuture, ClassifyRequest,
            RequestClassifier, async_trait,
            config::{
                RequestClassifierConfig, RequestClassifierFactory, RequestClassifierParameters,
                RequestClassifierProvider, RequestClassifierProviderError, RequestClassifierRegistryError,
            },
            context::{RequestClassifierContext, RequestClassifierWorker},
            lifecycle::RequestLifecycle,
            progress::{RequestProgress, RequestProgressUpdater},
        },
        request::SessionContext,
    };
}

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
            parameters::{WorkerSelectionPolicyParameters, WorkerSelectionPolicyProviderError},
            registry::WorkerSelectionPolicyRegistryError,
            stages::{
                PolicyComponent, WorkerFilter, WorkerPicker, WorkerScorer, WorkerSelectionPolicy,
                WorkerSelectionPolicyError, WorkerSelectionPolicyFactory, WorkerSelectionPolicyProvider,
            },
        },
        request::{InputTrigger as WorkerSelectionInputTrigger, SessionContext},
    };
}
