//! Names of the plugin API at the other places where the reference has them, so that plugins written for it compile with
//! the crate's name changed. New plugins use [`crate::plugins`].

/// Settings.
pub mod config {
    pub use crate::selection::{config::SelectionConfig as KvRouterConfig, request::RouterConfigOverride};
}

/// Identities and cache facts.
pub mod protocols {
    pub use crate::{
        plugins::worker_selection::SharedCacheHits,
        selection::{identity::WorkerWithDpRank, request::AffinityTarget as WorkerAffinityTarget},
    };

    /// A worker's id.
    pub type WorkerId = u64;
    /// A rank's number.
    pub type DpRank = u32;
}

/// Policies and their components.
pub mod selector {
    pub use crate::plugins::worker_selection::{
        ScoredWorkerCandidate, WorkerCacheInput, WorkerCacheInputs, WorkerCandidate, WorkerCandidates, WorkerFilter,
        WorkerInputView, WorkerInputs, WorkerLoadInput, WorkerPicker, WorkerScorer, WorkerSelectionContext,
        WorkerSelectionPolicy,
    };
}

/// Sections of the policy document, sessions, errors.
pub mod scheduling {
    pub use super::{config, selector};
    pub use crate::plugins::worker_selection::{
        SessionContext, WorkerSelectionConfig, WorkerSelectionInputTrigger, WorkerSelectionInstance,
        WorkerSelectionPolicyError,
    };
}

/// What hosts link.
pub mod services {
    /// Registries and factories.
    pub mod selection {
        pub use crate::plugins::{
            RouterPluginRegistry, RouterPlugins, WorkerSelectionPolicyParameters, WorkerSelectionPolicyProvider,
            WorkerSelectionPolicyProviderError, WorkerSelectionPolicyRegistry, WorkerSelectionPolicyRegistryError,
            worker_selection::WorkerSelectionPolicyFactory,
        };
        #[cfg(feature = "service")]
        pub use crate::service::{SelectionService, SelectionServiceBuilder};
    }
}
