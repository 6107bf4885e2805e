//! Where a core's policies come from.

use super::{registry::RouterPluginRegistry, shadow::ShadowSource, stages::WorkerSelectionPolicyFactory};
use crate::selection::worker::WorkerRole;

/// Where a core's policies come from.
pub enum Plugins<'a> {
    /// What the configuration chooses among the linked types. The choice for `role` must be possible; one for another
    /// role that is not is logged, and selections of such partitions fail with the reason.
    Registry {
        /// Linked types.
        registry: &'a RouterPluginRegistry,
        /// The role that the host serves above all.
        role: WorkerRole,
    },
    /// This factory, whatever is configured.
    Factory(WorkerSelectionPolicyFactory),
    /// What a policy document was resolved to.
    Composed {
        /// In force.
        factory: WorkerSelectionPolicyFactory,
        /// Beside it, by role.
        shadows: [Option<ShadowSource>; WorkerRole::ALL.len()],
    },
}

impl std::fmt::Debug for Plugins<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Registry { registry, role } => {
                f.debug_struct("Registry").field("registry", registry).field("role", role).finish()
            }
            Self::Factory(_) => f.write_str("Factory"),
            Self::Composed { shadows, .. } => {
                f.debug_struct("Composed").field("shadows", shadows).finish_non_exhaustive()
            }
        }
    }
}
