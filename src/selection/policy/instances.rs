//! Which policy each role is configured with (spec plugins 5).

use super::parameters::WorkerSelectionPolicyParameters;
use crate::selection::worker::WorkerRole;

/// Environment name: the instance for every role.
pub const DYN_ROUTER_WORKER_SELECTION_POLICY: &str = "DYN_ROUTER_WORKER_SELECTION_POLICY";
/// Environment name: the instance for prefill pools.
pub const DYN_ROUTER_PREFILL_POLICY: &str = "DYN_ROUTER_PREFILL_POLICY";
/// Environment name: the instance for decode pools.
pub const DYN_ROUTER_DECODE_POLICY: &str = "DYN_ROUTER_DECODE_POLICY";

/// The name that stands for the built-in policy.
pub(in crate::selection) const DEFAULT: &str = "default";

/// The `worker_selection` section of a policy document.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerSelectionConfig {
    /// Instance for aggregated pools; `default` or absent = built-in.
    pub aggregated: Option<String>,
    /// Instance for prefill pools.
    pub prefill: Option<String>,
    /// Instance for decode pools.
    pub decode: Option<String>,
    /// Instance for encode pools.
    pub encode: Option<String>,
    /// Configured instances, used or not, in the order of the document.
    pub instances: Vec<WorkerSelectionInstance>,
}

impl WorkerSelectionConfig {
    /// The instance chosen for aggregated pools.
    pub fn aggregated_instance(&self) -> Option<&str> {
        self.selected(WorkerRole::Aggregated)
    }

    /// The instance chosen for pools of a role.
    pub fn selected(&self, role: WorkerRole) -> Option<&str> {
        match role {
            WorkerRole::Aggregated => self.aggregated.as_deref(),
            WorkerRole::Prefill => self.prefill.as_deref(),
            WorkerRole::Decode => self.decode.as_deref(),
            WorkerRole::Encode => self.encode.as_deref(),
        }
    }

    /// The configured instance with a name.
    pub fn instance(&self, name: &str) -> Option<&WorkerSelectionInstance> {
        self.instances.iter().find(|instance| instance.name == name)
    }

    /// Names of all instances, sorted.
    pub fn instance_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.instances.iter().map(|instance| instance.name.clone()).collect();
        names.sort();
        names
    }
}

/// A policy type with a name and parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerSelectionInstance {
    /// Its name.
    pub name: String,
    /// Registered type.
    pub policy_type: String,
    /// Parameters.
    pub parameters: WorkerSelectionPolicyParameters,
    /// Where it stands in its document, `FILE:LINE`; shown with errors of its provider.
    pub location: Option<String>,
}

impl WorkerSelectionInstance {
    /// Registered type.
    pub fn policy_type(&self) -> &str {
        &self.policy_type
    }

    /// Parameters.
    pub fn parameters(&self) -> &WorkerSelectionPolicyParameters {
        &self.parameters
    }
}

/// Choices by flag or environment, which go before those of the document. Blank ones count as absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerSelectionOverrides {
    /// For every role.
    pub global: Option<String>,
    /// For prefill pools; goes before `global`.
    pub prefill: Option<String>,
    /// For decode pools; goes before `global`.
    pub decode: Option<String>,
}

impl WorkerSelectionOverrides {
    /// The choice for a role: its own, then the global one, then the document's; `None` and `default` = built-in.
    pub(super) fn choice<'a>(&'a self, config: Option<&'a WorkerSelectionConfig>, role: WorkerRole) -> Option<&'a str> {
        let own = match role {
            WorkerRole::Prefill => self.prefill.as_deref(),
            WorkerRole::Decode => self.decode.as_deref(),
            WorkerRole::Aggregated | WorkerRole::Encode => None,
        };
        let document = config.and_then(|config| config.selected(role));
        let named = |name: Option<&'a str>| name.map(str::trim).filter(|name| !name.is_empty());
        named(own).or_else(|| named(self.global.as_deref())).or_else(|| named(document)).filter(|&name| name != DEFAULT)
    }
}
