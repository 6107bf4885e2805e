//! Linked plugin types, and which of them the configuration uses (spec plugins 5).

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use super::{
    classifier::config::{
        ClassifierTypes, RequestClassifierFactory, RequestClassifierProvider, RequestClassifierRegistryError,
    },
    failures::{PluginComponent, PluginFailures, panic_text},
    instances::{DEFAULT, WorkerSelectionConfig, WorkerSelectionInstance},
    parameters::WorkerSelectionPolicyProviderError,
    stages::{WorkerSelectionPolicyFactory, WorkerSelectionPolicyProvider},
};
use crate::selection::{config::SelectionConfig, worker::WorkerRole};

/// Why a policy type cannot be registered, or a configuration not be resolved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "fields are named in the texts")]
pub enum WorkerSelectionPolicyRegistryError {
    /// A type needs a name.
    #[error("worker-selection policy type must not be empty")]
    EmptyName,
    /// The host's own default is needed and there is none.
    #[error("routing host must supply a default worker-selection policy factory")]
    MissingDefault,
    /// The name means the built-in policy.
    #[error("worker-selection policy type 'default' is reserved for Dynamo's built-in selector")]
    ReservedDefault,
    /// Nothing is ever replaced.
    #[error("worker-selection policy type {name:?} is already registered")]
    Duplicate { name: String },
    /// A choice names no configured instance.
    #[error("unknown worker-selection instance {name:?}; configured instances: {available}")]
    UnknownInstance { name: String, available: String },
    /// An instance names no linked type.
    #[error("unknown worker-selection policy type {name:?}; linked policy types: {available}")]
    UnknownType { name: String, available: String },
    /// The provider refused the parameters, or panicked over them.
    #[error("invalid parameters for worker-selection policy type {policy_type:?}: {source}{}", at(.location))]
    Provider {
        policy_type: String,
        /// `FILE:LINE` of the instance.
        location: Option<String>,
        #[source]
        source: WorkerSelectionPolicyProviderError,
    },
}

fn at(location: &Option<String>) -> String {
    location.as_ref().map_or_else(String::new, |location| format!(" (instance at {location})"))
}

/// Why plugins could not be resolved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouterPluginRegistryError {
    /// Worker selection.
    #[error(transparent)]
    WorkerSelection(#[from] WorkerSelectionPolicyRegistryError),
    /// The request classifier.
    #[error(transparent)]
    RequestClassifier(#[from] RequestClassifierRegistryError),
}

/// What a role resolves to.
type Resolved = Result<Option<WorkerSelectionPolicyFactory>, WorkerSelectionPolicyRegistryError>;

/// Plugin types by name, and the default of the host.
#[derive(Clone, Default)]
pub struct RouterPluginRegistry {
    providers: BTreeMap<String, WorkerSelectionPolicyProvider>,
    classifiers: ClassifierTypes,
    default_factory: Option<WorkerSelectionPolicyFactory>,
}

/// The registry's former name.
pub type WorkerSelectionPolicyRegistry = RouterPluginRegistry;

impl fmt::Debug for RouterPluginRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouterPluginRegistry")
            .field("types", &self.policy_types().collect::<Vec<_>>())
            .field("classifiers", &self.classifiers)
            .finish()
    }
}

impl RouterPluginRegistry {
    /// The policy of roles for which nothing, or `default`, is chosen.
    #[must_use]
    pub fn with_default_factory(mut self, factory: WorkerSelectionPolicyFactory) -> Self {
        self.default_factory = Some(factory);
        self
    }

    /// Adds a policy type.
    ///
    /// # Errors
    /// The name is empty, reserved or taken.
    pub fn register_worker_selection(
        &mut self,
        name: impl Into<String>,
        provider: WorkerSelectionPolicyProvider,
    ) -> Result<(), WorkerSelectionPolicyRegistryError> {
        let name = name.into();
        if name.is_empty() {
            return Err(WorkerSelectionPolicyRegistryError::EmptyName);
        }
        if name == DEFAULT {
            return Err(WorkerSelectionPolicyRegistryError::ReservedDefault);
        }
        if self.providers.contains_key(&name) {
            return Err(WorkerSelectionPolicyRegistryError::Duplicate { name });
        }
        self.providers.insert(name, provider);
        Ok(())
    }

