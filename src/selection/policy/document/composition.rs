//! What a document, flags and environment come to: one policy a role, and the factory that makes it.
//!
//! Every role can be served by one process, since a partition has the role of its workers. What is chosen for a role
//! that must be served has to resolve; a choice for another role that does not is kept as an error, which is told at once
//! and fails the requests of that role's partitions, should there ever be any.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use super::{DocumentError, ErrorKind, Place, PolicyDocument, RouterSettings, ShadowConfig, ShadowPolicy};
use crate::selection::{
    config::SelectionConfig,
    policy::{
        context::WorkerSelectionContext,
        failures::PluginFailures,
        inputs::{WorkerInputView, WorkerInputs},
        instances::{self, WorkerSelectionConfig},
        plugins::Plugins,
        registry::{RouterPluginRegistry, WorkerSelectionPolicyRegistryError, choice},
        shadow::ShadowSource,
        stages::{
            PolicyComponent, RoutingPartitionRef, WorkerPicker, WorkerSelectionPolicy, WorkerSelectionPolicyError,
            WorkerSelectionPolicyFactory,
        },
    },
    queue::profile::PolicyProfiles,
    worker::WorkerRole,
};

/// The policy of a role.
#[derive(Clone)]
pub struct RolePolicy {
    /// Which role.
    pub role: WorkerRole,
    /// Name of the instance; `None` = the built-in policy.
    pub instance: Option<String>,
    /// Its registered type, where the instance is configured.
    pub policy_type: Option<String>,
    /// Makes its policies; `None` = the core's own default.
    pub factory: Result<Option<WorkerSelectionPolicyFactory>, DocumentError>,
}

impl std::fmt::Debug for RolePolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RolePolicy")
            .field("role", &self.role)
            .field("instance", &self.instance)
            .field("policy_type", &self.policy_type)
            .field("error", &self.factory.as_ref().err())
            .finish_non_exhaustive()
    }
}

/// Policies of all roles.
#[derive(Clone, Debug)]
pub struct PolicyComposition {
    /// In the order of [`WorkerRole::ALL`].
    pub roles: Vec<RolePolicy>,
    /// Classes of the queue.
    pub profiles: PolicyProfiles,
    /// Policies scored beside them.
    pub shadow: ShadowConfig,
    /// What it was resolved to, by role.
    pub shadows: [Option<ShadowSource>; WorkerRole::ALL.len()],
}

impl PolicyComposition {
    /// Resolves what `config` and `document` choose. Roles in `served` have to resolve; providers that fail are counted in
    /// `failures`.
    ///
    /// # Errors
    /// An instance of a served role, or a classifier, that cannot be made, with its place in the document.
    pub fn resolve(
        registry: &RouterPluginRegistry,
        config: &SelectionConfig,
        document: Option<&PolicyDocument>,
        served: &[WorkerRole],
        failures: &PluginFailures,
    ) -> Result<Self, DocumentError> {
        let section = config.worker_selection.as_deref();
        let mut roles = Vec::with_capacity(WorkerRole::ALL.len());
        for (role, resolved) in WorkerRole::ALL.into_iter().zip(registry.resolve_roles(config, failures)) {
            let instance = choice(config, role).map(str::to_owned);
            let factory = resolved.map_err(|error| placed(error, instance.as_deref(), document));
            if let (Err(error), true) = (&factory, served.contains(&role)) {
                return Err(error.clone());
            }
            let configured = instance.as_deref().and_then(|name| section?.instance(name));
            let policy_type = configured.map(|instance| instance.policy_type().to_owned());
            roles.push(RolePolicy { role, instance, policy_type, factory });
        }
        if let Some(document) = document
            && let Err(error) = registry.resolve_request_classifier(config)
        {
            let (kind, place) = (ErrorKind::Resolution, document.place("request_classifier"));
            return Err(DocumentError { kind, place, reason: error.to_string() });
        }
        let shadow = document.map(|document| document.shadow.clone()).unwrap_or_default();
        let mut shadows = [const { None }; WorkerRole::ALL.len()];
        for role in WorkerRole::ALL {
            let Some(ShadowPolicy { instance, share }) = shadow.of(role).cloned() else { continue };
            let factory = if &*instance == instances::DEFAULT {
                built_in()
            } else {
                let made = registry.instance(config, &instance, failures);
                made.map_err(|error| placed(error, Some(&instance), document))?
            };
            shadows[role as usize] = Some(ShadowSource { instance, share, factory });
        }
        Ok(Self { roles, profiles: config.profiles.clone(), shadow, shadows })
    }

    /// One factory of the host's for every role.
    pub fn fixed(factory: &WorkerSelectionPolicyFactory, config: &SelectionConfig) -> Self {
        let role = |role| RolePolicy {
            role,
            instance: Some("host".to_owned()),
            policy_type: None,
            factory: Ok(Some(Arc::clone(factory))),
        };
        let roles = WorkerRole::ALL.map(role).to_vec();
        Self {
            roles,
            profiles: config.profiles.clone(),
            shadow: ShadowConfig::default(),
            shadows: [const { None }; WorkerRole::ALL.len()],
        }
    }

    /// The policy of a role.
    pub fn of(&self, role: WorkerRole) -> &RolePolicy {
        &self.roles[role as usize]
    }

    /// Roles whose choice does not resolve, with the reason.
    pub fn unresolved(&self) -> impl Iterator<Item = (&RolePolicy, &DocumentError)> {
        self.roles.iter().filter_map(|role| Some((role, role.factory.as_ref().err()?)))
    }