    /// The former name of [`Self::register_worker_selection`].
    ///
    /// # Errors
    /// As there.
    pub fn register(
        &mut self,
        name: impl Into<String>,
        provider: WorkerSelectionPolicyProvider,
    ) -> Result<(), WorkerSelectionPolicyRegistryError> {
        self.register_worker_selection(name, provider)
    }

    /// Adds a type of request classifiers.
    ///
    /// # Errors
    /// The name is empty, reserved or taken.
    pub fn register_request_classifier(
        &mut self,
        name: impl Into<String>,
        provider: RequestClassifierProvider,
    ) -> Result<(), RequestClassifierRegistryError> {
        self.classifiers.register(name.into(), provider)
    }

    /// Whether no type is registered; the default factory does not count.
    pub fn is_empty(&self) -> bool {
        self.providers.is_empty() && self.classifiers.is_empty()
    }

    /// Names of the registered classifier types, sorted.
    pub fn classifier_types(&self) -> impl Iterator<Item = &str> {
        self.classifiers.names()
    }

    /// Names of the registered policy types, sorted.
    pub fn policy_types(&self) -> impl Iterator<Item = &str> {
        self.providers.keys().map(String::as_str)
    }

    /// Everything the configuration asks for.
    ///
    /// # Errors
    /// What it names is not there, or a provider refuses.
    pub fn resolve_plugins(&self, config: &SelectionConfig) -> Result<RouterPlugins, RouterPluginRegistryError> {
        let custom = WorkerRole::ALL.iter().any(|&role| choice(config, role).is_some());
        Ok(RouterPlugins {
            worker_selection: self.resolve(config)?,
            custom_worker_selection: custom,
            request_classifier: self.resolve_request_classifier(config)?,
        })
    }

    /// The factory of the configured request classifier; `None` when none is.
    ///
    /// # Errors
    /// Its type is not linked, or its provider refuses.
    pub fn resolve_request_classifier(
        &self,
        config: &SelectionConfig,
    ) -> Result<Option<RequestClassifierFactory>, RequestClassifierRegistryError> {
        self.classifiers.resolve(config)
    }

    /// One factory for all roles; `None` when nothing is chosen and there is no default.
    ///
    /// # Errors
    /// As for [`Self::resolve_plugins`]; a role is left to a default that does not exist.
    pub fn resolve(
        &self,
        config: &SelectionConfig,
    ) -> Result<Option<WorkerSelectionPolicyFactory>, WorkerSelectionPolicyRegistryError> {
        let resolved = self.resolve_roles(config, &PluginFailures::default());
        let custom = WorkerRole::ALL.iter().any(|&role| choice(config, role).is_some());
        if !custom {
            return Ok(self.default_factory.clone());
        }
        let made = resolved.into_iter().collect::<Result<Vec<_>, _>>()?;
        let by_role: Option<Vec<_>> = made.into_iter().collect();
        let by_role = by_role.ok_or(WorkerSelectionPolicyRegistryError::MissingDefault)?;
        Ok(Some(Arc::new(move |config, role, partition| by_role[role as usize](config, role, partition))))
    }

    /// By role: the factory, `None` for a default that the host did not supply, or why there is none. A provider runs
    /// once an instance.
    pub(in crate::selection) fn resolve_roles(
        &self,
        config: &SelectionConfig,
        failures: &PluginFailures,
    ) -> [Resolved; WorkerRole::ALL.len()] {
        let mut made: HashMap<&str, Resolved> = HashMap::new();
        WorkerRole::ALL.map(|role| match choice(config, role) {
            None => Ok(self.default_factory.clone()),
            Some(name) => made.entry(name).or_insert_with(|| self.instance(config, name, failures).map(Some)).clone(),
        })
    }

    /// The factory for hosts of one role; choices of other roles are not looked at.
    ///
    /// # Errors
    /// As for [`Self::resolve_plugins`].
    pub fn resolve_for_worker_type(
        &self,
        config: &SelectionConfig,
        role: WorkerRole,
    ) -> Result<Option<WorkerSelectionPolicyFactory>, WorkerSelectionPolicyRegistryError> {
        match choice(config, role) {
            None => Ok(self.default_factory.clone()),
            Some(name) => self.instance(config, name, &PluginFailures::default()).map(Some),
        }
    }

    /// Makes the factory of an instance and throws it away, whether a role uses it or not.
    ///
    /// # Errors
    /// Its type is not linked, or the provider refuses.
    pub fn check_instance(&self, instance: &WorkerSelectionInstance) -> Result<(), WorkerSelectionPolicyRegistryError> {
        self.make(instance, &PluginFailures::default()).map(drop)
    }

    /// The factory of a configured instance.
    pub(in crate::selection) fn instance(
        &self,
        config: &SelectionConfig,
        name: &str,
        failures: &PluginFailures,
    ) -> Result<WorkerSelectionPolicyFactory, WorkerSelectionPolicyRegistryError> {
        let document = config.worker_selection.as_deref();
        let instance = document.and_then(|document| document.instance(name)).ok_or_else(|| {
            let names = document.map(WorkerSelectionConfig::instance_names).unwrap_or_default();
            WorkerSelectionPolicyRegistryError::UnknownInstance { name: name.to_owned(), available: listed(&names) }
        })?;
        self.make(instance, failures)
    }

    fn make(
        &self,
        instance: &WorkerSelectionInstance,
        failures: &PluginFailures,
    ) -> Result<WorkerSelectionPolicyFactory, WorkerSelectionPolicyRegistryError> {
        let provider = self.providers.get(&instance.policy_type).ok_or_else(|| {
            let types: Vec<&str> = self.policy_types().collect();
            WorkerSelectionPolicyRegistryError::UnknownType {
                name: instance.policy_type.clone(),
                available: listed(&types),
            }
        })?;
        let provided = match catch_unwind(AssertUnwindSafe(|| provider(&instance.parameters))) {
            Ok(provided) => provided.inspect_err(|_| {
                failures.count_error(PluginComponent::Provider);
            }),
            Err(panic) => {
                failures.count_panic(PluginComponent::Provider);
                let text = format!("provider panicked: {}", panic_text(&*panic));
                Err(WorkerSelectionPolicyProviderError::new(text))
            }
        };
        let factory = provided.map_err(|source| WorkerSelectionPolicyRegistryError::Provider {
            policy_type: instance.policy_type.clone(),
            location: instance.location.clone(),
            source,
        })?;
        let name: Arc<str> = format!("{} ({})", instance.name, instance.policy_type).into();
        Ok(Arc::new(move |config, role, partition| {
            let mut policy = factory(config, role, partition);
            policy.name.get_or_insert_with(|| Arc::clone(&name));
            policy
        }))
    }
}

/// The instance chosen for a role; `None` = the default.
pub(super) fn choice(config: &SelectionConfig, role: WorkerRole) -> Option<&str> {
    config.worker_selection_overrides.choice(config.worker_selection.as_deref(), role)
}

fn listed(names: &[impl std::borrow::Borrow<str>]) -> String {
    if names.is_empty() { "<none>".to_owned() } else { names.join(", ") }
}

/// What was resolved; shared by all partitions.
#[derive(Clone, Default)]
pub struct RouterPlugins {
    worker_selection: Option<WorkerSelectionPolicyFactory>,
    custom_worker_selection: bool,
    request_classifier: Option<RequestClassifierFactory>,
}

impl fmt::Debug for RouterPlugins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouterPlugins")
            .field("worker_selection", &self.worker_selection.is_some())
            .field("custom_worker_selection", &self.custom_worker_selection)
            .field("request_classifier", &self.request_classifier.is_some())
            .finish()
    }
}

impl RouterPlugins {
    /// Policies from this factory, which counts as custom.
    #[must_use]
    pub fn with_worker_selection(mut self, factory: WorkerSelectionPolicyFactory) -> Self {
        self.worker_selection = Some(factory);
        self.custom_worker_selection = true;
        self
    }

    /// Request classifiers from this factory.
    #[must_use]
    pub fn with_request_classifier(mut self, factory: RequestClassifierFactory) -> Self {
        self.request_classifier = Some(factory);
        self
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.worker_selection.is_none() && self.request_classifier.is_none()
    }

    /// Whether worker selection was chosen rather than left to the default.
    pub fn has_custom_worker_selection(&self) -> bool {
        self.custom_worker_selection
    }

    /// Whether anything was chosen rather than left to the default.
    pub fn has_custom_plugins(&self) -> bool {
        self.custom_worker_selection || self.request_classifier.is_some()
    }

    /// Makes request classifiers.
    pub fn request_classifier(&self) -> Option<&RequestClassifierFactory> {
        self.request_classifier.as_ref()
    }

    /// Makes policies.
    pub fn worker_selection(&self) -> Option<&WorkerSelectionPolicyFactory> {
        self.worker_selection.as_ref()
    }
}