    /// Whether `promise`, which shows the index to others, can be kept: there is one only where the policy of a served role
    /// or its shadow reads [`WorkerInputs::CACHE`].
    ///
    /// # Errors
    /// It cannot, with the place of `router.PROMISE`; or a policy cannot be made.
    pub fn check_index_promise(
        &self,
        promise: &str,
        config: &SelectionConfig,
        document: Option<&PolicyDocument>,
        served: &[WorkerRole],
    ) -> Result<(), DocumentError> {
        for &role in served {
            let policy = self.of(role);
            let shadow = self.shadows[role as usize].as_ref();
            let shadow =
                shadow.map(|shadow| role_inputs(&shadow.factory, &shadow.instance, role, config)).transpose()?;
            if policy.inputs(config)?.0.contains(WorkerInputs::CACHE)
                || shadow.is_some_and(|(inputs, _)| inputs.contains(WorkerInputs::CACHE))
            {
                continue;
            }
            let instance = policy.instance.as_deref().unwrap_or(instances::DEFAULT);
            return Err(DocumentError {
                kind: ErrorKind::Invalid,
                place: document
                    .filter(|_| RouterSettings::NAMES.contains(&promise))
                    .map(|document| document.place(&format!("router.{promise}")))
                    .unwrap_or_default(),
                reason: format!(
                    "{promise} requires a worker-selection policy that reads CACHE; {instance:?} of role {role} does not, \
                     so no index is kept"
                ),
            });
        }
        Ok(())
    }

    /// All of it, for a core.
    pub fn plugins(&self) -> Plugins<'static> {
        Plugins::Composed { factory: self.factory(), shadows: self.shadows.clone() }
    }

    /// One factory for all roles.
    pub fn factory(&self) -> WorkerSelectionPolicyFactory {
        let by_role: Vec<WorkerSelectionPolicyFactory> = self
            .roles
            .iter()
            .map(|role| match &role.factory {
                Ok(Some(factory)) => Arc::clone(factory),
                Ok(None) => built_in(),
                Err(error) => unresolved_factory(&error.to_string()),
            })
            .collect();
        Arc::new(move |config, role, partition| by_role[role as usize](config, role, partition))
    }
}

impl RolePolicy {
    /// What its policies read, as a whole and by component, asked of one made for the purpose. The default cost has no
    /// components.
    ///
    /// # Errors
    /// It does not resolve, or its factory panics.
    pub fn inputs(&self, config: &SelectionConfig) -> Result<(WorkerInputs, Vec<PolicyComponent>), DocumentError> {
        let factory = self.factory.as_ref().map_err(Clone::clone)?;
        let factory = factory.clone().unwrap_or_else(built_in);
        role_inputs(&factory, self.instance.as_deref().unwrap_or(instances::DEFAULT), self.role, config)
    }
}

fn role_inputs(
    factory: &WorkerSelectionPolicyFactory,
    instance: &str,
    role: WorkerRole,
    config: &SelectionConfig,
) -> Result<(WorkerInputs, Vec<PolicyComponent>), DocumentError> {
    let partition = RoutingPartitionRef::new("default", "default");
    let policy = catch_unwind(AssertUnwindSafe(|| factory(config, role, partition)));
    let asked = policy.map(|policy| (policy.required_worker_inputs(), policy.components()));
    asked.map_err(|_| DocumentError {
        kind: ErrorKind::Resolution,
        place: Place::default(),
        reason: format!("the factory of worker-selection policy {instance:?} panicked"),
    })
}

/// Gives an error its place.
fn placed(
    error: WorkerSelectionPolicyRegistryError,
    instance: Option<&str>,
    document: Option<&PolicyDocument>,
) -> DocumentError {
    let reason = match &error {
        // The location it would show is a part of the place.
        WorkerSelectionPolicyRegistryError::Provider { policy_type, source, .. } => {
            format!("invalid parameters for worker-selection policy type {policy_type:?}: {source}")
        }
        _ => error.to_string(),
    };
    match (instance, document) {
        (Some(instance), Some(document)) => document.refuse_instance(instance, reason),
        _ => DocumentError { kind: ErrorKind::Resolution, place: Place::default(), reason },
    }
}

/// The built-in policy, with the settings of the core.
fn built_in() -> WorkerSelectionPolicyFactory {
    Arc::new(|_config, role, _partition| WorkerSelectionPolicy::default_cost(None, role.default_selector_label()))
}

/// Policies that refuse every request.
fn unresolved_factory(reason: &str) -> WorkerSelectionPolicyFactory {
    let reason: Arc<str> = reason.into();
    Arc::new(move |config, role, _partition| {
        let picker = Box::new(Unresolved(Arc::clone(&reason)));
        WorkerSelectionPolicy::new(config.clone(), role.as_str(), Vec::new(), picker)
    })
}

struct Unresolved(Arc<str>);

impl WorkerPicker for Unresolved {
    fn pick(
        &mut self,
        _context: &WorkerSelectionContext<'_>,
        _input: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError> {
        Err(WorkerSelectionPolicyError::failed(&*self.0))
    }
}

/// What a document says beside the choices of flags and environment.
pub fn apply(document: &PolicyDocument, config: &mut SelectionConfig) {
    config.profiles = document.profiles.clone();
    config.worker_selection = document.worker_selection.clone().map(Arc::<WorkerSelectionConfig>::new);
    config.request_classifier = document.request_classifier.clone().map(Arc::new);
}
